"""VMI (Fredrikson et al. 2015): optimize a text's embeddings until the head's output matches.

It starts from zeros, or from another attack's reading: `start: sip` is BiSR without gradients,
which sessions do not have; `start: dsi` and `start: mc` are PIDI's ablations. It takes at most
1,000 steps of Adam, and reads each embedding as the token whose embedding has the most similar
direction. `rmi` optimizes a mixture of all tokens' embeddings (a softmax with a low temperature)
instead of the embedding itself.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.matching import EmbeddingDescent, HeadTarget, find_nearest, match_target
from simsplit.attacks.openings import OpenedConfig, SessionAttackConfig, Start
from simsplit.attacks.session_attack import SessionAttack, Steps
from simsplit.attacks.session_records import Record
from simsplit.machine import Precision, autocast_for
from simsplit.models.transformer import Head


class VmiConfig(OpenedConfig):
    """A text's embeddings, optimized until the pretrained head's output matches the sent one."""

    kind: Literal["vmi"] = "vmi"
    start: Start = "zeros"
    """The embeddings to start from. zeros: zeros. mc, sip, dsi: those of the tokens that this
    attack reads (sip: as in BiSR)."""
    steps: int = Field(default=1000, ge=1)
    """Maximum number of steps; published: 1,000."""
    step_size: float = Field(default=1e-3, gt=0)
    """Adam's learning rate in matching; published: 0.001."""
    stop_after: int = Field(default=50, ge=0)
    """A session stops after this many steps in which its loss has not fallen by a thousandth; 0:
    it never stops early."""
    precision: Precision = "fp32"
    """bf16 matches the head's output under autocast, which is faster on some processors."""
    effort = (*OpenedConfig.effort, "steps")

    @property
    def opening(self) -> Start:
        return self.start

    def build(self, known: Knowledge) -> "Vmi":
        return Vmi(self, known)


class HeadMatching(SessionAttack):
    """Base class of the attacks that match the pretrained head's output."""

    how: EmbeddingDescent

    def __init__(self, config: SessionAttackConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        head = known.pretrained.segment("head")
        assert isinstance(head, Head), "causal language models have no other heads"
        self.head = head
        self.embeddings_VD = known.pretrained.embeddings

    def steps(self, record: Record) -> int:
        del record
        return self.how.steps + 1

    def start_embeddings(self, record: Record) -> Tensor:
        """Return the embeddings to start from: those of the first reading, or zeros."""
        zeros = record.sent.new_zeros(*record.real.shape, self.embeddings_VD.shape[1])
        tokens = self.opening.read(record)
        if tokens is None:
            return zeros
        read = tokens != NOTHING
        zeros[read] = self.embeddings_VD[tokens[read]]
        return zeros


class Vmi(HeadMatching):
    """An attack that optimizes all embeddings of a text at once."""

    def __init__(self, config: VmiConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        autocast = autocast_for(config.precision, known.device)
        self.how = EmbeddingDescent(config.steps, config.step_size, config.stop_after, autocast)

    def read(self, record: Record) -> Steps:
        aim = HeadTarget(record.sent, record.real)
        start = self.start_embeddings(record)
        embedded = yield from match_target(start, self.head.forward_embedded, aim, self.how)
        return find_nearest(embedded, self.embeddings_VD)


class RmiConfig(SessionAttackConfig):
    """Mixtures of all tokens' embeddings, optimized until the head's output matches."""

    kind: Literal["rmi"] = "rmi"
    steps: int = Field(default=1000, ge=1)
    """Maximum number of steps."""
    step_size: float = Field(default=5e-3, gt=0)
    """Adam's learning rate; published: 0.005."""
    temperature: float = Field(default=0.05, gt=0)
    """Temperature of the softmax that mixes tokens; published: 0.05."""
    stop_after: int = Field(default=50, ge=0)
    """A session stops after this many steps in which its loss has not fallen by a thousandth; 0:
    it never stops early."""
    effort: ClassVar[tuple[str, ...]] = ("steps",)

    def build(self, known: Knowledge) -> "Rmi":
        return Rmi(self, known)


class Rmi(HeadMatching):
    """An attack that optimizes each position's weights of all tokens, the whole text at once."""

    config: RmiConfig

    def __init__(self, config: RmiConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.how = EmbeddingDescent(config.steps, config.step_size, config.stop_after)

    def read(self, record: Record) -> Steps:
        def onwards(weights: Tensor) -> Tensor:
            """Compute the head's output for mixtures of embeddings with these weights."""
            return self.head.forward_embedded(
                (weights / self.config.temperature).softmax(-1) @ self.embeddings_VD
            )

        # Equal weights at first: no token is preferred.
        start = record.sent.new_zeros(*record.real.shape, len(self.embeddings_VD))
        aim = HeadTarget(record.sent, record.real)
        weights = yield from match_target(start, onwards, aim, self.how)
        return weights.argmax(-1)
