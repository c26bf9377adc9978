"""This module implements private_backprop (P3EFT, Algorithm 1): gradients sent as noised messages.

A backward pass is linear in the gradient g that it starts from. The client stacks Z = [g, z_1, ...,
z_(m-1)] with noise z, draws an invertible matrix C, and sends the m rows of C Z. The m replies,
summed with the secret weights of the first row of C^-1, are the reply to g itself. An observer of
fewer than m messages sees g under noise. A server that gets all m messages knows the m-dimensional
space that contains g, and g stands out in it by its size: it is the direction of the messages'
smallest singular value (the attack `singular_direction`). So the method only hides g from servers
that do not share their messages.
All secrets are drawn from the step's own stream and never leave the client.

Here C is a random orthogonal matrix, so that replies are not amplified. It is drawn again while a
message has more than 0.8 of g per 0.6 of noise. Because signs are random, the messages of one batch
reveal nothing about those of another.

**The size of the noise** is limited by rounding: a message R times as large as g leaves R times the
rounding error in the sum. The paper's noise has a variance of 1000 (it says "noise variance", so
the standard deviation is 31.6), thousands of times a usual gradient: this is `noise: gaussian`. The
default is `mixed`: sums of the gradient's own rows with normal weights, `scale` times as large.
Mixed noise lies along the directions in which labels differ; independent values would have to be
sqrt(d) times as large to hide as much. For the same reason, a server that sees two steps in a row
finds the gradient from one message with mixed noise (the attack `optimizer_inversion`), while it
needs all messages with Gaussian noise. The table shows one message of 64 rows of two classes, sent
to a linear head through two layers in fp32; guessing has an AUC (of the better sign) of .56:

    scale                      2       5       10      100     gaussian, variance 1000
    AUC of spectral attack     .73     .61     .58     .56     .54
    error relative to g        3e-7    7e-7    1e-6    1e-5    4e-3 (fp64: 1e-11)
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods.method import LabelDefenceConfig, Method, Share, Site, Step
from simsplit.needs import Given, Need, need_leg
from simsplit.seeds import continue_on

MOST = 0.8
"""The largest magnitude of the gradient's coefficient in a message, an entry of a unit row of C."""


class PrivateBackpropConfig(LabelDefenceConfig):
    """The gradient of features in several messages that only the client can combine."""

    kind: Literal["private_backprop"] = "private_backprop"
    messages: int = Field(default=2, ge=1)
    """Messages in which each gradient crosses; 1: the gradient itself crosses."""
    noise: Literal["mixed", "gaussian"] = "mixed"
    """The noise: random sums of the gradient's own rows (`mixed`), or independent values
    (`gaussian`, published). Of a batch of one, mixed messages are multiples of the gradient, which
    hide its size alone."""
    scale: float = Field(default=5.0, gt=0)
    """Size of mixed noise, in units of the gradient's size. In fp32 the combined reply is exact to
    about 1.4e-7 times this."""
    variance: float = Field(default=1000.0, gt=0)
    """Variance of each value of gaussian noise. Published: 1000; then the combined reply in fp32 is
    exact to less than 1 % of usual gradients."""
    requires = (need_leg(Leg.FEATURES_GRAD), Need(Given.FROZEN_TRUNK))

    def build(self, site: Site) -> Method:
        return PrivateBackprop(self) if site.side == "client" else Method()


class PrivateBackprop(Method):
    """The client's half, which splits the feature gradients that it sends."""

    def __init__(self, config: PrivateBackpropConfig) -> None:
        self.config, self.num_messages = config, config.messages

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """Return the messages, each with the secret weight of its reply."""
        num = self.config.messages
        if num == 1:
            return (Share(grad),)
        rng = step.make_next_rng(self, "private_backprop")
        mixing_MM = draw_blinding(num, rng)
        rows = grad.flatten(1).double()
        if step.noise == "device" and grad.device.type != "cpu":
            rng = continue_on(rng, grad.device)
        noise = (self._draw_noise(rows, rng) for _ in range(num - 1))
        stacked = torch.stack([rows, *noise])
        messages = torch.tensordot(mixing_MM.to(stacked), stacked, 1).to(grad.dtype)
        # The inverse of an orthogonal matrix is its transpose.
        weights = mixing_MM[:, 0].tolist()
        return [
            Share(message.view_as(grad).clone(), weight)
            for message, weight in zip(messages, weights, strict=True)
        ]

    def _draw_noise(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        if self.config.noise == "gaussian":
            noise: Tensor = self.config.variance**0.5 * _draw_normal(rows.shape, rng).to(rows)
            return noise
        size = len(rows)
        mixing = _draw_normal(torch.Size((size, size)), rng) * self.config.scale / size**0.5
        mixed: Tensor = mixing.to(rows) @ rows
        return mixed


def draw_blinding(num: int, rng: torch.Generator) -> Tensor:
    """Draw a random orthogonal matrix whose first column has no entry above `MOST`."""
    while True:
        rotation, upper = torch.linalg.qr(_draw_normal(torch.Size((num, num)), rng))
        # Without these signs, the QR decomposition would not draw all rotations equally often.
        uniform: Tensor = rotation * upper.diagonal().sign()
        if uniform[:, 0].abs().max() <= MOST:
            return uniform


def _draw_normal(shape: torch.Size, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device, dtype=torch.float64)
