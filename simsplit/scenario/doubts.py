"""What is allowed and hardly meant: said before a run, and by `simsplit validate`."""

from simsplit.errors import ScenarioError
from simsplit.machine import device_of, processors
from simsplit.scenario.model import Scenario


def doubts_of(scenario: Scenario) -> list[str]:
    """A line for each, of what is known before data are loaded."""
    return [said for said in (_device(scenario), _threads(scenario), _clients(scenario)) if said]


def _device(scenario: Scenario) -> str:
    try:
        device_of(scenario.device)
    except ScenarioError as error:
        return f"{error}. It cannot run on this machine"
    return ""


def _threads(scenario: Scenario) -> str:
    threads, there = scenario.threads or 0, processors()
    if threads <= there:
        return ""
    return f"scenario.threads: got {threads}, and this machine has {there} processors"


def _clients(scenario: Scenario) -> str:
    """Of data whose number is limited; what they have, a run alone can tell."""
    data, count = scenario.data, scenario.clients.count
    if data.train_samples is None:
        return ""
    left = round(data.train_samples * (1 - data.validation - data.auxiliary))
    if count <= left:
        return ""
    return f"scenario.clients.count: got {count:,}, for {left:,} training samples at most"
