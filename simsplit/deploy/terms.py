"""The parties agree on terms before they train, so that no party changes the run for another.

The terms are the whole scenario, except settings that each party chooses: folders, threads, device.
A client answers calls by the scenario that its owner approved, whatever the server sends.
"""

import hashlib
import json
import platform
from importlib.metadata import version
from typing import Any, Literal

import torch

from simsplit.data import Prepared
from simsplit.errors import ScenarioError
from simsplit.scenario import Scenario
from simsplit.scenario.findings import Occasion
from simsplit.scenario.refusals import list_findings

Mode = Literal["rehearsal", "private"]
"""rehearsal: all draws follow the scenario's seed. private: clients draw by their own secrets."""
_OWN = ("output", "checkpoint", "threads", "device", "engine", "observers")


def select_terms(scenario: Scenario) -> dict[str, Any]:
    """Return the settings on which all parties must agree, without paths of data and names."""
    return _leave_out_names(scenario.model_dump(mode="json", exclude=set(_OWN)), scenario)


def _leave_out_names(values: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Return a scenario's fields without paths of data and names, which each owner chooses."""
    for place in ("path", "files"):
        values["data"]["source"].pop(place, None)
    # What a party calls the others changes nothing, and is not to be sent.
    values["clients"].pop("names", None)
    if scenario.has_own_cuts:  # they may go by names
        values["clients"]["cut"] = scenario.places
    return values


def digest_terms(scenario: Scenario, mode: Mode) -> str:
    """Return a digest of the terms, which parties compare."""
    return _digest(select_terms(scenario), mode)


def digest_resumable(scenario: Scenario, mode: Mode) -> str:
    """Return a digest of what a resumed run may not change, unlike its length and its budget."""
    return _digest(_leave_out_names(scenario.select_identity(), scenario), mode)


def _digest(values: dict[str, Any], mode: Mode) -> str:
    text = json.dumps([values, mode], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def refuse_undeployable(scenario: Scenario) -> None:
    """Raise ScenarioError, by field, if a scenario has settings that only simulations allow."""
    found = list_findings(Occasion.DEPLOYED, scenario)
    if found:
        raise ScenarioError.of_many([ScenarioError(*finding) for finding in found])


def describe_machine(device: torch.device) -> dict[str, str | int]:
    """Describe this machine, and its device, by what may change figures, bit for bit."""
    return {
        "simsplit": version("simsplit"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device.type,
    }


def describe_data(data: Prepared) -> dict[str, Any]:
    """Describe a client's data by what all clients share and the server must know."""
    held_out = {"test": data.test, "validation": data.validation, "auxiliary": data.auxiliary}
    return {
        **({"ids": data.ids} if data.ids else {}),
        "sample": list(data.info.shape),
        "classes": list(data.class_names),
        "texts": data.info.texts,
        "images": data.train.images,
        "mean": list(data.mean),
        "std": list(data.std),
        "held_out": {n: len(each) for n, each in held_out.items() if each is not None},
    }
