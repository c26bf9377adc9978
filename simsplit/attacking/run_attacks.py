"""A run's attacks get packets and knowledge here, and are scored when a judgement is due.

Attacks see packets of training that pass their seat, on the driver's wire. For a judgement, a
client encodes target samples, and the attacks get these packets, as far as their seat sees them.
Then a judge for each kind of things that attacks recover (see `judges`) compares the results with
the truth.

The curve of an attack shows how well it does with only a part of its iterations. It is built anew
for each point, so that a point is the result of a shorter attack, including its schedule of
learning rates. If a curve still rises at its end, the attack needs more iterations.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, cast
from weakref import proxy

import torch
from torch import Tensor, nn

from simsplit.assembly import Assembly
from simsplit.attacking.attack_judge import AttackJudge, Judgement
from simsplit.attacking.exposing import Exposed, Exposing
from simsplit.attacking.judges import JUDGES
from simsplit.attacks import Attack, AttackConfig, Knowledge
from simsplit.attacks.knowledge import Pretrained, SeenViews, ServedReplay
from simsplit.attacks.threat import Knows, Sees
from simsplit.data import Prepared
from simsplit.data.samples import DataInfo
from simsplit.legs import Leg
from simsplit.models.fresh import Owner, SplitConfig
from simsplit.packets import Packet
from simsplit.parties.calls import HeadWeights, InputsOf
from simsplit.parties.feed import Feed
from simsplit.parties.optimizers import LrScheduleConfig
from simsplit.phases import Moment
from simsplit.results.leak_table import Row
from simsplit.scenario import Scenario
from simsplit.seeds import derive_seed
from simsplit.states import select_below

Progress = Callable[[str, int, int], None]
"""A function called with an attack's name, the work done, and the total work (0: not yet known)."""


class Attacking:
    """All attacks of a run."""

    def __init__(
        self, scenario: Scenario, parts: Assembly, data: Prepared, device: torch.device
    ) -> None:
        self.scenario, self.parts, self.data, self.device = scenario, parts, data, device
        self.configs = scenario.attacks
        self.targets = scenario.targets
        self.exposing = Exposing(scenario, parts, data, device)
        self._learned: dict[Hashable, Mapping[str, Tensor]] = {}
        self._seen = SeenViews()
        words = data.vocabulary.size if data.vocabulary else 0
        # It holds values of the scenario only: attacks must not be able to reach the clients by it.
        first = partial(_build_before_training, scenario.model, data.info, scenario.seed, device)
        self._pretrained = Pretrained(first, words)
        calls = ServedReplay(parts.server.end.trunk, derive_seed(scenario.seed, "attack"))
        self._apart = calls if Leg.ADAPTERS in scenario.crossings.training.legs else None
        self.attacks: dict[str, Attack] = {
            config.title: config.build(self._make_knowledge(config)) for config in self.configs
        }
        online = [config for config in self.configs if config.threat.follows_training]
        for viewpoint in dict.fromkeys(map(scenario.find_viewpoint, online)):
            seated = [each for each in online if scenario.find_viewpoint(each) == viewpoint]
            # A proxy, or the wire would hold the whole run.
            parts.wire.seated.append((viewpoint, _Seated(proxy(self), seated)))
        # The scenario's checks refuse a second one: a packet can be forged only once.
        forging = (each for each in self.configs if each.threat.acts and not each.sitting)
        self._forging = next(forging, None)
        if self._forging is not None:
            parts.wire.forger = proxy(self)
        wanted = {config.recovers for config in self.configs}
        self.judges: dict[str, AttackJudge[Any]] = {
            kind: judge(scenario, data, parts) for kind, judge in JUDGES.items() if kind in wanted
        }

    def show(self, packet: Packet, configs: Sequence[AttackConfig]) -> None:
        """Show attacks that sit at one place a packet of training that passes it."""
        seen = [config for config in configs if self._concerns(packet, config)]
        if seen and packet.leg is Leg.SMASHED:
            self._show_inputs(packet, seen)
        with torch.enable_grad():
            for config in seen:
                self.attacks[config.title].observe(packet)

    def _show_inputs(self, packet: Packet, configs: Sequence[AttackConfig]) -> None:
        """Give the inputs of a packet to the attacks that are upper bounds, which may know them."""
        shown = [self.attacks[each.title] for each in configs if Sees.INPUTS in each.threat.sees]
        if shown:
            inputs = self.parts.pool.ask(packet.client, InputsOf(packet.step)).to(self.device)
            for attack in shown:
                attack.show(packet.client, attack.known.pixels(inputs))

    def answer(self, packet: Packet) -> Packet:
        """Return the packet that is sent: an active attack may forge it."""
        forging = self._forging
        if forging is None or not self._concerns(packet, forging):
            return packet
        return self.attacks[forging.title].answer(packet)

    def _concerns(self, packet: Packet, config: AttackConfig) -> bool:
        """Return whether a packet is of training, and of a head that the attack targets."""
        # With heads of their own, the smashed data of other clients would teach the wrong head.
        # What passes a client's seat is its own, or handed to it.
        everybody = config.sitting or config.watches_all
        own = self.scenario.clients.heads == "per_client" and not everybody
        training = self.parts.wire.moment.is_training
        return training and not (own and packet.client != self.targets.client)

    def judge(
        self, number: int, progress: Progress, resumed: Mapping[str, Tensor] | None = None
    ) -> Judgement:
        """Let every attack recover the targets, and return the scores.

        `resumed` is the state of an attack that was interrupted in the middle of its work.
        """
        exposed = self.exposing.expose_all(number)
        for judge in self.judges.values():
            judge.begin(number)
        for config in self.configs:
            if not config.threat.follows_training:  # each judgement starts such an attack afresh
                self.attacks[config.title] = config.build(self._make_knowledge(config))
            if resumed is not None:
                self.attacks[config.title].load(resumed)
            report = partial(progress, config.title)
            self._let_work(config, self.attacks[config.title], number, exposed, report)
        judged = self._score(number, self.attacks)
        notes = {title: attack.note for title, attack in self.attacks.items()}
        judged.notes += [f"attack {title}: {note}" for title, note in notes.items() if note]
        for config in self.configs:
            judged.curves += self._score_curve(config, number, exposed, judged, progress)
        return judged

    def _let_work(
        self,
        config: AttackConfig,
        attack: Attack,
        number: int,
        exposed: Exposed,
        progress: Callable[[int, int], None],
    ) -> None:
        """Let an attack recover the targets from as many epochs as its config sets."""
        progress(0, 0)
        self.judges[config.recovers].inform(attack)
        if Knows.WEIGHTS in config.threat.knows:
            attack.receive_head(self.parts.pool.ask(self.targets.client, HeadWeights()))
        if Sees.OWN in config.threat.sees:
            self.exposing.show_own(config, attack)
        if config.queries:
            rounds = range(number, number + config.num_epochs)
            attack.study([pair for each in rounds for pair in self.exposing.query(config, each)])
        targets = self.exposing.select_seen(config, exposed)
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
        exposed: Exposed,
        judged: Judgement,
        progress: Progress,
    ) -> list[Row]:
        """Return an attack's figures with growing shares of its iterations; the last share is 1."""
        converges = not config.threat.follows_training and self.judges[config.recovers].converges
        points = self.targets.curve if converges else 0
        curve = []
        for index in range(1, points + 1):
            share, scored = index / points, judged
            if index < points:
                less = shorten(config, share)
                attack = less.build(self._make_knowledge(config))
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
            if config.threat.follows_training
            for name, tensor in self.attacks[config.title].state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for config in self.configs:
            if config.threat.follows_training:
                self.attacks[config.title].load(select_below(state, f"{config.title}/"))

    def _make_knowledge(self, config: AttackConfig) -> Knowledge:
        """Return what an attack knows of the run: public facts, and at the server its parts."""
        scenario, server = self.scenario, self.parts.server
        data, client = self.exposing.select_data(config), scenario.find_read_client(config)
        model = scenario.model
        # Attacks on texts share one seed, so that what several of them learn is learned only once.
        which = () if data.info.texts else (config.title,)
        seed = derive_seed(scenario.seed, "attack", *which)
        auxiliary = None
        if data.auxiliary is not None:
            auxiliary = Feed(
                data.build_batcher(data.auxiliary, self.device),
                torch.arange(len(data.auxiliary)),
                batch_size=scenario.train.batch_size,
                seed=seed,
                client=0,
                drop_last=True,
            )
        known = Knowledge(
            trunk=server.end.trunk,
            tail=server.end.tail,
            stack=server.end.get_client_stack(client),
            model=model,
            methods=[*scenario.select_methods(client).values()],
            shapes=model.compute_shapes(data.info.shape),
            image=data.info.shape,
            classes=data.info.classes,
            auxiliary=auxiliary,
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
        seat = scenario.find_viewpoint(config).client
        return known if seat is None else known.move_to(seat)


class _Seated:
    """An observer of the wire that shows attacks of one seat what passes it."""

    def __init__(self, attacking: Attacking, configs: Sequence[AttackConfig]) -> None:
        self.attacking, self.configs = attacking, configs

    def observe(self, packet: Packet) -> None:
        """Show a packet to the attacks."""
        self.attacking.show(packet, self.configs)


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


def shorten(config: AttackConfig, share: float) -> AttackConfig:
    """Return the same attack with a part of its iterations, at least one of each kind."""
    whole = {name: getattr(config, name) for name in config.effort if hasattr(config, name)}
    # A field that is 0 or null sets no amount of work that could shrink.
    less = {name: max(1, round(share * n)) for name, n in whole.items() if n}
    return config.model_copy(update=less)


def make_point(config: AttackConfig, share: float, rows: Sequence[Row]) -> Row:
    """Return a point of an attack's curve: the means of its figures over the targets.

    A figure that some targets lack, as an image without a foreground has none of it, is averaged
    over the others.
    """
    own = [row for row in rows if row["attack"] == config.title]
    known: dict[str, list[float]] = {}
    for row in own:
        known.setdefault(str(row["metric"]), []).append(cast("float", row["value"]))
    means = {name: sum(values) / len(values) for name, values in known.items()}
    return {"round": own[0]["round"], "attack": config.title, "share": round(share, 4), **means}
