"""Boards of planted rows, for tests of what is made from them."""

from collections.abc import Mapping, Sequence
from typing import Any

from simsplit.boards.entries import Board
from simsplit.boards.figure_names import BYTES, FLOOR, LEAKS, UTILITY
from simsplit.boards.track import Track
from simsplit.evidence.claims import Claim
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.measurements import Measurement, write_setting
from simsplit.evidence.papers import PaperTable
from simsplit.scenario.shipped import find_folder

FIELDS: Mapping[str, Any] = {
    "title": "Planted",
    "says": "what is planted is found",
    "utility": {"is": "test_accuracy", "unit": "points", "better": "more"},
    "leak": {"reads": "{attack}_ssim", "floor": "mean", "ceiling": "undefended"},
    "tiers": {"quick": {}},
    "defences": {"none": {"none": []}},
}
SEEDS = (0, 1, 2)
NOISE = (-0.01, 0.0, 0.01)
"""What seeds differ by: the differences of two settings, seed by seed, are as planted."""
Planted = Mapping[str, Mapping[str, Sequence[float]]]
"""Strength -> figure -> its value on each seed."""


def plant(strengths: Mapping[str, Sequence[str]], planted: Planted, **track: Any) -> Board:
    """Make a board of planted rows; `strengths` are those of each defence."""
    made = Track.model_validate({**FIELDS, **track})
    axes = ["defence", *(["threat"] if made.threats else [])]
    figures = {name: {"is": name} for each in planted.values() for name in each}
    claim = Claim.model_validate(
        {
            "title": "t",
            "says": "s",
            "describes": "s",
            "figures": figures,
            "printed": "\n".join([", ".join(axes), *planted]),
        }
    )
    rows = [
        _row(dict(zip(axes, setting.split(", "), strict=True)), seed, figure, value)
        for setting, each in planted.items()
        for figure, values in each.items()
        for seed, value in enumerate(values)
    ]
    table = PaperTable("boards", "planted", claim, find_folder())
    attacks = [*made.threats] or sorted(
        {n.removeprefix(LEAKS) for each in planted.values() for n in each if n.startswith(LEAKS)}
    )
    built = EvidenceTable(table, "quick", [], rows, [])
    return Board("planted", made, "quick", built, strengths, attacks)


def _row(axes: Mapping[str, str], seed: int, figure: str, value: float) -> Measurement:
    setting = write_setting(axes)
    return Measurement(
        setting, seed, figure, value, "d", "", "1", "c", "x", "m", 1, 1.0, "2026-01-01"
    )


def measure_at(
    utility: float, reads: float, other: float = 0.2, seeds: Sequence[float] = NOISE
) -> dict[str, list[float]]:
    return {
        UTILITY: [utility + each for each in seeds],
        BYTES: [100.0 for _ in seeds],
        FLOOR: [0.2 for _ in seeds],
        f"{LEAKS}one": [reads + each for each in seeds],
        f"{LEAKS}two": [other for _ in seeds],
    }
