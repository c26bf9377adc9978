"""Targets are exposed to attacks: clients encode them, and each attack gets what its seat sees.

Under a topology whose clients are parties all of them encode their portions in the same steps. A
party sees what it sends and what comes back to it, and the party with the labels sees features.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.attacks import Attack, AttackConfig
from simsplit.attacks.member_attack import Losses, measure_losses
from simsplit.attacks.threat import Role
from simsplit.data import Prepared
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.parties.calls import CountExposures, Expose, HeadWeights, Probe
from simsplit.parties.feed import QUERIES, TARGETS, Exam
from simsplit.scenario import Scenario

Part = tuple[ClientId, Leg | None]
"""A client, and the last leg of a step that is exposed; None: the legs that it begins with."""
Exposed = dict[Part, list[list[Packet]]]
"""Packets of the targets, epoch by epoch."""


class Exposing:
    """What a run shows of targets and of public samples, seat by seat."""

    def __init__(
        self, scenario: Scenario, parts: Assembly, data: Prepared, device: torch.device
    ) -> None:
        self.scenario, self.parts, self.data, self.device = scenario, parts, data, device
        replies = any(c.threat.asks_gradients for c in scenario.attacks if not c.sitting)
        back = Leg.FEATURES_GRAD if scenario.gradients_cross else Leg.FEATURES
        # One exposure serves all attacks of the server, so that they can share what they compute.
        self._last_at_server = back if replies else None

    def expose_all(self, number: int) -> Exposed:
        """Have clients encode the targets as often as their attacks see them."""
        most: dict[Part, int] = {}
        for config in self.scenario.attacks:
            if (part := self._find_part(config)) is not None:
                most[part] = max(most.get(part, 0), config.num_epochs)
        # Each exposure has a round number of its own, so that methods draw other secrets in it.
        return {
            part: [
                [
                    packet
                    for each in _expose(self.scenario, self.parts, part, TARGETS, number + epoch)
                    for packet in each
                ]
                for epoch in range(epochs)
            ]
            for part, epochs in most.items()
        }

    def select_seen(self, config: AttackConfig, exposed: Exposed) -> list[Packet]:
        """Return the packets of targets that pass an attack's seat, of its number of epochs."""
        if (part := self._find_part(config)) is None:
            return []
        sees = self.scenario.find_viewpoint(config).sees
        # Other attacks may need more epochs, which this one must not profit from.
        epochs = exposed[part][: config.num_epochs]
        return [packet for epoch in epochs for packet in epoch if sees(packet)]

    def query(self, config: AttackConfig, number: int) -> list[tuple[Packet, Tensor]]:
        """Have a client encode public samples for an attack; return packets with their inputs."""
        public, part = self.select_data(config).auxiliary, self._find_part(config)
        assert public is not None, "the scenario's checks refuse queries without it"
        assert part is not None, "they refuse queries from a seat that sees none"
        inputs = public.inputs
        pixels = (inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs).to(self.device)
        size = self.scenario.train.batch_size
        leg = Leg.FEATURES if config.sitting else Leg.SMASHED
        wanted = (part[0], leg if config.sitting else None)
        crossing = _expose(self.scenario, self.parts, wanted, QUERIES, number)
        crossing = islice(crossing, -(-config.queries // size))
        sent = (next(each for each in packets if each.leg is leg) for packets in crossing)
        return list(zip(sent, pixels.split(size), strict=False))

    def select_data(self, config: AttackConfig) -> Prepared:
        """Return the data of which an attack recovers a part: all, or one party's portion."""
        if not self.scenario.parties:
            return self.data
        seat = self.scenario.find_viewpoint(config).client
        if seat is None or config.recovers == "inputs":
            return self.data.of_party(self.scenario.targets.client)
        return self.data.of_party(seat)

    def show_own(self, config: AttackConfig, attack: Attack) -> None:
        """Show an attack its own party's head, and what that party has of the targets."""
        seat = self.scenario.find_viewpoint(config).client
        assert seat is not None, "the scenario's checks refuse the server"
        attack.receive_head(self.parts.pool.ask(seat, HeadWeights()))
        own = self.data.of_party(seat)
        samples, rows = self.scenario.aims.choose(own)
        exam = Exam(own.build_batcher(samples, self.device), rows, len(rows))
        attack.receive_inputs(exam.batch(0).inputs)

    def _find_part(self, config: AttackConfig) -> Part | None:
        """Return whose packets of targets an attack may see, up to which leg; None: nobody's."""
        scenario, asks = self.scenario, config.threat.asks_gradients
        client = scenario.find_read_client(config)
        role = scenario.find_role(scenario.find_viewpoint(config))
        if role is Role.SERVER:
            return client, self._last_at_server
        if role is Role.READER:
            return client, Leg.FEATURES
        if role is Role.PARTY:
            return client, Leg.SMASHED_GRAD if asks else None
        return None


def _expose(
    scenario: Scenario, parts: Assembly, part: Part, split: str, number: int
) -> Iterator[list[Packet]]:
    """Have a client encode a split batch by batch."""
    client, last = part
    by_batch = scenario.targets.statistics == "batch"
    for batch in range(parts.pool.ask(client, CountExposures(split))):
        with parts.wire.moment.expose(split):
            packets = parts.exchange.expose(client, Expose(split, number, batch, by_batch), last)
        yield packets


def expose_exam(
    scenario: Scenario, parts: Assembly, client: ClientId, split: str, number: int
) -> list[Packet]:
    """Return the packets that would cross for an exam in training, gradients where any cross."""
    legs = {leg for turn in scenario.crossings.training.turns for leg in turn.sends}
    answers = scenario.gradients_cross and Leg.FEATURES_GRAD in legs
    part = (client, Leg.FEATURES_GRAD if answers else None)
    return [packet for each in _expose(scenario, parts, part, split, number) for packet in each]


def read_losses(parts: Assembly, client: ClientId, split: str, exam: Exam, number: int) -> Losses:
    """Return what a client's model, in inference, makes of an exam's samples."""
    (parts.federation or parts.exchange).settle([client])
    read: list[Losses] = []
    for place in range(len(exam.cut)):
        outputs = parts.exchange.predict(client, Probe(split, number, place)).cpu()
        read.append(measure_losses(outputs, exam.batch(place).labels.cpu()))
    return Losses(*(torch.cat([getattr(each, n) for each in read]) for n in ("loss", "sureness")))
