"""A run's attacks get packets and knowledge here, and are scored when a judgement is due.

Attacks see packets of training as they pass the driver's wire. For a judgement, a client encodes
target samples, and the attacks get these packets. Then a judge for each kind of things that attacks
recover (see `judges`) compares the results with the truth.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from simsplit.assembly import Assembly
from simsplit.assembly.supplies import QUERIES, TARGETS
from simsplit.attacking.curves import make_point, shorten
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
from simsplit.parties.calls import CountExposures, Expose, HeadWeights, InputsOf
from simsplit.parties.feed import Feed
from simsplit.parties.optimizers import LrScheduleConfig
from simsplit.phases import Moment
from simsplit.results.recovers import RECOVERS
from simsplit.scenario import Scenario
from simsplit.seeds import derive_seed
from simsplit.states import select_below

Progress = Callable[[str, int, int], None]
"""A function called with an attack's name, the work done, and the total work (0: not yet known)."""


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
        # It holds values of the scenario only: attacks must not be able to reach the clients by it.
        first = partial(_build_before_training, scenario.model, data.info, scenario.seed, device)
        self._pretrained = Pretrained(first, words)
        calls = ServedReplay(parts.server.end.trunk, derive_seed(scenario.seed, "attack"))
        self._apart = calls if Leg.ADAPTERS in scenario.crossings.training.legs else None
        self.attacks: dict[str, Attack] = {
            config.title: config.build(self._make_knowledge(config.title))
            for config in self.configs
        }
        online = [self.attacks[config.title] for config in self.configs if config.online]
        self._online = online
        if online:
            parts.wire.taps.append(self)
        # The scenario's checks refuse a second one: a packet can be forged only once.
        forging = [config.title for config in self.configs if config.active]
        if forging:
            self._forging = self.attacks[forging[0]]
            parts.wire.forger = self
        self.judges: dict[str, AttackJudge[Any]] = {
            kind: JUDGES[kind](scenario, data, parts) for kind in _list_kinds(scenario)
        }

    @staticmethod
    def columns(scenario: Scenario) -> dict[str, tuple[str, ...]]:
        """Return the columns of the tables that the scenario's attacks fill, by table."""
        kinds = _list_kinds(scenario)
        return {RECOVERS[kind].table: JUDGES[kind].columns(scenario) for kind in kinds}

    def observe(self, packet: Packet) -> None:
        """Show the attacks a packet of training, if it belongs to a client that they target."""
        if self._concerns(packet):
            if packet.leg is Leg.SMASHED:
                self._show(packet)
            with torch.enable_grad():
                for attack in self._online:
                    attack.observe(packet)

    def _show(self, packet: Packet) -> None:
        """Give the inputs of a packet to the attacks that are upper bounds, which may know them."""
        shown = [self.attacks[config.title] for config in self.configs if config.shown]
        if shown:
            inputs = self.parts.pool.ask(packet.client, InputsOf(packet.step)).to(self.device)
            for attack in shown:
                attack.show(packet.client, attack.known.pixels(inputs))

    def answer(self, packet: Packet) -> Packet:
        """Return the packet that is sent: an active attack may forge it."""
        return self._forging.answer(packet) if self._concerns(packet) else packet

    def _concerns(self, packet: Packet) -> bool:
        """Return whether a packet is of training, and of a head that the attacks target."""
        # With heads of their own, the smashed data of other clients would teach the wrong head.
        own = self.scenario.clients.heads == "per_client"
        training = self.parts.wire.moment.is_training
        return training and not (own and packet.client != self.targets.client)

    def judge(
        self, number: int, progress: Progress, resumed: Mapping[str, Tensor] | None = None
    ) -> Judgement:
        """Let every attack recover the targets, and return the scores.

        `resumed` is the state of an attack that was interrupted in the middle of its work.
        """
        most = max((config.exposures for config in self.configs), default=0)
        # Each exposure has a round number of its own, so that methods draw other secrets in it.
        exposed = [self._expose(TARGETS, number + exposure) for exposure in range(most)]
        for judge in self.judges.values():
            judge.begin(number)
        for config in self.configs:
            if not config.online:  # each judgement starts such an attack afresh
                self.attacks[config.title] = config.build(self._make_knowledge(config.title))
            if resumed is not None:
                self.attacks[config.title].load(resumed)
            report = partial(progress, config.title)
            self._let_work(config, self.attacks[config.title], number, exposed, report)
        judged = self._score(number, self.attacks)
        for config in self.configs:
            judged.curves += self._score_curve(config, number, exposed, judged, progress)
        return judged

    def _let_work(
        self,
        config: AttackConfig,
        attack: Attack,
        number: int,
        exposed: Sequence[Sequence[Packet]],
        progress: Callable[[int, int], None],
    ) -> None:
        """Let an attack recover the targets from the number of exposures that its config sets."""
        progress(0, 0)
        self.judges[config.recovers].inform(attack)
        if config.told_head:
            attack.receive_head(self.parts.pool.ask(self.targets.client, HeadWeights()))
        if config.queries:
            attack.study(self._query(config.queries, number))
        # Other attacks may need more epochs, which this one must not profit from.
        targets = [packet for epoch in exposed[: config.exposures] for packet in epoch]
        for done, total in attack.work(targets):
            progress(done, total)

    def _score(self, number: int, attacks: Mapping[str, Attack]) -> Judgement:
        """Return the scores of what the attacks recovered, kind by kind."""
        judged = Judgement()
        for kind, judge in self.judges.items():
            titles = [config.title for config in self.configs if config.recovers == kind]
            of_kind = {title: attacks[title] for title in titles if title in attacks}
            if of_kind:
                judged.scores[kind] = judge.score(number, of_kind)
        return judged

    def _score_curve(
        self,
        config: AttackConfig,
        number: int,
        exposed: Sequence[Sequence[Packet]],
        judged: Judgement,
        progress: Progress,
    ) -> list[Row]:
        """Return an attack's figures with growing shares of its iterations; the last share is 1."""
        converges = not config.online and self.judges[config.recovers].converges
        points = self.targets.curve if converges else 0
        curve = []
        for index in range(1, points + 1):
            share, scored = index / points, judged
            if index < points:
                less = shorten(config, share)
                attack = less.build(self._make_knowledge(config.title))
                report = partial(progress, f"{config.title} with {share:.0%} of its iterations")
                self._let_work(less, attack, number, exposed, report)
                scored = self._score(number, {config.title: attack})
            curve.append(make_point(config, share, scored.scores[config.recovers].rows))
        return curve

    def state(self) -> dict[str, Tensor]:
        """Return the state of the attacks that follow training."""
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
                self.attacks[config.title].load(select_below(state, f"{config.title}/"))

    def _make_knowledge(self, title: str) -> Knowledge:
        """Return what an attack knows of the run: the server's parts, and public facts."""
        scenario, server, data = self.scenario, self.parts.server, self.data
        model = scenario.model
        # Attacks on texts share one seed, so that what several of them learn is learned only once.
        which = () if data.info.texts else (title,)
        seed = derive_seed(scenario.seed, "attack", *which)
        return Knowledge(
            trunk=server.end.trunk,
            tail=server.end.tail,
            stack=server.stack,
            model=model,
            methods=scenario.method,
            shapes=model.compute_shapes(data.info.shape),
            image=data.info.shape,
            classes=data.info.classes,
            auxiliary=self._make_auxiliary(seed),
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
            factor=_make_lr_factor(scenario.train.lr_schedule, self.parts.wire.moment),
            servers=scenario.servers,
        )

    def _make_auxiliary(self, seed: int) -> Feed | None:
        if self.data.auxiliary is None:
            return None
        return Feed(
            self.data.build_batcher(self.data.auxiliary, self.device),
            torch.arange(len(self.data.auxiliary)),
            batch_size=self.scenario.train.batch_size,
            seed=seed,
            client=0,
            drop_last=True,
        )

    def _expose(self, split: str, number: int) -> list[Packet]:
        """Have a client encode the samples of a split, and return the packets that cross."""
        return [packet for packets in self._expose_batches(split, number) for packet in packets]

    def _expose_batches(
        self, split: str, number: int, most: int | None = None
    ) -> Iterator[list[Packet]]:
        """Have a client encode a split batch by batch, at most `most` batches."""
        client, parts = self.targets.client, self.parts
        total = parts.pool.ask(client, CountExposures(split))
        by_batch = self.targets.statistics == "batch"
        for batch in range(total if most is None else min(most, total)):
            answered = split == TARGETS and any(config.gradients for config in self.configs)
            last = Leg.FEATURES_GRAD if self.scenario.gradients_cross else Leg.FEATURES
            expose = Expose(split, number, batch, by_batch)
            yield parts.exchange.expose(client, expose, last if answered else None)

    def _query(self, wanted: int, number: int) -> list[tuple[Packet, Tensor]]:
        """Have a client encode `wanted` auxiliary samples; return packets with their inputs."""
        assert self.data.auxiliary is not None, "the scenario's checks refuse queries without it"
        inputs = self.data.auxiliary.inputs
        pixels = (inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs).to(self.device)
        size = self.scenario.train.batch_size
        parts = pixels.split(size)
        crossing = self._expose_batches(QUERIES, number, -(-wanted // size))
        return [(packets[0], part) for packets, part in zip(crossing, parts, strict=False)]


def _list_kinds(scenario: Scenario) -> list[str]:
    """Return the kinds of things that the scenario's attacks recover, in the registry's order."""
    wanted = {config.recovers for config in scenario.attacks}
    return [kind for kind in JUDGES if kind in wanted]


def _make_lr_factor(schedule: LrScheduleConfig, moment: Moment) -> Callable[[int], float]:
    """Return the function from a round to its factor; it gives attacks no access to the run."""
    return lambda number: schedule.factor(number, moment.phase.rounds)


def _build_before_training(
    model: SplitConfig, info: DataInfo, seed: int, device: torch.device, owner: Owner
) -> nn.Module:
    """Build a segment with its initial weights, or with other weights if only clients know them."""
    if owner != "trunk" and not model.is_start_public:
        seed = derive_seed(derive_seed(seed, "attack"), "stranger")
    return model.widen().segment(owner, info.shape, info.classes, seed).to(device)
