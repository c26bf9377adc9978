"""A `Run` reads a run directory: its tables as DataFrames, its summary as a dict."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from simsplit.client_names import NO_NAMES, ClientNames, read_names
from simsplit.errors import RunError, format_count, format_list, suggest
from simsplit.results.directory import (
    AFTERWARDS,
    CONTRIBUTIONS,
    DATA,
    ENVIRONMENT,
    SCENARIO,
    SUMMARY,
    TUNED,
)
from simsplit.results.leak_table import INPUTS, TABLE, TEXT, average, keep_kinds, widen
from simsplit.results.notebook_view import write_html
from simsplit.results.read_tables import load_saved_scenario, read_table
from simsplit.results.shapes import (
    DataShape,
    EnvironmentShape,
    SummaryShape,
    TunedShape,
    read_shaped,
)

if TYPE_CHECKING:
    import pandas as pd


def suggest_run(path: Path, file: str = SCENARIO) -> str:
    """Return `, did you mean '...'?` with the run whose folder's name is nearest, or nothing.

    A sweep's folder is found by another file.
    """
    runs = [each.parent.name for each in path.parent.glob(f"*/{file}")]
    return suggest(path.name, runs)


class Run:
    """A run directory's content: tables as DataFrames, the summary as a dict.

    >>> Run.load("runs/first").rounds.plot(x="round", y="test_accuracy")  # doctest: +SKIP
    """

    def __init__(self, path: Path, plugins: Any = ()) -> None:  # noqa: ANN401 - as `run` takes them
        self.path, self.plugins = path, plugins

    def __repr__(self) -> str:
        try:
            facts = self.summary
            rounds = format_count(facts["rounds"], "round")
            how = f"{facts['status']}, {facts['rounds_done']} of {rounds}"
        except (RunError, KeyError):
            how = "without a summary"
        return f"<Run {self.path}: {how}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the run."""
        try:
            facts = self.summary
        except RunError as error:
            facts = {"reason": str(error)}
        return write_html(self.path, facts)

    @classmethod
    def load(cls, path: str | Path, plugins: Any = ()) -> Self:  # noqa: ANN401
        """Open a run directory; raise RunError if the path is none.

        `plugins` are those that the run was made with; only `scenario` needs them.
        """
        path = Path(path)
        if not (path / SCENARIO).is_file():
            if not path.exists():
                raise RunError(f"{path}: no such folder{suggest_run(path)}")
            runs = sorted(str(file.parent) for file in path.glob(f"*/{SCENARIO}"))
            held = f"; it holds runs: {format_list(runs)}" if runs else ""
            raise RunError(f"{path} is no run directory (no {SCENARIO} in it){held}")
        return cls(path, plugins)

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per round: losses, figures of each evaluated split, bytes."""
        return self._table("rounds")

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """One row per client and round."""
        return self._name(self._table("clients"))

    @cached_property
    def client_names(self) -> ClientNames:
        """The clients' names, where they have any: `run.client_names.get(3)`."""
        return read_names(self.data) if (self.path / DATA).exists() else NO_NAMES

    @cached_property
    def wire(self) -> "pd.DataFrame":
        """One row per round, client, phase and leg: packets and bytes."""
        return self._table("wire")

    @cached_property
    def expelled(self) -> "pd.DataFrame":
        """One row per client that a deployed run continued without: since when, and why."""
        return self._table_if_there("expelled")

    @cached_property
    def socket(self) -> "pd.DataFrame":
        """One row per round, client, call and leg of a deployed run: the frames that crossed."""
        return self._table_if_there("socket")

    @cached_property
    def holdings(self) -> "pd.DataFrame":
        """One row per client and class: how many samples the client has."""
        return self._name(self._table("holdings"))

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The resolved scenario as plain values, which another version may have written."""
        return load_saved_scenario(self.path)

    @cached_property
    def detections(self) -> "pd.DataFrame":
        """One row per round and detector: how many it flagged, and how well; may be empty."""
        return self._table_if_there("detections")

    @cached_property
    def leaks(self) -> "pd.DataFrame":
        """One row per figure of what attacks recovered: which attack, when, of what; may be empty.

        It has the rows of the run's own attacks, and those of attacks on the finished run.
        """
        import pandas as pd

        _refuse_old_tables(self.path)
        name = f"{TABLE}.csv"
        files = [*self.path.glob(name), *sorted(self.path.glob(f"{AFTERWARDS}/{name}"))]
        tables = [table for file in files if len(table := read_table(file))]
        if not tables:
            return pd.DataFrame()
        together = pd.concat(tables)
        together = together.assign(**{n: together[n].astype(object).fillna("") for n in TEXT})
        # Each file repeats the guesses that need no attack, for the same targets.
        figures = ("value", "low", "high")
        place = [column for column in together if column not in figures]
        unique = together.drop_duplicates(place, ignore_index=True)
        return unique.astype({"target": "Int64", "label": "Int64", "adapter": "Int64"})

    @cached_property
    def recovered(self) -> "pd.DataFrame":
        """One row per judged round, attack and target, a column per metric; may be empty."""
        return widen(keep_kinds(self.leaks, *INPUTS))

    @cached_property
    def labels(self) -> "pd.DataFrame":
        """The rows of `leaks` of attacks on labels, by view and adapter; may be empty."""
        return keep_kinds(self.leaks, "labels")

    @cached_property
    def sessions(self) -> "pd.DataFrame":
        """One row per judged round, attack, session and view, a column per metric; may be empty.

        Views are prompt, response and both. Further rows are the floors, and what was written.
        """
        return widen(keep_kinds(self.leaks, "sessions"))

    def find_kind(self, attack: str) -> str:
        """Return the kind of things that an attack on the finished run recovered."""
        file = self.path / Path(AFTERWARDS).with_name(attack) / f"{TABLE}.csv"
        if not file.exists():
            raise RunError(f"{file.parent} holds no attack")
        table = read_table(file)
        return str(table.loc[table["attack"] == attack, "kind"].iloc[0])

    @cached_property
    def attacks(self) -> "pd.DataFrame":
        """One row per judged round and attack: the means over targets; may be empty."""
        return average(self.recovered)

    @cached_property
    def contributions(self) -> "pd.DataFrame":
        """One row per client and way of measuring who helps (`by`); may be empty.

        `by` is leave-out or shapley; `value` is what the client changes of the final score, with
        its interval from `low` to `high`. `simsplit.value_clients` measures them.
        """
        import pandas as pd

        files = sorted((self.path / CONTRIBUTIONS).glob("*.csv"))
        tables = [read_table(file).assign(by=file.stem) for file in files]
        # Those of a run that was made longer since then say nothing of it.
        done = self.summary["rounds_done"]
        now = [table for table in tables if (table["to_round"] == done).all()]
        return self._name(pd.concat(now, ignore_index=True)) if now else pd.DataFrame()

    @cached_property
    def timing(self) -> "pd.DataFrame":
        """One row per round: wall-clock seconds."""
        return self._table("timing")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run's summary; its `status` is `finished` if the run reached its end."""
        return read_shaped(self.path / SUMMARY, SummaryShape)

    @cached_property
    def data(self) -> dict[str, Any]:
        """Facts about the data: samples per split, names of classes, means and deviations."""
        return read_shaped(self.path / DATA, DataShape)

    @cached_property
    def tuned(self) -> dict[str, Any]:
        """The values that the attacker chose by `tune`, and those that it tried; may be empty."""
        file = self.path / TUNED
        return read_shaped(file, TunedShape) if file.exists() else {}

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The machine, versions and commands of the run."""
        return read_shaped(self.path / ENVIRONMENT, EnvironmentShape)

    def _table_if_there(self, name: str) -> "pd.DataFrame":
        """Read a table that not every run has; empty for a run that has none."""
        import pandas as pd

        return self._table(name) if (self.path / f"{name}.csv").exists() else pd.DataFrame()

    def _name(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """Fill the column of names: pandas would read a client called NA as nothing."""
        if "name" in table:
            table["name"] = [self.client_names.get(int(client)) for client in table["client"]]
        return table

    def _table(self, name: str) -> "pd.DataFrame":
        return read_table(self.path / f"{name}.csv")


def _refuse_old_tables(path: Path) -> None:
    """Raise RunError for a run whose attacks have a table for each kind of things."""
    old = [f"{name}.csv" for name in ("recovered", "labels", "sessions")]
    if held := [name for name in old if (path / name).exists()]:
        raise RunError(
            f"{path} has {format_list(held)} in place of {TABLE}.csv: it was made before all "
            "leaks had one table; make the run again"
        )
