"""Attacks recover several kinds of data (see `results.recovers`), and each is shown in its own way.

Commands, tables over runs, figures and the report page iterate over these and name no kind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    WAYS,
    compare_recoveries,
    describe_recoveries,
    measure_recoveries,
    show_attack_on_inputs,
    show_recoveries,
)
from simsplit.report.label_figures import labels_seen
from simsplit.report.label_section import conclude_labels, show_labels
from simsplit.report.label_tables import (
    compare_labels,
    describe_labels,
    make_label_frame,
    measure_labels,
    tabulate_labels,
)
from simsplit.report.session_tables import (
    compare_sessions,
    compare_weighted_defences,
    describe_sessions,
    measure_sessions,
    show_session_results,
    show_sessions,
)
from simsplit.report.tables import Better, Table
from simsplit.report.worst_leaks import make_leak_cells
from simsplit.results import Run
from simsplit.results.session_results import SIDES, average_over_sessions

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
    """Make tables that compare runs, for `compare`; `--table` names them like the table in run
    directories."""
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
    measure: Callable[[Run], Mapping[str, float]] = lambda run: {}
    """Return a run's figures by their names in `simsplit.compare` and `--plot`."""
    ways: Mapping[str, Better] = field(default_factory=dict)
    """The better way of figures, by the end of their names."""
    words: Mapping[str, str] = field(default_factory=dict)
    """The words for figures on an axis, by their names."""
    words_of_ends: Mapping[str, str] = field(default_factory=dict)
    """The same by the end of their names, which follows an attack's name."""
    success: Sequence[tuple[str, Better]] = ()
    """The figures that say how much an attack reads, `{attack}` for its name, each with the way in
    which it reads more; a run is judged by the first that it has."""
    chances: Mapping[str, str] = field(default_factory=dict)
    """The end of the name of chance's share, by the end of the name of an attack's share."""


PRESENTATIONS: dict[str, Presentation] = {
    "inputs": Presentation(
        show=show_recoveries,
        compare=compare_recoveries,
        frame=lambda run: run.attacks,
        keys=("attack",),
        describe=describe_recoveries,
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
        measure=measure_recoveries,
        ways=WAYS,
        success=(
            ("{attack}_rouge_l", "more"),
            ("{attack}_ssim", "more"),
            ("{attack}_mse", "less"),
        ),
    ),
    "labels": Presentation(
        show=lambda run: [tabulate_labels(run)],
        compare=compare_labels,
        frame=make_label_frame,
        keys=("attack", "figure"),
        describe=describe_labels,
        section=show_labels,
        conclude=conclude_labels,
        drawings={"labels": Drawing(labels_seen)},
        measure=measure_labels,
        ways={"leak": "less"},
        success=(("labels_{attack}_leak", "more"),),
        words={
            "labels_leak": "labels inferred by the worst attack",
            "labels_known_leak": "labels inferred, a part being known",
        },
        chances={"leak": "chance"},
    ),
    "sessions": Presentation(
        show=show_sessions,
        compare=compare_sessions,
        frame=lambda run: average_over_sessions(run.sessions),
        keys=("attack", "side"),
        describe=describe_sessions,
        section=show_session_results,
        compare_on_request={"dcs": compare_weighted_defences},
        measure=measure_sessions,
        ways={**dict.fromkeys(("ap", *(f"ap_{side}" for side in SIDES)), "less"), "mp": "more"},
        success=tuple((f"{{attack}}_ap_{side}", "more") for side in reversed(SIDES)),
        words={
            "sessions_ap": "AP of both ends by the strongest attack",
            "sessions_mp": "METEOR of what is written (MP)",
        },
        words_of_ends={
            "ap_prompt": "AP of prompts",
            "ap_response": "AP of responses",
            "ap_both": "AP of both ends",
        },
    ),
}
