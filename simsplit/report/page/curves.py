"""Learning curves: of one run its splits, of several settings each one's mean and band."""

from dataclasses import dataclass

from simsplit.metrics.headline import said
from simsplit.preflight import size
from simsplit.report.grouping import Row
from simsplit.report.html.chart import MOST, Series, Told, line_chart
from simsplit.report.html.markup import Markup, figure, section, tag
from simsplit.report.html.subject import Subject, told
from simsplit.report.html.table_markup import table
from simsplit.report.runs import figures_of
from simsplit.report.tables import decimals
from simsplit.report.timing import duration

_MIB = 2**20
_SHARES = ("attack_success",)


def curves(subject: Subject) -> Markup:
    """The task's figure over rounds, bytes and, with a network, simulated time."""
    name = subject.figure
    if name is None:
        return Markup()
    drawn = [_over(subject, name, each) for each in _bases(subject)]
    tables = table(figures_of(subject.one)) if subject.one is not None else Markup()
    return section("Learning curves", tag("div", *drawn, class_="pair"), tables)


@dataclass(frozen=True)
class _Base:
    """What a figure is drawn over."""

    column: str
    label: str
    words: str
    tick: Told
    point: Told
    """How a point's place is told."""
    scale: float = 1


def _bases(subject: Subject) -> list[_Base]:
    """Rounds, bytes, and simulated time where all runs have it."""
    over = [
        _Base("round", "round", "rounds", _whole, lambda value: f"round {value:g}"),
        _Base(
            *("bytes_total", "MiB sent", "bytes sent", _plain),
            point=lambda value: f"{size(value)} sent",
            scale=_MIB,
        ),
    ]
    if all("simulated_total_s" in entry.run.rounds for entry in subject.entries):
        timed = ("simulated_total_s", "simulated time", "simulated time")
        over.append(_Base(*timed, duration, duration))
    return over


def _over(subject: Subject, name: str, base: _Base) -> Markup:
    several = len(subject.entries) > 1
    series = (_of_settings if several else _of_splits)(subject, name, base)
    up: Told = (lambda value: f"{100 * value:g} %") if decimals(name) is None else _plain
    scaled = [_scaled(each, base.scale) for each in series]
    drawn = line_chart(said(name), scaled, (base.label, base.tick), (said(name), up))
    words = f"{_first(said(name))} over {base.words}."
    if several and any(len(row.entries) > 1 for row in subject.rows):
        words += " Lines are means over seeds, bands go from the lowest seed to the highest."
    if len(subject.rows) > MOST:
        words += f" The first {MOST} of {len(subject.rows)} settings."
    return figure(drawn, words) if drawn else Markup()


def _whole(value: float) -> str:
    return f"{value:g}" if value == round(value) else ""


def _plain(value: float) -> str:
    return f"{value:g}"


def _scaled(series: Series, scale: float) -> Series:
    x = [value / scale for value in series.x]
    return Series(series.name, x, series.y, series.words, series.low, series.high)


def _of_splits(subject: Subject, name: str, base: _Base) -> list[Series]:
    rounds = subject.entries[0].run.rounds
    columns = [f"test_{name}", f"validation_{name}"]
    columns += _SHARES if decimals(name) is None else []
    made = []
    for each in columns:
        if each in rounds and rounds[each].notna().any():
            known = rounds.dropna(subset=[each])
            x, y = known[base.column].tolist(), known[each].tolist()
            words = [
                f"{said(each)}, {base.point(a)}: {told(name, b)}" for a, b in zip(x, y, strict=True)
            ]
            made.append(Series(said(each), x, y, words))
    return made


def _of_settings(subject: Subject, name: str, base: _Base) -> list[Series]:
    named = zip(subject.names, subject.rows, strict=True)
    made = [_of_seeds(title, row, name, base) for title, row in named]
    return [each for each in made if each is not None]


def _of_seeds(title: str, row: Row, name: str, base: _Base) -> Series | None:
    """Mean, least and most over seeds, round by round; where bytes differ, at their mean."""
    import pandas as pd

    wanted = f"test_{name}"
    parts = [e.run.rounds for e in row.entries if wanted in e.run.rounds]
    if not parts:
        return None
    kept = list(dict.fromkeys(("round", base.column, wanted)))
    groups = pd.concat([part[kept].dropna() for part in parts]).groupby("round")
    mean = groups[wanted].mean()
    x = (
        [float(number) for number in mean.index]
        if base.column == "round"
        else groups[base.column].mean().tolist()
    )
    low, high, y = groups[wanted].min().tolist(), groups[wanted].max().tolist(), mean.tolist()
    counts = groups.size().tolist()
    words = [
        f"{title}, {base.point(a)}: {told(name, b)}"
        + (f" ({told(name, least)} to {told(name, most)}, {count} seeds)" if count > 1 else "")
        for a, b, least, most, count in zip(x, y, low, high, counts, strict=True)
    ]
    banded = len(parts) > 1
    return Series(title, x, y, words, low if banded else None, high if banded else None)


def _first(text: str) -> str:
    return text[:1].upper() + text[1:]
