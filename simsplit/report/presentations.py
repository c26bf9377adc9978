"""Attacks recover several kinds of data, and some are shown in ways of their own.

Commands, tables over runs, figures and the report page iterate over these and name no kind. A kind
that has no entry here has the tables that every kind has (`report.leak_tables`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.report.grouping import Baseline, Entry
from simsplit.report.html.markup import Markup
from simsplit.report.html.subject import Subject
from simsplit.report.input_figures import (
    draw_attack,
    draw_attack_curves,
    draw_recovered,
    save_attacked,
)
from simsplit.report.input_section import conclude_leaks, show_leaks
from simsplit.report.input_tables import (
    compare_recoveries,
    make_leak_cells,
    show_attack_on_inputs,
    show_recoveries,
    tabulate_dialogues,
)
from simsplit.report.label_figures import labels_seen
from simsplit.report.leak_numbers import describe_means
from simsplit.report.leak_section import conclude_worst, show_leak_section
from simsplit.report.leak_tables import (
    compare_leaks,
    compare_weighted,
    describe_worst,
    make_worst_frame,
    tabulate_leaks,
)
from simsplit.report.member_rates import draw_members, draw_rates
from simsplit.report.panel_charts import draw_seen
from simsplit.report.tables import Table
from simsplit.results import Run
from simsplit.results.leak_table import INPUTS
from simsplit.results.mean_leaks import average_last
from simsplit.results.recovered_kinds import KINDS, Kind

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Compare = Callable[[Sequence[Entry], Baseline], Sequence[Table]]


@dataclass(frozen=True)
class Drawing:
    """A picture of a run, in its `figures/`."""

    draw: "Callable[[Run], Figure | None]"
    fitted: bool = False
    """Whether its margins are fitted to their content."""


@dataclass(frozen=True)
class Presentation:
    """The functions that show one kind; a default shows nothing."""

    show: Callable[[Run], Sequence[Table]]
    """Make a run's tables, for `show`, which leaves out tables without rows."""
    compare: Compare
    """Make tables that compare runs, for `compare`; `--table` names them by the kind."""
    frame: "Callable[[Run], pd.DataFrame]"
    """Return a run's numbers, with a column `round`, for `compare --format csv`."""
    keys: Sequence[str]
    """The columns of these numbers that distinguish rows."""
    describe: Callable[[Run], object]
    """Return a run's figures as plain values, for `attack --json`."""
    section: Callable[[Subject], Markup] = lambda subject: Markup()
    """Write the section of the report page."""
    compared_beside: bool = False
    """Whether the page's section on comparison has this kind's `compare` tables."""
    conclude: Callable[[Subject], str] = lambda subject: ""
    """Write a clause of the page's first sentence."""
    show_attack: Callable[[Run], Sequence[Table]] | None = None
    """Make the tables of a run that was just attacked, if they differ from those of `show`."""
    draw_attack: "Callable[[Run, str], Figure] | None" = None
    """Draw the recoveries of one attack, given by its name, on a finished run."""
    drawings: Mapping[str, Drawing] = field(default_factory=dict)
    """A run's pictures, by the names of their files."""
    save_pictures: Callable[[Mapping[str, Run], Path], Path | None] = lambda runs, sweep: None
    """Save pictures of a sweep's cells; return the first file, or None."""
    compare_on_request: Mapping[str, Compare] = field(default_factory=dict)
    """Functions that make further tables to compare runs, which only `--table` shows."""
    overview: Callable[[Sequence[Run]], Mapping[str, str]] = lambda runs: {}
    """Make the cells of a row in the overview, for runs that differ only in their seed."""


_INPUTS = Presentation(
    show=show_recoveries,
    compare=compare_recoveries,
    frame=lambda run: run.attacks,
    keys=("attack",),
    describe=lambda run: {n: v for k in INPUTS for n, v in describe_means(run, k).items()},
    section=show_leaks,
    compared_beside=True,
    conclude=conclude_leaks,
    show_attack=show_attack_on_inputs,
    draw_attack=draw_attack,
    drawings={
        "recovered": Drawing(draw_recovered, fitted=True),
        "attack_curves": Drawing(draw_attack_curves),
    },
    save_pictures=save_attacked,
    overview=make_leak_cells,
)


_DRAWN: dict[str, Callable[[Subject], Markup]] = {"labels": draw_seen, "members": draw_members}
"""What some kinds draw at the end of their section of the report page."""
_FURTHER: dict[str, Callable[[Run], Table]] = {"sessions": tabulate_dialogues}
"""Tables of a run that some kinds alone have."""
_DRAWINGS = {"labels": Drawing(labels_seen), "members": Drawing(draw_rates, fitted=True)}
"""Pictures of a run that some kinds have, in files of their names."""


def list_presentations() -> Iterator[tuple[str, Presentation]]:
    """Yield each kind's name with how it is shown; kinds of inputs are shown together."""
    yield "inputs", _INPUTS
    for name, kind in KINDS.items():
        if kind.recovers != "inputs":
            yield name, _present(name, kind)


def find_presentation(kind: str) -> Presentation:
    """Return how a kind is shown."""
    recovers = KINDS[kind].recovers
    return dict(list_presentations())["inputs" if recovers == "inputs" else kind]


def _present(name: str, kind: Kind) -> Presentation:
    """Return the tables that every kind has, with what this one alone has."""
    weighted = {kind.defence.name.lower(): partial(compare_weighted, name)} if kind.defence else {}
    further = [make for each, make in _FURTHER.items() if each == name]

    def frame(run: Run) -> "pd.DataFrame":
        return make_worst_frame(run, name) if kind.worst else average_last(run.leaks, name)

    return Presentation(
        show=lambda run: [tabulate_leaks(run, name), *(make(run) for make in further)],
        compare=partial(compare_leaks, name),
        frame=frame,
        keys=("attack", "metric") if kind.worst else ("attack", "view"),
        describe=partial(describe_worst if kind.worst else describe_means, kind=name),
        section=partial(show_leak_section, name, draw=_DRAWN.get(name), further=further),
        conclude=partial(conclude_worst, name) if kind.worst else lambda subject: "",
        drawings={each: drawing for each, drawing in _DRAWINGS.items() if each == name},
        compare_on_request=weighted,
    )
