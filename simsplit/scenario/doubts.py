"""What is allowed and hardly meant: said before a run, and by `simsplit validate`."""

from collections.abc import Iterator

import numpy as np

from simsplit.attacks.label_attack import LabelAttackConfig
from simsplit.data import Prepared
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextTable
from simsplit.detectors.by_class import ByClassConfig
from simsplit.detectors.root_class import RootClassConfig
from simsplit.errors import ScenarioError, counted, listed
from simsplit.machine import device_of, processors
from simsplit.methods.lightsplit import LightSplitConfig
from simsplit.methods.quantise import QuantiseConfig
from simsplit.scenario.model import Scenario
from simsplit.scenario.needs import messages_of
from simsplit.schedules.config import DEFAULT_ROUNDS
from simsplit.topologies import first_with


def doubts_of(scenario: Scenario) -> list[str]:
    """A line for each, of what is known before data are loaded."""
    every = (_device, _threads, _clients, _servers, _proximal, _unrotated, _late)
    return [said for each in every if (said := each(scenario))]


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


def _servers(scenario: Scenario) -> str:
    """Too few servers for the messages of a gradient: what one of them can make of its share."""
    messages, servers = messages_of(scenario.method), scenario.servers
    if messages == 1 or servers >= 2 * messages:
        return ""
    if servers < messages:
        why = (
            "A server that gets several can search their span for the gradient. Attacks on labels "
            "read one message at a time, so their figures are too low for such a server; over an "
            "API optimizer_inversion works on the sum of all messages"
        )
    elif _drowned(scenario):
        return ""
    else:
        why = (
            "A server that is asked two steps in a row finds the gradient by the adapters in "
            "between (the attack optimizer_inversion), since mixed noise lies along it"
        )
    cure = f"Use servers: {2 * messages}"
    if not scenario.crossings.many_servers:
        other = first_with(lambda each: each.many_servers)
        cure = f"Only a fine-tuning API can ask several servers (topology: {other}, for texts)"
    return (
        f"scenario.servers: got {servers}, and gradients cross in {messages} messages. {why}. "
        f"{cure}"
    )


def _proximal(scenario: Scenario) -> str:
    """FedProx pulls back what has moved, and a round's first step starts where the round did."""
    if not scenario.proximal or scenario.schedule.local_steps != 1:
        return ""
    return (
        f"scenario.aggregation.proximal: got {scenario.proximal:g}, and clients take one step a "
        "round, before which nothing has moved, so it changes nothing. Use schedule.local_steps "
        "above 1, or null for an epoch"
    )


def _unrotated(scenario: Scenario) -> str:
    """Levels for normally distributed values, where no rotation makes them so."""
    for index, method in enumerate(scenario.method):
        if not isinstance(method, QuantiseConfig) or method.levels != "normal":
            continue
        before = [each for each in scenario.method[:index] if isinstance(each, LightSplitConfig)]
        mixed = {leg for each in before for leg in each.acts_on}
        if plain := [leg for leg in method.acts_on if leg not in mixed]:
            return (
                f"scenario.method.{index}.levels: got normal, which fits values that a rotation "
                f"has made normally distributed, and nothing before it rotates {listed(plain)}. "
                "List lightsplit with these legs before it (ratio: 1 drops nothing), or use "
                "levels: even"
            )
    return ""


def _drowned(scenario: Scenario) -> bool:
    """Whether what hides a gradient is noise of which one message tells nothing."""
    methods = [each for each in scenario.method if getattr(each, "messages", 1) > 1]
    return all(getattr(each, "noise", "mixed") == "gaussian" for each in methods)


def _late(scenario: Scenario) -> str:
    """A detector whose first rounds do not count, in a run that is over before others come."""
    schedule = scenario.schedule
    rounds = schedule.rounds or (None if schedule.epochs else DEFAULT_ROUNDS)
    for index, detector in enumerate(scenario.detectors):
        if isinstance(detector, RootClassConfig) and rounds is not None:
            needed = detector.since + (detector.window is None or detector.window > 1)
            if rounds < needed:
                return (
                    f"scenario.detectors.{index}.since: got {detector.since}, and of "
                    f"{counted(rounds, 'round')} none is judged: it takes {needed}. Use a smaller "
                    "one, or more rounds"
                )
    return ""


def doubts_of_data(scenario: Scenario, data: Prepared) -> list[str]:
    """A line for each, of what loaded data are like."""
    every = (_classes(scenario, data), _tests(data), _attacks(scenario, data))
    return [said for said in (*every, *_roots(scenario, data)) if said]


def _classes(scenario: Scenario, data: Prepared) -> str:
    if not _of_classes(scenario.data.source):
        return ""
    held = np.bincount(np.asarray(data.train.groups), minlength=data.info.classes)
    empty = [number for number, count in enumerate(held) if not count]
    if len(held) - len(empty) == 1:
        return (
            f"all {len(data.train):,} training samples are of one class; there is nothing to learn"
        )
    if empty:
        return (
            f"no training sample is of class {listed(empty)}, of {len(held)} classes; labels "
            "number classes from 0, without gaps"
        )
    return ""


def _of_classes(source: object) -> bool:
    """Whether partitions divide its samples by their class, and not texts by topics."""
    if not isinstance(source, TextTable):
        return True
    return isinstance(source.task, Classification) and source.topic is None


def _attacks(scenario: Scenario, data: Prepared) -> str:
    """Attacks on labels that will have no rows."""
    pairs = [
        config.title
        for config in scenario.attacks
        if isinstance(config, LabelAttackConfig) and config.two_classes
    ]
    if not pairs or (count := len(scenario.aims.labels(data).unique())) == 2:
        return ""
    return (
        f"attacks: {listed(pairs)} can tell two classes apart and no more; the targets have "
        f"{count}, so there will be no figures of it (kmeans and probe take any number)"
    )


def _roots(scenario: Scenario, data: Prepared) -> Iterator[str]:
    """Detectors whose trusted clients have too little of a class to judge others by it."""
    if not _of_classes(scenario.data.source):
        return
    for index, detector in enumerate(scenario.detectors):
        if not isinstance(detector, ByClassConfig) or not detector.trusted:
            continue
        rows = np.concatenate([data.parts[client] for client in detector.trusted])
        held = np.bincount(np.asarray(data.train.groups)[rows], minlength=data.info.classes)
        few = [number for number, count in enumerate(held) if count < detector.fewest_trusted]
        if few:
            yield (
                f"scenario.detectors.{index}.root: trusted clients have fewer than "
                f"{detector.fewest_trusted} samples of class {listed(few)}, so nobody is judged by "
                "those; data.even deals a client samples of every class"
            )


def _tests(data: Prepared) -> str:
    if len(data.test) >= _FEW:
        return ""
    return f"figures are of {counted(len(data.test), 'test sample')}, which say little"


_FEW = 10
"""Test samples, fewer of which are hardly meant."""
