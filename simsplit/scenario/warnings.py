"""Warnings about scenarios that are allowed and hardly meant.

A run prints them before its first round; `simsplit validate` prints the ones that need no data.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch.nn.modules.batchnorm import _BatchNorm

from simsplit.attacks.label_attack import LabelAttackConfig
from simsplit.data import DataInfo, Prepared
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextTable
from simsplit.detectors.by_class import ByClassConfig
from simsplit.detectors.root_class import RootClassConfig
from simsplit.errors import ScenarioError, format_count, format_list
from simsplit.machine import count_processors, find_device
from simsplit.methods.lightsplit import LightSplitConfig
from simsplit.methods.quantise import QuantiseConfig
from simsplit.scenario.model import Scenario
from simsplit.scenario.needs import count_messages
from simsplit.schedules.schedule import DEFAULT_ROUNDS
from simsplit.topologies import find_topology


def list_warnings(scenario: Scenario) -> list[str]:
    """Return the warnings that need no data, a line each."""
    every = (
        _check_device,
        _check_threads,
        _check_files,
        _check_clients,
        _check_servers,
        _check_proximal,
        _check_levels,
        _check_since,
    )
    return [warning for check in every if (warning := check(scenario))]


def _check_device(scenario: Scenario) -> str:
    """Return a warning if this machine lacks the device; empty if it has it."""
    try:
        find_device(scenario.device)
    except ScenarioError as error:
        # A warning alone: a scenario may be validated here to run elsewhere.
        return f"{error}. It cannot run on this machine"
    return ""


def _check_threads(scenario: Scenario) -> str:
    """Return a warning about more threads than processors, or an empty text."""
    threads, available = scenario.threads or 0, count_processors()
    if threads <= available:
        return ""
    has = format_count(available, "processor")
    return f"scenario.threads: got {threads}, but this machine has {has}"


def _check_files(scenario: Scenario) -> str:
    """Return a warning if data are read from where nothing is; empty if something is there."""
    path = getattr(scenario.data.source, "path", None)
    if not isinstance(path, Path) or path.exists():
        return ""
    return f"scenario.data.source.path: there is nothing in {path.absolute()}, and a run reads it"


def _check_clients(scenario: Scenario) -> str:
    """Return a warning about more clients than `data.train_samples` can serve, or an empty text.

    Without that limit the number of samples is not known before data are loaded.
    """
    data, count = scenario.data, scenario.clients.count
    if data.train_samples is None:
        return ""
    left = round(data.train_samples * (1 - data.validation - data.auxiliary))
    if count <= left:
        return ""
    return f"scenario.clients.count: got {count:,}, for {left:,} training samples at most"


def _check_servers(scenario: Scenario) -> str:
    """Return a warning if one server can recover a gradient from its messages, or an empty text."""
    messages, servers = count_messages(scenario.method), scenario.servers
    if messages == 1 or servers >= 2 * messages:
        return ""
    if servers < messages:
        why = (
            "A server that gets several has their span, in which the gradient is the smallest "
            "direction (the attack singular_direction); one that gets all has the gradient"
        )
    elif _is_gaussian(scenario):
        return ""
    else:
        why = (
            "A server that is asked two steps in a row recovers the gradient from the adapters of "
            "both steps (the attack optimizer_inversion), since mixed noise lies along it"
        )
    cure = f"Use servers: {2 * messages}"
    if not scenario.crossings.many_servers:
        other = find_topology(lambda each: each.many_servers)
        cure = f"Only a fine-tuning API can ask several servers (topology: {other}, for texts)"
    return (
        f"scenario.servers: got {servers}, but gradients cross in {messages} messages. {why}. "
        f"{cure}"
    )


def _check_proximal(scenario: Scenario) -> str:
    """Return a warning if FedProx's term has no effect, or an empty text.

    The term is 0 at a round's first step, which starts from the averaged weights.
    """
    if not scenario.proximal or scenario.schedule.local_steps != 1:
        return ""
    return (
        f"scenario.aggregation.proximal: got {scenario.proximal:g}, but clients take one step a "
        "round, which starts from the average, so the term is 0. Use schedule.local_steps above 1, "
        "or null for an epoch"
    )


def _check_levels(scenario: Scenario) -> str:
    """Return a warning about levels for normal values that no rotation precedes, or an empty text.

    Only rotated values are close to normally distributed.
    """
    for index, method in enumerate(scenario.method):
        if not isinstance(method, QuantiseConfig) or method.levels != "normal":
            continue
        before = [each for each in scenario.method[:index] if isinstance(each, LightSplitConfig)]
        mixed = {leg for each in before for leg in each.acts_on}
        if plain := [leg for leg in method.acts_on if leg not in mixed]:
            return (
                f"scenario.method.{index}.levels: got normal, which fits values that a rotation "
                f"has made normally distributed, but no method before it rotates "
                f"{format_list(plain)}. List lightsplit with these legs before it "
                "(ratio: 1 drops nothing), or use levels: even"
            )
    return ""


def _is_gaussian(scenario: Scenario) -> bool:
    """Return whether each message of a gradient is hidden by independent Gaussian noise.

    One such message reveals nothing of the gradient.
    """
    methods = [each for each in scenario.method if getattr(each, "messages", 1) > 1]
    return all(getattr(each, "noise", "mixed") == "gaussian" for each in methods)


def _check_since(scenario: Scenario) -> str:
    """Return a warning about a detector that starts after the last round, or an empty text."""
    schedule = scenario.schedule
    # Epochs become rounds only when the number of batches is known.
    rounds = schedule.rounds or (None if schedule.epochs else DEFAULT_ROUNDS)
    for index, detector in enumerate(scenario.detectors):
        if isinstance(detector, RootClassConfig) and rounds is not None:
            needed = detector.since + (detector.window is None or detector.window > 1)
            if rounds < needed:
                return (
                    f"scenario.detectors.{index}.since: got {detector.since}, so none of "
                    f"{format_count(rounds, 'round')} is judged: the first judgement takes {needed}"
                    ". Use a smaller one, or more rounds"
                )
    return ""


def list_data_warnings(scenario: Scenario, data: Prepared) -> list[str]:
    """Return the warnings about loaded data, a line each."""
    every = (
        _check_classes(scenario, data),
        _check_tests(data),
        _check_attacks(scenario, data),
        _check_parts(scenario, data.info),
    )
    checked = [*data.warnings, *every, *_check_roots(scenario, data)]
    return [warning for warning in checked if warning]


def _check_parts(scenario: Scenario, info: DataInfo) -> str:
    """Return a warning about statistics of parts of mini-batches, or an empty text."""
    train, model = scenario.train, scenario.model
    if train.accumulate == 1 or info.texts:
        return ""
    for owner in model.learning:
        made = model.segment(owner, info.shape, info.classes, scenario.seed)
        if any(isinstance(module, _BatchNorm) for module in made.modules()):
            size = train.batch_size // train.accumulate
            return (
                f"scenario.train.accumulate: got {train.accumulate}, but the {owner} has batch "
                f"normalisation, which then takes the statistics of {format_count(size, 'sample')} "
                f"instead of {train.batch_size}. So the step differs from the whole mini-batch's"
            )
    return ""


def _check_classes(scenario: Scenario, data: Prepared) -> str:
    """Return a warning about classes without training samples, or an empty text."""
    if not _has_classes(scenario.data.source):
        return ""
    held = np.bincount(np.asarray(data.train.groups), minlength=data.info.classes)
    empty = [number for number, count in enumerate(held) if not count]
    if len(held) - len(empty) == 1:
        return (
            f"all {len(data.train):,} training samples are of one class; there is nothing to learn"
        )
    if empty:
        return (
            f"no training sample is of class {format_list(empty)}, of {len(held)} classes; labels "
            "number classes from 0, without gaps"
        )
    return ""


def _has_classes(source: object) -> bool:
    """Return whether a source's samples are grouped by class; texts may be grouped by topic."""
    if not isinstance(source, TextTable):
        return True
    return isinstance(source.task, Classification) and source.topic is None


def _check_attacks(scenario: Scenario, data: Prepared) -> str:
    """Return a warning about attacks for two labels if the targets have others, or an empty text.

    Such an attack would have no rows in tables.
    """
    pairs = [
        config.title
        for config in scenario.attacks
        if isinstance(config, LabelAttackConfig) and config.two_classes
    ]
    if not pairs or (count := len(scenario.aims.labels(data).unique())) == 2:
        return ""
    return (
        f"attacks: {format_list(pairs)} can distinguish two classes only; the targets have {count}"
        ", so tables will have no rows of it (kmeans and probe take any number of classes)"
    )


def _check_roots(scenario: Scenario, data: Prepared) -> Iterator[str]:
    """Yield a warning for each detector whose trusted clients have too few samples of a class."""
    if not _has_classes(scenario.data.source):
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
                f"{detector.fewest_trusted} samples of class {format_list(few)}, so no client "
                "is judged by these classes; data.even deals a client samples of every class"
            )


def _check_tests(data: Prepared) -> str:
    """Return a warning about too few test samples, or an empty text."""
    if len(data.test) >= _FEW_TESTS:
        return ""
    return (
        f"figures rest on {format_count(len(data.test), 'test sample')}, too few to compare runs by"
    )


_FEW_TESTS = 10
"""The smallest number of test samples without a warning."""
