"""What a hand-over held, said wherever its bytes are: the moments can be twice the weights."""

from collections.abc import Iterable

from simsplit.results import Run

_HELD = {"state": "weights and the optimizer's moments", "weights": "weights"}


def handed_over(runs: Iterable[Run]) -> str:
    """What clients handed over in these runs; empty where none did."""
    return " or ".join(dict.fromkeys(held for run in runs if (held := _held(run))))


def _held(run: Run) -> str:
    wire = run.wire
    if not (wire["leg"] == "handover").any():
        return ""
    values = run.scenario
    aggregation = values.get("aggregation") or {}
    if bits := aggregation.get("bits"):
        return f"changes of weights in {bits} bits"
    averages = aggregation.get("kind", "none") != "none"
    return _HELD["weights" if averages else values["clients"].get("handover", "state")]
