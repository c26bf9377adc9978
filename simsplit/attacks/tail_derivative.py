"""The derivative of a tail at fixed features, as two linear maps that attacks on gradients invert.

The gradient of the cross-entropy at the features is linear in (softmax - labels): the output layer
carries the difference to a cotangent of the last state, and the tail's layers pull it back to the
features. At fixed features both steps are the same matrices for all labels, so they are computed
once: a pull is one backward pass through a kept graph, and a push (the transposed map) is another.
"""

import torch
from torch import Tensor, nn

from simsplit.models.transformer import Tail


class TailDerivative:
    """The derivative at rows' features of the tail's layers, and of its norm if asked for."""

    def __init__(
        self,
        tail: nn.Module,
        features_RLD: Tensor,
        context: tuple[Tensor, ...],
        *,
        with_norm: bool = False,
    ) -> None:
        assert isinstance(tail, Tail), "language models have no other tails"
        with torch.enable_grad():
            self._features = features_RLD.detach().requires_grad_()
            self._states = tail.blocks(self._features, *context)
            if with_norm:
                self._states = tail.norm(self._states)
            self._dummy = torch.zeros_like(self._states).requires_grad_()
            # The pulled cotangent is linear in the dummy, so its derivative is the transposed map.
            (self._pulled,) = torch.autograd.grad(
                self._states, self._features, self._dummy, create_graph=True
            )
        self.states = self._states.detach()

    def pull(self, cotangent_RLD: Tensor) -> Tensor:
        """Pull a cotangent of the last layer's output back to the features."""
        (pulled,) = torch.autograd.grad(
            self._states, self._features, cotangent_RLD, retain_graph=True
        )
        return pulled

    def push(self, tangent_RLD: Tensor) -> Tensor:
        """Push a tangent of the features forward to the last layer's output."""
        (pushed,) = torch.autograd.grad(self._pulled, self._dummy, tangent_RLD, retain_graph=True)
        return pushed

    def solve(self, gradient_RLD: Tensor, iterations: int) -> Tensor:
        """Find the cotangent whose pull is the gradient, by conjugate gradients row by row.

        The layers are residual, so the gradient itself is the start, and few iterations are enough.
        """
        found = gradient_RLD.clone()
        if not iterations:
            return found
        left = gradient_RLD - self.pull(found)
        descent = self.push(left)
        direction, size = descent, _sum_squares(descent)
        for _ in range(iterations):
            pulled = self.pull(direction)
            step = size / _sum_squares(pulled).clamp_min(_LEAST)
            found = found + step * direction
            left = left - step * pulled
            descent = self.push(left)
            before, size = size, _sum_squares(descent)
            direction = descent + size / before.clamp_min(_LEAST) * direction
        return found


def get_weight(layer: nn.Module) -> Tensor:
    """Return a layer's weight in fp32, without gradients."""
    weight = layer.weight
    assert isinstance(weight, Tensor), "norms and output layers have weights"
    return weight.detach().float()


_LEAST = 1e-38
"""Smallest divisor, against division by zero; gradients' squares can be as small as 1e-20."""


def _sum_squares(x_RLD: Tensor) -> Tensor:
    """Sum the squares of each row, R x 1 x 1."""
    return x_RLD.square().sum((1, 2), keepdim=True)
