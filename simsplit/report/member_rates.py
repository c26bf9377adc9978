"""ROC curves of attacks on members have log axes, where what they find of a few samples shows."""

import math
from typing import TYPE_CHECKING

from simsplit.report.canvas import escape_text, finish_axes, make_shown_figure, use_cycle
from simsplit.report.html.chart import Series, draw_lines
from simsplit.report.html.markup import Markup, figure
from simsplit.report.html.subject import Subject
from simsplit.results import Run
from simsplit.results.recovered_files import load_rates

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_ACROSS, _UP = "others taken for members", "members found"
_CAPTION = (
    "Members found by each attack from each seat, against the others that it takes for members at "
    "the same threshold, both on log axes. A coin finds as many of both."
)


def draw_rates(run: Run) -> "Figure | None":
    """Draw the ROC curves of a run's attacks on members; return None without any."""
    rates = load_rates(run.path)
    if rates.empty:
        return None
    drawn = make_shown_figure(7.2, 4.4)
    ax = drawn.subplots()
    use_cycle(ax)
    least = _find_least(rates)
    for name, own in _group(rates):
        fpr, tpr = (own[side].clip(lower=least) for side in ("fpr", "tpr"))
        every = max(1, len(own) // 8)
        ax.plot(fpr, tpr, label=escape_text(name), ds="steps-post", markevery=every, ms=4)
    ax.plot([least, 1], [least, 1], color="0.6", ls=":", marker="", label="a coin")
    ax.set(xscale="log", yscale="log", xlabel=_ACROSS, ylabel=_UP, xlim=(least, 1), ylim=(least, 1))
    ax.grid(color="0.92")
    finish_axes(ax, "Members found at few false alarms")
    return drawn


def draw_members(subject: Subject) -> Markup:
    """Draw the curves of one run for its report page; nothing of several settings."""
    rates = load_rates(subject.one.path) if subject.one else None
    if rates is None or rates.empty:
        return Markup()
    least = _find_least(rates)
    made = []
    for name, own in _group(rates):
        rows = list(zip(own["fpr"], own["tpr"], strict=True))
        words = [f"{name}: {100 * tpr:.3g} % at {100 * fpr:.3g} %" for fpr, tpr in rows]
        x, y = ([math.log10(max(value, least)) for value in own[side]] for side in ("fpr", "tpr"))
        made.append(Series(name, x, y, words, step=True))  # a curve of powers of ten
    return figure(
        draw_lines("members", made, (_ACROSS, _write_power), (_UP, _write_power)), _CAPTION
    )


def _group(rates: "pd.DataFrame") -> list[tuple[str, "pd.DataFrame"]]:
    """Return the curves with the names of attack and seat."""
    groups = rates.groupby(["attack", "view"], sort=False)
    return [(f"{attack}, {view}", own) for (attack, view), own in groups]


def _find_least(rates: "pd.DataFrame") -> float:
    """Return the share at which log axes begin: below the smallest that a curve has above 0."""
    shares = [*rates["fpr"], *rates["tpr"]]
    return 10.0 ** math.floor(math.log10(min(each for each in shares if each > 0)))


def _write_power(value: float) -> str:
    """Write a power of ten in per cent; nothing between two of them."""
    return f"{100 * 10**value:g} %" if value == round(value) else ""
