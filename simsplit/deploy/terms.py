"""The parties agree on terms before they train, so that no party changes the run for another.

The terms are the whole scenario, except settings that each party chooses: folders, threads, device.
A client answers calls by the scenario that its owner approved, whatever the server sends.
"""

import hashlib
import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Literal

import torch

from simsplit.data import Prepared
from simsplit.errors import ScenarioError
from simsplit.scenario import Scenario

Mode = Literal["rehearsal", "private"]
"""rehearsal: all draws follow the scenario's seed. private: clients draw by their own secrets."""
_OWN = ("output", "checkpoint", "threads", "device", "engine", "observers")


def select_terms(scenario: Scenario) -> dict[str, Any]:
    """Return the settings on which all parties must agree, without paths of data and names."""
    values = scenario.model_dump(mode="json", exclude=set(_OWN))
    values["data"]["source"].pop("path", None)
    # What a party calls the others changes nothing, and is not to be sent.
    del values["clients"]["names"]
    if scenario.has_own_cuts:  # they may go by names
        values["clients"]["cut"] = scenario.places
    return values


def digest_terms(scenario: Scenario, mode: Mode) -> str:
    """Return a digest of the terms, which parties compare."""
    text = json.dumps([select_terms(scenario), mode], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def refuse_undeployable(scenario: Scenario) -> None:
    """Raise ScenarioError, by field, if a scenario has settings that only simulations allow."""
    problems = [ScenarioError(field, reason) for field, reason in _find_problems(scenario)]
    if problems:
        raise ScenarioError.of_many(problems)


def _find_problems(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield each field that cannot be deployed, and the reason."""
    only = "works in simulations only, not in deployments"
    cohort, schedule = scenario.cohort, scenario.schedule
    problems = {
        ("clients.malicious", f"{only}; leave it out"): scenario.clients.malicious,
        ("attacks", f"{only}: attacks are judged by clients' samples; use []"): scenario.attacks,
        ("cohort.deadline_s", f"{only}; use simsplit serve --deadline instead"): cohort.deadline_s,
        ("cohort.dropout", f"{only}; use 0"): cohort.dropout,
        ("engine.rest", f"{only}; use memory"): scenario.rests_on_disk,
        (
            "servers",
            f"got {scenario.servers}, but a deployed run has one server, which would see what "
            "several servers must keep from each other; use 1",
        ): scenario.servers > 1,
        (
            "schedule.epochs",
            "a deployed client must know the number of rounds; use schedule.rounds instead",
        ): schedule.epochs,
    }
    yield from (problem for problem, is_set in problems.items() if is_set)
    for number, method in enumerate(scenario.method):
        if not method.deployable:
            yield (
                f"method.{number}.kind",
                f"got {method.kind_name}, which {only}: it needs the vocabulary of all clients' "
                "texts; use another method",
            )


def describe_machine() -> dict[str, str | int]:
    """Describe this machine by what may change figures, bit for bit."""
    return {
        "simsplit": version("simsplit"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def describe_data(data: Prepared) -> dict[str, Any]:
    """Describe a client's data by what all clients share and the server must know."""
    held_out = {"test": data.test, "validation": data.validation, "auxiliary": data.auxiliary}
    return {
        "sample": list(data.info.shape),
        "classes": list(data.class_names),
        "texts": data.info.texts,
        "images": data.train.images,
        "mean": list(data.mean),
        "std": list(data.std),
        "held_out": {n: len(each) for n, each in held_out.items() if each is not None},
    }
