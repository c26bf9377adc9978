"""A client's losses and hits, kept on the device and read once a round.

So are the bytes that its steps would send without methods: those of a plain cut, leg by leg.
"""

from collections.abc import Mapping

import torch
from torch import Size, Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.legs import Leg


class Tally:
    """Loss (weighted by samples), hits, samples and steps of a client in a round."""

    def __init__(self) -> None:
        self._restart()

    def add(self, loss: Tensor, outputs: Tensor, labels: Tensor, *, begins: bool = True) -> None:
        """Count one step, or with `begins` False a further part of its mini-batch.

        Means are over samples, and over the tokens that are learned in texts.
        """
        learned = len(labels) if labels.ndim == 1 else (labels != IGNORED).sum()
        hits = mark_hits(outputs.detach(), labels).sum()
        self.add_counted(len(labels), learned, loss.detach(), hits, begins=begins)

    def add_counted(
        self, size: int, learned: int | Tensor, loss: Tensor, hits: Tensor, *, begins: bool = True
    ) -> None:
        """Count one step, or a further part of one, whose hits have been counted."""
        self._steps += begins
        # Nothing is summed here: reading a scalar would wait for the device in every step.
        self._sizes.append(size)
        self._learned.append(learned)
        self._losses.append(loss)
        self._hits.append(hits)

    def add_rows(self, count: int) -> None:
        """Count one step on so many samples, whose loss another client knows."""
        self._steps += 1
        self._sizes.append(count)

    def add_method_loss(self, term: Tensor | None, size: int) -> None:
        """Count a method's loss term of the step."""
        if term is not None:
            self._extras.append((term.detach(), size))

    def add_reported(self, values: Mapping[str, float | Tensor]) -> None:
        """Count the figures that methods report of the step."""
        for name, value in values.items():
            self._reported.setdefault(name, []).append(torch.as_tensor(value).detach())

    def read(self) -> dict[str, float]:
        """Return the means since the last reading, and start anew.

        This is the one synchronisation of a round. Where the server computes the loss, a client
        has the means of its methods' terms alone.
        """
        extras = [term for term, _ in self._extras]
        sizes = [size for _, size in self._extras]
        samples = sum(self._sizes or sizes)
        row: dict[str, float] = {}
        if self._sizes:
            learned = [int(count) for count in self._learned]
            row = {
                "steps": self._steps,
                "samples": samples,
                "method_loss": 0.0,
            }
            if total := sum(learned):  # 0 for public texts, which have no classes
                row["train_loss"] = _sum_weighted(self._losses, learned) / total
                row["train_accuracy"] = torch.stack(self._hits).sum().item() / total
        if self.plain_bytes:
            row["plain_bytes"] = self.plain_bytes
        if extras:
            row["method_loss"] = _sum_weighted(extras, sizes) / samples
        for name, values in self._reported.items():
            row[name] = _sum_weighted(values, [1] * len(values)) / len(values)
        self._restart()
        return row

    @property
    def empty(self) -> bool:
        """Whether nothing has been counted since the last reading."""
        return not (self._sizes or self._extras or self._reported or self.plain_bytes)

    def _restart(self) -> None:
        self.plain_bytes = 0
        """Bytes that a cut without methods would have sent, dropouts included."""
        self._steps = 0
        self._sizes: list[int] = []
        self._learned: list[int | Tensor] = []
        self._losses: list[Tensor] = []
        self._hits: list[Tensor] = []
        self._extras: list[tuple[Tensor, int]] = []
        self._reported: dict[str, list[Tensor]] = {}


def mark_hits(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mark the positions at which the likeliest class or token is the label."""
    if labels.ndim == 1:
        return outputs.argmax(-1) == labels
    # Over 2,048 tokens a maximum takes a tenth of the time of its position.
    learned = labels != IGNORED
    of_label = outputs.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return learned & (of_label == outputs.amax(-1))


def _sum_weighted(values: list[Tensor], weights: list[int]) -> float:
    """Return the weighted sum, in double precision."""
    stacked = torch.stack(values).cpu().double()
    counts = torch.tensor(weights, dtype=torch.float64)
    # A loss over no token is nan, which a weight of 0 would not remove.
    return (stacked * counts)[counts > 0].sum().item()


def count_plain_bytes(given: Batch, made: Tensor, features: tuple[int, ...]) -> dict[Leg, int]:
    """Count the bytes of a raw step on the batch `given`, on each leg that a topology may have.

    `made` is the head's output for the batch that methods made of `given`. It may have other rows
    or longer texts, but has as many values for each. `features` is the shape of the trunk's output
    per sample; its type is the head's, since autocast narrows both or neither. Hand-overs and
    broadcasts are left out, here and in the bytes that these are compared with.
    """
    lead = 1 if given.inputs.is_floating_point() else 2  # a text has values for each of its tokens
    count = given.inputs.shape[:lead].numel() * made.element_size()
    up = count * made.shape[lead:].numel()
    # `count` has the tokens of these texts, so the length in `features` is left out.
    down = count * Size(features[lead - 1 :]).numel()
    return {
        Leg.SMASHED: up + sum(tensor.nbytes for tensor in given.context),
        Leg.LABELS: given.labels.nbytes,
        Leg.FEATURES: down,
        Leg.FEATURES_GRAD: down,
        Leg.SMASHED_GRAD: up,
    }
