"""What the parties agree on before they train: the scenario, word for word, and what may deploy.

The terms are all of a scenario but what is each party's own affair: folders, threads, device. A
client accepts calls by the scenario that its owner approved, whatever the server sends.
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
_OWN = ("output", "checkpoint", "threads", "device", "engine", "observers")


def terms_of(scenario: Scenario) -> dict[str, Any]:
    """What all parties have to agree on; where a site's data lie is its own affair."""
    values = scenario.model_dump(mode="json", exclude=set(_OWN))
    values["data"]["source"].pop("path", None)
    return values


def digest_of(scenario: Scenario, mode: Mode) -> str:
    """What the terms are known by."""
    text = json.dumps([terms_of(scenario), mode], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def refuse_undeployable(scenario: Scenario) -> None:
    """ScenarioError, by field, for what is of simulations alone."""
    problems = [ScenarioError(field, reason) for field, reason in _undeployable(scenario)]
    if problems:
        raise ScenarioError.of_many(problems)


def _undeployable(scenario: Scenario) -> Iterator[tuple[str, str]]:
    only = "is for simulations, and this one is to be deployed"
    cohort, schedule = scenario.cohort, scenario.schedule
    found = {
        ("clients.malicious", f"{only}; leave it out"): scenario.clients.malicious,
        ("attacks", f"{only}: judging attacks takes clients' samples; use []"): scenario.attacks,
        ("cohort.deadline_s", f"{only}; serve has --deadline in its place"): cohort.deadline_s,
        ("cohort.dropout", f"{only}; use 0"): cohort.dropout,
        (
            "servers",
            f"got {scenario.servers}, and a deployed run has one server, which would see what "
            "several must not tell each other; use 1",
        ): scenario.servers > 1,
        (
            "schedule.epochs",
            "a deployed client has to know for how many rounds it trains; give schedule.rounds",
        ): schedule.epochs,
    }
    yield from (what for what, there in found.items() if there)


def facts() -> dict[str, str | int]:
    """Of a party's machine: what decides whether its figures are the simulation's, bit for bit."""
    return {
        "simsplit": version("simsplit"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def form_of(data: Prepared) -> dict[str, Any]:
    """What all sites' data have to have in common, and a server has to know of them."""
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
