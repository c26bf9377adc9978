"""The section on labels shows attacks' tables and leaks over rounds, and the server's views."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simsplit.report.html.chart import COLOURS, Series, draw_lines
from simsplit.report.html.markup import Markup, figure, join, mark_up, section, tag, views, void
from simsplit.report.html.subject import Subject
from simsplit.report.label_tables import compare_labels, tabulate_label_views
from simsplit.report.label_views import (
    Panel,
    Strip,
    keep_blind,
    make_strips,
    name_classes,
    write_caption,
)
from simsplit.results import Run
from simsplit.results.label_results import PURITY, join_floors

if TYPE_CHECKING:
    import pandas as pd

_SIDE, _GAP, _LEFT, _TOP = 118, 6, 150, 20
_LEGEND = 2 * COLOURS
"""The most classes that a legend names: each colour has round and angular marks."""
_SETTINGS = 12


def show_labels(subject: Subject) -> Markup:
    """Show the attacks on labels by view, or for several settings the worst attack of each."""
    attacked = [entry.run for entry in subject.entries if len(entry.run.labels)]
    if not attacked:
        return Markup()
    run = subject.one
    tables = compare_labels(subject.entries) if run is None else [tabulate_label_views(run)]
    made = _make_setting_series(subject) if run is None else _make_attack_series(run)
    chart = draw_lines(
        "labels inferred", made, ("round", _write_whole), ("labels inferred", _write_percent)
    )
    words = "Labels that the worst attack tells, over attacks, views and adapters, by round."
    if run is not None:
        words = "Labels that each attack tells by its worst view, and the run's accuracy, by round."
    named = zip(subject.names, subject.firsts, strict=True)
    seen = [_draw_views(entry.run, name, run is None) for name, entry in list(named)[:_SETTINGS]]
    return section(
        "Labels", figure(chart, words), *map(mark_up, tables), views(seen, "What is seen of")
    )


def conclude_labels(subject: Subject) -> str:
    """Name the attack without known labels that leaked most in any run, with its chance."""
    leaks = []
    for name, row in zip(subject.names, subject.rows, strict=True):
        for run in (entry.run for entry in row.entries if len(entry.run.labels)):
            rows = keep_blind(run)
            worst = rows.sort_values("leak").iloc[-1]
            leaks.append((float(worst["leak"]), str(worst["attack"]), worst["chance"], name))
    if not leaks:
        return ""
    leak, attack, chance, name = max(leaks, key=lambda each: each[0])
    on = f" on {name}" if len(subject.rows) > 1 else ""
    return f"labels inferred: {100 * leak:.0f} % by {attack}{on}, chance {100 * chance:.0f} %"


def _write_whole(value: float) -> str:
    return f"{value:g}" if value == round(value) else ""


def _write_percent(value: float) -> str:
    return f"{100 * value:g} %"


def _make_series(name: str, by_round: Mapping[int, Sequence[float]]) -> Series:
    """Make a series of each round's mean, with the least and greatest value as its band."""
    rounds = sorted(by_round)
    means = [sum(by_round[n]) / len(by_round[n]) for n in rounds]
    words = [
        f"{name}, round {n}: {100 * mean:.1f} %" for n, mean in zip(rounds, means, strict=True)
    ]
    if all(len(values) == 1 for values in by_round.values()):
        return Series(name, rounds, means, words)
    low, high = ([end(by_round[n]) for n in rounds] for end in (min, max))
    return Series(name, rounds, means, words, low, high)


def _make_attack_series(run: Run) -> list[Series]:
    """Make a curve per attack, one of chance, and one of the test accuracy."""
    rows = join_floors(run.labels[run.labels["figure"] != PURITY])
    groups = rows.groupby("attack", sort=False)
    made = [_make_series(str(attack), _find_worst(own, "leak")) for attack, own in groups]
    made.append(_make_series("chance", _find_worst(keep_blind(run), "chance")))
    if "test_accuracy" in run.rounds:
        known = run.rounds.dropna(subset=["test_accuracy"])
        made.append(_make_series("test accuracy", _find_worst(known, "test_accuracy")))
    return made


def _make_setting_series(subject: Subject) -> list[Series]:
    """Make a curve per setting of each round's worst leak, over seeds, and one of chance."""
    made = []
    chances: dict[int, list[float]] = {}
    for name, row in zip(subject.names, subject.rows, strict=True):
        leaks: dict[int, list[float]] = {}
        for run in (entry.run for entry in row.entries if len(entry.run.labels)):
            for column, values_by_round in (("leak", leaks), ("chance", chances)):
                for number, values in _find_worst(keep_blind(run), column).items():
                    values_by_round.setdefault(number, []).extend(values)
        made += [_make_series(name, leaks)] if leaks else []
    return [*made, _make_series("chance", chances)]


def _find_worst(rows: "pd.DataFrame", column: str) -> dict[int, list[float]]:
    """Return the highest value of each round."""
    worst = rows.groupby("round", as_index=False)[column].max()
    return {int(row["round"]): [float(row[column])] for _, row in worst.iterrows()}


def _draw_views(run: Run, name: str, several: bool) -> Markup:
    """Draw panels of what the server saw, a row per view and a column per judged round."""
    strips = make_strips(run)
    if not strips:
        return Markup()
    classes = name_classes(run, strips)
    rounds = list(dict.fromkeys(panel.round for strip in strips for panel in strip.panels))
    heads = [
        tag("text", f"round {number}", x=_LEFT + (i + 0.5) * (_SIDE + _GAP), y=_TOP - 7,
            text_anchor="middle", class_="label")
        for i, number in enumerate(rounds)
    ]  # fmt: skip
    wide, tall = _LEFT + len(rounds) * (_SIDE + _GAP), _TOP + len(strips) * (_SIDE + _GAP)
    chart = tag(
        "svg",
        tag("g", *heads, aria_hidden="true"),
        *(_draw_strip(strip, place, rounds, list(classes)) for place, strip in enumerate(strips)),
        viewBox=f"0 0 {wide} {tall}",
        role="group",
        aria_label="What the server saw, by view and round. Arrow keys move between panels.",
        style=f"width:{1.15 * wide:.0f}px",
        data_chart="",
    )
    caption = write_caption(strips, run)
    words = f"{caption[:1].upper()}{caption[1:]}."
    if len(classes) > _LEGEND:
        words += f" Of {len(classes)} classes, several share a colour."
    whole = join((_draw_legend(classes), tag("div", chart, class_="wide plain")))
    return figure(whole, f"{name}, first seed. {words}" if several else words, name)


def _draw_strip(strip: Strip, row: int, rounds: Sequence[int], labels: Sequence[int]) -> Markup:
    """Draw a view's name and its panels."""
    top = _TOP + row * (_SIDE + _GAP)
    lines = strip.words.split("\n")
    names = [
        tag(
            "text", line, x=_LEFT - 8, y=top + _SIDE / 2 + 14 * i, text_anchor="end", class_="label"
        )
        for i, line in enumerate(lines)
    ]
    panels = [
        _draw_panel(panel, strip, (_LEFT + rounds.index(panel.round) * (_SIDE + _GAP), top), labels,
               first=row == place == 0)
        for place, panel in enumerate(strip.panels)
    ]  # fmt: skip
    return join((tag("g", *names, aria_hidden="true"), tag("g", *panels, data_group="")))


def _draw_panel(
    panel: Panel, strip: Strip, at: tuple[float, float], labels: Sequence[int], *, first: bool
) -> Markup:
    """Draw dots by label, and over them a box that a reader can point at."""
    left, right, low, high = panel.frame
    points = panel.points
    xs = (at[0] + _SIDE * (points["x"] - left) / (right - left)).round(1)
    ys = (at[1] + _SIDE * (high - points["y"]) / (high - low)).round(1)
    dots = []
    for index, label in enumerate(labels):
        own = points["label"] == label
        path = "".join(f"M{x:g} {y:g}h0" for x, y in zip(xs[own], ys[own], strict=True))
        dots.append(void("path", class_=_style_of(index), d=path) if path else None)
    words = strip.words.replace("\n", ", ") + f", round {panel.round}"
    corner = None
    if panel.leak is not None:
        leak = f"{100 * panel.leak:.0f} %"
        words += f": the worst attack tells {leak}"
        corner = tag("text", leak, x=at[0] + _SIDE - 5, y=at[1] + 14, text_anchor="end",
                     aria_hidden="true")  # fmt: skip
    box = void("rect", x=at[0], y=at[1], width=_SIDE, height=_SIDE, class_="panel", role="img",
               aria_label=words, data_p="", tabindex="0" if first else "-1")  # fmt: skip
    return join((*dots, corner, box))


def _style_of(index: int) -> str:
    angular = " angular" if index // COLOURS % 2 else ""
    return f"dots c{index % COLOURS}{angular}"


def _draw_legend(classes: Mapping[int, str]) -> Markup:
    """Draw the legend of the labels' colours."""
    if len(classes) > _LEGEND:
        return Markup()
    items = []
    for index, name in enumerate(classes.values()):
        dot = void("path", d="M6 6h0", class_=_style_of(index))
        swatch = tag("svg", dot, viewBox="0 0 12 12", class_="swatch square", aria_hidden="true")
        items.append(tag("li", swatch, name))
    return tag("ul", *items, class_="legend")
