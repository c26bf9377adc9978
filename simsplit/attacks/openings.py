"""The first reading of sessions: by the pretrained tail, by an inverter, or by each on its side.

Some attacks on sessions end with it (see `first_readings`), the others start from it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.base import Done, TextAttackConfig
from simsplit.attacks.inverters import NOTHING, InverterConfig
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.session_records import Record
from simsplit.attacks.sip import Sip
from simsplit.needs import Given, Need, Needs
from simsplit.parties.feed import Feed
from simsplit.parties.learner import Learner

Start = Literal["zeros", "mc", "sip", "dsi"]
"""What reads first; zeros: nothing does."""


class SessionAttackConfig(TextAttackConfig):
    """Base of the attacks on sessions."""

    together: int | None = Field(default=None, ge=1)
    """Sessions that are worked on at once; null: all. Fewer need less memory."""
    recovers: ClassVar[str] = "sessions"
    reads_smashed: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    public: ClassVar[bool] = False
    effort: ClassVar[tuple[str, ...]] = ()

    @property
    def opening(self) -> Start:
        """What it reads first."""
        return "zeros"

    @property
    def exposures(self) -> int:
        """None: it sees sessions in place of the targets' packets."""
        return 0

    @property
    def needs(self) -> Needs:
        """Sessions; and public texts where an inverter reads first."""
        field = "start" if "start" in type(self).model_fields else "kind"
        learned = [Need(Given.PUBLIC, field)] if self.opening in ("sip", "dsi") else []
        return (*super().needs, Need(Given.SESSIONS), *learned)


class OpenedConfig(SessionAttackConfig, InverterConfig):
    """Base of the attacks on sessions that an inverter may open."""

    samples: int = Field(default=50, ge=1)
    """Public texts that the inverter learns from, the first ones; published: 50."""
    batch_size: int | None = Field(default=6, ge=1)
    """Public texts of a training step of the inverter; published: 6."""
    effort: ClassVar[tuple[str, ...]] = ("iterations", "epochs")


class _FewSip(Sip):
    """SIP's inverter of so many public texts."""

    def __init__(self, config: OpenedConfig, known: Knowledge) -> None:
        public = known.auxiliary
        assert public is not None, "refused without when the scenario is read"
        rows = public.part[: config.samples]
        size = min(config.batch_size or public.batch_size, len(rows))
        few = Feed(
            public.batcher,
            rows,
            batch_size=size,
            seed=public.seed,
            client=public.client,
            drop_last=True,
        )
        self.rows = len(rows)
        told = config.model_copy(update={"batch_size": size})
        super().__init__(told, replace(known, auxiliary=few))

    def _alike(self) -> tuple[object, ...]:
        return (super()._alike(), self.rows)


class Opening:
    """What reads the first tokens of sessions."""

    def __init__(self, start: Start, config: SessionAttackConfig, known: Knowledge) -> None:
        self.start, self.known = start, known
        self.sip, self.tail = None, None
        if start in ("sip", "dsi"):
            assert isinstance(config, OpenedConfig), "which has an inverter's fields"
            self.sip = _FewSip(config, known)
        if start in ("mc", "dsi"):
            self.tail = known.pretrained.segment("tail")

    @property
    def learners(self) -> dict[str, Learner]:
        """What learns before anything is read."""
        return {} if self.sip is None else self.sip.learners

    @property
    def iteration(self) -> int:
        """How many steps it has learned."""
        return 0 if self.sip is None else self.sip.iteration

    def learn(self, done: int) -> Iterator[Done]:
        """Train the inverter, if there is one, of which so many steps are done."""
        if self.sip is not None:
            self.sip.iteration = done
            yield from self.sip.work(())

    @torch.no_grad()
    def read(self, record: Record) -> Tensor | None:
        """Tokens, S x L, NOTHING where it reads none; None where it reads nothing at all."""
        tokens = None
        if self.sip is not None:
            tokens = self._inverted(self.sip, record)
        if self.tail is not None:
            foretold = self._foretold(self.tail, record)
            tokens = foretold if tokens is None else torch.where(record.written, foretold, tokens)
        return tokens

    def _inverted(self, sip: Sip, record: Record) -> Tensor:
        """By the inverter; each session alone, as long as it is, for it levels what it reads."""
        tokens = torch.full_like(record.real, NOTHING, dtype=torch.int64)
        for row, length in enumerate(record.lengths.tolist()):
            read = sip.read(record.sent[None, row : row + 1, :length])
            tokens[row, :length] = read.tokens[0]
        return tokens

    def _foretold(self, tail: torch.nn.Module, record: Record) -> Tensor:
        """By the tail, from the place before; of a session's first token nothing foretells."""
        tokens = torch.full_like(record.real, NOTHING, dtype=torch.int64)
        for row, length in enumerate(record.lengths.tolist()):  # all scores would not fit
            scores = tail(record.features[row : row + 1, : length - 1])
            tokens[row, 1:length] = scores[0].argmax(-1)
        return tokens
