"""What `show` says of a run: its figures, and its bytes by leg."""

from typing import Any

from simsplit.errors import counted
from simsplit.packets import Leg
from simsplit.preflight import size
from simsplit.report.detections import detected
from simsplit.report.handovers import handed_over
from simsplit.report.presentations import PRESENTATIONS
from simsplit.report.privacy import guarantees
from simsplit.report.rates import Count
from simsplit.report.rounds import round_by_round
from simsplit.report.sockets import frames_of
from simsplit.report.tables import Table, decimals, mean_of
from simsplit.report.timing import time_to_accuracy
from simsplit.results import Run
from simsplit.topologies import CARRIED, sort_legs

_MEANT = {"attack_success_all": "attack success, all heads"}


def heading(run: Run) -> str:
    """Which run it is, how far it came, and why it stopped if it says so."""
    summary = run.summary
    finished = summary["status"] == "finished"
    done = summary["rounds_done"] if finished else len(run.rounds)  # a killed run wrote no summary
    status = "running, or killed" if summary["status"] == "running" else summary["status"]
    why = f"\nwhy: {summary['reason']}" if "reason" in summary else ""
    of_all = f"{done} of {counted(summary['rounds'], 'round')}"
    return f"{summary['name']}: {status}, {of_all}{why}"


def show(run: Run) -> list[Table]:
    """A run's figures, its bytes by leg, and the simulated time that its accuracies took."""
    recovered = [table for each in PRESENTATIONS.values() for table in each.show(run)]
    tables = [figures_of(run), guarantees(run), detected(run), *recovered, *costs_of(run)]
    return [table for table in tables if table.rows]


def figures_of(run: Run) -> Table:
    """Its evaluated figures; of a run that has not finished, the latest."""
    summary = run.summary
    if summary["status"] != "finished":
        summary = {**summary, "last": _latest(run)}
    return _figures(summary)


def costs_of(run: Run) -> list[Table]:
    """Its bytes by leg, what its rounds were like, and simulated time to accuracy."""
    timed = [time_to_accuracy(run)] if "flops" in run.summary else []
    return [_bytes(run), frames_of(run), round_by_round(run), *timed]


def _latest(run: Run) -> dict[str, float]:
    """The figures of the last evaluated round of a run that has not finished."""
    columns = map(str, run.rounds.columns)
    starts = ("test_", "validation_", "attack_")
    figures = [name for name in columns if name.startswith(starts)]
    evaluated = run.rounds.dropna(subset=figures)
    if evaluated.empty:
        return {}
    return {name: float(evaluated[name].iloc[-1]) for name in ("round", *figures)}


def _figures(summary: dict[str, Any]) -> Table:
    """Last, best on validation, and best on test beside each other, a row per figure."""
    named = {
        "last": "last round",
        "best_on_validation": "best on validation",
        "best_on_test": "best on test (as papers select)",
    }
    chosen = {title: summary[key] for key, title in named.items() if summary.get(key)}
    figures = dict.fromkeys(name for values in chosen.values() for name in values)
    samples = int(summary.get("attack_samples", 0))
    rows = [
        (
            _MEANT.get(name, name).replace("_", " "),
            *(_cell(name, each.get(name), samples) for each in chosen.values()),
        )
        for name in figures
    ]
    return Table("", ("", *chosen), rows)


def _bytes(run: Run) -> Table:
    """Packets and bytes by leg; each direction's share of what was sent."""
    wire = run.wire
    if wire.empty:
        return Table("", ("leg", "packets", "bytes"), [])
    training = wire[wire["phase"] != "evaluate"]
    total = int(training["bytes"].sum())
    rows = []
    for leg in sort_legs(training["leg"]):
        of_leg = training[training["leg"] == leg]
        nbytes = int(of_leg["bytes"].sum())
        name = f"{leg} ({handed_over([run])})" if leg == Leg.HANDOVER else leg
        packets, share = f"{int(of_leg['packets'].sum()):,}", f"{nbytes / total:.1%}"
        rows.append((name, packets, f"{nbytes:,}", size(nbytes), share))
    rows.append(("all", f"{int(training['packets'].sum()):,}", f"{total:,}", size(total), "100.0%"))
    if "bytes_plain" in run.rounds and (plain := int(run.rounds["bytes_plain"].sum())):
        beside = training["leg"].isin(CARRIED)
        crossed = int(training.loc[~beside, "bytes"].sum())
        if beside.any():
            rows.append(("(across the cut)", "", f"{crossed:,}", size(crossed), ""))
        against = f"{plain / crossed:.2f} times as much" if crossed else ""
        rows.append(("(a plain cut sends across)", "", f"{plain:,}", size(plain), against))
    return Table("", ("leg", "packets", "bytes", "size", "share"), rows)


def _cell(name: str, value: float | None, samples: int = 0) -> str:
    if value is None:
        return ""
    if name.startswith("attack_success") and samples:
        return Count(round(value * samples), samples).bracketed
    if name == "round":
        return f"{value:.0f}"
    figure = name.partition("_")[2]  # behind the split
    return mean_of(figure, [value]) + ("%" if decimals(figure) is None else "")
