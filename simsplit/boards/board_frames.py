"""Boards as DataFrames: `simsplit.board`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsplit.boards.entries import build_board
from simsplit.boards.guests import Guest
from simsplit.boards.scoring import score_strengths
from simsplit.boards.tabulating import describe_strength
from simsplit.errors import RunFailedError, SimsplitError
from simsplit.evidence.claims import Tier
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.placing import names_gpu, place_cells, place_data
from simsplit.evidence.reproducing import measure_cells
from simsplit.evidence.selecting import ChosenCell, Selection, select
from simsplit.plugins import Given, gather_plugins
from simsplit.sweep import Cluster

if TYPE_CHECKING:
    import pandas as pd


def board(
    track: str,
    tier: Tier = "quick",
    *,
    methods: Sequence[str | Mapping[str, Any]] = (),
    attacks: Sequence[str | Mapping[str, Any]] = (),
    plugins: Given = (),
    seeds: Sequence[int] | None = None,
    measure: bool = False,
    only: Mapping[str, str] | None = None,
    data: str | Path | None = None,
    jobs: int | None = 1,
    device: str | None = None,
    cluster: Cluster | None = None,
    say: Callable[[str], None] = print,
) -> "pd.DataFrame":
    """Return a board as it is measured: a row for each strength of each defence.

    Args:
        track: A track, such as images.
        tier: quick, small or full.
        methods: Defences of yours that stand among the others: kinds, or mappings with options.
        attacks: Attacks of yours, likewise.
        plugins: Files or modules that have them.
        seeds: The seeds to show and measure; by default the tier's own.
        measure: Whether to measure what is missing first, in ./runs, and keep it in ./results.
        only: The axes of the only rows to measure, such as `{"defence": "mine"}`.
        data: The folder of the data sets; by default ./data.
        jobs: How many cells run at a time; None for as many as there are processors, or as a
            cluster has room for.
        device: The device on which cells compute, such as cuda; by default their scenarios' own.
        cluster: The Ray cluster on whose nodes cells run; None for this machine.
        say: A function that is called with a line as each cell ends.

    >>> board("images").sort_values("leak")[["strength", "leak", "loss"]]  # doctest: +SKIP
    """
    import pandas as pd

    own = _expand("methods", methods)
    guest = Guest(own, _expand("attacks", attacks), gather_plugins(plugins))
    if any(origin.digest is None for origin in guest.plugins.origins):
        raise SimsplitError(
            "plugins: a board keeps rows by the content of a plugin's file; put the class into a "
            "file, and name that"
        )
    built = build_board(track, tier, guest, seeds=seeds)
    if measure:
        folder = Path(data) if data is not None else None
        lacking = select([built.table], only, on_gpu=names_gpu(device, cluster))
        selection = place_cells(place_data(lacking, folder), device)
        outcome = measure_cells(selection, _Lines(say), jobs=jobs, cluster=cluster)
        if reasons := [*selection.absent.values(), *outcome.failed.values()]:
            raise RunFailedError("\n".join(reasons[:8]))
        built = build_board(track, tier, guest, seeds=seeds)
    return pd.DataFrame([describe_strength(each) for each in score_strengths(built)])


class _Lines:
    """A watch that says a line as each cell ends."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.done, self.count = say, 0, 0

    def begin(self, selection: Selection, jobs: int | None) -> None:
        del jobs
        self.count = len(selection.cells)

    def starts(self, chosen: ChosenCell) -> None:
        del chosen

    def ends(self, chosen: ChosenCell, rows: Sequence[Measurement], reason: str) -> None:
        self.done += 1
        what = reason or f"{len(rows)} figures"
        self.say(f"[{self.done}/{self.count}] {chosen.cell.setting}, {chosen.cell.seed}: {what}")

    def warn(self, message: str) -> None:
        self.say(message)


def _expand(option: str, parts: Sequence[str | Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if isinstance(parts, str | Mapping):  # whose letters or fields would be taken for kinds
        raise SimsplitError(f"{option}: takes a list, such as [{parts!r}], got {parts!r}")
    return [{"kind": part} if isinstance(part, str) else part for part in parts]
