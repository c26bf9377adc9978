"""Learning curves show one run's splits, or the mean and range over seeds of several settings."""

from dataclasses import dataclass, replace

from simsplit.metrics import find_decimals, format_column
from simsplit.report.grouping import Row
from simsplit.report.html.chart import (
    MOST,
    Series,
    Write,
    draw_lines,
    write_percent,
    write_whole,
)
from simsplit.report.html.markup import Markup, capitalise, figure, mark_up, section, tag
from simsplit.report.html.subject import Subject, write_value
from simsplit.report.run_tables import tabulate_figures
from simsplit.report.timing import write_duration
from simsplit.results import Run
from simsplit.sizes import format_size

_MIB = 2**20


def draw_curves(subject: Subject) -> Markup:
    """Draw the task's figure over rounds, bytes and, with a network, simulated time."""
    name = subject.figure
    if name is None:
        return Markup()
    drawings = [_draw_over(subject, name, each) for each in _list_bases(subject)]
    tables = mark_up(tabulate_figures(subject.one)) if subject.one is not None else Markup()
    return section("Learning curves", tag("div", *drawings, class_="pair"), tables)


@dataclass(frozen=True)
class _Base:
    """The horizontal axis that a figure is drawn over."""

    column: str
    label: str
    words: str
    tick: Write
    point: Write
    """Writes the place of a point."""
    scale: float = 1


def _list_bases(subject: Subject) -> list[_Base]:
    """List the axes: rounds, bytes, and simulated time if all runs have it."""
    over = [
        _Base("round", "round", "rounds", write_whole, lambda value: f"round {value:g}"),
        _Base(
            *("bytes_total", "MiB sent", "bytes sent", _write_plain),
            point=lambda value: f"{format_size(value)} sent",
            scale=_MIB,
        ),
    ]
    if all("simulated_total_s" in entry.run.rounds for entry in subject.entries):
        timed = ("simulated_total_s", "simulated time", "simulated time")
        over.append(_Base(*timed, write_duration, write_duration))
    return over


def _draw_over(subject: Subject, name: str, base: _Base) -> Markup:
    several = len(subject.entries) > 1
    if several:
        named = zip(subject.names, subject.rows, strict=True)
        averaged = [_average_seeds(title, row, name, base) for title, row in named]
        series = [each for each in averaged if each is not None]
    else:
        series = _make_split_series(subject.entries[0].run, name, base)
    up = write_percent if find_decimals(name) is None else _write_plain
    scaled = [replace(each, x=[value / base.scale for value in each.x]) for each in series]
    drawings = draw_lines(
        format_column(name), scaled, (base.label, base.tick), (format_column(name), up)
    )
    words = f"{capitalise(format_column(name))} over {base.words}."
    if several and any(len(row.entries) > 1 for row in subject.rows):
        words += " Lines are means over seeds, bands go from the lowest seed to the highest."
    if len(subject.rows) > MOST:
        words += f" The first {MOST} of {len(subject.rows)} settings."
    return figure(drawings, words) if drawings else Markup()


def _write_plain(value: float) -> str:
    return f"{value:g}"


def _make_split_series(run: Run, name: str, base: _Base) -> list[Series]:
    rounds = run.rounds
    columns = [f"test_{name}", f"validation_{name}"]
    columns += ["attack_success"] if find_decimals(name) is None else []
    made = []
    for each in columns:
        if each in rounds and rounds[each].notna().any():
            known = rounds.dropna(subset=[each])
            x, y = known[base.column].tolist(), known[each].tolist()
            words = [
                f"{format_column(each)}, {base.point(a)}: {write_value(name, b)}"
                for a, b in zip(x, y, strict=True)
            ]
            made.append(Series(format_column(each), x, y, words))
    return made


def _average_seeds(title: str, row: Row, name: str, base: _Base) -> Series | None:
    """Make a setting's series: mean, least and greatest over seeds, at the mean of its bytes."""
    import pandas as pd

    wanted = f"test_{name}"
    parts = [e.run.rounds for e in row.entries if wanted in e.run.rounds]
    if not parts:
        return None
    kept = list(dict.fromkeys(("round", base.column, wanted)))
    groups = pd.concat([part[kept].dropna() for part in parts]).groupby("round")
    mean = groups[wanted].mean()
    rounds = [float(number) for number in mean.index]
    x = rounds if base.column == "round" else groups[base.column].mean().tolist()
    low, high, y = groups[wanted].min().tolist(), groups[wanted].max().tolist(), mean.tolist()
    words = []
    for a, b, *ends, count in zip(x, y, low, high, groups.size().tolist(), strict=True):
        least, most = (write_value(name, end) for end in ends)
        spread = f" ({least} to {most}, {count} seeds)" if count > 1 else ""
        words.append(f"{title}, {base.point(a)}: {write_value(name, b)}{spread}")
    return Series(title, x, y, words, *((low, high) if len(parts) > 1 else ()))
