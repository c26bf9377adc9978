"""A client's losses and hits, left on the device as they are and read once a round."""

from collections.abc import Mapping

import torch
from torch import Tensor

from simsplit.data.samples import IGNORED


class Tally:
    """Loss (weighted by samples), hits, samples and steps of a client in a round."""

    def __init__(self) -> None:
        self._restart()

    def add(self, loss: Tensor, outputs: Tensor, labels: Tensor) -> None:
        """Count one step: nothing is summed or awaited now, scalars are cheap to keep.

        Means are over samples; of texts, over the tokens that are learned.
        """
        self._sizes.append(len(labels))
        self._learned.append(len(labels) if labels.ndim == 1 else (labels != IGNORED).sum())
        self._losses.append(loss.detach())
        self._hits.append(_hits(outputs.detach(), labels).sum())

    def add_method_loss(self, term: Tensor | None, size: int) -> None:
        """Count a method's loss term of the step."""
        if term is not None:
            self._extras.append((term.detach(), size))

    def add_told(self, told: Mapping[str, float | Tensor]) -> None:
        """Count what methods tell of the step."""
        for name, value in told.items():
            self._told.setdefault(name, []).append(torch.as_tensor(value).detach())

    def read(self) -> dict[str, float]:
        """Means since the last reading, and start anew; the one synchronisation of a round.

        Whoever counted methods' terms alone (the server has the loss) reads their mean alone.
        """
        extras, sizes = _columns(self._extras)
        samples = sum(self._sizes or sizes)
        row: dict[str, float] = {}
        if self._sizes:
            learned = [int(count) for count in self._learned]
            row = {
                "steps": len(self._sizes),
                "samples": samples,
                "method_loss": 0.0,
            }
            if total := sum(learned):  # of public texts a classifier is told no class
                row["train_loss"] = _weighted(self._losses, learned) / total
                row["train_accuracy"] = torch.stack(self._hits).sum().item() / total
        if self.plain_bytes:
            row["plain_bytes"] = self.plain_bytes
        if extras:
            row["method_loss"] = _weighted(extras, sizes) / samples
        for name, values in self._told.items():
            row[name] = _weighted(values, [1] * len(values)) / len(values)
        self._restart()
        return row

    @property
    def empty(self) -> bool:
        """Whether nothing was counted since the last reading."""
        return not (self._sizes or self._extras or self._told or self.plain_bytes)

    def _restart(self) -> None:
        self.plain_bytes = 0
        """Bytes that a cut without methods would have sent, dropouts included."""
        self._sizes: list[int] = []
        self._learned: list[int | Tensor] = []
        self._losses: list[Tensor] = []
        self._hits: list[Tensor] = []
        self._extras: list[tuple[Tensor, int]] = []
        self._told: dict[str, list[Tensor]] = {}


def _hits(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mask of the positions where the likeliest class or token is the label."""
    if labels.ndim == 1:
        return outputs.argmax(-1) == labels
    # over 2,048 tokens a maximum takes a tenth of the time of where it is
    learned = labels != IGNORED
    said = outputs.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return learned & (said == outputs.amax(-1))


def _columns(extras: list[tuple[Tensor, int]]) -> tuple[list[Tensor], list[int]]:
    return [term for term, _ in extras], [size for _, size in extras]


def _weighted(values: list[Tensor], weights: list[int]) -> float:
    """The weighted sum, in double precision."""
    stacked = torch.stack(values).cpu().double()
    counts = torch.tensor(weights, dtype=torch.float64)
    return (stacked * counts)[counts > 0].sum().item()
