"""A client exposes samples of an exam to attacks: what would cross for them, and their losses."""

from collections.abc import Sequence

import torch

from simsplit.assembly import Assembly
from simsplit.attacks.member_attack import Losses, measure_losses
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.parties.calls import CountExposures, Expose, Probe
from simsplit.parties.feed import Exam
from simsplit.scenario import Scenario


def expose_all(
    scenario: Scenario, parts: Assembly, client: ClientId, split: str, number: int
) -> list[Packet]:
    """Return the packets that would cross for an exam in training, gradients where any cross."""
    legs = {leg for turn in scenario.crossings.training.turns for leg in turn.sends}
    answers = scenario.gradients_cross and Leg.FEATURES_GRAD in legs
    by_batch = scenario.targets.statistics == "batch"
    last = Leg.FEATURES_GRAD if answers else None
    with parts.wire.moment.expose(split):
        return [
            packet
            for batch in range(parts.pool.ask(client, CountExposures(split)))
            for packet in parts.exchange.expose(
                client, Expose(split, number, batch, by_batch), last
            )
        ]


def read_losses(parts: Assembly, client: ClientId, split: str, exam: Exam, number: int) -> Losses:
    """Return what a client's model, in inference, makes of an exam's samples."""
    (parts.federation or parts.exchange).settle([client])
    read: list[Losses] = []
    for place in range(len(exam.cut)):
        outputs = parts.exchange.predict(client, Probe(split, number, place)).cpu()
        labels = exam.batch(place).labels.cpu()
        read.append(measure_losses(outputs, labels))
    return _join(read)


def _join(parts: Sequence[Losses]) -> Losses:
    """Join the losses of batches."""
    return Losses(*(torch.cat([getattr(each, n) for each in parts]) for n in ("loss", "sureness")))
