"""Figures of what attacks read of sessions: over runs, and of one session token by token."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError, near
from simsplit.report.canvas import HONEST, axes_of
from simsplit.results import Run
from simsplit.results.kept import load_sessions
from simsplit.results.session_results import (
    BOTH,
    FIGURES,
    FLOORS,
    LEARNED,
    PROMPT,
    RESPONSE,
    SIDES,
    WRITTEN,
    judged_last,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RIGHT, _WRONG = "#b9d7ee", "#f6d3b0"
"""Behind tokens; told apart by colour-blind readers, and in grey by what is printed on them."""
_COLUMNS = 96
_LETTER, _LINE = 0.085, 0.24
"""Inches: a letter, and a line of them."""
_Block = tuple[str, list[tuple[str, bool | None]]]
"""Whose line it is, and tokens; of those that were read, whether they are right."""
_WORDS = {
    "ap": "AP",
    "meteor": "METEOR",
    "token_accuracy": "tokens",
    "entity_f1": "entities F1",
    "bert_score": "BERTScore",
    "bleurt": "BLEURT",
}


def sessions(
    runs: Mapping[str, Run], figure: str = "ap", side: str = BOTH, ax: "Axes | None" = None
) -> "Axes":
    """A line an attack over runs, in their order: how much it read of sessions. Dotted: the best
    guess that takes no attack.
    """
    for given, known in ((figure, (*FIGURES, *LEARNED)), (side, SIDES)):
        if given not in known:
            hint = near(given, known) or ","
            raise RunError(f"sessions: no '{given}'{hint} allowed: {', '.join(known)}")
    lasts = {name: judged_last(run.sessions) for name, run in runs.items()}
    if missing := [name for name, last in lasts.items() if last.empty]:
        raise RunError(f"sessions: no attack on sessions in {', '.join(missing)}")
    column, named = (
        f"{figure}_{side}",
        [str(name) for last in lasts.values() for name in last.index],
    )
    ax = axes_of(ax)
    for name in dict.fromkeys(named):
        if name not in (*FLOORS, WRITTEN):
            values = [last[column].get(name, float("nan")) for last in lasts.values()]
            ax.plot(range(len(lasts)), values, marker="o", label=name)
    floors = [last[column].reindex(FLOORS).max() for last in lasts.values()]
    ax.plot(range(len(lasts)), floors, ":", color=HONEST, label="best guess without attack")
    ax.set(ylim=(-0.02, 1.02), ylabel=f"{_WORDS[figure]}, {side}")
    ax.set_xticks(range(len(lasts)), list(lasts))
    ax.legend(fontsize="small")
    return ax


def session(run: Run, number: int = 0, attacks: Sequence[str] = ()) -> "Figure":
    """One session token by token: what is private, and below it what each attack read, blue where
    it is right. A bar stands where the prompt ends.
    """
    texts = load_sessions(run.path)
    rows = texts[texts["session"] == number] if len(texts) else texts
    if rows.empty:
        raise RunError(f"{run.path}: no session {number} that an attack was judged on")
    rows = rows[~rows["attack"].isin(FLOORS)]
    if unknown := [name for name in attacks if name not in set(rows["attack"])]:
        known = ", ".join(rows["attack"])
        raise RunError(f"{run.path}: no attack '{unknown[0]}' on sessions, allowed: {known}")
    if attacks:
        rows = rows[rows["attack"].isin(attacks)]
    first = rows.iloc[0]
    ends = len(first[f"tokens_{PROMPT}"])
    blocks: list[_Block] = [("private", [(private, None) for private, _ in _pairs(first)])]
    for _, row in rows.iterrows():
        read: list[tuple[str, bool | None]] = []
        read += [(said, said == private) for private, said in _pairs(row)]
        blocks.append((str(row["attack"]), read))
    return _drawn(blocks, ends)


def _pairs(row: "pd.Series[Any]") -> list[tuple[str, str]]:
    both = [*row[f"tokens_{PROMPT}"], *row[f"tokens_{RESPONSE}"]]
    return [(private, read) for private, read in both]


def _drawn(blocks: "Sequence[_Block]", ends: int) -> "Figure":
    """Names on the left, tokens side by side, on as many lines as they take."""
    from matplotlib import pyplot as plt

    indent = max(len(name) for name, _ in blocks) + 2
    placed: list[tuple[int, int, str, bool | None]] = []
    line = 0
    for name, pieces in blocks:
        column = indent
        placed.append((line, 0, name, None))
        for index, (piece, right) in enumerate(pieces):
            told = _shown(piece)
            if column + len(told) > _COLUMNS and column > indent:
                line, column = line + 1, indent
            if index == ends:
                placed.append((line, column, "|", None))
                column += 2
            placed.append((line, column, told, right))
            column += len(told) + 1
        line += 2
    wide = max(column + len(told) for _, column, told, _ in placed) + 1
    figure = plt.figure(figsize=(wide * _LETTER, line * _LINE))
    for at, column, told, right in placed:
        box = None
        if right is not None:
            box = {"facecolor": _RIGHT if right else _WRONG, "edgecolor": "none", "pad": 1.5}
        place = column / wide, 1 - (at + 0.7) / line
        figure.text(*place, told, family="monospace", fontsize=9, bbox=box, va="center")
    return figure


def _shown(piece: str) -> str:
    """A token's text in as few letters as show it; nothing read is a dot."""
    plain = piece.replace("\n", "\\n").replace("\ufffd", "?").strip()
    return textwrap.shorten(plain, 20, placeholder="…") or "·"
