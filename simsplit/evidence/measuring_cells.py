"""The cells that measure a table at a tier, and the rows of the table that they stand for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from simsplit.errors import ScenarioError
from simsplit.evidence.cell_uses import CellUses, find_uses
from simsplit.evidence.claims import Axes, Claim, Figure, Measured, Tier
from simsplit.evidence.code_definitions import digest_texts
from simsplit.evidence.digests import digest_figure, digest_of, dump_fields
from simsplit.evidence.measurements import write_setting
from simsplit.evidence.row_code import write_code
from simsplit.report.short_names import value_of
from simsplit.scenario import Cell, Scenario, Sweep, has_sweep, load_scenario, load_sweep

SEEDS = (0, 1, 2)
"""The seeds that are measured where a sweep names none."""


@dataclass(frozen=True)
class MeasuringCell:
    """A scenario with one seed, as it measures one row of a table."""

    base: Scenario
    """The scenario, with any seed."""
    seed: int
    """The seed of its draws."""
    axes: Axes
    """The axes of the printed row."""
    takes_min: float
    """Minutes, as the claim has it."""
    digest: str
    """The digest of the scenario."""
    digests: Mapping[str, str]
    """Figure that its run has -> the digest of its row."""
    uses: CellUses = field(default_factory=CellUses)
    """The code and the folders that it uses."""
    planned: int = len(SEEDS)
    """The number of seeds that its scenario plans."""
    options: tuple[str, ...] = ()
    """Words of its command beside those of its table's: what a user adds to a board."""

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario with its seed."""
        base = self.base
        return base if base.seed == self.seed else base.model_copy(update={"seed": self.seed})

    @cached_property
    def setting(self) -> str:
        """Its axes as rows of measurements have them."""
        return write_setting(self.axes)

    @property
    def key(self) -> tuple[str, int]:
        """Its row and seed; scenarios with different figures may share it."""
        return self.setting, self.seed

    @cached_property
    def folder(self) -> str:
        """The name of its run's folder; other data, or another model, get another one."""
        files = self.uses.files
        return f"{self.name},{digest_texts([write_code(files)], 4)}" if files else self.name

    @property
    def name(self) -> str:
        """A name of its own; another scenario gets another one, and so does other code."""
        words = [f"{name}={value}" for name, value in self.axes.items()]
        digests = [self.digest[:8], digest_texts([write_code(self.uses.code)], 4)]
        return ",".join([*words, f"seed={self.seed}", *digests]).replace("/", "-")


def list_cells(
    claim: Claim, tier: Tier, folder: Path, seeds: Sequence[int] | None = None
) -> list[MeasuringCell]:
    """List the cells that measure a table at a tier, but for those of no printed row.

    `folder` is the claims' own. By default the seeds are the sweep's, or SEEDS.
    """
    made: dict[tuple[str, int, frozenset[str]], MeasuringCell] = {}
    for entry in claim.measured.get(tier, ()):
        own: dict[tuple[str, int], MeasuringCell] = {}
        for cell in _list_of_entry(claim, entry, folder, seeds):
            if cell.key in own:
                raise ScenarioError(
                    f"measured.{tier}",
                    f"{entry.scenario}: several cells measure the row {cell.setting}; "
                    "the printed table lacks an axis, or words gives two values one name",
                )
            own[cell.key] = cell
            # another scenario may measure other figures of the same row
            made.setdefault((*cell.key, frozenset(cell.digests)), cell)
    return list(made.values())


def _list_of_entry(
    claim: Claim, entry: Measured, folder: Path, seeds: Sequence[int] | None
) -> Iterator[MeasuringCell]:
    file = folder / entry.scenario
    sweep, described = _load(file, file.stat().st_mtime_ns)
    known: dict[tuple[str | None, ...], dict[int, list[Scenario]]] = {}
    # a table's hundreds of rows meet as many cells
    rows: dict[tuple[str | None, ...], Axes] = {tuple(row.values()): row for row, _ in claim.rows}
    for cell in sweep.cells:
        axes = _find_axes(cell, sweep.fields, entry)
        key = tuple(axes.get(name) for name in claim.axes)
        if key in rows:
            # several cells of one row and seed stay apart, so that the caller can refuse them
            of_row = known.setdefault(key, {})
            of_row.setdefault(cell.scenario.seed, []).append(cell.scenario)
    swept = any("seed" in cell.settings for cell in sweep.cells)
    known_figures = claim.measured_figures
    figures = entry.figures or known_figures
    for key, of_row in known.items():
        printed, first = rows[key], next(iter(of_row.values()))
        made: dict[int, tuple[str, CellUses, Mapping[str, str]]] = {}
        usual = tuple(of_row) if swept else SEEDS
        for seed in seeds or usual:
            for scenario in of_row.get(seed, first):
                # a scenario stands for several seeds where none is swept, and no digest has a seed
                if id(scenario) not in made:
                    if id(scenario) not in described:
                        described[id(scenario)] = _describe(scenario)
                    digest, uses = described[id(scenario)]
                    digests = _digest_figures(digest, figures, known_figures)
                    made[id(scenario)] = digest, uses, digests
                digest, uses, digests = made[id(scenario)]
                yield MeasuringCell(
                    scenario,
                    seed,
                    printed,
                    entry.takes_min,
                    digest,
                    digests,
                    uses,
                    planned=max(len(usual), len(SEEDS)),
                )


def describe_scenario(
    scenario: Scenario, figures: Iterable[str], known: Mapping[str, Figure]
) -> tuple[str, Mapping[str, str], CellUses]:
    """Return a scenario's digest, that of each of these figures of its run, and what it uses."""
    digest, uses = _describe(scenario)
    return digest, _digest_figures(digest, figures, known), uses


def _describe(scenario: Scenario) -> tuple[str, CellUses]:
    fields = dump_fields(scenario)
    return digest_of(scenario, fields), find_uses(fields)


def _digest_figures(
    digest: str, figures: Iterable[str], known: Mapping[str, Figure]
) -> Mapping[str, str]:
    return {name: digest_figure(digest, known[name].recipe) for name in figures}


@lru_cache(maxsize=256)  # several tables share a file
def _load(file: Path, _modified_ns: int) -> tuple[Sweep, dict[int, tuple[str, CellUses]]]:
    """Load a scenario file; one without a sweep is a sweep of one cell.

    Beside it is kept what is known of a scenario by its `id`: it takes a millisecond, and the sweep
    keeps them.
    """
    if has_sweep(file):
        return load_sweep(file), {}
    scenario = load_scenario(file)
    return Sweep(scenario.name, (Cell("", {}, scenario),)), {}


def _find_axes(cell: Cell, short: Mapping[str, str], entry: Measured) -> dict[str, str]:
    """Return the axes of a cell: its swept fields by short names, but for the seed."""
    own = {entry.rename.get("cell", "cell"): cell.label} if cell.label else {}
    for name, value in cell.settings.items():
        if name != "seed":
            # a word without spaces, which statements can name
            word = value_of(value).replace(" + ", "+").replace(" ", "-")
            word = "raw" if name == "method" and not value else word
            own[entry.rename.get(short[name], short[name])] = word
    axes = {**entry.with_, **own}
    return {name: entry.words.get(name, {}).get(value, value) for name, value in axes.items()}
