"""What `simsplit plan` prints: a sentence that answers, then small tables."""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from simsplit.errors import format_count
from simsplit.forecasting.forecast import Forecast, SweepForecast
from simsplit.network.profiles import MEANINGS
from simsplit.report.privacy import (
    tabulate_entries,
    tabulate_legs,
    tabulate_noise,
    write_epsilon_of,
)
from simsplit.report.tables import Table
from simsplit.showing.pace import format_clock
from simsplit.showing.saying import echo
from simsplit.sizes import format_size
from simsplit.terminal.printing import print_table

if TYPE_CHECKING:
    import pandas as pd

ALL = 10
"""The most clients of which each has a row; of more, the least, median and busiest are shown."""
_COUNTED = ("rounds", "steps", "samples")
_SHORT = 10.0
"""Seconds below which a time is shown with decimals."""
_LONG = 48 * 3600.0
"""Seconds above which a time is shown in days."""


def print_forecast(forecast: Forecast) -> None:
    """Print what a run will take."""
    echo(describe_forecast(forecast))
    tables = [
        tabulate_bytes(forecast),
        tabulate_rounds(forecast),
        tabulate_clients(forecast),
        tabulate_memory(forecast),
        tabulate_flops(forecast),
        tabulate_times(forecast),
        tabulate_legs(forecast.facts.uncovered),
        tabulate_entries(forecast.facts.privacy),
        tabulate_noise(forecast.facts.noise),
    ]
    echo("")
    for table in filter(lambda each: each.rows, tables):
        print_table(table, "table")
    _print_notes(forecast.facts.notes)


def print_sweep_forecast(forecast: SweepForecast) -> None:
    """Print a line for each cell of a sweep, and the sum."""
    cells = forecast.cells.values()
    nbytes = format_size(sum(each.bytes_total for each in cells))
    walls = [each.facts.wall_s for each in cells]
    words = [f"{format_count(len(forecast.cells), 'cell')}: {nbytes} cross"]
    if all(wall is not None for wall in walls):
        words.append(f"about {_format_time(sum(filter(None, walls)))} here, one cell at a time")
    echo(f"{', '.join(words)}\n")
    print_table(tabulate_cells(forecast), "table")
    of_cells = (note for each in cells for note in each.facts.notes)
    _print_notes(dict.fromkeys((*forecast.notes, *of_cells)))


def describe_forecast(forecast: Forecast) -> str:
    """Return what a run will take in a sentence."""
    facts = forecast.facts
    words = [
        f"{format_count(facts.num_clients, 'client')}, "
        f"{format_count(forecast.num_rounds, 'round')}: {format_size(forecast.bytes_total)} cross"
    ]
    if forecast.simulated_s is not None:
        where = f"on {facts.network}" + ("" if facts.is_network_given else " (assumed)")
        words.append(f"{_format_time(forecast.simulated_s)} simulated {where}")
    if facts.wall_s is not None:
        share = f" ({facts.evaluation_share:.0%} of it evaluation)" if facts.evaluates_long else ""
        words.append(f"about {_format_time(facts.wall_s)} here{share}")
    *clients, server = (each.total for each in facts.footprints)
    needed = " to ".join(map(format_size, dict.fromkeys((min(clients), max(clients)))))
    words.append(f"a client needs {needed}, the server {format_size(server)}")
    return ", ".join(words)


def tabulate_bytes(forecast: Forecast) -> Table:
    """Tabulate packets and bytes by leg."""
    rows = []
    for row in forecast.bytes.to_dict("records"):
        leg, way = str(row["leg"]).replace("_", " "), str(row["direction"])
        sizes = (format_size(n) if n else "" for n in (row["training"], row["evaluation"]))
        rows.append((leg, way, f"{row['packets']:,}", *sizes))
    return Table("What crosses", ("leg", "way", "packets", "training", "evaluation"), rows, "llrrr")


def tabulate_rounds(forecast: Forecast) -> Table:
    """Tabulate the rounds of each phase: their least and most clients, bytes and seconds."""
    frame = forecast.rounds.assign(bytes=lambda each: each["bytes_up"] + each["bytes_down"])
    timed = "simulated_s" in frame
    rows = []
    for phase, group in frame.groupby("phase", sort=False):
        count = group["times"].sum() if "times" in group else len(group)
        cells = [str(phase), f"{count:,}"]
        cells += [_format_range(group[name], "{:,.0f}".format) for name in ("clients", "steps")]
        cells.append(_format_range(group["bytes"], format_size))
        if timed:
            cells.append(_format_range(group["simulated_s"], _format_time))
        rows.append(tuple(cells))
    columns = ("phase", "rounds", "clients", "steps", "bytes", *(["simulated"] if timed else []))
    return Table("Each round", columns, rows)


def tabulate_clients(forecast: Forecast) -> Table:
    """Tabulate clients; of many, the one that sends least, the median and the busiest."""
    frame = forecast.clients
    if len(frame) > ALL:
        ordered = frame.sort_values("bytes_up", kind="stable")
        frame = ordered.iloc[[0, len(ordered) // 2, -1]]
    words, counted = ["client", *(["methods"] if "methods" in frame else [])], _COUNTED
    rows = []
    for row in frame.to_dict("records"):
        name = forecast.facts.client_names.get(row["client"])
        counts = (f"{row[each]:,}" for each in counted)
        sizes = (format_size(row[f"bytes_{way}"]) for way in ("up", "down"))
        rows.append((name, *(row[each] for each in words[1:]), *counts, *sizes))
    few = len(frame) < forecast.facts.num_clients
    title = "Clients: least, median and most sent" if few else "Clients, in training"
    return Table(title, (*words, *counted, "up", "down"), rows, "l" * len(words) + "rrrrr")


def tabulate_memory(forecast: Forecast) -> Table:
    """Tabulate the memory of each party, and of the whole run here."""
    rows = []
    for each in forecast.facts.footprints:
        parts = (each.weights, each.gradients, each.moments, each.activations, each.total)
        rows.append((each.party, *map(format_size, parts)))
    process = forecast.facts.process
    rows.append(("this process", *[""] * 4, format_size(process.total)))
    if process.on_disk:
        rows.append(("on disk, clients at rest", *[""] * 4, format_size(process.on_disk)))
    columns = ("memory", "weights", "gradients", "moments", "activations", "total")
    return Table("Memory, in tensors", columns, rows)


def tabulate_flops(forecast: Forecast) -> Table:
    """Tabulate the FLOPs of each segment, of a sample and of all training."""
    rows = []
    for row in forecast.flops.to_dict("records"):
        flops = (row["forward"], row["backward"], row["forward_total"] + row["backward_total"])
        rows.append((str(row["segment"]), str(row["party"]), *map(_format_flops, flops)))
    columns = ("segment", "party", "forward", "backward", "all training")
    return Table("FLOPs of a sample", columns, rows, "llrrr")


def tabulate_times(forecast: Forecast) -> Table:
    """Tabulate simulated time by link."""
    rows = []
    for row in forecast.times.to_dict("records"):
        meaning = MEANINGS.get(str(row["link"]), forecast.facts.network)
        rows.append((str(row["link"]), meaning, _format_time(row["simulated_s"])))
    return Table("Simulated time by link", ("link", "meaning", "time"), rows, "llr")


def tabulate_cells(forecast: SweepForecast) -> Table:
    """Tabulate the cells of a sweep, and their sum."""
    frame = forecast.table
    rows = []
    for row in frame.to_dict("records"):
        times = [_format_maybe(row["simulated_s"]), _format_maybe(row["wall_s"])]
        sizes = map(format_size, (row["client_bytes"], row["server_bytes"]))
        cells = (f"{row['clients']:,}", f"{row['rounds']:,}", format_size(row["bytes_total"]))
        rows.append((str(row["cell"]), *cells, *times, *sizes))
    sums = frame[["bytes_total", "simulated_s", "wall_s"]].sum(min_count=len(frame))
    times = [_format_maybe(sums[name]) for name in ("simulated_s", "wall_s")]
    rows.append(("all", "", "", format_size(sums["bytes_total"]), *times, "", ""))
    columns = ["cell", "clients", "rounds", "bytes", "simulated", "here", "client", "server"]
    epsilons = [write_epsilon_of([each.facts.privacy]) for each in forecast.cells.values()]
    if any(epsilons):
        columns.append("epsilon")
        rows = [(*row, cell) for row, cell in zip(rows, [*epsilons, ""], strict=True)]
    return Table("Cells", tuple(columns), rows)


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo(f"note: {note}")


def _format_range(values: "pd.Series[Any]", form: Callable[[float], str]) -> str:
    least, most = (form(value) for value in (values.min(), values.max()))
    return least if least == most else f"{least} to {most}"


def _format_maybe(seconds: float | None) -> str:
    return "" if seconds is None or math.isnan(seconds) else _format_time(seconds)


def _format_time(seconds: float) -> str:
    if seconds > _LONG:
        return f"{seconds / 86_400:,.0f} days"
    return f"{seconds:.2g} s" if seconds < _SHORT else format_clock(seconds)


def _format_flops(number: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {unit}".rstrip()
        number /= 1000
    return f"{number:,.3g} P"
