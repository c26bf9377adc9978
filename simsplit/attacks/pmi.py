"""PMI and PIDI (Gu et al. 2026): a long text's embeddings are matched patch by patch.

In a causal head no token looks ahead, so a patch is a problem of its own once those before it are
found: only its embeddings change, and of what stands before the head's cache is kept. At last all
are changed together. `pidi` starts from `dsi`, which reads prompt and response by their own ends.
Published: patches of 50 tokens, 300 steps each at most and 500 of all together, Adam at 1e-3.
"""

from functools import partial
from typing import Literal

from pydantic import Field

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.matching import Before, EmbeddingDescent, HeadTarget, matched, nearest
from simsplit.attacks.openings import OpenedConfig, Start
from simsplit.attacks.session_attack import Steps
from simsplit.attacks.session_records import Record
from simsplit.attacks.vmi import HeadMatching


class _PatchedConfig(OpenedConfig):
    patch: int = Field(default=50, ge=1)
    """Tokens of a patch; published: 50."""
    patch_steps: int = Field(default=300, ge=1)
    """Steps for a patch at most; published: 300."""
    joint_steps: int = Field(default=500, ge=0)
    """Steps for all patches together at most; published: 500."""
    step_size: float = Field(default=1e-3, gt=0)
    """Adam's learning rate in matching; published: 0.001."""
    stop_after: int = Field(default=50, ge=0)
    """Steps in which a session's loss has not fallen by a thousandth, after which it is left; 0:
    never."""
    effort = (*OpenedConfig.effort, "patch_steps", "joint_steps")

    def build(self, known: Knowledge) -> "Pmi":
        return Pmi(self, known)


class PmiConfig(_PatchedConfig):
    """Matches embeddings with what was sent patch by patch, then all together."""

    kind: Literal["pmi"] = "pmi"
    start: Start = "zeros"
    """zeros; mc, sip or dsi: the embeddings of what that attack reads."""

    @property
    def opening(self) -> Start:
        return self.start


class PidiConfig(_PatchedConfig):
    """Starts from what `dsi` reads at both ends, and goes on as `pmi`."""

    kind: Literal["pidi"] = "pidi"

    @property
    def opening(self) -> Start:
        return "dsi"


class Pmi(HeadMatching):
    """Patch after patch of all sessions, then all patches."""

    def __init__(self, config: _PatchedConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.patch = config.patch
        self.each = EmbeddingDescent(config.patch_steps, config.step_size, config.stop_after)
        self.joint = self.each._replace(steps=config.joint_steps)

    def steps(self, record: Record) -> int:
        patches = -(-record.sent.shape[1] // self.patch)
        return patches * self.each.steps + self.joint.steps + 1

    def read(self, record: Record) -> Steps:
        embedded = self.started(record)
        for begin in range(0, embedded.shape[1], self.patch):
            rows = (record.lengths > begin).nonzero()[:, 0]  # which come so far
            here = slice(begin, begin + self.patch)
            before = Before.of(self.head, embedded[rows, :begin])
            aim = HeadTarget(record.sent[rows, here], record.real[rows, here])
            onwards = partial(before.onwards, self.head)
            found = yield from matched(embedded[rows, here], onwards, aim, self.each)
            embedded[rows, here] = found
        aim = HeadTarget(record.sent, record.real)
        found = yield from matched(embedded, self.head.onwards, aim, self.joint)
        return nearest(found, self.embeddings_VD)
