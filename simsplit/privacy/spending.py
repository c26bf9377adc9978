"""What clients get by `train.dp` and `stop.epsilon`: their noise, accounts and budgets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from simsplit.data.batches import compute_rate
from simsplit.data.client_parts import count_rows
from simsplit.errors import ScenarioError, install_command
from simsplit.legs import ClientId
from simsplit.methods.clipping import Release
from simsplit.methods.dp_forward import DpForwardConfig, compute_gaussian_sigma
from simsplit.methods.dp_sgd import DpSgdConfig
from simsplit.parties.feed import count_batches
from simsplit.parties.private_learning import WeightNoise
from simsplit.privacy.accounting import (
    choose_guarantee,
    compute_epsilon,
    explain_lack,
    name_release,
)
from simsplit.privacy.accounts import Account, Learning, choose_delta
from simsplit.privacy.departures import counts_spending
from simsplit.scenario import Scenario


def make_noise(scenario: Scenario, samples: int) -> WeightNoise | None:
    """Return the noise by which a client with so many samples learns; None if it has none."""
    dp = scenario.train.dp
    if dp is None:
        return None
    chosen = choose_guarantee(scenario)
    learning = None if chosen is None else chosen.learning
    if learning is None:  # no guarantee counts it: a budget is then that of the weights alone
        learning = Learning(scenario, 0.0, seen=False, delta=dp.delta)
    multiplier = learning.find_multiplier(samples)
    expected = None
    if dp.sampling == "poisson":
        size = scenario.train.batch_size
        expected = samples * compute_rate(samples, size)
    return WeightNoise(dp.clip, multiplier, expected)


def find_account(
    scenario: Scenario, samples: int, client: ClientId | None = None
) -> Account | None:
    """Return the account of a client; None where nothing is counted, or there is no guarantee.

    Of parties, those that do not have what is protected have none: their packets spend nothing.
    Raise ScenarioError if there is a budget, but no package to count it with.
    """
    if scenario.epsilon_limit is not None:
        _require_accountant("stop.epsilon")
    if not counts_spending(scenario) or find_spec("dp_accounting") is None:
        return None
    chosen = choose_guarantee(scenario)
    if chosen is None or not chosen.covers(client):
        return None
    account = chosen.open_account(samples, scenario.epsilon_limit)
    return replace(account, in_round=_count_whole_round(scenario, samples))


def _count_whole_round(scenario: Scenario, samples: int) -> int:
    """Return the batches of a round that a client with so many samples does not drop out of."""
    train = scenario.train
    batches = count_batches(samples, train.batch_size, drop_last=train.drop_last)
    return int(scenario.schedule.limit_steps(np.array([batches]))[0])


def _require_accountant(field: str) -> None:
    if find_spec("dp_accounting") is None:
        raise ScenarioError(field, f"needs the package dp-accounting: {install_command('dp')}")


def refuse_small_budgets(scenario: Scenario, parts: Sequence[np.ndarray]) -> None:
    """Raise ScenarioError for a budget without a guarantee, or one that the first round passes.

    `parts` are clients' rows.
    """
    dp, limit = scenario.train.dp, scenario.epsilon_limit
    if limit is None:
        if dp is not None and dp.epsilon is not None:
            _require_accountant("train.dp.epsilon")
        return
    _require_accountant("stop.epsilon")
    chosen = choose_guarantee(scenario)
    if chosen is None:
        raise ScenarioError(
            "stop.epsilon", f"got {limit:g}, but no client can count: {explain_lack(scenario)}"
        )
    for client, samples in enumerate(count_rows(parts).tolist()):
        if not chosen.covers(client):
            continue
        account = chosen.open_account(samples, limit)
        if samples and (first := account.compute(1)) > limit:
            raise ScenarioError(
                "stop.epsilon",
                f"got {limit:g}, but one step brings client {client} to {first:.4g} (delta "
                f"{account.delta:.2g}); use more noise, or a larger budget",
            )


def is_amplified(scenario: Scenario) -> bool:
    """Return whether clients count drawn batches, which nobody sees who is protected against."""
    chosen = choose_guarantee(scenario)
    learning = None if chosen is None else chosen.learning
    return learning is not None and not learning.seen and learning.config.sampling == "poisson"


def find_noise(
    scenario: Scenario, times: Mapping[ClientId, int], samples: Sequence[int], epsilon: float
) -> list[dict[str, object]]:
    """Return the fields of noise, with the values by which no client passes a budget.

    Raises:
        ScenarioError: if there is no guarantee, nothing is sent, or noise that stays as it is
            spends the budget.
    """
    chosen = choose_guarantee(scenario)
    if chosen is None:
        raise ScenarioError("train.dp", f"no noise reaches a budget: {explain_lack(scenario)}")
    counts = {client: count for client, count in times.items() if count and chosen.covers(client)}
    if not counts:
        raise ScenarioError(
            "schedule.rounds",
            "no sample is sent, so a budget needs no noise; plan 1 round or more",
        )
    if chosen.learning is not None:
        dp = chosen.learning.config
        wanted = dp.model_copy(update={"multiplier": None, "epsilon": epsilon})
        train = scenario.train.model_copy(update={"dp": wanted})
        learning = replace(chosen.learning, scenario=scenario.model_copy(update={"train": train}))
        found = max(learning.find_multiplier(samples[each]) for each in counts)
        return [_make_line("train.dp.multiplier", found, dp.multiplier, epsilon)]
    needed = max(
        compute_gaussian_sigma(epsilon, choose_delta(chosen.delta, samples[client]))
        * math.sqrt(count)
        for client, count in counts.items()
    )
    factor, lines = needed / chosen.multiplier, []
    names = chosen.method.split(" and ")  # another method's noise has no part in it
    for index, method in enumerate(scenario.method):
        if not isinstance(method.release, Release) or name_release(method) not in names:
            continue
        size, place = factor * method.release.multiplier, f"method.{index}"
        if isinstance(method, DpForwardConfig):
            alone = compute_epsilon(size, 1, method.delta)
            lines.append(_make_line(f"{place}.epsilon", alone, method.epsilon, epsilon))
        elif isinstance(method, DpSgdConfig):
            now = method.multiplier
            lines.append(_make_line(f"{place}.multiplier", 2 * size, now, epsilon))
    return lines


def _make_line(field: str, value: float, now: float | None, epsilon: float) -> dict[str, object]:
    return {"field": field, "value": value, "now": now, "epsilon": epsilon}
