"""A rehearsal is a dry step of a small run: a few clients with two samples each.

`running.rehearsing` lets plugins' parts run in it, so that their faults show before training. A
deployed server tries in it whether training diverges: what goes wrong without any client is no
client's fault. Nothing of it is kept or counted, and all draws come from streams, so the run after
it is the same as without it.
"""

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import torch

from simsplit.assembly.assembler import Assembler
from simsplit.assembly.dry_step import DryStep, draw_samples
from simsplit.config import Config
from simsplit.data import DataInfo, Prepared
from simsplit.data.samples import Samples
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties.calls import Plan
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import MomentsConfig
from simsplit.phases import EVALUATE, Phase
from simsplit.scenario import Scenario
from simsplit.seeds import isolate
from simsplit.states import measure_norm

FEW = 2
"""Number of samples of a client, of targets, and of each class in an evaluation."""
STEPS = 8
"""Number of steps of each client after which training that diverges at once has done so."""
CLIENTS = 3
"""Smallest number of clients: a detector cannot compare fewer."""


def diverges(
    scenario: Scenario, info: DataInfo, device: torch.device, *, limit: float, growth: float
) -> bool:
    """Return whether a few steps on random samples make packets or weights far too large.

    The norm of packets may be `limit`, and weights may become `growth` times as large. Beyond that
    training with these settings diverges, whatever clients do. False says that it does not do so
    at once, or that it is not known.
    """
    if scenario.model.is_pretrained:
        return False
    # What cannot be tried is not known.
    with undo_draws(scenario.seed, device), suppress(Exception):
        if (data := make_data(scenario, info)) is None:
            return False
        # Batches as large as the run's: noise on each sample adds up over a batch.
        batch = np.arange(scenario.train.batch_size)
        data = replace(data, parts=[batch] * scenario.clients.count)
        norm, times = Rehearsal(scenario, data, device, few=len(batch)).measure_training()
        return not (norm <= limit and times <= growth)
    return False


def list_own_parts(scenario: Scenario) -> frozenset[str]:
    """List the plugins' parts that a scenario names, by their kinds."""
    malicious, plugins = scenario.clients.malicious, scenario.plugins
    parts: list[Config] = [scenario.model, scenario.data.source, scenario.data.partition]
    parts += [*scenario.method, *scenario.attacks, *scenario.detectors]
    parts += malicious.poison if malicious else ()
    named = {part.kind_name for part in parts if is_own(part, scenario)}
    return frozenset(named | (set(scenario.metrics) & plugins.of("METRICS").keys()))


def is_own(part: Config, scenario: Scenario) -> bool:
    """Return whether a plugin has brought a part."""
    brought = [each for parts in scenario.plugins.parts.values() for each in parts.values()]
    return isinstance(part, tuple(each for each in brought if isinstance(each, type)))


@contextmanager
def undo_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Open a context after which global generators are as before, and that shows no warnings."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - a plugin may use it
    try:
        with isolate(seed, "rehearsal", device=device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


class Rehearsal(DryStep):
    """A few clients and the server of a scenario, on a few samples, in this process."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        device: torch.device,
        number: int = 1,
        *,
        few: int = FEW,
        attacks: Sequence[Config] = (),
    ) -> None:
        small = _shrink_scenario(scenario, attacks)
        clients = _choose_clients(small)
        self.data, self.device = _shrink_data(data, clients, small, few), device
        super().__init__(Assembler(small, self.data, device), clients)
        self.round = number
        self.parts = self.assembler.assemble(self.pool)
        self.exchange = self.parts.exchange

    def measure_training(self) -> tuple[float, float]:
        """Return the largest norm of a packet in a few steps of each client, and weights' growth.

        The growth is how many times as large the largest norm of a party's weights has become.
        """
        *_, main = self.plan_phases()
        factor = self.scenario.train.lr_schedule.factor(1, self.scenario.schedule.rounds or 1)
        norms, learners = [0.0], self._list_plain_learners()
        before = [max(1.0, measure_norm(each.weights().values())) for each in learners]
        with self.enter(main, self.numbers, round_number=self.round, factor=factor):
            for client in [*self.numbers] * STEPS:
                events = self.exchange.step_by_events(client)
                norms += [measure_norm(each.tensors) for each in events if isinstance(each, Packet)]
        after = [measure_norm(each.weights().values()) for each in learners]
        times = torch.tensor(after) / torch.tensor(before)
        return float(torch.tensor(norms).max()), float(torch.tensor([1.0, *times]).max())

    def _list_plain_learners(self) -> list[Learner]:
        """List the learners whose steps are as large as their gradients; those of Adam are not."""
        train, parts = self.scenario.train, self.parts
        learners = [] if isinstance(train.server, MomentsConfig) else [parts.server.learner]
        if not isinstance(train.client, MomentsConfig):
            for client in self.numbers:
                learners += self.pool.clients[client].keeping.parts.learners
        return learners

    def plan_phases(self) -> list[Phase]:
        """Announce and plan as a run does; return the phases, the main one last."""
        self.exchange.announce(self.numbers, counted=False)
        before, main = self.pool.ask(self.numbers[0], Plan(1))
        return [*before, main]

    def train(self, phase: Phase) -> None:
        """Let each client take a step of a phase."""
        with self.enter(phase, self.numbers, round_number=self.round):
            for client in self.numbers:
                self.exchange.step(client)

    def evaluate(self) -> None:
        """Evaluate the model, for one client of those that have models of their own."""
        evaluator = self.parts.evaluator
        if evaluator.clients is not None:
            evaluator.clients = list(self.numbers[:1])
        with self.exchange.moment.count_as(EVALUATE):
            evaluator.evaluate(self.round)


def _shrink_scenario(scenario: Scenario, attacks: Sequence[Config]) -> Scenario:
    """Return the scenario in this process, with these attacks, a few targets and short texts."""
    targets = {"count": FEW, "per_class": None, "curve": 0}
    networks = {"lpips": None, "bert_score": None, "bleurt": None}
    generation = {"generated_texts": 1, "max_new_tokens": FEW}
    return scenario.model_copy(
        update={
            "engine": {"kind": "inline"},
            "attacks": tuple(attacks),
            "targets": scenario.targets.model_copy(update=targets | networks),
            "evaluate": scenario.evaluate.model_copy(update=generation),
        }
    )


def _choose_clients(scenario: Scenario) -> list[ClientId]:
    """Choose an attacked, a malicious and a trusted client, and others until there are enough."""
    trusted = [client for config in scenario.detectors for client in config.trusted]
    special = [0, scenario.targets.client, *scenario.malicious[:1], *trusted]
    chosen = dict.fromkeys([*special, *range(min(CLIENTS, scenario.clients.count))])
    return sorted(chosen)


def _shrink_data(
    data: Prepared, clients: list[ClientId], scenario: Scenario, samples: int
) -> Prepared:
    """Return data of which these clients have so many samples each, and the others none."""
    rows = {client: data.parts[client][:samples] for client in clients}
    nothing, start = np.array([], dtype=np.int64), 0
    parts = [nothing] * len(data.parts)
    for client, own in rows.items():
        parts[client] = np.arange(start, start + len(own))
        start += len(own)
    public = data.auxiliary
    if public is not None:  # attackers leave out what fills no batch
        public = public.take(np.arange(len(public))[: FEW * scenario.train.batch_size])
    return replace(
        data,
        train=data.train.take(np.concatenate(list(rows.values()))),
        test=_take_few(data.test),
        validation=None if data.validation is None else _take_few(data.validation),
        auxiliary=public,
        parts=parts,
    )


def _take_few(samples: Samples) -> Samples:
    """Return two samples of each class: some metrics need every class."""
    groups = samples.groups
    firsts = [np.flatnonzero(groups == each)[:FEW] for each in np.unique(groups)]
    return samples.take(np.sort(np.concatenate(firsts)))


def make_data(scenario: Scenario, info: DataInfo | None) -> Prepared | None:
    """Return a plugin's data, or random images or numbers in the form of the scenario's data.

    Other data than a plugin's are not read: they may have to be downloaded. `info` describes data
    that are not here at all.
    """
    if info is None and is_own(scenario.data.source, scenario):
        return scenario.prepare_data()
    info = info or scenario.data.describe()
    if info is None or info.texts:
        return None
    images, config = scenario.data.source.modality == "images", scenario.data
    size = FEW * max(info.classes, scenario.train.batch_size, scenario.clients.count)
    channels = (0.5,) * info.shape[0] if images else ()

    def draw(split: str) -> Samples:
        return draw_samples(scenario, "rehearsal", split, size, info)

    return Prepared(
        name="rehearsal",
        info=replace(info, shares=(1 / info.classes,) * info.classes),
        train=draw("train"),
        validation=draw("validation") if config.validation else None,
        auxiliary=draw("auxiliary") if config.auxiliary else None,
        test=draw("test"),
        parts=np.array_split(np.arange(size), scenario.clients.count),
        mean=channels,
        std=channels,
        class_names=tuple(map(str, range(info.classes))),
    )
