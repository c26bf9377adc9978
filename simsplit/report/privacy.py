"""Runs with noise state their guarantee: an epsilon, or the reason why there is none."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from simsplit.report.tables import Table
from simsplit.results import Run

SIMULATORS_VIEW = "the simulator's view: a deployed client withholds it"


def tabulate_entries(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate guarantees, each as an entry of `summary.json`; a run without noise has none."""
    audits = any("audited" in each for each in entries)
    columns = ("noise", "protects", "sent", "delta", "epsilon", *(("audit",) if audits else ()))
    rows = [(*_make_row(each), *((write_audit(each),) if audits else ())) for each in entries]
    title = (
        "differential privacy of all that is sent in training, of the client that fares worst "
        "(neighbours: one of its samples replaced)"
    )
    has_reasons = any(each["epsilon"] is None for each in entries)
    return Table(title, columns, rows, ("llrrl" if has_reasons else "llrrr") + "l" * audits)


def write_audit(entry: Mapping[str, Any]) -> str:
    """Write an audit's lower bound, and whether it refutes the guarantee; empty without one."""
    if "audited" not in entry:
        return ""
    bound = f"at least {_write_number(entry['audited'])}"
    # The client that holds the canaries may have a smaller epsilon than the worst.
    claimed = entry.get("audited_against", entry["epsilon"])
    return bound if claimed is None or claimed >= entry["audited"] else f"{bound}: REFUTED"


def tabulate_legs(entries: Sequence[Mapping[str, str]]) -> Table:
    """Tabulate legs without a guarantee, each as an entry of `summary.json`."""
    rows = [(each["leg"], each["shows"], each["needs"]) for each in entries]
    return Table("not covered by any guarantee", ("leg", "shows", "needs"), rows, "lll")


def tabulate_noise(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate the noise that reaches a budget, for the client that needs most."""
    rows = [
        (each["field"], f"{each['value']:.4g}", f"{each['now']:.4g}" if each["now"] else "")
        for each in entries
    ]
    budget = f"{entries[0]['epsilon']:g}" if entries else ""
    return Table(f"noise for epsilon {budget} of the whole run", ("field", "value", "now"), rows)


def tabulate_withheld(run: Run) -> Table:
    """Tabulate the figures that a client with a guarantee does not send, and what stands here."""
    words = {"withheld": "withheld by the clients", "simulators_view": SIMULATORS_VIEW}
    rows = [(name, text) for key, text in words.items() for name in run.summary.get(key, ())]
    title = "figures that depend on what a guarantee protects, without noise"
    return Table(title, ("figure", "in these tables"), rows, "ll")


def mark_view(run: Run, column: str) -> str:
    """Write behind a column's title whose view it is; empty for what the server has too."""
    if column in run.summary.get("simulators_view", ()):
        return " (simulator's view)"
    return " (withheld)" if column in run.summary.get("withheld", ()) else ""


def write_epsilon(runs: Sequence[Run]) -> str:
    """Write a row's epsilon, `8.31 (a sample's input)` or `none`; empty if no method adds noise."""
    return write_epsilon_of([run.summary.get("privacy", []) for run in runs])


def write_epsilon_of(entries: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Write the epsilon of runs' guarantees, each as entries of `summary.json`."""
    if not any(entries):
        return ""
    epsilons: dict[str, list[float]] = {}
    bounds: dict[str, list[float]] = {}
    for each in (entry for several in entries for entry in several):
        if each["epsilon"] is not None:
            epsilons.setdefault(each["protects"], []).append(each["epsilon"])
        if "audited" in each:
            bounds.setdefault(each["protects"], []).append(each["audited"])
    cells = [
        f"{_write_number(statistics.fmean(values))} ({what}{_write_bound(bounds.get(what))})"
        for what, values in epsilons.items()
    ]
    audited = [each for values in bounds.values() for each in values]
    return ", ".join(cells) or f"none{_write_bound(audited)}"


def measure_epsilon(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest epsilon of a run's guarantees, and an audit's bound beside it.

    Without a guarantee the bound is that of all that the auditor saw.
    """
    entries = summary.get("privacy", [])
    claimed = [each["epsilon"] for each in entries if each["epsilon"] is not None]
    bounds = [each["audited"] for each in entries if "audited" in each]
    if "audit" in summary and not claimed:
        bounds = [summary["audit"]["value"]]
    values = {"epsilon": claimed, "audited_epsilon": bounds}
    return {name: float(max(every)) for name, every in values.items() if every}


def _write_bound(bounds: Sequence[float] | None) -> str:
    """Write the mean of an audit's bounds behind an epsilon; empty without an audit."""
    return f"; audit: at least {_write_number(statistics.fmean(bounds))}" if bounds else ""


def _make_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if entry["epsilon"] is None:
        return entry["method"], entry["protects"] or "nothing", "", "", f"none: {entry['none']}"
    times = entry["times_sent"]
    sent = f"{times} time" + "s" * (times != 1)
    if "amplified" in entry:
        drawn = f"{times} batches drawn, and not seen"
        sent = drawn if entry["amplified"] else f"{sent}, drawn, but seen: no amplification"
    figures = (f"{entry['delta']:.2g}", _write_number(entry["epsilon"]))
    return (entry["method"], entry["protects"], sent, *figures)


def _write_number(epsilon: float) -> str:
    """Write an epsilon with three digits, or with all digits before the point."""
    return f"{epsilon:,.0f}" if epsilon >= 1000 else f"{epsilon:.3g}"
