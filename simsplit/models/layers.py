"""Batch normalisation that a training batch of one sample does not stop.

torch's layers raise where a channel has a single value to normalise. Among many small clients a
last batch of one sample is ordinary, so these normalise it by the running statistics instead, and
are torch's own, bit for bit, everywhere else.
"""

from torch import Tensor, nn
from torch.nn.functional import batch_norm


def _single(norm: nn.modules.batchnorm._BatchNorm, x: Tensor) -> bool:
    return norm.training and x.numel() == x.shape[1]


def _by_running_statistics(norm: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    mean, var = norm.running_mean, norm.running_var
    return batch_norm(x, mean, var, norm.weight, norm.bias, eps=norm.eps)


class BatchNorm1d(nn.BatchNorm1d):
    """torch's, tolerant of a single value per channel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise over the batch."""
        return (
            _by_running_statistics(self, input) if _single(self, input) else super().forward(input)
        )


class BatchNorm2d(nn.BatchNorm2d):
    """torch's, tolerant of a single value per channel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise over the batch and positions."""
        return (
            _by_running_statistics(self, input) if _single(self, input) else super().forward(input)
        )
