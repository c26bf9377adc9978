"""Running sums of a client's losses and hits, kept on the device and read once a round."""

import torch
from torch import Tensor


class Tally:
    """Sample-weighted loss, hits, samples and steps since the last reading."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._restart()

    def add(self, loss: Tensor, outputs: Tensor, labels: Tensor) -> None:
        """Count one step; no synchronisation with the device."""
        size = len(labels)
        self.steps += 1
        self.samples += size
        self._sums[0].add_(loss.detach(), alpha=size)
        self._sums[1].add_((outputs.detach().argmax(-1) == labels).sum())

    def add_method_loss(self, term: Tensor | None, size: int) -> None:
        """Count a method's own term of the step's loss."""
        if term is not None:
            self._sums[2].add_(term.detach(), alpha=size)

    def read(self) -> dict[str, float]:
        """Means since the last reading, and start anew; the one synchronisation of a round."""
        if not self.samples:
            return {}
        loss, hits, extra = (self._sums / self.samples).tolist()
        row = {"steps": self.steps, "samples": self.samples, "train_loss": loss}
        row |= {"train_accuracy": hits, "method_loss": extra}
        self._restart()
        return row

    def _restart(self) -> None:
        self.steps = 0
        self.samples = 0
        self._sums = torch.zeros(3, dtype=torch.float64, device=self.device)
