"""The base class of attacks on members: was this sample trained on?

The attacker has candidates, samples with their labels, half of which were trained on. It reads each
one from its seat (`by`). A server has what crosses for it (the view `wire`), and the loss of the
whole trained model, whose final weights it has (`weights`). A client has the loss that it computes
with the head and tail that it is handed, through its own methods and the server's trunk
(`handover`). It returns a score of each candidate; a
larger one says that it is rather a member.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.attack import AttackConfig, Done, KeepingAttack
from simsplit.attacks.knowledge import Knowledge
from simsplit.methods.method import ANYTHING, Modality
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Packet

MemberView = Literal["wire", "weights", "handover"]
CANDIDATES = "candidates"
"""The name of the exam of samples that may be members."""


@dataclass(frozen=True)
class Losses:
    """What a model makes of each candidate."""

    loss: Tensor
    """N: cross-entropy of the candidate's label; of a text the mean over its labelled tokens."""
    sureness: Tensor
    """N: log p / (1 - p) of the label's probability p; of a text the negative loss."""


@dataclass(frozen=True)
class CandidateReading:
    """All that is read of the candidates, in their order."""

    losses: Mapping[MemberView, Losses] = field(default_factory=dict)
    packets: Sequence[Sequence[Packet]] = ()
    """What would cross for the candidates in training, by epoch."""
    shadows: Sequence[Losses] = ()
    """What each shadow model makes of the candidates."""


def measure_losses(outputs: Tensor, labels: Tensor) -> Losses:
    """Measure the losses of a model's outputs: a row for each label, or for each place of a text.

    Labels below 0 are none; of a text with several, the loss is the mean over them.
    """
    there = labels >= 0
    logits_TC = (outputs if outputs.ndim == 2 else outputs[there]).float()
    own_T = labels[there][:, None]
    loss_T = -logits_TC.log_softmax(-1).gather(-1, own_T)[:, 0]
    if labels.ndim == 1 or bool((there.sum(1) == 1).all()):
        # Of logits, not of probabilities: a sure model's p is 1 in fp32.
        others = logits_TC.scatter(-1, own_T, -torch.inf).logsumexp(-1)
        return Losses(loss_T, logits_TC.gather(-1, own_T)[:, 0] - others)
    sums_N = loss_T.new_zeros(len(labels)).index_add(0, there.nonzero()[:, 0], loss_T)
    mean = sums_N / there.sum(1).clamp_min(1)
    return Losses(mean, -mean)


def flatten_message(known: Knowledge, packet: Packet) -> Tensor:
    """Return a row for each sample of a message; of a text, the mean over its places."""
    if known.vocabulary is None:
        return known.flatten_payload(packet).cpu()
    return known.lift_smashed(packet).mean(1).cpu()


class MemberAttackConfig(AttackConfig):
    """Base class of the fields of attacks on members."""

    views: tuple[MemberView, ...] = Field(default=("wire", "weights", "handover"), min_length=1)
    """What it reads: what crosses, the final weights, or, `by` a client, the model that it is
    handed. Views that its seat does not have are left out."""
    recovers: ClassVar[str] = "members"
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    effort: ClassVar[tuple[str, ...]] = ()
    splits: ClassVar[tuple[str, ...]] = (CANDIDATES,)
    reads: ClassVar[tuple[MemberView, ...]] = ("weights", "handover")
    """The views that attacks of its kind can read."""

    @property
    def view_groups(self) -> tuple[str, ...]:
        """The views of its seat that it reads."""
        seat = ("handover",) if self.sitting else ("weights", "wire")
        return tuple(view for view in seat if view in self.views and view in self.reads)

    @property
    def needs(self) -> Needs:
        """Return the needs of its threat; an attacking client must be handed weights, too."""
        handed = (Need(Given.SHARED),) if self.sitting else ()
        return (*super().needs, *handed)

    # None: it does not read the targets' packets, but those of candidates.
    num_epochs: ClassVar[int] = 0

    @property
    def encodings(self) -> int:
        """Number of epochs in which the candidates are encoded for it."""
        return 1

    @property
    def shadow_folder(self) -> Path | None:
        """The sweep whose cells are its shadow runs; None: it has none."""
        return None


class MemberAttack(KeepingAttack):
    """An attack that scores each candidate from one seat after another."""

    config: MemberAttackConfig

    def __init__(self, config: MemberAttackConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.reading = CandidateReading()
        """What is read of the candidates; the judge tells it."""
        self.scores: dict[str, Tensor] = {}
        """The scores of the candidates by view."""

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        del targets
        self.scores = {name: scores.cpu() for name, scores in self.score_all()}
        yield 1, 1

    @abstractmethod
    def score_all(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of a view with the scores of the candidates."""

    def list_losses(self) -> Iterator[tuple[MemberView, Losses]]:
        """Yield the losses in the views that it has and the scenario gives."""
        for view in self.config.views:
            if view in self.reading.losses:
                yield view, self.reading.losses[view]
