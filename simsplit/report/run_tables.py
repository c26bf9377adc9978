"""`show` prints a run's figures, its bytes by leg and further tables."""

from simsplit.errors import format_count
from simsplit.legs import Leg
from simsplit.metrics import find_decimals
from simsplit.metrics.intervals import clopper_pearson
from simsplit.protocols import CARRIED, sort_legs
from simsplit.report.client_tables import list_chains, list_records, summarise_clients
from simsplit.report.comparison import describe_handovers
from simsplit.report.detections import tabulate_detections
from simsplit.report.presentations import list_presentations
from simsplit.report.privacy import tabulate_entries, tabulate_legs, tabulate_withheld
from simsplit.report.rates import write_share
from simsplit.report.tables import Table, write_mean
from simsplit.report.timing import time_to_accuracy, write_duration
from simsplit.results import Run
from simsplit.sizes import format_size

_CHOSEN = {
    "last": "last round",
    "best_on_validation": "best on validation",
    "best_on_test": "best on test (as papers select)",
}
_TITLES = {"attack_success_all": "attack success, all heads"}
FRAMES_TITLE = "frames between machines (evaluation, calls and repeated rounds included)"
_NUMBERS = ["down_frames", "down_bytes", "up_frames", "up_bytes"]
_MEANINGS = {
    "clients": "clients that took part",
    "dropped": "of them dropped out in a step",
    "late": "of them past the deadline",
    "staleness": "trunk steps between forward and backward",
    "simulated_s": "simulated time",
    "server_busy": "server computing",
    "waiting": "clients waiting",
}


def write_heading(run: Run) -> str:
    """Write a run's name, status and rounds, why it stopped, and what its model has twice."""
    summary = run.summary
    finished = summary["status"] == "finished"
    done = summary["rounds_done"] if finished else len(run.rounds)  # a killed run wrote no summary
    status = "running, or killed" if summary["status"] == "running" else summary["status"]
    why = f"\nwhy: {summary['reason']}" if "reason" in summary else ""
    of_all = f"{done} of {format_count(summary['rounds'], 'round')}"
    copies = f"\nnote: {summary['copies']}" if "copies" in summary else ""
    return f"{summary['name']}: {status}, {of_all}{why}{copies}"


def show(run: Run) -> list[Table]:
    """Make a run's tables: figures, guarantees, detections, recoveries, and costs."""
    recovered = [table for _, each in list_presentations() for table in each.show(run)]
    tables = [
        tabulate_figures(run),
        tabulate_legs(run.summary.get("uncovered", [])),
        tabulate_entries(run.summary.get("privacy", [])),
        tabulate_withheld(run),
        tabulate_detections(run),
        tabulate_tuned(run),
        tabulate_chains(run),
        *recovered,
        *tabulate_costs(run),
    ]
    return [table for table in tables if table.rows]


def tabulate_figures(run: Run) -> Table:
    """Tabulate a run's evaluated figures, a row each; for an unfinished run, the latest."""
    summary = run.summary
    if summary["status"] != "finished":
        summary = {**summary, "last": read_latest(run)}
    chosen = {title: summary[key] for key, title in _CHOSEN.items() if summary.get(key)}
    samples = int(summary.get("attack_samples", 0))
    rows = [
        (
            _TITLES.get(name, name).replace("_", " "),
            *(_write_cell(name, each.get(name), samples) for each in chosen.values()),
        )
        for name in dict.fromkeys(name for values in chosen.values() for name in values)
    ]
    return Table("", ("", *chosen), rows)


def tabulate_chains(run: Run) -> Table:
    """Tabulate the methods at each party's cut and what it sends, where parties have their own."""
    sums = {int(row["client"]): row for row in list_records(summarise_clients(run))}
    rows = []
    for client, chain in enumerate(list_chains(run)):
        if client in sums:
            sent, got = (format_size(sums[client][f"bytes_{way}"]) for way in ("up", "down"))
            rows.append((run.client_names.get(client), chain, sent, got))
    columns = ("party", "methods at its cut", "sent", "received")
    return Table("parties, in training", columns, rows, "llrr")


def tabulate_tuned(run: Run) -> Table:
    """Tabulate what the attacker chose for its attacks, and how much each choice has read."""
    rows = []
    for each in run.tuned.get("attacks", ()):
        for tried in each["tried"]:
            values = {name: tried[name] for name in each["chosen"]}
            text = ", ".join(f"{name} {value}" for name, value in values.items())
            mark = "chosen" if values == each["chosen"] else ""
            rows.append((each["attack"], text, f"{tried['score']:.3f}", mark))
    columns = ("attack", "values", "read of simulated clients", "")
    return Table("tuned by the attacker", columns, rows, "llrl")


def tabulate_costs(run: Run) -> list[Table]:
    """Make tables of a run's bytes by leg, its rounds, and its simulated time to accuracy."""
    timed = [time_to_accuracy(run)] if "flops" in run.summary else []
    return [_tabulate_bytes(run), tabulate_frames(run), tabulate_rounds(run), *timed]


def read_latest(run: Run) -> dict[str, float]:
    """Return the figures of the last evaluated round of an unfinished run."""
    columns = map(str, run.rounds.columns)
    starts = ("test_", "validation_", "attack_")
    figures = [name for name in columns if name.startswith(starts)]
    evaluated = run.rounds.dropna(subset=figures)
    if evaluated.empty:
        return {}
    return {name: float(evaluated[name].iloc[-1]) for name in ("round", *figures)}


def _tabulate_bytes(run: Run) -> Table:
    """Tabulate packets and bytes by leg, with each leg's share."""
    wire = run.wire
    if wire.empty:
        return Table("", ("leg", "packets", "bytes"), [])
    training = wire[wire["phase"] != "evaluate"]
    total = int(training["bytes"].sum())
    rows = []
    for leg in sort_legs(training["leg"]):
        of_leg = training[training["leg"] == leg]
        nbytes = int(of_leg["bytes"].sum())
        name = f"{leg} ({describe_handovers([run])})" if leg == Leg.HANDOVER else leg
        packets, share = f"{int(of_leg['packets'].sum()):,}", f"{nbytes / total:.1%}"
        rows.append((name, packets, f"{nbytes:,}", format_size(nbytes), share))
    packets = f"{int(training['packets'].sum()):,}"
    rows.append(("all", packets, f"{total:,}", format_size(total), "100.0%"))
    if "bytes_plain" in run.rounds and (plain := int(run.rounds["bytes_plain"].sum())):
        beside = training["leg"].isin(CARRIED)
        crossed = int(training.loc[~beside, "bytes"].sum())
        if beside.any():
            rows.append(("(across the cut)", "", f"{crossed:,}", format_size(crossed), ""))
        against = f"{plain / crossed:.2f} times as much" if crossed else ""
        rows.append(("(a plain cut sends across)", "", f"{plain:,}", format_size(plain), against))
    return Table("", ("leg", "packets", "bytes", "size", "share"), rows)


def _write_cell(name: str, value: float | None, samples: int = 0) -> str:
    if value is None:
        return ""
    if name.startswith("attack_success") and samples:
        # A mean over heads is no number of hits; its interval is that of the nearest number.
        return write_share(value, clopper_pearson(round(value * samples), samples))
    if name == "round":
        return f"{value:.0f}"
    figure = name.partition("_")[2]  # without the split
    return write_mean(figure, [value]) + ("%" if find_decimals(figure) is None else "")


def tabulate_frames(run: Run) -> Table:
    """Tabulate frames and bytes in both directions, by call and by the leg that the call brings."""
    columns = ("call", "brings", "frames down", "down", "frames up", "up")
    if run.socket.empty:
        return Table("", columns, [])
    sums = run.socket.fillna({"leg": ""}).groupby(["call", "leg"], sort=False)[_NUMBERS].sum()
    places = [(str(call), str(leg)) for call, leg in sums.index]
    counts = [*sums.to_numpy(), sums.to_numpy().sum(axis=0)]
    rows = [
        (*place, f"{int(down):,}", format_size(int(sent)), f"{int(up):,}", format_size(int(got)))
        for place, (down, sent, up, got) in zip([*places, ("all", "")], counts, strict=True)
    ]
    return Table(FRAMES_TITLE, columns, rows, align="llrrrr")


def tabulate_rounds(run: Run) -> Table:
    """Tabulate the mean and the extremes over rounds of the columns that the run has."""
    rows = []
    for name in (each for each in _MEANINGS if each in run.rounds):
        values = run.rounds[name].dropna()
        if len(values):
            figures = map(float, (values.mean(), values.min(), values.max()))
            rows.append((_MEANINGS[name], *(_write_round_cell(name, each) for each in figures)))
    return Table("", ("per round", "mean", "least", "most"), rows)


def _write_round_cell(name: str, value: float) -> str:
    if name.endswith("_s"):
        return write_duration(value)
    if name in ("server_busy", "waiting"):
        return f"{value:.1%}"
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"
