"""PMI and PIDI (Gu et al. 2026): match a long text's embeddings patch by patch.

In a causal head no token attends to later ones, so a patch can be solved once all earlier patches
are: only its embeddings change, and earlier tokens are kept as the head's cache. In the end all
patches are optimized together. `pidi` starts from `dsi`, which reads prompts by the head and
responses by the tail. Published: patches of 50 tokens, at most 300 steps for each and 500 for all
together, Adam at 1e-3.
"""

from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.matching import (
    Before,
    EmbeddingDescent,
    HeadTarget,
    find_nearest,
    match_target,
)
from simsplit.attacks.openings import READS_BOTH, OpenedConfig, Start
from simsplit.attacks.session_attack import Steps
from simsplit.attacks.session_records import Record
from simsplit.attacks.threat import Threat
from simsplit.attacks.vmi import HeadMatching
from simsplit.machine import Precision, autocast_for


class _PatchedConfig(OpenedConfig):
    patch: int = Field(default=50, ge=1)
    """Number of tokens in a patch; published: 50."""
    patch_steps: int = Field(default=300, ge=1)
    """Maximum number of steps for a patch; published: 300."""
    joint_steps: int = Field(default=500, ge=0)
    """Maximum number of steps for all patches together; published: 500."""
    step_size: float = Field(default=1e-3, gt=0)
    """Adam's learning rate in matching; published: 0.001."""
    stop_after: int = Field(default=50, ge=0)
    """A session stops after this many steps in which its loss has not fallen by a thousandth; 0:
    it never stops early."""
    precision: Precision = "fp32"
    """bf16 matches the head's output under autocast, which is faster on some processors."""
    effort = (*OpenedConfig.effort, "patch_steps", "joint_steps")

    def build(self, known: Knowledge) -> "Pmi":
        return Pmi(self, known)


class PmiConfig(_PatchedConfig):
    """Matching of the head's output by embeddings, patch by patch and then all together."""

    kind: Literal["pmi"] = "pmi"
    start: Start = "zeros"
    """The embeddings to start from. zeros: zeros. mc, sip, dsi: those of the tokens that this
    attack reads."""

    @property
    def opening(self) -> Start:
        return self.start


class PidiConfig(_PatchedConfig):
    """The attack `pmi`, started from the tokens that `dsi` reads at both ends."""

    kind: Literal["pidi"] = "pidi"
    threat: ClassVar[Threat] = READS_BOTH
    opening: ClassVar[Start] = "dsi"


class Pmi(HeadMatching):
    """An attack that optimizes one patch of all sessions after another, then all patches."""

    def __init__(self, config: _PatchedConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.patch = config.patch
        autocast = autocast_for(config.precision, known.device)
        steps = config.patch_steps
        self.how = EmbeddingDescent(steps, config.step_size, config.stop_after, autocast)
        self.joint = self.how._replace(steps=config.joint_steps)

    def steps(self, record: Record) -> int:
        patches = -(-record.sent.shape[1] // self.patch)
        return patches * self.how.steps + self.joint.steps + 1

    def read(self, record: Record) -> Steps:
        embedded = self.start_embeddings(record)
        for begin in range(0, embedded.shape[1], self.patch):
            rows = (record.lengths > begin).nonzero()[:, 0]  # the sessions that reach this patch
            here = slice(begin, begin + self.patch)
            # In the same context, since a cache and what joins it have one type.
            with self.how.autocast():
                before = Before.of(self.head, embedded[rows, :begin])
            aim = HeadTarget(record.sent[rows, here], record.real[rows, here])
            onwards = partial(before.onwards, self.head)
            patch = yield from match_target(embedded[rows, here], onwards, aim, self.how)
            embedded[rows, here] = patch
        aim = HeadTarget(record.sent, record.real)
        embedded = yield from match_target(embedded, self.head.forward_embedded, aim, self.joint)
        return find_nearest(embedded, self.embeddings_VD)
