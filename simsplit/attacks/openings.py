"""The opening of attacks on sessions: a first reading by the pretrained tail, an inverter, or both.

Some attacks on sessions end with the first reading (see `first_readings`); others start from it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.attack import Done, TextAttackConfig
from simsplit.attacks.inverters import NOTHING, InverterConfig
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.session_records import Record
from simsplit.attacks.sip import Sip
from simsplit.attacks.threat import Knows, Sees, Threat, When
from simsplit.data.batches import Batch
from simsplit.needs import Given, Need, Needs
from simsplit.parties.feed import Feed
from simsplit.parties.learner import Learner

READS_BOTH = Threat((Sees.SENT, Sees.RETURNED), (Knows.HEAD, Knows.TAIL), when=When.WRITING)
"""The threat of attacks that read prompts off the head's outputs, and responses off the trunk's."""
Start = Literal["zeros", "mc", "sip", "dsi"]
"""The attack whose reading comes first; zeros: none."""


class SessionAttackConfig(TextAttackConfig):
    """Base class of the fields of attacks on sessions."""

    threat: ClassVar[Threat] = Threat((Sees.SENT,), (Knows.HEAD,), when=When.WRITING)
    together: int | None = Field(default=None, ge=1)
    """Number of sessions that are processed at once, the shortest first; null: all. A smaller
    number needs less memory, and less time where lengths differ: sessions are padded to the longest
    among them."""
    recovers: ClassVar[str] = "sessions"
    effort: ClassVar[tuple[str, ...]] = ()

    @property
    def opening(self) -> Start:
        """The first reading from which the attack starts."""
        return "zeros"

    # Zero: it sees sessions in place of the targets' packets.
    num_epochs: ClassVar[int] = 0

    @property
    def needs(self) -> Needs:
        """Public texts if an inverter reads first, beside the base's needs."""
        # An error names the field that a user can change.
        field = "start" if "start" in type(self).model_fields else "kind"
        learned = [Need(Given.PUBLIC, field)] if self.opening in ("sip", "dsi") else []
        return (*super().needs, *learned)


class OpenedConfig(SessionAttackConfig, InverterConfig):
    """Base class of the fields of attacks on sessions whose first reading may be an inverter's."""

    samples: int = Field(default=50, ge=1)
    """Number of public texts from which the inverter learns, the first ones; published: 50."""
    batch_size: int | None = Field(default=6, ge=1)
    """Number of public texts per training step of the inverter; published: 6; null: the size of a
    client's batch."""
    effort: ClassVar[tuple[str, ...]] = ("iterations", "epochs")


def choose_public_texts(known: Knowledge, samples: int, batch_size: int | None) -> Feed:
    """Return the first public texts in batches; without a size, in a client's."""
    public = known.auxiliary
    assert public is not None, "refused without when the scenario is read"
    rows = public.part[:samples]
    return Feed(
        public.batcher,
        rows,
        batch_size=min(batch_size or public.batch_size, len(rows)),
        seed=public.seed,
        client=public.client,
        drop_last=True,
    )


class _FewSip(Sip):
    """SIP, whose inverter learns from the first `samples` public texts only."""

    def __init__(self, config: OpenedConfig, known: Knowledge) -> None:
        few = choose_public_texts(known, config.samples, config.batch_size)
        self.rows, size = len(few.part), few.batch_size
        # The batch size counts in the training key, so that inverters are reused only if equal.
        config = config.model_copy(update={"batch_size": size})
        super().__init__(config, replace(known, auxiliary=few))
        self._outputs: Tensor | None = None

    def _get_training_key(self) -> tuple[object, ...]:
        return (super()._get_training_key(), self.rows)

    def compute_hidden(self, batch: Batch, number: int) -> Tensor:
        """Compute the trunk's input for a public batch; the frozen head sees each text once.

        Outputs are kept only where they are the same in every epoch: without simulated methods, and
        without padding on the left or texts that are cut at random.
        """
        if self.simulated is not None or batch.mask is not None or self.inverter.reads_padding:
            return super().compute_hidden(batch, number)
        if self._outputs is None:
            part = self.feed.part
            kept = super().compute_hidden(self.feed.batcher.batch(part), number)
            self._outputs = kept.new_zeros(int(part.max()) + 1, *kept.shape[1:])
            self._outputs[part.to(kept.device)] = kept
        return self._outputs[batch.indices.to(self._outputs.device), : batch.inputs.shape[1]]


class Opening:
    """The first reading of sessions, as the config's `opening` names it."""

    def __init__(self, config: SessionAttackConfig, known: Knowledge) -> None:
        self.known = known
        self.learners: dict[str, Learner] = {}
        """The learners to train before the first reading."""
        self.sip: Sip | None = None
        self.tail: torch.nn.Module | None = None
        if config.opening in ("sip", "dsi"):
            assert isinstance(config, OpenedConfig), "an inverter needs its fields"
            self.sip = _FewSip(config, known)
            self.learners = self.sip.learners
        if config.opening in ("mc", "dsi"):
            self.tail = known.pretrained.segment("tail")

    @property
    def iteration(self) -> int:
        """Number of training steps taken."""
        return 0 if self.sip is None else self.sip.iteration

    def learn(self, done: int) -> Iterator[Done]:
        """Train the inverter, if this attack has one, from step `done` on."""
        if self.sip is not None:
            self.sip.iteration = done
            yield from self.sip.work(())

    @torch.no_grad()
    def read(self, record: Record) -> Tensor | None:
        """Read tokens, S x L, with NOTHING where none is read; return None without a reading.

        If both read, the inverter's tokens are taken for prompts, and the tail's for responses.
        """
        if self.sip is None and self.tail is None:
            return None
        tokens = torch.full_like(record.real, NOTHING, dtype=torch.int64)
        predicted = tokens.clone()
        # One by one: padding would change the level of rows, and all scores not fit in memory.
        for row, length in enumerate(record.lengths.tolist()):
            if self.sip is not None:
                read = self.sip.read(record.sent[None, row : row + 1, :length])
                tokens[row, :length] = read.tokens[0]
            if self.tail is not None:  # from the features one position earlier
                scores = self.tail(record.features[row : row + 1, : length - 1])
                predicted[row, 1:length] = scores[0].argmax(-1)
        if self.sip is None or self.tail is None:
            return predicted if self.sip is None else tokens
        return torch.where(record.response_places, predicted, tokens)
