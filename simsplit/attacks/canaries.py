"""Canaries: samples that a coin puts into a client's training data, and an attacker's guesses.

Right guesses bound epsilon from below (see `metrics.audit_bounds`), beside the accountant's upper
bound. Steinke, Nasr and Jagielski (2023) add or leave out each canary; here a coin chooses between
two samples in one place, since a guarantee's neighbours differ by a replaced sample (see
`data.planting`). The guess is the sample of a pair with the larger score:

- `weights`: the smaller loss of the trained model;
- `wire`: the shorter gradient of features;
- `messages`: the larger cosine between what crosses for the sample when it is encoded for the
  attacker, and any message of the last round of training;
- `gradients`: the larger inner product of the direction of the sample's gradient with the gradient
  that crossed in the last round beside the message that is nearest to the sample's. (The authors
  take the product with the sum of a batch. Here the row of each sample crosses.)

Where a message holds several samples, the views of messages and gradients are left out.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from simsplit.attacks.epoch_averages import average_epochs
from simsplit.attacks.gradient_norm import measure_norms
from simsplit.attacks.knowledge import Knowledge, is_mixed
from simsplit.attacks.member_attack import (
    MemberAttack,
    MemberAttackConfig,
    MemberView,
    flatten_message,
)
from simsplit.attacks.threat import Knows, Sees, Threat, When
from simsplit.data import Prepared
from simsplit.data.planting import Differing, plant_canaries
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet

CANARIES = "canaries"
"""The name of the exam of both samples of all pairs."""
_MOST = 2**26
"""The most values of messages and gradients that are kept of a round."""
_KEPT = (Leg.SMASHED, Leg.FEATURES_GRAD)


class CanariesConfig(MemberAttackConfig):
    """An audit: guesses at coins that chose training samples bound epsilon from below."""

    kind: Literal["canaries"] = "canaries"
    threat: ClassVar[Threat] = Threat(
        (Sees.SMASHED, Sees.TRAINED), (Knows.CANDIDATES, Knows.ENCODED), when=When.TRAINING
    )
    count: int = Field(default=200, ge=1)
    """Number of pairs, each in the place of one sample of the targets' client. At most half of its
    samples take part in pairs."""
    differing: Differing = "sample"
    """What differs between the two samples of a pair, as a guarantee has it: the input alone, the
    label alone, or the whole sample."""
    exposures: int = Field(default=1, ge=1)
    """Number of epochs over which what is encoded for the attacker is averaged: noise counts less,
    and each costs a pass of all pairs."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """The delta of the bound; null: the largest of the scenario's guarantees, or 1e-5 without one.
    It should be far below 1 / count, or nothing is shown."""
    splits: ClassVar[tuple[str, ...]] = (CANARIES,)
    reads: ClassVar[tuple[MemberView, ...]] = ("wire", "weights")

    @property
    def encodings(self) -> int:
        return self.exposures

    @property
    def audited(self) -> str:
        return self.differing

    def plant(self, data: Prepared, client: ClientId, seed: int, where: str) -> Prepared:
        return plant_canaries(
            data, client, self.count, self.differing, seed=seed, where=f"{where}.count"
        )

    def build(self, known: Knowledge) -> "CanaryAttack":
        return CanaryAttack(self, known)


class CanaryAttack(MemberAttack):
    """An attack that keeps the messages of the last round, and scores both samples of each pair."""

    config: CanariesConfig

    def __init__(self, config: CanariesConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self._sent: dict[Leg, dict[tuple[ClientId, int], Tensor]] = {}
        """Rows that crossed in the present round, by leg, client and step."""
        self._round, self._values = 0, 0

    def observe(self, packet: Packet) -> None:
        if packet.leg not in _KEPT:
            return
        if packet.round != self._round:
            self._round, self._sent, self._values = packet.round, {}, 0
        if self._values < _MOST:
            rows = self._read(packet)
            self._values += rows.numel()
            self._sent.setdefault(packet.leg, {})[packet.client, packet.step] = rows

    def _read(self, packet: Packet) -> Tensor:
        """Return a row for each sample of a message, or of the gradients that answer it."""
        if packet.leg is Leg.SMASHED:
            return flatten_message(self.known, packet)
        # The loss is a mean over the batch, and a text's gradients are those of its places.
        grads = self.known.message(packet)
        rows = grads.flatten(1) if self.known.vocabulary is None else grads.sum(1)
        return rows.cpu() * len(rows)

    def score_all(self) -> Iterator[tuple[str, Tensor]]:
        yield from ((view, -losses.loss) for view, losses in self.list_losses())
        if not is_mixed(self.known, Leg.FEATURES_GRAD):
            yield from ((view, -norms) for view, norms in measure_norms(self))
        if Leg.SMASHED in self._sent and not is_mixed(self.known, Leg.SMASHED):
            yield "messages", self._compare_messages(self._sent[Leg.SMASHED].values()).amax(1)
            if not is_mixed(self.known, Leg.FEATURES_GRAD):
                yield from (("gradients", scores) for scores in self._multiply_gradients())

    def _compare_messages(self, sent: Iterable[Tensor]) -> Tensor:
        """Return the cosines between each sample's encoding and each message of training."""
        encoded_ND, sent_MD = self._average(Leg.SMASHED), torch.cat([*sent])
        # What all messages have in common would hide where they differ.
        usual_D = sent_MD.mean(0)
        return normalize(encoded_ND - usual_D) @ normalize(sent_MD - usual_D).T

    def _multiply_gradients(self) -> Iterator[Tensor]:
        """Yield the product of each sample's gradient with that beside the nearest message."""
        crossed, answers = (self._sent.get(leg, {}) for leg in _KEPT)
        steps = [each for each in answers if len(crossed.get(each, ())) == len(answers[each])]
        own_ND = self._average(Leg.FEATURES_GRAD)
        if steps and len(own_ND):
            nearest_N = self._compare_messages(crossed[each] for each in steps).argmax(1)
            beside_ND = torch.cat([answers[each] for each in steps])[nearest_N]
            yield (normalize(own_ND) * beside_ND).sum(1)

    def _average(self, leg: Leg) -> Tensor:
        """Return what crosses for each sample on a leg when it is encoded for the attacker."""
        packets = [each for epoch in self.reading.packets for each in epoch if each.leg is leg]
        return torch.cat([*average_epochs(packets, self._read)] or [torch.empty(0)])
