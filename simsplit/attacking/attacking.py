"""A run's attacks: what they are given, and when they are scored.

Attacks see packets of training as they pass the driver's wire. To be judged they are given the
packets of target samples, which a client encodes for the purpose; only then is what they recover
held against the truth, by a judge (see `images`, `texts`; `labels` of attacks on labels).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from simsplit.assembly import Assembly
from simsplit.assembly.supplies import QUERIES, TARGETS
from simsplit.attacking.curves import point, shortened
from simsplit.attacking.images import ImageJudge
from simsplit.attacking.judging import Judgement, Row
from simsplit.attacking.labels import LabelJudge, columns_of
from simsplit.attacking.rows import RowJudge
from simsplit.attacking.served import Apart
from simsplit.attacking.sessions import SessionJudge, Spoken, spoken
from simsplit.attacking.texts import TextJudge
from simsplit.attacks import Attack, AttackConfig, Knowledge
from simsplit.attacks.knowledge import Seen
from simsplit.attacks.labels import LabelAttack
from simsplit.attacks.pretrained import Pretrained
from simsplit.attacks.session_attack import SessionAttack
from simsplit.data import Prepared
from simsplit.data.samples import DataInfo
from simsplit.models.fresh import Owner, SplitConfig
from simsplit.packets import Leg, Packet
from simsplit.parties.calls import CountExposures, Expose, InputsOf, LabelsOf, OwnTokens
from simsplit.parties.feed import Feed
from simsplit.parties.optimizers import LrScheduleConfig
from simsplit.phases import Moment
from simsplit.results.curves import save_curves
from simsplit.scenario import Scenario
from simsplit.seeds import seed_for
from simsplit.states import below

Progress = Callable[[str, int, int], None]
"""Told which attack has done so many of so many pieces of work; a total of 0 is not known yet."""


AnyJudge = type[TextJudge] | type[RowJudge] | type[ImageJudge]


def judge_of(scenario: Scenario) -> AnyJudge:
    """What scores attacks on this kind of data."""
    judges: dict[str, AnyJudge] = {"texts": TextJudge, "tables": RowJudge, "images": ImageJudge}
    return judges[scenario.data.source.modality]


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
        self._seen = Seen()
        words = data.vocabulary.size if data.vocabulary else 0
        # of nothing but the scenario: what attacks hold must not lead to the clients
        first = partial(_before_training, scenario.model, data.info, scenario.seed, device)
        self._pretrained = Pretrained(first, words)
        calls = Apart(parts.server.end.trunk, seed_for(scenario.seed, "attack"))
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
        after = {config.recovers for config in self.configs}
        self._judge = judge_of(scenario)(scenario, data) if "inputs" in after else None
        self._label_judge = (
            LabelJudge(scenario, data, self._labels_of) if "labels" in after else None
        )
        self._session_judge = SessionJudge(scenario, data) if "sessions" in after else None
        self._spoken: Spoken | None = None

    @staticmethod
    def columns(scenario: Scenario) -> dict[str, tuple[str, ...]]:
        """The tables that attacks fill and their columns: `recovered`, of attacks on inputs,
        `labels` and `sessions`; without such attacks none.
        """
        after = {config.recovers for config in scenario.attacks}
        recovered = judge_of(scenario).columns(scenario) if "inputs" in after else ()
        tables = {"recovered": recovered, "labels": columns_of(scenario)}
        tables["sessions"] = SessionJudge.columns(scenario) if "sessions" in after else ()
        return {name: columns for name, columns in tables.items() if columns}

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
        exposing = [config for config in self.configs if config.recovers != "sessions"]
        looks = range(max((config.exposures for config in exposing), default=0))
        exposed = [self._exposed(TARGETS, number + look) for look in looks]
        if self._session_judge is not None:
            self._spoken = spoken(self.scenario, self.parts, self.data, number)
        for config in self.configs:
            if not config.online:  # each judgement is an attack of its own
                self.attacks[config.title] = config.build(self._knowledge(config.title))
            if resumed is not None:
                self.attacks[config.title].load(resumed)
            told = partial(progress, config.title)
            self._worked(config, self.attacks[config.title], number, exposed, told)
        judged = self.score(number)
        for config in self.configs:
            judged.curves += self._curve(config, number, exposed, judged, progress)
        return judged

    def score(self, number: int) -> Judgement:
        """Compare what is recovered with the truth."""
        return self._scored(number, self.attacks)

    def _worked(
        self,
        config: AttackConfig,
        attack: Attack,
        number: int,
        exposed: Sequence[Sequence[Packet]],
        progress: Callable[[int, int], None],
    ) -> None:
        """Let an attack recover the targets from as many of their packets as it asks for."""
        progress(0, 0)
        if isinstance(attack, LabelAttack):
            assert self._label_judge is not None, "there is such an attack"
            attack.tell(self._label_judge.known(attack.options.told))
        if config.queries:
            attack.study(self._queries(config.queries, number))
        targets = [packet for epoch in exposed[: config.exposures] for packet in epoch]
        if isinstance(attack, SessionAttack):
            assert self._spoken is not None, "which judging begins with"
            attack.hear(self._spoken.record(attack.known))
        for done, total in attack.work(targets):
            progress(done, total)

    def _scored(self, number: int, attacks: Mapping[str, Attack]) -> Judgement:
        on_labels = {n: attack for n, attack in attacks.items() if isinstance(attack, LabelAttack)}
        read = {n: a.recovered for n, a in attacks.items() if isinstance(a, SessionAttack)}
        others = {n: a for n, a in attacks.items() if n not in on_labels and n not in read}
        recovered = {n: attack.guesses() for n, attack in others.items()}
        judged = Judgement()
        if recovered:
            assert self._judge is not None, "there are attacks on inputs"
            judged = self._judge.score(number, recovered, self._own(number))
        if on_labels:
            assert self._label_judge is not None, "there are attacks on labels"
            told = self._label_judge.score(number, on_labels)
            judged.labels, judged.components = told.labels, told.components
        if read:
            assert self._session_judge is not None, "there are attacks on sessions"
            assert self._spoken is not None, "which judging begins with"
            heard = self._session_judge.score(number, self._spoken, read)
            judged.sessions, judged.dialogues = heard.sessions, heard.dialogues
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
        converges = not config.online and config.recovers == "inputs"
        points = self.targets.curve if converges else 0
        found = []
        for index in range(1, points + 1):
            share, rows = index / points, judged.rows
            if index < points:
                less = shortened(config, share)
                attack = less.build(self._knowledge(config.title))
                told = partial(progress, f"{config.title} with {share:.0%} of its iterations")
                self._worked(less, attack, number, exposed, told)
                rows = self._scored(number, {config.title: attack}).rows
            found.append(point(config, share, rows))
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

    def _labels_of(self, step: int) -> Tensor:
        """The classes of the samples that the targets' client trained on in a step."""
        return self.parts.pool.ask(self.targets.client, LabelsOf(step)).cpu()

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

    def _own(self, number: int) -> list[Tensor | None]:
        """Masks of the targets' own tokens in their packets, batch by batch: for the judge."""
        client, pool = self.targets.client, self.parts.pool
        batches = range(pool.ask(client, CountExposures(TARGETS)))
        by_batch = self.targets.statistics == "batch"
        asked = [OwnTokens(TARGETS, number, each, by_batch) for each in batches]
        return [pool.ask(client, each) for each in asked]

    def save(self, path: Path, number: int, judged: Judgement) -> None:
        """Save what was recovered in a run directory."""
        if self._judge is not None:
            self._judge.save(path, number, judged)
        if self._label_judge is not None:
            self._label_judge.save(path, number, judged)
        if self._session_judge is not None:
            self._session_judge.save(path, number, judged)
        save_curves(path, number, judged.curves)

    def _queries(self, wanted: int, number: int) -> list[tuple[Packet, Tensor]]:
        assert self.data.auxiliary is not None, "refused without when the scenario is read"
        inputs = self.data.auxiliary.inputs
        pixels = (inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs).to(self.device)
        size = self.scenario.train.batch_size
        parts = pixels.split(size)
        crossing = self._crossing(QUERIES, number, -(-wanted // size))
        return [(packets[0], part) for packets, part in zip(crossing, parts, strict=False)]


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
