"""A run's attacks: what they are given, and when they are scored.

Attacks see packets of training as they pass the driver's wire. To be judged they are given the
packets of target samples, which a client encodes for the purpose; only then is what they recover
held against the truth, by a judge for each kind of things that attacks recover (see `judges`).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from simsplit.assembly import Assembly
from simsplit.assembly.supplies import QUERIES, TARGETS
from simsplit.attacking.curves import point, shortened
from simsplit.attacking.judges import JUDGES
from simsplit.attacking.judging import AttackJudge, Judgement, Row
from simsplit.attacking.served import ServedReplay
from simsplit.attacks import Attack, AttackConfig, Knowledge
from simsplit.attacks.knowledge import SeenViews
from simsplit.attacks.pretrained import Pretrained
from simsplit.data import Prepared
from simsplit.data.samples import DataInfo
from simsplit.models.fresh import Owner, SplitConfig
from simsplit.packets import Leg, Packet
from simsplit.parties.calls import CountExposures, Expose, InputsOf
from simsplit.parties.feed import Feed
from simsplit.parties.optimizers import LrScheduleConfig
from simsplit.phases import Moment
from simsplit.results.recovers import RECOVERS
from simsplit.scenario import Scenario
from simsplit.seeds import seed_for
from simsplit.states import below

Progress = Callable[[str, int, int], None]
"""Told which attack has done so many of so many pieces of work; a total of 0 is not known yet."""


class Attacking:
    """All attacks of a run."""

    def __init__(
        self,
        scenario: Scenario,
        parts: Assembly,
        data: Prepared,
        device: torch.device,
    ) -> None:
        self.scenario, self.parts, self.data, self.device = scenario, parts, data, device
        self.configs = scenario.attacks
        self.targets = scenario.targets
        self._learned: dict[Hashable, Mapping[str, Tensor]] = {}
        self._seen = SeenViews()
        words = data.vocabulary.size if data.vocabulary else 0
        # of nothing but the scenario: what attacks hold must not lead to the clients
        first = partial(_before_training, scenario.model, data.info, scenario.seed, device)
        self._pretrained = Pretrained(first, words)
        calls = ServedReplay(parts.server.end.trunk, seed_for(scenario.seed, "attack"))
        self._apart = calls if Leg.ADAPTERS in scenario.crossings.training.legs else None
        self.attacks: dict[str, Attack] = {
            config.title: config.build(self._knowledge(config.title)) for config in self.configs
        }
        online = [self.attacks[config.title] for config in self.configs if config.online]
        self._online = online
        if online:
            parts.wire.taps.append(self)
        forging = [config.title for config in self.configs if config.active]
        if forging:
            self._forging = self.attacks[forging[0]]
            parts.wire.forger = self
        self.judges: dict[str, AttackJudge[Any]] = {
            kind: JUDGES[kind](scenario, data, parts) for kind in _kinds(scenario)
        }

    @staticmethod
    def columns(scenario: Scenario) -> dict[str, tuple[str, ...]]:
        """Return the columns of the tables that the scenario's attacks fill, by table."""
        return {RECOVERS[kind].table: JUDGES[kind].columns(scenario) for kind in _kinds(scenario)}

    def observe(self, packet: Packet) -> None:
        """Show attacks a packet of training, if it is of a client that they target."""
        if self._concerns(packet):
            if packet.leg is Leg.SMASHED:
                self._show(packet)
            with torch.enable_grad():
                for attack in self._online:
                    attack.observe(packet)

    def _show(self, packet: Packet) -> None:
        """Give upper bounds the images that a packet was made from."""
        shown = [self.attacks[config.title] for config in self.configs if config.shown]
        if shown:
            inputs = self.parts.pool.ask(packet.client, InputsOf(packet.step)).to(self.device)
            for attack in shown:
                attack.show(packet.client, attack.known.pixels(inputs))

    def answer(self, packet: Packet) -> Packet:
        """The packet that is sent instead, if an active attack forges it."""
        return self._forging.answer(packet) if self._concerns(packet) else packet

    def _concerns(self, packet: Packet) -> bool:
        own = self.scenario.clients.heads == "per_client"
        training = self.parts.wire.moment.training
        return training and not (own and packet.client != self.targets.client)

    def judge(
        self, number: int, progress: Progress, resumed: Mapping[str, Tensor] | None = None
    ) -> Judgement:
        """Let every attack recover the targets, and score it; `resumed` is an attack's state in the
        middle of its work.
        """
        looks = range(max((config.exposures for config in self.configs), default=0))
        exposed = [self._exposed(TARGETS, number + look) for look in looks]
        for judge in self.judges.values():
            judge.begin(number)
        for config in self.configs:
            if not config.online:  # each judgement is an attack of its own
                self.attacks[config.title] = config.build(self._knowledge(config.title))
            if resumed is not None:
                self.attacks[config.title].load(resumed)
            told = partial(progress, config.title)
            self._let_work(config, self.attacks[config.title], number, exposed, told)
        judged = self._score(number, self.attacks)
        for config in self.configs:
            judged.curves += self._curve(config, number, exposed, judged, progress)
        return judged

    def _let_work(
        self,
        config: AttackConfig,
        attack: Attack,
        number: int,
        exposed: Sequence[Sequence[Packet]],
        progress: Callable[[int, int], None],
    ) -> None:
        """Let an attack recover the targets from as many of their packets as it asks for."""
        progress(0, 0)
        self.judges[config.recovers].inform(attack)
        if config.queries:
            attack.study(self._queries(config.queries, number))
        targets = [packet for epoch in exposed[: config.exposures] for packet in epoch]
        for done, total in attack.work(targets):
            progress(done, total)

    def _score(self, number: int, attacks: Mapping[str, Attack]) -> Judgement:
        """Compare what attacks recovered with the truth, kind by kind."""
        judged = Judgement()
        for kind, judge in self.judges.items():
            titles = [config.title for config in self.configs if config.recovers == kind]
            of_kind = {title: attacks[title] for title in titles if title in attacks}
            if of_kind:
                judged.scores[kind] = judge.score(number, of_kind)
        return judged

    def _curve(
        self,
        config: AttackConfig,
        number: int,
        exposed: Sequence[Sequence[Packet]],
        judged: Judgement,
        progress: Progress,
    ) -> list[Row]:
        """An attack's figures with ever more of its iterations, up to those that it came to."""
        converges = not config.online and self.judges[config.recovers].converges
        points = self.targets.curve if converges else 0
        found = []
        for index in range(1, points + 1):
            share, scored = index / points, judged
            if index < points:
                less = shortened(config, share)
                attack = less.build(self._knowledge(config.title))
                told = partial(progress, f"{config.title} with {share:.0%} of its iterations")
                self._let_work(less, attack, number, exposed, told)
                scored = self._score(number, {config.title: attack})
            found.append(point(config, share, scored.scores[config.recovers].rows))
        return found

    def state(self) -> dict[str, Tensor]:
        """The state of attacks that follow training."""
        return {
            f"{config.title}/{name}": tensor
            for config in self.configs
            if config.online
            for name, tensor in self.attacks[config.title].state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for config in self.configs:
            if config.online:
                self.attacks[config.title].load(below(state, f"{config.title}/"))

    def _knowledge(self, title: str) -> Knowledge:
        scenario, server, data = self.scenario, self.parts.server, self.data
        model = scenario.model
        # attacks on texts draw alike, so that what they have in common is learned but once
        which = () if data.info.texts else (title,)
        seed = seed_for(scenario.seed, "attack", *which)
        return Knowledge(
            trunk=server.end.trunk,
            tail=server.end.tail,
            stack=server.stack,
            model=model,
            methods=scenario.method,
            shapes=model.shapes(data.info.shape),
            image=data.info.shape,
            classes=data.info.classes,
            auxiliary=self._auxiliary(seed),
            mean=data.mean,
            std=data.std,
            seed=seed,
            device=self.device,
            pretrained=self._pretrained,
            vocabulary=data.vocabulary,
            learned=self._learned,
            served=self._apart,
            seen=self._seen,
            optimizer=scenario.train.client,
            factor=_lr_factor(scenario.train.lr_schedule, self.parts.wire.moment),
            servers=scenario.servers,
        )

    def _auxiliary(self, seed: int) -> Feed | None:
        if self.data.auxiliary is None:
            return None
        return Feed(
            self.data.batches(self.data.auxiliary, self.device),
            torch.arange(len(self.data.auxiliary)),
            batch_size=self.scenario.train.batch_size,
            seed=seed,
            client=0,
            drop_last=True,
        )

    def _exposed(self, split: str, number: int) -> list[Packet]:
        """The packets of images that a client is made to encode."""
        return [packet for packets in self._crossing(split, number) for packet in packets]

    def _crossing(self, split: str, number: int, most: int | None = None) -> Iterator[list[Packet]]:
        client, parts = self.targets.client, self.parts
        total = parts.pool.ask(client, CountExposures(split))
        by_batch = self.targets.statistics == "batch"
        for batch in range(total if most is None else min(most, total)):
            answered = split == TARGETS and any(config.gradients for config in self.configs)
            last = Leg.FEATURES_GRAD if self.scenario.gradients_cross else Leg.FEATURES
            expose = Expose(split, number, batch, by_batch)
            yield parts.exchange.expose(client, expose, last if answered else None)

    def _queries(self, wanted: int, number: int) -> list[tuple[Packet, Tensor]]:
        assert self.data.auxiliary is not None, "refused without when the scenario is read"
        inputs = self.data.auxiliary.inputs
        pixels = (inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs).to(self.device)
        size = self.scenario.train.batch_size
        parts = pixels.split(size)
        crossing = self._crossing(QUERIES, number, -(-wanted // size))
        return [(packets[0], part) for packets, part in zip(crossing, parts, strict=False)]


def _kinds(scenario: Scenario) -> list[str]:
    """Return the kinds of things that the scenario's attacks recover, in the registry's order."""
    wanted = {config.recovers for config in scenario.attacks}
    return [kind for kind in JUDGES if kind in wanted]


def _lr_factor(schedule: LrScheduleConfig, moment: Moment) -> Callable[[int], float]:
    """Of a round of training; a function that no attack can reach the run by."""
    return lambda number: schedule.factor(number, moment.phase.rounds)


def _before_training(
    model: SplitConfig, info: DataInfo, seed: int, device: torch.device, owner: Owner
) -> nn.Module:
    """A segment with its first weights; with others, where those are the clients' own."""
    if owner != "trunk" and not model.start_known:
        seed = seed_for(seed_for(seed, "attack"), "stranger")
    return model.segment(owner, info.shape, info.classes, seed).to(device)
