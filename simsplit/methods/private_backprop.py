"""private_backprop (P3EFT, Algorithm 1): a gradient in m messages, none of which is the gradient.

A backward pass is linear in the gradient g that it starts from. The client stacks Z = [g, z_1, ...,
z_(m-1)] with noise z, draws an invertible matrix C, and sends the m rows of C Z. The m replies,
summed with the secret weights of the first row of C^-1, are the reply to g itself. Who sees one
message, or fewer than m, sees g under noise; a server that sees all m knows the m-dimensional space
that g is in. All secrets are drawn from the step's own stream, and never leave the client.

C is orthogonal here, at random, and drawn again while a message has more than 0.8 of g per 0.6 of
noise, so that nothing is amplified on the way back. Its signs alone keep what is learned from one
batch's messages from telling anything of another's.

**How large the noise is** is a matter of digits: a message R times as large as g leaves R times the
rounding error in the sum. The paper's noise has a variance of 1000 (it says "noise variance", so a
standard deviation of 31.6), which is thousands of times a usual gradient: `noise: gaussian` is
that. By default noise is `mixed`: sums of the gradient's own rows with normal weights, `scale`
times as large. It lies along the very directions in which labels differ, where independent values
would have to be sqrt(d) times as large to hide as much. For the same reason a server that sees two
steps in a row finds the gradient by one message of mixed noise (the attack `optimizer_inversion`);
of gaussian noise it needs all. One message of 64 rows of two classes against a linear head (a fair
guess's AUC, of the better sign, is .56), through two layers in fp32:

    scale                      2       5       10      100     gaussian, variance 1000
    AUC of spectral attack     .73     .61     .58     .56     .54
    error relative to g        3e-7    7e-7    1e-6    1e-5    4e-3 (fp64: 1e-11)
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import LabelDefenceConfig, Method, Share, Site, Step
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg

MOST = 0.8
"""How much of the gradient a message may have at most, as a share of a row of C."""


class PrivateBackpropConfig(LabelDefenceConfig):
    """Sends the gradient of features as several messages that only the client can sum up."""

    kind: Literal["private_backprop"] = "private_backprop"
    messages: int = Field(default=2, ge=1)
    """How many; 1: the gradient as it is."""
    noise: Literal["mixed", "gaussian"] = "mixed"
    """mixed: random sums of the gradient's own rows. gaussian: independent values, as published."""
    scale: float = Field(default=5.0, gt=0)
    """Of mixed noise, its size in units of the gradient's. In fp32 what comes back is exact to
    about 1.4e-7 times this."""
    variance: float = Field(default=1000.0, gt=0)
    """Of gaussian noise, the variance of each value; the paper has 1000. In fp32 what comes back is
    then exact to less than 1 % of usual gradients."""
    requires: ClassVar[Needs] = (needs_leg(Leg.FEATURES_GRAD), Need(Given.FROZEN_TRUNK))

    def build(self, site: Site) -> Method:
        """The secrets on the client; nothing on the server."""
        return PrivateBackprop(self) if site.side == "client" else Method()


class PrivateBackprop(Method):
    """Splits the feature gradients that a client sends."""

    def __init__(self, config: PrivateBackpropConfig) -> None:
        self.config, self.num_messages = config, config.messages

    def outgoing(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """The messages, each with the secret weight of its reply."""
        num = self.config.messages
        if num == 1:
            return (Share(grad),)
        rng = step.next_rng(self, "private_backprop")
        mixing_MM = blinding(num, rng)
        rows = grad.flatten(1).double()
        noise = (self._noise(rows, rng) for _ in range(num - 1))
        stacked = torch.stack([rows, *noise])
        messages = torch.tensordot(mixing_MM.to(stacked), stacked, 1).to(grad.dtype)
        weights = mixing_MM[:, 0].tolist()  # the inverse of an orthogonal matrix is its transpose
        return [
            Share(message.view_as(grad).clone(), weight)
            for message, weight in zip(messages, weights, strict=True)
        ]

    def _noise(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        if self.config.noise == "gaussian":
            noise: Tensor = self.config.variance**0.5 * _normal(rows.shape, rng).to(rows)
            return noise
        size = len(rows)
        mixing = _normal(torch.Size((size, size)), rng) * self.config.scale / size**0.5
        mixed: Tensor = mixing.to(rows) @ rows
        return mixed


def blinding(num: int, rng: torch.Generator) -> Tensor:
    """A random orthogonal matrix, in no row of which the gradient outweighs the noise."""
    while True:
        rotation, upper = torch.linalg.qr(_normal(torch.Size((num, num)), rng))
        # with these signs all rotations are equally likely
        turned: Tensor = rotation * upper.diagonal().sign()
        if turned[:, 0].abs().max() <= MOST:
            return turned


def _normal(shape: torch.Size, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)
