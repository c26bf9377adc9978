"""A plan says what noise will guarantee, what it leaves open, and which noise a budget takes."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from simsplit.assembly.dry_step import Prober
from simsplit.data.client_parts import count_rows
from simsplit.forecasting.drafting import DraftRound, RunDraft
from simsplit.legs import ClientId
from simsplit.privacy.accounting import (
    count_in_round,
    count_packets,
    count_releases,
    list_guarantees,
    summarise_privacy,
)
from simsplit.privacy.departures import counts_spending
from simsplit.privacy.spending import find_noise, is_amplified, refuse_small_budgets
from simsplit.privacy.uncovered import list_uncovered
from simsplit.scenario import Scenario


def foresee_privacy(
    scenario: Scenario,
    parts: Sequence[np.ndarray],
    prober: Prober,
    draft: RunDraft,
    rounds: Sequence[DraftRound],
    *,
    epsilon: float | None,
) -> dict[str, Any]:
    """Return the facts of a forecast that are of privacy; `epsilon` is a budget to find noise for.

    Raise ScenarioError for a budget that the first round passes.
    """
    samples = count_rows(parts).tolist()
    refuse_small_budgets(scenario, parts)
    guarantees = list_guarantees(scenario)
    times = _count_sendings(scenario, prober, draft, rounds, samples) if guarantees else {}
    return {
        "uncovered": [asdict(each) for each in list_uncovered(scenario)],
        "privacy": [summarise_privacy(each, times, samples)[0] for each in guarantees],
        "noise": [] if epsilon is None else find_noise(scenario, times, samples, epsilon),
    }


def _count_sendings(
    scenario: Scenario,
    prober: Prober,
    draft: RunDraft,
    rounds: Sequence[DraftRound],
    samples: Sequence[int],
) -> dict[ClientId, int]:
    """Count how often each client will send its samples, as the run's clients will count it."""
    batches = draft.program.steps_per_epoch["private"]
    steps = dict(enumerate(batches.tolist()))
    played = all(each.times == 1 for each in rounds)
    if scenario.train.accumulate > 1 and counts_spending(scenario) and played:
        # Clients count whole mini-batches, whose parts cross.
        taken = {client: draft.book.taken[client]["private"] for client in steps}
        return {client: -(-taken[client] // count) for client, count in steps.items() if count}
    # A round of a very long plan stands for several, and a repeated one has an earlier one's rows.
    wire = [
        replace(row, round=each.number, packets=row.packets * each.times)
        for each in rounds
        for row in each.sent
    ]
    dp = scenario.train.dp
    if dp is None or dp.sampling == "passes":
        packets = count_packets(scenario, steps, samples)
        return count_releases(wire, packets, count_in_round(scenario, batches))
    taken = count_releases(wire, dict.fromkeys(steps, 1))
    if is_amplified(scenario):
        return taken
    feeds = {client: prober.maker.feeds(client)["private"] for client in taken}
    return {client: feeds[client].count_most(count) for client, count in taken.items()}
