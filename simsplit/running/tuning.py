"""An attacker tunes its attacks before a run, on clients that it simulates.

It has auxiliary data, and knows the scenario: the model, the method with its options, the schedule.
So it trains the same scenario on clients of its own, attacks them with every combination of the
values in `tune`, scores these attacks against its own truth, and takes the best. Nothing of the
run's samples takes part, nor its seed: the simulated weights and secrets are other draws.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.attacks import AttackConfig
from simsplit.data import Prepared
from simsplit.data.simulated import simulate_clients
from simsplit.errors import RunFailedError
from simsplit.report.leak_numbers import score_attack
from simsplit.report.numbers import measure
from simsplit.results import TUNED, Run
from simsplit.results.checkpoints import compute_digest
from simsplit.results.directory import make_directory, replace
from simsplit.results.shapes import TunedShape, read_shaped
from simsplit.scenario import Scenario
from simsplit.scenario.files import dump
from simsplit.seeds import derive_seed

Train = Callable[[Scenario, Prepared, Path], Run]
"""A function that runs a scenario on data in a folder, in this process."""
Tell = Callable[[str], None]
_SIMULATED = "tuning"
"""The folder of simulated runs in a run directory, while they last."""


def tune_attacks(
    scenario: Scenario, data: Prepared, path: Path, *, train: Train, tell: Tell
) -> Scenario:
    """Return a scenario whose attacks have the values that the attacker chooses.

    What it chose is kept in the run directory, so that a resumed run does not choose again.

    Raises:
        ScenarioError: where the auxiliary data do not suffice to simulate clients.
        RunFailedError: where no combination of an attack has a score.
    """
    if not any(attack.tune for attack in scenario.attacks):
        return scenario
    digest = _digest(scenario)
    kept = read_shaped(path / TUNED, TunedShape) if (path / TUNED).exists() else {}
    if kept.get("scenario") != digest:
        started = time.monotonic()
        chosen = _choose(scenario, data, path / _SIMULATED, train, tell)
        spent = round(time.monotonic() - started, 3)
        kept = {"attacks": chosen, "seconds": spent, "scenario": digest}
        make_directory(path)
        replace(path / TUNED, (json.dumps(kept, indent=2) + "\n").encode())
    values = {str(each["attack"]): each["chosen"] for each in kept["attacks"]}
    attacks = [_take(attack, values.get(attack.title, {})) for attack in scenario.attacks]
    return scenario.model_copy(update={"attacks": attacks})


def _digest(scenario: Scenario) -> str:
    """Return a digest of a scenario but for what is chosen: a choice is that scenario's alone."""
    values = scenario.select_identity()
    for attack in values["attacks"]:
        for name in attack["tune"] or {}:
            del attack[name]
    return compute_digest(dump(values))


def _choose(
    scenario: Scenario, data: Prepared, folder: Path, train: Train, tell: Tell
) -> list[dict[str, Any]]:
    """Return, for each tuned attack, the combination that reads most of simulated clients."""
    seed = derive_seed(scenario.seed, "tune")
    simulated = simulate_clients(data, scenario.data, scenario.clients.count, seed)
    # The combinations of an attack are attacks with names of their own.
    tried = {
        attack.title: [
            each.model_copy(update={"name": f"{attack.title}_try{number}"})
            for number, each in enumerate(attack.tried)
        ]
        for attack in scenario.attacks
        if attack.tune
    }
    count = sum(map(len, tried.values()))
    tell(
        f"the attacker tries {count} combinations of {', '.join(tried)} on "
        f"{scenario.clients.count} clients that it simulates with {len(simulated.train)} samples"
    )
    scores: dict[str, float] = {}
    figures: dict[str, str] = {}
    for number, attacks in enumerate(_group(tried.values())):
        shadow = _make_shadow(scenario, attacks, seed, len(simulated.test))
        # what an interrupted command had begun is of no use: it is over in minutes
        shutil.rmtree(folder, ignore_errors=True)
        read = measure([train(shadow, simulated, folder / str(number))], "last")
        for attack in attacks:
            name, scores[attack.title] = score_attack(attack.recovers, attack.title, read)
            figures[attack.title] = name.replace(attack.title, "{attack}")
    shutil.rmtree(folder, ignore_errors=True)
    return [
        _describe_choice(attack, tried[attack.title], scores, figures)
        for attack in scenario.attacks
        if attack.tune
    ]


def _group(tried: Iterable[Sequence[AttackConfig]]) -> Iterator[Sequence[AttackConfig]]:
    """Yield the attacks that one training can have: all that watch, and each that forges."""
    every = [attack for attacks in tried for attack in attacks]
    if watching := [attack for attack in every if not attack.threat.acts]:
        yield watching
    for attack in every:
        if attack.threat.acts:
            yield [attack]


def _make_shadow(
    scenario: Scenario, attacks: Sequence[AttackConfig], seed: int, num_targets: int
) -> Scenario:
    """Return the scenario of the simulated clients: the same, with nothing that only watches."""
    targets = scenario.targets
    count = min(targets.count, num_targets)
    return scenario.model_copy(
        update={
            "name": f"{scenario.name}-{_SIMULATED}",
            "seed": seed,
            "attacks": attacks,
            "detectors": [],
            "observers": [],
            "stop": None,
            "engine": {"kind": "inline"},
            "targets": targets.model_copy(update={"count": count, "every": 0, "curve": 0}),
            "evaluate": {"every": 0},
            "checkpoint": {"every": 0},
            "output": scenario.output.model_copy(update={"figures": False}),
        }
    )


def _describe_choice(
    attack: AttackConfig,
    tried: Sequence[AttackConfig],
    scores: Mapping[str, float],
    figures: Mapping[str, str],
) -> dict[str, Any]:
    assert attack.tune is not None
    known = [each for each in tried if math.isfinite(scores[each.title])]
    if not known:
        raise RunFailedError(
            f"{attack.title}: none of the {len(tried)} combinations of `tune` has a score on the "
            "simulated clients; leave `tune` out, or give other values"
        )
    best = max(known, key=lambda each: scores[each.title])  # the first of equals
    made = [{**_select(attack, each), "score": abs(scores[each.title])} for each in tried]
    return {
        "attack": attack.title,
        "chosen": _select(attack, best),
        "figure": figures[best.title].format(attack=attack.title),
        "tried": made,
    }


def _select(attack: AttackConfig, of: AttackConfig) -> dict[str, Any]:
    """Return the tuned fields of an attack, as plain values."""
    return of.model_dump(mode="json", include=set(attack.tune or {}))


def _take(attack: AttackConfig, values: Mapping[str, Any]) -> AttackConfig:
    """Return an attack with these values; it keeps `tune`, which says where they come from."""
    if not attack.tune:
        return attack
    given = {name: getattr(attack, name) for name in attack.model_fields_set}
    return type(attack).model_validate({**given, **values})
