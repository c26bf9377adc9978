"""Boards as DataFrames: `simsplit.board`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simsplit.boards.entries import Guest, build_board
from simsplit.boards.scoring import score_strengths
from simsplit.boards.tabulating import describe_strength
from simsplit.evidence.claims import Tier
from simsplit.plugins import Given, gather_plugins

if TYPE_CHECKING:
    import pandas as pd


def board(
    track: str,
    tier: Tier = "quick",
    *,
    methods: Sequence[str | Mapping[str, Any]] = (),
    attacks: Sequence[str | Mapping[str, Any]] = (),
    plugins: Given = (),
) -> "pd.DataFrame":
    """Return a board as it is measured: a row for each strength of each defence.

    With `methods` and `attacks`, kinds or mappings, the rows that `simsplit board` has measured of
    them in this folder stand among the others.

    >>> board("images").sort_values("leak")[["strength", "leak", "loss"]]  # doctest: +SKIP
    """
    import pandas as pd

    guest = Guest(_expand(methods), _expand(attacks), gather_plugins(plugins))
    built = build_board(track, tier, guest)
    return pd.DataFrame([describe_strength(each) for each in score_strengths(built)])


def _expand(parts: Sequence[str | Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{"kind": part} if isinstance(part, str) else part for part in parts]
