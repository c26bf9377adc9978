"""Rules whose findings are warnings: about scenarios that are allowed and hardly meant.

A run prints them before its first round; `simsplit validate` prints the ones that need no data.
"""

from pathlib import Path

import numpy as np
from torch.nn.modules.batchnorm import _BatchNorm

from simsplit.attacks.label_attack import LabelAttackConfig
from simsplit.data import Prepared
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextTable
from simsplit.detectors.by_class import ByClassConfig
from simsplit.detectors.root_class import RootClassConfig
from simsplit.errors import ScenarioError, format_count, format_list
from simsplit.machine import count_processors, find_device, lacks_bf16
from simsplit.methods.lightsplit import LightSplitConfig
from simsplit.methods.quantise import QuantiseConfig
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings
from simsplit.scenario.setting import count_messages
from simsplit.schedules.schedule import DEFAULT_ROUNDS
from simsplit.topologies import find_topology


def find_missing_devices(scenario: ScenarioFields) -> Findings:
    """Warn of a device that this machine lacks."""
    try:
        find_device(scenario.device)
    except ScenarioError as error:
        # A warning alone: a scenario may be validated here to run elsewhere.
        yield Finding(error.field, f"{error.reason}. It cannot run on this machine")


def find_many_threads(scenario: ScenarioFields) -> Findings:
    """Warn of more threads than processors."""
    threads, available = scenario.threads or 0, count_processors()
    if threads > available:
        has = format_count(available, "processor")
        yield Finding("threads", f"got {threads}, but this machine has {has}")


def find_slow_precision(scenario: ScenarioFields) -> Findings:
    """Warn of half precision on a processor that computes it many times slower."""
    attacks = {f"attacks.{index}": each for index, each in enumerate(scenario.attacks)}
    for place, part in {"train": scenario.train, **attacks}.items():
        if getattr(part, "precision", None) == "bf16" and lacks_bf16(scenario.device):
            yield Finding(
                f"{place}.precision",
                "got bf16, for which this processor has no instructions: layers can take 5 to 30 "
                "times as long as with fp32; use fp32 here",
            )


def find_missing_files(scenario: ScenarioFields) -> Findings:
    """Warn of data that are read from where nothing is."""
    path = getattr(scenario.data.source, "path", None)
    if isinstance(path, Path) and not path.exists():
        reason = f"there is nothing in {path.absolute()}, and a run reads it"
        yield Finding("data.source.path", reason)


def find_crowded_data(scenario: ScenarioFields) -> Findings:
    """Warn of more clients than `data.train_samples` can serve.

    Without that limit the number of samples is not known before data are loaded.
    """
    data, count = scenario.data, scenario.clients.count
    if data.train_samples is None:
        return
    left = round(data.train_samples * (1 - data.validation - data.auxiliary))
    if count > left:
        yield Finding("clients.count", f"got {count:,}, for {left:,} training samples at most")


def find_telling_messages(scenario: ScenarioFields) -> Findings:
    """Warn of so few servers that one can recover a gradient from the messages that it gets."""
    messages, servers = count_messages(scenario.method), scenario.servers
    if messages == 1 or servers >= 2 * messages:
        return
    if servers < messages:
        why = (
            "A server that gets several has their span, in which the gradient is the smallest "
            "direction (the attack singular_direction); one that gets all has the gradient"
        )
    elif _is_gaussian(scenario):
        return
    else:
        why = (
            "A server that is asked two steps in a row recovers the gradient from the adapters of "
            "both steps (the attack optimizer_inversion), since mixed noise lies along it"
        )
    cure = f"Use servers: {2 * messages}"
    if not scenario.crossings.many_servers:
        other = find_topology(lambda each: each.many_servers)
        cure = f"Only a fine-tuning API can ask several servers (topology: {other}, for texts)"
    yield Finding(
        "servers", f"got {servers}, but gradients cross in {messages} messages. {why}. {cure}"
    )


def find_idle_proximal_terms(scenario: ScenarioFields) -> Findings:
    """Warn of FedProx's term where it has no effect.

    The term is 0 at a round's first step, which starts from the averaged weights.
    """
    if scenario.proximal and scenario.schedule.local_steps == 1:
        yield Finding(
            "aggregation.proximal",
            f"got {scenario.proximal:g}, but clients take one step a round, which starts from the "
            "average, so the term is 0. Use schedule.local_steps above 1, or null for an epoch",
        )


def find_unrotated_levels(scenario: ScenarioFields) -> Findings:
    """Warn of levels for normal values that no rotation precedes.

    Only rotated values are close to normally distributed.
    """
    for index, method in enumerate(scenario.method):
        if not isinstance(method, QuantiseConfig) or method.levels != "normal":
            continue
        before = [each for each in scenario.method[:index] if isinstance(each, LightSplitConfig)]
        mixed = {leg for each in before for leg in each.acts_on}
        if plain := [leg for leg in method.acts_on if leg not in mixed]:
            yield Finding(
                f"method.{index}.levels",
                "got normal, which fits values that a rotation has made normally distributed, but "
                f"no method before it rotates {format_list(plain)}. List lightsplit with these "
                "legs before it (ratio: 1 drops nothing), or use levels: even",
            )


def _is_gaussian(scenario: ScenarioFields) -> bool:
    """Return whether each message of a gradient is hidden by independent Gaussian noise.

    One such message reveals nothing of the gradient.
    """
    methods = [each for each in scenario.method if getattr(each, "messages", 1) > 1]
    return all(getattr(each, "noise", "mixed") == "gaussian" for each in methods)


def find_late_detectors(scenario: ScenarioFields) -> Findings:
    """Warn of a detector that starts after the last round."""
    schedule = scenario.schedule
    # Epochs become rounds only when the number of batches is known.
    rounds = schedule.rounds or (None if schedule.epochs else DEFAULT_ROUNDS)
    for index, detector in enumerate(scenario.detectors):
        if isinstance(detector, RootClassConfig) and rounds is not None:
            needed = detector.since + (detector.window is None or detector.window > 1)
            if rounds < needed:
                yield Finding(
                    f"detectors.{index}.since",
                    f"got {detector.since}, so none of {format_count(rounds, 'round')} is judged: "
                    f"the first judgement takes {needed}. Use a smaller one, or more rounds",
                )


def find_partial_statistics(scenario: ScenarioFields, data: Prepared) -> Findings:
    """Warn of batch normalisation if mini-batches cross in parts."""
    train, model, info = scenario.train, scenario.model, data.info
    if train.accumulate == 1 or info.texts:
        return
    for owner in model.learning:
        made = model.segment(owner, info.shape, info.classes, scenario.seed)
        if any(isinstance(module, _BatchNorm) for module in made.modules()):
            size = train.batch_size // train.accumulate
            yield Finding(
                "train.accumulate",
                f"got {train.accumulate}, but the {owner} has batch normalisation, which then "
                f"takes the statistics of {format_count(size, 'sample')} instead of "
                f"{train.batch_size}. So the step differs from the whole mini-batch's",
            )
            return


def find_empty_classes(scenario: ScenarioFields, data: Prepared) -> Findings:
    """Warn of classes without training samples."""
    if not _has_classes(scenario.data.source):
        return
    held = np.bincount(np.asarray(data.train.groups), minlength=data.info.classes)
    empty = [number for number, count in enumerate(held) if not count]
    if len(held) - len(empty) == 1:
        every = f"all {len(data.train):,} training samples are of one class"
        yield Finding("", f"{every}; there is nothing to learn")
    elif empty:
        yield Finding(
            "",
            f"no training sample is of class {format_list(empty)}, of {len(held)} classes; labels "
            "number classes from 0, without gaps",
        )


def _has_classes(source: object) -> bool:
    """Return whether a source's samples are grouped by class; texts may be grouped by topic."""
    if not isinstance(source, TextTable):
        return True
    return isinstance(source.task, Classification) and source.topic is None


def find_attacks_without_rows(scenario: ScenarioFields, data: Prepared) -> Findings:
    """Warn of attacks for two labels if the targets have others: tables will have no row."""
    pairs = [
        config.title
        for config in scenario.attacks
        if isinstance(config, LabelAttackConfig) and config.two_classes
    ]
    if not pairs or (count := len(scenario.aims.labels(data).unique())) == 2:
        return
    yield Finding(
        "attacks",
        f"{format_list(pairs)} can distinguish two classes only; the targets have {count}, so "
        "tables will have no rows of it (kmeans and probe take any number of classes)",
    )


def find_poor_roots(scenario: ScenarioFields, data: Prepared) -> Findings:
    """Warn of a detector whose trusted clients have too few samples of a class."""
    if not _has_classes(scenario.data.source):
        return
    for index, detector in enumerate(scenario.detectors):
        if not isinstance(detector, ByClassConfig) or not detector.trusted:
            continue
        rows = np.concatenate([data.parts[client] for client in detector.trusted])
        held = np.bincount(np.asarray(data.train.groups)[rows], minlength=data.info.classes)
        few = [number for number, count in enumerate(held) if count < detector.fewest_trusted]
        if few:
            yield Finding(
                f"detectors.{index}.root",
                f"trusted clients have fewer than {detector.fewest_trusted} samples of class "
                f"{format_list(few)}, so no client is judged by these classes; data.even deals a "
                "client samples of every class",
            )


def find_oversized_batches(scenario: ScenarioFields, data: Prepared) -> Findings:
    """Warn of a mini-batch that is larger than all training data together."""
    size, count = scenario.train.batch_size, len(data.train)
    if size > count:
        yield Finding(
            "train.batch_size",
            f"got {size:,}, and all clients have {count:,} samples together, so each step takes "
            "all of a client's",
        )


def find_few_tests(_: ScenarioFields, data: Prepared) -> Findings:
    """Warn of too few test samples."""
    if (count := len(data.test)) < _FEW_TESTS:
        tests = format_count(count, "test sample")
        yield Finding("", f"figures rest on {tests}, too few to compare runs by")


_FEW_TESTS = 10
"""The smallest number of test samples without a warning."""
