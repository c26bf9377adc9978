"""A run client by client: who holds, learns, sends and waits how much, and who helps or hurts."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simsplit.errors import format_count
from simsplit.legs import Leg
from simsplit.metrics import find_decimals, find_headline
from simsplit.protocols import JOINT
from simsplit.report.canvas import (
    COLOURS,
    HONEST,
    MARKS,
    escape_text,
    make_shown_figure,
    mark_whole_rounds,
)
from simsplit.report.detections import list_detectors, list_flagged, list_malicious
from simsplit.report.privacy import mark_view
from simsplit.report.tables import Table, choose_form, format_change, thin, write_mean
from simsplit.report.timing import write_duration
from simsplit.results import HOLDINGS, Run
from simsplit.rows import LEARNED
from simsplit.sizes import format_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SUMMED = ("compute_s", "transfer_s")
_LAST = ("malicious", "barred")
_ROUNDS = 8
"""The most rounds of a table; of longer runs it has some, evenly spaced."""
_MEASURES = {"train_loss": "training loss", "train_accuracy": "training accuracy"}
_BAD = "crimson"
_NAMED = len(COLOURS)
"""The most clients with a colour of their own; of more, malicious ones and the last stand out."""
_BARS = 40
"""The most clients with a bar: of more, those that help and hurt most."""
_TITLES = {"train_loss": "training loss", "train_accuracy": "training accuracy, %"}


def summarise_clients(run: Run) -> "pd.DataFrame":
    """Return a row per client: samples, steps, first and last losses and accuracies, bytes, time.

    Bytes are those of training: `bytes_up` from the client, `bytes_down` to it.
    """
    import pandas as pd

    table = run.clients.sort_values("round")
    made = pd.DataFrame({"client": sorted(table["client"].unique())}).set_index("client")
    if run.client_names:
        made["name"] = [run.client_names.get(int(client)) for client in made.index]
    if (run.path / HOLDINGS).exists():
        made["samples"] = run.holdings.groupby("client")["samples"].sum()
    trained = table[table["steps"] > 0].groupby("client")["round"].nunique()
    made["rounds"] = trained.reindex(made.index).fillna(0).astype(int)
    made["steps"] = table.groupby("client")["steps"].sum().astype(int)
    return made.join([_read_figures(table), _sum_bytes(run)]).reset_index()


def _read_figures(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return by client the first and last figures of its training, and the last ones of others."""
    import pandas as pd

    by_client, made = table.groupby("client"), pd.DataFrame(index=table["client"].unique())
    for name in map(str, table.columns):
        if name in LEARNED:
            made[f"{name}_first"] = by_client[name].first()
            made[f"{name}_last"] = by_client[name].last()
        elif name in _LAST or name.startswith(("test_", "validation_")):
            made[name] = by_client[name].last()
        elif name in _SUMMED:
            made[name] = by_client[name].sum()
    return made


def _sum_bytes(run: Run) -> "pd.DataFrame":
    import pandas as pd

    sent = run.wire[run.wire["phase"] != "evaluate"]
    up = sent["leg"].map(_goes_up).astype(bool)
    everybody = run.clients["client"].unique()
    sums = {
        name: rows.groupby("client")["bytes"].sum().reindex(everybody).fillna(0).astype(int)
        for name, rows in (("bytes_up", sent[up]), ("bytes_down", sent[~up]))
    }
    return pd.DataFrame(sums)


def _goes_up(leg: object) -> bool:
    """Return whether a leg leads from a client; a plugin's, which is not known here, counts so."""
    try:
        return Leg(str(leg)).up
    except ValueError:
        return True


def list_chains(run: Run) -> list[str]:
    """List the methods at each client's cut, where parties have methods of their own; else none."""
    methods = run.fields.get("method", [])
    owners = [str(each.get("by") or "").partition(" ")[2] for each in methods]
    if not any(owners):
        return []
    names = run.client_names
    acting = [None if not owner else names.find(owner) for owner in owners]
    return [
        ", ".join(m["kind"] for m, who in zip(methods, acting, strict=True) if who in (None, party))
        or "none"
        for party in range(run.fields["clients"]["count"])
    ]


def list_records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return rows as plain values by column; what a row lacks is None."""
    plain = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def rank_clients(run: Run) -> list[int]:
    """Return the measured clients, the most helpful first, by Shapley values if there are any."""
    made = run.contributions
    if made.empty:
        return []
    best = "shapley" if (made["by"] == "shapley").any() else made["by"].iloc[0]
    chosen = made[made["by"] == best].sort_values(["value", "client"], ascending=[False, True])
    return [int(client) for client in chosen["client"]]


def tabulate_clients(run: Run) -> list[Table]:
    """Make tables of a run by client: what it did, how it learned, and whether it helps."""
    tables = [_tabulate_summary(run), *(_tabulate_rounds(run, name) for name in LEARNED)]
    return [each for each in [*tables, tabulate_contributions(run)] if each.rows]


def _tabulate_summary(run: Run) -> Table:
    detectors, chains = list_detectors(run), list_chains(run)
    flagged = {name: set(list_flagged(run, name)) for name in detectors}
    rows = []
    loss = f"loss{mark_view(run, 'train_loss')}, first to last"
    for row in list_records(summarise_clients(run)):
        client = int(row["client"])
        cells = {"client": run.client_names.get(client)}
        cells |= {"methods": chains[client]} if chains else {}
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
    rows = []
    for client in wide.index:
        cells = (_write(name, float(wide.loc[client, number])) for number in rounds)
        rows.append((run.client_names.get(int(client)), *cells))
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
    changes = {}
    for row in list_records(made):  # of shares in percentage points
        scale, digits = choose_form(str(row["score"]).partition("_")[2])
        ends = None if row["low"] is None else (scale * row["low"], scale * row["high"])
        place = row["by"], int(row["client"])
        changes[place] = format_change(scale * row["value"], ends, digits)
    rows = [
        (run.client_names.get(client), *(changes.get((way, client), "") for way in ways))
        for client in rank_clients(run)
    ]
    whose = "a party's columns change" if _has_parties(run) else "a client changes"
    unit = ", in percentage points" if find_decimals(score.partition("_")[2]) is None else ""
    title = f"what {whose} of {score.replace('_', ' ')}{unit}: above 0 it helps"
    title += "".join(f"; {_describe_way(made[made['by'] == way])}" for way in ways)
    return Table(title, ("client", *ways), rows)


def _has_parties(run: Run) -> bool:
    return run.fields.get("topology") in JOINT


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


def draw_clients(run: Run) -> "Figure":
    """Draw each client's loss and accuracy over rounds, and what it changes if it was measured."""
    known = [name for name in _MEASURES if name in run.clients and run.clients[name].notna().any()]
    ranked = rank_clients(run)
    bars = min(len(ranked), _BARS)
    count = max(1, len(known) + bool(ranked))
    figure = make_shown_figure(4.6 * count, max(3.4, 1.2 + 0.24 * bars))
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    for ax, name in zip(axes, known, strict=False):
        _draw_measure(run, name, ax)
    if known and run.clients["client"].nunique() <= _NAMED:
        # below all axes: beside the curves there may be no room for ten clients
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": min(_NAMED, 5)}
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, frameon=False, **place)
    if ranked:
        _draw_contributions(run, ranked, axes[-1])
    return figure


def _draw_measure(run: Run, name: str, ax: "Axes") -> None:
    bad = set(list_malicious(run))
    clients = sorted(int(each) for each in run.clients["client"].unique())
    few, ranked = len(clients) <= _NAMED, rank_clients(run)
    for place, client in enumerate(clients):
        rows = run.clients[run.clients["client"] == client].dropna(subset=[name])
        colour = COLOURS[place] if few else HONEST
        if not few and (client in bad or (ranked and client == ranked[-1])):
            colour = _BAD
        label = run.client_names.label(client) + (", malicious" if client in bad else "")
        style: dict[str, Any] = {"ls": "--" if client in bad else "-", "label": escape_text(label)}
        style |= {"marker": MARKS[place % len(MARKS)] if few else None, "ms": 4}
        zorder = 3 if colour == _BAD else 2
        ax.plot(rows["round"], rows[name], color=colour, zorder=zorder, **style)
    ax.set(xlabel="round", ylabel=_MEASURES[name])
    ax.set_title(f"{_MEASURES[name]}{mark_view(run, name)} by client")
    mark_whole_rounds(ax)
    ax.grid(color="0.92")


def _draw_contributions(run: Run, ranked: list[int], ax: "Axes") -> None:
    """Draw a bar per client and way of measuring, with its interval; the most helpful on top."""
    shown = ranked if len(ranked) <= _BARS else [*ranked[: _BARS // 2], *ranked[-_BARS // 2 :]]
    made = run.contributions.set_index(["by", "client"])
    ways = list(dict.fromkeys(run.contributions["by"]))
    height = 0.8 / len(ways)
    figure = str(run.contributions["score"].iloc[0])
    scale, _ = choose_form(figure)
    for index, way in enumerate(ways):
        rows = made.loc[way].reindex(shown)
        places = [place + (index - (len(ways) - 1) / 2) * height for place in range(len(shown))]
        errors, values = scale * (rows["high"] - rows["value"]).fillna(0), scale * rows["value"]
        colour = COLOURS[index]
        ax.barh(places, values, height, xerr=errors, color=colour, ecolor="0.3", label=way)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(range(len(shown)), [escape_text(run.client_names.label(c)) for c in shown])
    ax.invert_yaxis()
    unit = ", in percentage points" if scale == 100 else ""
    change = f"change of {figure.replace('_', ' ')}{unit}"
    ax.set(xlabel=change, title="who helps (right) and who hurts (left)")
    if len(ways) > 1:  # above the bars, whose ends may lie in any corner
        ax.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1.08), ncols=2)
