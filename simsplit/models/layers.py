"""Batch normalisation that accepts a training batch of one sample.

torch's layers raise if a channel has a single value to normalise. With many small clients, a last
batch of one sample is common. These layers normalise it with the running statistics instead; in all
other cases they are torch's own, bit for bit.
"""

from torch import Tensor, nn
from torch.nn.functional import batch_norm


def _has_single_value(norm: nn.modules.batchnorm._BatchNorm, x: Tensor) -> bool:
    return norm.training and x.numel() == x.shape[1]


def _use_running_statistics(norm: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    mean, var = norm.running_mean, norm.running_var
    return batch_norm(x, mean, var, norm.weight, norm.bias, eps=norm.eps)


class BatchNorm1d(nn.BatchNorm1d):
    """torch's layer, which also accepts a single value per channel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise over the batch."""
        if _has_single_value(self, input):
            return _use_running_statistics(self, input)
        return super().forward(input)


class BatchNorm2d(nn.BatchNorm2d):
    """torch's layer, which also accepts a single value per channel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise over the batch and positions."""
        if _has_single_value(self, input):
            return _use_running_statistics(self, input)
        return super().forward(input)
