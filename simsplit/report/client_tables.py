"""A run client by client: who holds, learns, sends and waits how much, and who helps or hurts."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simsplit.errors import format_count
from simsplit.metrics import find_decimals, find_headline
from simsplit.protocols import JOINT
from simsplit.report.client_sums import (
    LEARNED,
    list_chains,
    list_records,
    rank_clients,
    summarise_clients,
)
from simsplit.report.detections import list_detectors, list_flagged
from simsplit.report.privacy import mark_view
from simsplit.report.tables import Table, thin, write_mean
from simsplit.report.timing import write_duration
from simsplit.results import Run
from simsplit.sizes import format_size

if TYPE_CHECKING:
    import pandas as pd

_ROUNDS = 8
"""The most rounds of a table; of longer runs it has some, evenly spaced."""
_TITLES = {"train_loss": "training loss", "train_accuracy": "training accuracy, %"}


def tabulate_clients(run: Run) -> list[Table]:
    """Make tables of a run by client: what it did, how it learned, and whether it helps."""
    tables = [_tabulate_summary(run), *(_tabulate_rounds(run, name) for name in LEARNED)]
    return [each for each in [*tables, tabulate_contributions(run)] if each.rows]


def _tabulate_summary(run: Run) -> Table:
    detectors, chains = list_detectors(run), list_chains(run)
    flagged = {name: set(list_flagged(run, name)) for name in detectors}
    rows = []
    for row in list_records(summarise_clients(run)):
        client = int(row["client"])
        loss = f"loss{mark_view(run, 'train_loss')}, first to last"
        cells = {"client": run.client_names.get(client)}
        if chains:
            cells["methods"] = chains[client]
        cells |= _write_sums(row, loss)
        if "malicious" in row:
            cells["malicious"] = "yes" if row["malicious"] else ""
        if detectors:
            cells["flagged by"] = ", ".join(n for n in detectors if client in flagged[n])
        rows.append(cells)
    columns = tuple(rows[0]) if rows else ("client",)
    words = {"client", "flagged by", "malicious", "methods"}
    align = "".join("l" if name in words else "r" for name in columns)
    return Table("clients, in training", columns, [tuple(each.values()) for each in rows], align)


def _write_sums(row: Mapping[str, Any], loss: str) -> dict[str, str]:
    """Write what a client did, by the table's columns; `loss` is the title of its losses."""
    cells = {"samples": f"{int(row['samples']):,}"} if "samples" in row else {}
    cells |= {"rounds": str(row["rounds"]), "steps": f"{int(row['steps']):,}"}
    if "train_loss_first" in row:
        ends = [_write("train_loss", row[f"train_loss_{end}"]) for end in ("first", "last")]
        cells[loss] = " to ".join(filter(None, ends))
    own = find_headline(row) or find_headline(row, "validation")
    if own is not None:
        cells[own.replace("_", " ")] = _write(own, row[own])
    cells |= {"sent": format_size(row["bytes_up"]), "received": format_size(row["bytes_down"])}
    for name, title in (("compute_s", "computing"), ("transfer_s", "sending")):
        if name in row:
            cells[f"{title} (simulated)"] = write_duration(float(row[name]))
    return cells


def _write(name: str, value: float | None) -> str:
    """Write a figure, of a share in per cent; nothing for a client that has none."""
    if value is None or math.isnan(value):
        return ""
    return write_mean(name.partition("_")[2], [value])


def _tabulate_rounds(run: Run, name: str) -> Table:
    """Tabulate a column by client and round."""
    if name not in run.clients or run.clients[name].isna().all():
        return Table("", ("client",), [])
    known = run.clients.drop_duplicates(["client", "round"], keep="last")
    wide = known.pivot_table(index="client", columns="round", values=name, dropna=False)
    if _has_parties(run):  # those without labels never know a loss
        wide = wide.dropna(how="all")
    rounds = thin([int(each) for each in wide.columns], _ROUNDS)
    rows = [
        (
            run.client_names.get(int(client)),
            *(_write(name, float(wide.loc[client, r])) for r in rounds),
        )
        for client in wide.index
    ]
    columns = ("client", *(f"round {number}" for number in rounds))
    title = f"{_TITLES[name]}{mark_view(run, name)}, client by client"
    return Table(title, columns, rows)


def tabulate_contributions(run: Run) -> Table:
    """Tabulate what each client changes of the final score, the most helpful first."""
    made = run.contributions
    if made.empty:
        return Table("", ("client",), [])
    ways = list(dict.fromkeys(made["by"]))
    score = str(made["score"].iloc[0])
    known = {(row["by"], int(row["client"])): row for row in list_records(made)}
    clients = rank_clients(run)
    rows = [
        (
            run.client_names.get(client),
            *(_write_change(str(row["score"]), row) if (row := known.get((way, client))) else ""
              for way in ways),
        )
        for client in clients
    ]  # fmt: skip
    whose = "a party's columns change" if _has_parties(run) else "a client changes"
    unit = ", in percentage points" if find_decimals(score.partition("_")[2]) is None else ""
    title = f"what {whose} of {score.replace('_', ' ')}{unit}: above 0 it helps"
    if notes := [_describe_way(made[made["by"] == way]) for way in ways]:
        title += f"; {'; '.join(notes)}"
    return Table(title, ("client", *ways), rows)


def _has_parties(run: Run) -> bool:
    return run.fields.get("topology") in JOINT


def _write_change(score: str, row: Mapping[str, Any]) -> str:
    """Write a change with its interval, of shares in percentage points."""
    own = find_decimals(score.partition("_")[2])
    scale, digits = (100, 2) if own is None else (1, own)
    value = f"{scale * row['value']:+.{digits}f}"
    if row["low"] is None:
        return value
    return f"{value} [{scale * row['low']:+.{digits}f}, {scale * row['high']:+.{digits}f}]"


def _describe_way(rows: "pd.DataFrame") -> str:
    """Describe how one way was measured: its interval, seeds, orders and start."""
    first = list_records(rows)[0]
    over = str(first["over"] or "")
    words = [f"95 % over {over}" if over else "no interval"]
    if len(seeds := str(first["seeds"]).split()) > 1:
        words.append(f"{len(seeds)} seeds")
    if first["orders"]:
        # One sampled order has no interval, and is not exact for that.
        sampled = math.factorial(len(rows)) > first["orders"]
        words.append(format_count(int(first["orders"]), "order") if sampled else "exact")
    if first["from_round"]:
        words.append(f"from round {int(first['from_round'])}")
    return f"{first['by']}: {', '.join(words)}"
