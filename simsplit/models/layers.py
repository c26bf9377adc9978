"""Batch normalisation that accepts a training batch of one sample.

torch's layers raise if a channel has a single value to normalise. With many small clients, a last
batch of one sample is common. These layers normalise it with the running statistics instead; in all
other cases they are torch's own, bit for bit.
"""

from torch import Tensor, nn
from torch.nn.functional import batch_norm


class _SingleValues(nn.modules.batchnorm._BatchNorm):
    """What both layers do with a single value per channel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        if self.training and input.numel() == input.shape[1]:
            mean, var = self.running_mean, self.running_var
            return batch_norm(input, mean, var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


class BatchNorm1d(_SingleValues, nn.BatchNorm1d):
    """torch's layer, which also accepts a single value per channel."""


class BatchNorm2d(_SingleValues, nn.BatchNorm2d):
    """torch's layer, which also accepts a single value per channel."""
