"""Tables of bytes name the content of hand-overs, since moments can be twice the weights' size."""

from collections.abc import Iterable

from simsplit.results import Run

_HELD = {"state": "weights and the optimizer's moments", "weights": "weights"}


def describe_handovers(runs: Iterable[Run]) -> str:
    """Describe what clients handed over in these runs; return an empty string if none did."""
    return " or ".join(dict.fromkeys(held for run in runs if (held := _describe_handover(run))))


def _describe_handover(run: Run) -> str:
    wire = run.wire
    if not (wire["leg"] == "handover").any():
        return ""
    values = run.scenario
    aggregation = values.get("aggregation") or {}
    if bits := aggregation.get("bits"):
        return f"changes of weights in {bits} bits"
    averages = aggregation.get("kind", "none") != "none"
    return _HELD["weights" if averages else values["clients"].get("handover", "state")]
