"""Which schedules, aggregations and cohorts go together, and the ways out where they do not."""

from simsplit.errors import ScenarioError
from simsplit.schedules.aggregation import Aggregation, NoAggregation


def refuse_misfits(schedule: str, aggregation: str, shared: str | None) -> None:
    """ScenarioError for axes that are not free of each other, with all that would be allowed.

    `shared` names the field by which clients share something, as `clients.heads`; None: they
    share nothing.
    """
    if aggregation == "fused" and schedule in ("round_robin", "per_client"):
        raise ScenarioError("schedule.kind", f"got {schedule}; fused aggregation needs parallel")
    allowed = _allowed(schedule, shares=shared is not None)
    if aggregation in allowed:
        return
    instead = ", ".join(allowed)
    if aggregation == "none":
        apart = {"clients.heads": "per_client", "clients.tail": "own"}[str(shared)]
        wrong = f"under {schedule} clients cannot hand round what they share"
        instead += f", or {shared}: {apart}"
    elif aggregation == "splitfed_v2":
        wrong = "it averages what clients share, and they share nothing"
        instead += ", or clients.heads: shared"
    else:
        wrong = f"under {schedule} all step one trunk, each whenever it comes"
    raise ScenarioError("aggregation", f"got {aggregation}, but {wrong}; allowed: {instead}")


def refuse_too_few(aggregation: Aggregation, asked: int) -> None:
    """ScenarioError where a round's clients can never be as many as the strategy needs."""
    if isinstance(aggregation, NoAggregation) or asked >= aggregation.strategy.needed:
        return
    strategy = aggregation.strategy
    raise ScenarioError(
        "aggregation.strategy",
        f"{strategy.named} needs the updates of at least {strategy.needed} clients; "
        f"clients.count and cohort.fraction make it {asked} a round",
    )


def _allowed(schedule: str, *, shares: bool) -> list[str]:
    """The aggregations that a schedule can go with."""
    fits = {
        "none": not shares or schedule in ("round_robin", "per_client"),
        "splitfed_v1": schedule != "asynchronous",
        "splitfed_v2": shares,
        "fused": schedule == "parallel",
    }
    return [aggregation for aggregation, fit in fits.items() if fit]
