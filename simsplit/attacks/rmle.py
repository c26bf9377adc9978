"""rMLE (He, Zhang and Lee, ACSAC 2019): the image whose payload is nearest, the head being known.

An upper bound: a client's head stays with the client. It shows what is left in the payload for one
who has the weights, without any pairs of images and payloads. The image starts at the mean of
normalised images and is moved by Adam (amsgrad, eps 1e-3), under total variation and an L2 prior.
Images are independent, and all are moved at once.

As published the trunk's input is matched. With `objective: adaptive` (ours) the payload that
crossed is, behind the client's methods with their weights. The head is in inference mode, so where
targets are encoded with batch normalisation's batch statistics (`targets.statistics`) it differs
from the client's, and less is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.attacks.attack import Done, descend
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.threat import Knows, Threat
from simsplit.attacks.unsplit import (
    PayloadMatching,
    PayloadMatchingConfig,
    measure_square,
    measure_variation,
)
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig
from simsplit.states import select_below


class RmleConfig(PayloadMatchingConfig):
    """Images that match the sent payload through the client's own head; an upper bound."""

    kind: Literal["rmle"] = "rmle"
    threat: ClassVar[Threat] = Threat(knows=(Knows.WEIGHTS,))
    iterations: int = Field(default=5000, ge=1)
    """Number of steps on the images."""
    lr: float = Field(default=1e-2, gt=0)
    """Learning rate of Adam, in units of normalised images."""
    tv: float = Field(default=10.0, ge=0)
    """Weight of the total variation: 0 behind the first convolution as published, 10 behind the
    second block, 1000 behind the third."""
    l2: float = Field(default=0.0, ge=0)
    """Weight of the mean square of normalised images, which pulls towards their mean."""

    def build(self, known: Knowledge) -> "Rmle":
        return Rmle(self, known)


class Rmle(PayloadMatching):
    """An attack that moves all images at once."""

    config: RmleConfig

    def __init__(self, config: RmleConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.sender.requires_grad_(requires_grad=False)

    def receive_head(self, weights: Mapping[str, Tensor]) -> None:
        self.sender.head.load_state_dict(select_below(weights, "head/"))
        self.sender.stack.modules.load_state_dict(select_below(weights, "methods/"))

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        rows = self.config.list_rows(self.known, targets)
        start = torch.zeros(len(rows), *self.known.image, device=self.known.device)
        images = nn.Parameter(start)
        adam = AdamConfig(lr=self.config.lr, amsgrad=True, eps=1e-3)
        self.learners["images"] = Learner({"images": nn.ParameterDict({"images": images})}, adam)
        self.resume()
        self._recovered = self.known.pixels(images.detach())
        total = self.config.iterations
        every = max(1, total // 10)
        while self.iteration < total:
            errors = (self.sender(images) - rows).flatten(1).square().mean(1)
            # a sum, so that no image's gradient depends on how many there are
            prior = self.config.tv * measure_variation(images)
            prior = prior + self.config.l2 * measure_square(images)
            descend(self.learners["images"], errors.sum() + prior)
            self.iteration += 1
            if self.iteration % every == 0 or self.iteration == total:
                self._recovered = self.known.pixels(images.detach())
                yield self.iteration, total
