"""VMI (Fredrikson et al. 2015): embeddings of the whole text, matched to what the head put out.

From zeros, or from what another attack reads first: `start: sip` is BiSR without its gradients,
which there are none of here; `start: dsi` and `start: mc` are PIDI's ablations. At most 1,000 steps
of Adam, and each embedding is read as the token that points most alike. `rmi` changes a mixture of
all tokens' embeddings (a softmax of a low temperature) in place of the embedding itself.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.matching import EmbeddingDescent, HeadTarget, matched, nearest
from simsplit.attacks.openings import OpenedConfig, Opening, SessionAttackConfig, Start
from simsplit.attacks.session_attack import SessionAttack, Steps
from simsplit.attacks.session_records import Record
from simsplit.models.transformer import Head


class VmiConfig(OpenedConfig):
    """Changes a text's embeddings until the pretrained head makes of them what was sent."""

    kind: Literal["vmi"] = "vmi"
    start: Start = "zeros"
    """zeros; mc, sip or dsi: the embeddings of what that attack reads (sip: BiSR's way)."""
    steps: int = Field(default=1000, ge=1)
    """Steps at most; published: 1,000."""
    step_size: float = Field(default=1e-3, gt=0)
    """Adam's learning rate in matching; published: 0.001."""
    stop_after: int = Field(default=50, ge=0)
    """Steps in which a session's loss has not fallen by a thousandth, after which it is left; 0:
    never."""
    effort = (*OpenedConfig.effort, "steps")

    @property
    def opening(self) -> Start:
        return self.start

    def build(self, known: Knowledge) -> "Vmi":
        return Vmi(self, known)


class HeadMatching(SessionAttack):
    """An attack that matches what the pretrained head puts out."""

    def __init__(self, config: SessionAttackConfig, known: Knowledge) -> None:
        super().__init__(config, Opening(config.opening, config, known), known)
        head = known.pretrained.segment("head")
        assert isinstance(head, Head), "what causal language models begin with"
        self.head = head
        self.embeddings_VD = known.pretrained.embeddings

    def started(self, record: Record) -> Tensor:
        """The embeddings that are changed: of the first reading, or zeros."""
        zeros = record.sent.new_zeros(*record.real.shape, self.embeddings_VD.shape[1])
        tokens = self.opening.read(record)
        if tokens is None:
            return zeros
        told = tokens != NOTHING
        zeros[told] = self.embeddings_VD[tokens[told]]
        return zeros


class Vmi(HeadMatching):
    """All of a text at once."""

    def __init__(self, config: VmiConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.how = EmbeddingDescent(config.steps, config.step_size, config.stop_after)

    def steps(self, record: Record) -> int:
        del record
        return self.how.steps + 1

    def read(self, record: Record) -> Steps:
        aim = HeadTarget(record.sent, record.real)
        found = yield from matched(self.started(record), self.head.onwards, aim, self.how)
        return nearest(found, self.embeddings_VD)


class RmiConfig(SessionAttackConfig):
    """Changes mixtures of all tokens' embeddings until the head makes of them what was sent."""

    kind: Literal["rmi"] = "rmi"
    steps: int = Field(default=1000, ge=1)
    """Steps at most."""
    step_size: float = Field(default=5e-3, gt=0)
    """Adam's learning rate; published: 0.005."""
    temperature: float = Field(default=0.05, gt=0)
    """Of the softmax by which tokens are mixed; published: 0.05."""
    stop_after: int = Field(default=50, ge=0)
    """Steps in which a session's loss has not fallen by a thousandth, after which it is left; 0:
    never."""
    effort: ClassVar[tuple[str, ...]] = ("steps",)

    def build(self, known: Knowledge) -> "Rmi":
        return Rmi(self, known)


class Rmi(HeadMatching):
    """All of a text at once, as weights of all tokens."""

    def __init__(self, config: RmiConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.temperature = config.temperature
        self.how = EmbeddingDescent(config.steps, config.step_size, config.stop_after)

    def steps(self, record: Record) -> int:
        del record
        return self.how.steps + 1

    def read(self, record: Record) -> Steps:
        def onwards(weights: Tensor) -> Tensor:
            return self.head.onwards((weights / self.temperature).softmax(-1) @ self.embeddings_VD)

        start = record.sent.new_zeros(*record.real.shape, len(self.embeddings_VD))
        aim = HeadTarget(record.sent, record.real)
        found = yield from matched(start, onwards, aim, self.how)
        return found.argmax(-1)
