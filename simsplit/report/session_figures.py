"""Figures show how much attacks read of sessions, over runs or token by token in one session."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simsplit.errors import RunError, suggest
from simsplit.metrics import METRICS
from simsplit.report.canvas import HONEST, ensure_axes, finish_axes
from simsplit.results import Run
from simsplit.results.leak_table import CEILING, FLOOR, WRITTEN, has_role
from simsplit.results.mean_leaks import average_by_attack
from simsplit.results.recovered_files import load_sessions
from simsplit.results.recovered_kinds import BOTH, KINDS, PROMPT, RESPONSE, SIDES, entitle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RIGHT, _WRONG = "#b9d7ee", "#f6d3b0"
"""Backgrounds of right and wrong tokens, distinct for colour-blind readers."""
_COLUMNS = 96
_LETTER, _LINE = 0.085, 0.24
"""Inches: the width of a letter and the height of a line."""
_Block = tuple[str, list[tuple[str, bool | None]]]
"""The line's name, and its tokens, each with whether an attack read it right (None: private)."""


def sessions(
    runs: Mapping[str, Run], figure: str = "ap", side: str = BOTH, ax: "Axes | None" = None
) -> "Axes":
    """Draw how much each attack read of sessions, as a line over runs in their order.

    The dotted line is the best blind guess, which needs no attack.
    """
    for given, known in ((figure, KINDS["sessions"].metrics), (side, SIDES)):
        if given not in known:
            hint = suggest(given, known) or ","
            raise RunError(f"sessions: no '{given}'{hint} allowed: {', '.join(known)}")
    lasts = {name: average_by_attack(run.leaks, "sessions") for name, run in runs.items()}
    if missing := [name for name, last in lasts.items() if last.empty]:
        raise RunError(f"sessions: no attack on sessions in {', '.join(missing)}")
    column = f"{figure}_{side}"
    ax = ensure_axes(ax)
    roles = {str(name): role for last in lasts.values() for name, role in last["role"].items()}
    for name, role in roles.items():
        if role not in (FLOOR, WRITTEN):
            values = [last[column].get(name, float("nan")) for last in lasts.values()]
            line = ":" if role == CEILING else "-"
            label = entitle("sessions", name, role)
            # `ls` keeps the marks, which a format string would drop: one run alone has no line
            ax.plot(range(len(lasts)), values, ls=line, markersize=4, label=label)
    floors = [has_role(last, FLOOR)[column].max() for last in lasts.values()]
    words = "best guess without attack"
    ax.plot(range(len(lasts)), floors, ":", color=HONEST, marker="", label=words)
    ax.set(ylim=(-0.02, 1.02), ylabel=f"{METRICS[figure].words}, {side}")
    ax.set_xticks(range(len(lasts)), list(lasts))
    return finish_axes(ax, "How much each attack read of sessions")


def session(run: Run, number: int = 0, attacks: Sequence[str] = ()) -> "Figure":
    """Draw one session token by token: the private tokens, and below them those each attack read.

    Correct tokens are blue. A bar marks the end of the prompt.
    """
    texts = load_sessions(run.path)
    rows = texts[texts["session"] == number] if len(texts) else texts
    if rows.empty:
        raise RunError(f"{run.path}: no session {number} that an attack was judged on")
    rows = rows[~rows["attack"].isin(KINDS["sessions"].guesses)]
    if unknown := [name for name in attacks if name not in set(rows["attack"])]:
        known = ", ".join(rows["attack"])
        raise RunError(f"{run.path}: no attack '{unknown[0]}' on sessions, allowed: {known}")
    if attacks:
        rows = rows[rows["attack"].isin(attacks)]
    ends = len(rows.iloc[0][f"tokens_{PROMPT}"])
    blocks: list[_Block] = []
    for _, row in rows.iterrows():
        both = [*row[f"tokens_{PROMPT}"], *row[f"tokens_{RESPONSE}"]]
        blocks = blocks or [("private", [(private, None) for private, _ in both])]
        blocks.append((str(row["attack"]), [(read, read == private) for private, read in both]))
    return _draw_blocks(blocks, ends)


def _draw_blocks(blocks: "Sequence[_Block]", ends: int) -> "Figure":
    """Draw names on the left and tokens beside them, on as many lines as they need."""
    from matplotlib import pyplot as plt

    indent = max(len(name) for name, _ in blocks) + 2
    placed: list[tuple[int, int, str, bool | None]] = []
    line = 0
    for name, pieces in blocks:
        column = indent
        placed.append((line, 0, name, None))
        for index, (piece, right) in enumerate(pieces):
            # an empty text becomes a dot
            plain = piece.replace("\n", "\\n").replace("\ufffd", "?").strip()
            text = textwrap.shorten(plain, 20, placeholder="…") or "·"
            if column + len(text) > _COLUMNS and column > indent:
                line, column = line + 1, indent
            if index == ends:
                placed.append((line, column, "|", None))
                column += 2
            placed.append((line, column, text, right))
            column += len(text) + 1
        line += 2
    wide = max(column + len(text) for _, column, text, _ in placed) + 1
    figure = plt.figure(figsize=(wide * _LETTER, line * _LINE))
    for at, column, text, right in placed:
        box = None
        if right is not None:
            box = {"facecolor": _RIGHT if right else _WRONG, "edgecolor": "none", "pad": 1.5}
        place = column / wide, 1 - (at + 0.7) / line
        figure.text(*place, text, family="monospace", fontsize=9, bbox=box, va="center")
    return figure
