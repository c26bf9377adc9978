"""A client's stream of batches: a function of seed, client and step, so no state is saved."""

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field

import torch
from torch import Tensor

from simsplit.data.batches import Batch, Batches, draw_batches, draw_sample
from simsplit.data.images import PLAIN, Views
from simsplit.legs import ClientId
from simsplit.seeds import rng_for

TARGETS, QUERIES = "targets", "queries"
"""Names of the exams for attacks: the samples to recover, and public ones that a client encodes."""
Change = Callable[[Batch], Batch]
"""A poison's change of a batch."""


def keep_batch(batch: Batch) -> Batch:
    """Return the batch, as an honest client does."""
    return batch


def count_batches(samples: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of batches in a pass; `drop_last` leaves one out that is not full."""
    # The only batch is never left out: a client with less than one would take no step at all.
    whole, rest = divmod(samples, batch_size)
    return whole + (1 if rest and not (drop_last and whole) else 0)


@dataclass(eq=False)
class Feed:
    """A client's stream of batches: endless passes over its samples, reshuffled every epoch.

    Under Poisson sampling each batch is a draw of its own.
    """

    batcher: Batches
    part: Tensor
    _: KW_ONLY
    batch_size: int
    seed: int
    client: ClientId
    drop_last: bool = False
    change: Change = keep_batch
    lengths: Tensor | None = None
    """The number of tokens of each text, where texts are grouped by length."""
    drawn_by: int | None = None
    """The seed of batches that are drawn (Poisson sampling); None: they are passes."""

    def __post_init__(self) -> None:
        count = len(self.part)
        self.steps_per_epoch = count_batches(count, self.batch_size, drop_last=self.drop_last)
        self._most = [0]
        """By the number of drawn batches, how often one sample was in them at most."""
        self._counts = torch.zeros(count, dtype=torch.int64)
        self._places = torch.arange(count)
        self._epoch = -1
        self._cut: tuple[Tensor, ...] = ()

    def indices(self, number: int) -> Tensor:
        """Return the samples of batch `number`, counted from 0."""
        if self.drawn_by is not None:
            drawn = draw_sample(self.part, self.batch_size, self.drawn_by, number)
            return drawn.to(self.batcher.device)
        epoch, position = divmod(number, self.steps_per_epoch)
        if epoch != self._epoch:
            cut = draw_batches(
                self.part,
                self.batch_size,
                self.seed,
                self.client,
                epoch,
                drop_last=self.drop_last,
                lengths=self.lengths,
            )
            self._cut = _move(cut, self.batcher.device)
            self._epoch = epoch
        return self._cut[position]

    def count_most(self, taken: int) -> int:
        """Return how often the sample that was in most of the first `taken` batches was in one."""
        if self.drawn_by is None:
            return -(-taken // max(1, self.steps_per_epoch))
        for number in range(len(self._most) - 1, taken):
            rows = draw_sample(self._places, self.batch_size, self.drawn_by, number)
            self._counts[rows] += 1
            self._most.append(int(self._counts.max()))
        return self._most[taken]

    def batch(self, number: int) -> Batch:
        """Return batch `number`, augmented if the batcher augments."""
        rng = None
        if self.batcher.augments:
            rng = rng_for(self.seed, "augment", self.client, number)
        epoch = number // self.steps_per_epoch
        return self.change(self.batcher.batch(self.indices(number), rng, epoch))


def _move(cut: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Move an epoch's batches to the device, in one transfer instead of one for each step."""
    if device.type == "cpu":
        return cut
    return tuple(torch.cat(cut).to(device).split([len(rows) for rows in cut]))


@dataclass(eq=False)
class Exam:
    """Held-out samples, in order and each once: the batches of an evaluation."""

    batcher: Batches
    rows: InitVar[Tensor]
    batch_size: InitVar[int]
    change: Change = keep_batch
    views: Views = PLAIN
    """The views of an image, whose outputs are averaged."""
    marked: bool = field(default=False, kw_only=True)
    """Whether malicious clients add their triggers to what they send."""

    def __post_init__(self, rows: Tensor, batch_size: int) -> None:
        self.cut = rows.to(self.batcher.device).split(batch_size)

    def batch(self, number: int) -> Batch:
        """Return batch `number`, counted from 0; it is never augmented."""
        batch = self.change(self.batcher.batch(self.cut[number]))
        count = len(self.views.weights)
        if count == 1:
            return batch
        beside = (each.repeat(count) for each in (batch.labels, batch.indices))
        return Batch(self.views.stack_views(batch.inputs), *beside)
