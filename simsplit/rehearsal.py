"""A rehearsal runs plugins' parts on two samples before training, so that their faults show early.

A few clients with two samples each take a step, a detector judges them, the model is evaluated, and
a plugin's attacks recover two targets in one iteration. Nothing of it is kept or counted, and all
draws come from streams, so the run after it is the same as without it. Only faults of plugins are
raised: a part that ships may need more samples than there are here.

A deployed server rehearses with random samples too, when something goes wrong in a round: what goes
wrong without any client is no client's fault.
"""

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import torch

from simsplit.assembly import Assembler, Assembly
from simsplit.attacking import Attacking
from simsplit.attacking.curves import shorten
from simsplit.attacks import AttackConfig
from simsplit.config import Config
from simsplit.data import DataInfo, Prepared
from simsplit.data.samples import Samples
from simsplit.detection import Detection
from simsplit.errors import PluginError
from simsplit.packets import ClientId, Packet
from simsplit.parties.calls import Enter, Plan
from simsplit.phases import EVALUATE, Phase
from simsplit.scenario import Scenario
from simsplit.seeds import isolate, numpy_rng_for
from simsplit.states import measure_norm

FEW = 2
"""Number of samples of a client, of targets, and of each class in an evaluation."""
STEPS = 8
"""Number of steps of each client after which training that diverges at once has done so."""
CLIENTS = 3
"""Smallest number of clients: a detector cannot compare fewer."""


def rehearse(
    scenario: Scenario,
    data: Prepared | None,
    device: torch.device,
    *,
    info: DataInfo | None = None,
    round_number: int = 1,
) -> None:
    """Raise PluginError if a plugin's part that the scenario names fails on two samples.

    Without `data`, samples are random, unless they come from a plugin's own source. With `info`
    they are random anyway. `round_number` is the round that the parts are told.
    """
    if not list_own_parts(scenario) or scenario.model.is_pretrained:
        return
    with _undo_draws(scenario.seed, device), _raise_own():
        if (known := data or _make_data(scenario, info)) is None:
            return
        try:
            _build_rehearsal(scenario, known, device, round_number).run()
        except PluginError as error:
            # Round and client are those of the rehearsal, which the user has not asked for.
            raise PluginError(replace(error.fault, round=None, client=None)) from error


def diverges(scenario: Scenario, info: DataInfo, device: torch.device, *, limit: float) -> bool:
    """Return whether a few steps on random samples make packets whose norm exceeds `limit`.

    Then training with these settings diverges, whatever clients do. False says that it does not do
    so at once, or that it is not known.
    """
    if scenario.model.is_pretrained:
        return False
    with _undo_draws(scenario.seed, device):
        try:
            data = _make_data(scenario, info)
            if data is None:
                return False
            return not _build_rehearsal(scenario, data, device, 1).measure_training() <= limit
        except Exception:  # noqa: BLE001 - what cannot be tried is not known
            return False


def list_own_parts(scenario: Scenario) -> frozenset[str]:
    """List the plugins' parts that a scenario names, by their kinds."""
    malicious, plugins = scenario.clients.malicious, scenario.plugins
    parts: list[Config] = [scenario.model, scenario.data.source, scenario.data.partition]
    parts += [*scenario.method, *scenario.attacks, *scenario.detectors]
    parts += malicious.poison if malicious else ()
    named = {part.kind_name for part in parts if _is_own(part, scenario)}
    return frozenset(named | (set(scenario.metrics) & plugins.of("METRICS").keys()))


def _is_own(part: Config, scenario: Scenario) -> bool:
    """Return whether a plugin has brought a part."""
    brought = [each for parts in scenario.plugins.parts.values() for each in parts.values()]
    return isinstance(part, tuple(each for each in brought if isinstance(each, type)))


@contextmanager
def _raise_own() -> Iterator[None]:
    """Open a context that raises no other error than a PluginError."""
    try:
        yield
    except PluginError:
        raise
    except Exception:  # noqa: BLE001 - the run itself names other errors, if they occur there
        return


@contextmanager
def _undo_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Open a context after which global generators are as before, and that shows no warnings."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - a plugin may use it
    try:
        with isolate(seed, "rehearsal", device=device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


class _Enough(Exception):  # noqa: N818 - no error
    """Raised when an attack has done its first piece of work."""


class _Rehearsal:
    """A small scenario with its parts; its stages need not succeed for the next ones to run."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        clients: list[ClientId],
        device: torch.device,
        round_number: int,
    ) -> None:
        self.scenario, self.data, self.clients, self.device = scenario, data, clients, device
        self.round = round_number
        assembler = Assembler(scenario, data, device)
        self.parts: Assembly = assembler.assemble(assembler.make_pool(clients))
        self.phases: list[Phase] = []

    def run(self) -> None:
        """Let each stage run; raise PluginError for the first fault."""
        exchange, main = self.parts.exchange, self._plan_phases()
        with exchange.moment.enter_round(self.round, main, self.clients):
            # Detectors and attacks listen to the wire, so they come before the training.
            stages: list[Callable[[], object]] = [self._train, self._evaluate]
            with _raise_own():
                detection = Detection(self.scenario, self.parts, self.data.info.classes)
                stages.insert(1, lambda: detection.judge_round(self.round))
            with _raise_own():
                attacking = Attacking(self.scenario, self.parts, self.data, self.device)
                stages.append(lambda: self._attack(attacking))
            for stage in stages:
                with _raise_own():
                    stage()

    def measure_training(self) -> float:
        """Return the largest norm of a packet in a few steps of each client."""
        exchange, main = self.parts.exchange, self._plan_phases()
        factor = self.scenario.train.lr_schedule.factor(1, self.scenario.schedule.rounds or 1)
        norms = [0.0]
        with exchange.moment.enter_round(self.round, main, self.clients):
            self._enter(main, factor)
            for client in self.clients * STEPS:
                events = exchange.step_by_events(client)
                norms += [measure_norm(each.tensors) for each in events if isinstance(each, Packet)]
        return float(torch.tensor(norms).max())  # NaN if there is one

    def _plan_phases(self) -> Phase:
        """Announce and plan as a run does, and return the main phase."""
        self.parts.exchange.announce(self.clients, counted=False)
        before, main = self.parts.pool.ask(self.clients[0], Plan(1))
        self.phases = [*before, main]
        return main

    def _train(self) -> None:
        """Let each client take a step of each phase, and report it."""
        exchange = self.parts.exchange
        for phase in self.phases:
            with exchange.moment.enter_round(self.round, phase, self.clients), _raise_own():
                self._enter(phase, 1.0)
                for client in self.clients:
                    exchange.step(client)
        exchange.collect_reports(self.clients)

    def _enter(self, phase: Phase, factor: float) -> None:
        self.parts.server.enter(phase, factor)
        self.parts.pool.ask_all(self.clients, Enter(phase, factor))

    def _evaluate(self) -> None:
        evaluator = self.parts.evaluator
        if evaluator.clients is not None:
            evaluator.clients = self.clients[:1]
        with self.parts.exchange.moment.count_as(EVALUATE):
            evaluator.evaluate(self.round)

    def _attack(self, attacking: Attacking) -> None:
        """Let each attack do its work, or the first piece of it if there is more."""

        def stop(name: str, done: int, total: int) -> None:
            if 0 < done < total:
                raise _Enough

        for config in self.scenario.attacks:
            attacking.configs = (config,)
            with self.parts.exchange.moment.count_as(EVALUATE), _raise_own(), suppress(_Enough):
                attacking.judge(self.round, stop)


def _build_rehearsal(
    scenario: Scenario, data: Prepared, device: torch.device, round_number: int
) -> _Rehearsal:
    small = _shrink_scenario(scenario)
    clients = _choose_clients(small)
    few = _shrink_data(data, clients, small)
    return _Rehearsal(small, few, clients, device, round_number)


def _shrink_scenario(scenario: Scenario) -> Scenario:
    """Return the scenario in this process, with plugins' attacks alone, which work little."""
    targets = {"count": FEW, "per_class": None, "curve": 0}
    networks = {"lpips": None, "bert_score": None, "bleurt": None}
    generation = {"generated_texts": 1, "max_new_tokens": FEW}
    own = [_shorten(config) for config in scenario.attacks if _is_own(config, scenario)]
    return scenario.model_copy(
        update={
            "engine": {"kind": "inline"},
            "attacks": tuple(own),
            "targets": scenario.targets.model_copy(update=targets | networks),
            "evaluate": scenario.evaluate.model_copy(update=generation),
        }
    )


def _shorten(config: AttackConfig) -> AttackConfig:
    return shorten(config, 0)


def _choose_clients(scenario: Scenario) -> list[ClientId]:
    """Choose an attacked, a malicious and a trusted client, and others until there are enough."""
    trusted = [client for config in scenario.detectors for client in config.trusted]
    special = [0, scenario.targets.client, *scenario.malicious[:1], *trusted]
    chosen = dict.fromkeys([*special, *range(min(CLIENTS, scenario.clients.count))])
    return sorted(chosen)


def _shrink_data(data: Prepared, clients: list[ClientId], scenario: Scenario) -> Prepared:
    """Return data of which these clients have two samples each, and the others none."""
    rows = {client: data.parts[client][:FEW] for client in clients}
    nothing, start = np.array([], dtype=np.int64), 0
    parts = [nothing] * len(data.parts)
    for client, own in rows.items():
        parts[client] = np.arange(start, start + len(own))
        start += len(own)
    public = slice(FEW * scenario.train.batch_size)  # attackers leave out what fills no batch
    return replace(
        data,
        train=data.train.take(np.concatenate(list(rows.values()))),
        test=_take_few(data.test),
        validation=None if data.validation is None else _take_few(data.validation),
        auxiliary=None if data.auxiliary is None else _take(data.auxiliary, public),
        parts=parts,
    )


def _take(samples: Samples, rows: slice) -> Samples:
    return samples.take(np.arange(len(samples))[rows])


def _take_few(samples: Samples) -> Samples:
    """Return two samples of each class: some metrics need every class."""
    groups = samples.groups
    firsts = [np.flatnonzero(groups == each)[:FEW] for each in np.unique(groups)]
    return samples.take(np.sort(np.concatenate(firsts)))


def _make_data(scenario: Scenario, info: DataInfo | None) -> Prepared | None:
    """Return a plugin's data, or random images or numbers in the form of the scenario's data.

    Other data than a plugin's are not read: they may have to be downloaded. `info` describes data
    that are not here at all.
    """
    if info is None and _is_own(scenario.data.source, scenario):
        return scenario.prepare_data()
    info = info or scenario.data.describe()
    if info is None or info.texts:
        return None
    images, config = scenario.data.source.modality == "images", scenario.data
    size = FEW * max(info.classes, scenario.train.batch_size, scenario.clients.count)
    channels = (0.5,) * info.shape[0] if images else ()

    def draw(split: str) -> Samples:
        rng = numpy_rng_for(scenario.seed, "rehearsal", split)
        labels = torch.arange(size) % info.classes
        if images:
            pixels = rng.integers(0, 256, (size, *info.shape), dtype=np.uint8)
            return Samples(torch.from_numpy(pixels), labels)
        return Samples(torch.from_numpy(rng.random((size, *info.shape), np.float32)), labels)

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
