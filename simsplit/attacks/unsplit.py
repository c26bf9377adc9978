"""UnSplit (Erdogan et al., WPES 2022): fit an image and a clone of the head to the sent payload.

The attacker has no auxiliary data; it knows the head's architecture only. In turns it takes steps
on the image (matching the payload, under total variation and an L2 prior) and on the clone. The
prior pulls everything that cannot be matched to black, so compare its score with a black image's.

With `objective: upstream` the attacker matches the trunk's input, and the clone's output passes no
methods, as published. With `adaptive` (ours) it matches the sent payload, and the clone's output
passes the methods. `scaled` (ours) divides the loss by the target's mean square, so that a method
gains nothing by merely making payloads small.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, vmap

from simsplit.attacks.attack import Done, ImageAttackConfig, KeepingAttack, descend, payloads
from simsplit.attacks.epoch_averages import average_epochs
from simsplit.attacks.knowledge import Knowledge, Surrogate
from simsplit.attacks.threat import Knows, Threat
from simsplit.legs import Leg
from simsplit.methods import Step
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig


class PayloadMatchingConfig(ImageAttackConfig):
    """Base class of attacks that move images until they give what was sent."""

    objective: Literal["upstream", "adaptive"] = "upstream"
    """upstream: match the trunk's input. adaptive: match the payload that crossed the wire."""

    @property
    def needs(self) -> Needs:
        """The base's needs; the adaptive objective also needs rows of single images."""
        if self.objective == "upstream":
            return super().needs
        return (*super().needs, Need(Given.SAMPLES, "objective", Leg.SMASHED))

    def list_rows(self, known: Knowledge, targets: Sequence[Packet]) -> Tensor:
        """Return the rows that a sender's outputs must match, one per image."""
        read = known.lift_smashed if self.objective == "upstream" else known.unpack
        return torch.cat([*average_epochs(payloads(targets), read)])


class UnsplitConfig(PayloadMatchingConfig):
    """Images and a clone of the head, optimized in turns to match the sent payload."""

    kind: Literal["unsplit"] = "unsplit"
    threat: ClassVar[Threat] = Threat(knows=(Knows.ARCHITECTURE,))
    effort: ClassVar[tuple[str, ...]] = ("outer",)
    scaled: bool = False
    """Whether the matching loss is divided by the mean square of its target."""
    outer: int = Field(default=1000, ge=1)
    """Number of alternations."""
    inner: int = Field(default=100, ge=1)
    """Steps per alternation on the image, and the same number on the clone."""
    tv: float = Field(default=0.1, ge=0)
    """Weight of the total variation (mean squared differences, by direction)."""
    l2: float = Field(default=1.0, ge=0)
    """Weight of the image's mean square, which pulls towards black."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam (amsgrad), for image and clone."""
    clones: Literal["one", "batched"] = "one"
    """one: image after image, with one clone that carries over, as published. batched: all images
    at once, each with its own clone; several times faster, but not the published attack."""

    def build(self, known: Knowledge) -> "Unsplit":
        return Unsplit(self, known)


class Sender(nn.Module):
    """The attacker's model of a client: its head and, if `whole`, its methods."""

    def __init__(self, surrogate: Surrogate, seed: int, *, whole: bool) -> None:
        super().__init__()
        self.head, self.seed, self.whole = surrogate.head, seed, whole
        # Every registered weight is cloned and learned, so unused ones are not registered.
        self.methods = surrogate.stack.modules if whole else nn.ModuleDict()
        self.stack = surrogate.stack

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        if not self.whole:
            return out
        return self.stack.encode(out, Step(-1, 0, 0, self.seed, training=False))


class Canvas(nn.Module):
    """The images under optimization, which start grey."""

    def __init__(self, count: int, image: tuple[int, ...]) -> None:
        super().__init__()
        self.pixels = nn.Parameter(torch.full((count, *image), 0.5))


class Clones(nn.Module):
    """The sender's weights, stacked: one copy for each image under optimization."""

    def __init__(self, sender: nn.Module, count: int) -> None:
        super().__init__()
        self.names = [name for name, _ in sender.named_parameters()]
        copies = [weight.detach().expand(count, *weight.shape) for weight in sender.parameters()]
        self.stacked = nn.ParameterList(nn.Parameter(copy.clone()) for copy in copies)

    def weights(self) -> dict[str, Tensor]:
        """Return the stacked weights by the sender's names."""
        return dict(zip(self.names, self.stacked, strict=True))


class PayloadMatching(KeepingAttack):
    """Base class of attacks that move images until a sender of their own gives what was sent."""

    config: PayloadMatchingConfig

    def __init__(self, config: PayloadMatchingConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        surrogate, whole = known.surrogate(config.kind_name), config.objective == "adaptive"
        # In inference mode batch normalisation treats each image as if it were alone.
        self.sender = Sender(surrogate, known.seed, whole=whole).eval()
        self._resumed: Mapping[str, Tensor] = {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Keep a state, which `resume` restores once the number of images is known."""
        self._resumed, self.iteration = state, int(state["iteration"])

    def resume(self) -> None:
        """Restore a kept state, if there is one."""
        if self._resumed:
            super().load(self._resumed)


class Unsplit(PayloadMatching):
    """An attack that optimizes images one by one or all at once."""

    config: UnsplitConfig
    canvas: Canvas
    clones: Clones

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        rows = self.config.list_rows(self.known, targets)
        groups = rows.split(len(rows) if self.config.clones == "batched" else 1)
        self._prepare(len(groups[0]))
        turns, total = self.config.outer, self.config.outer * len(groups)
        while self.iteration < total:
            group, turn = divmod(self.iteration, turns)
            if turn == 0:  # other images start grey, and the clones keep their weights
                with torch.no_grad():
                    self.canvas.pixels.fill_(0.5)
                for learner in self.learners.values():
                    learner.forget_moments()
            self._turn(groups[group])
            self.iteration += 1
            if self.iteration % turns == 0:
                found = self._recovered.to(rows.device)
                self._recovered = torch.cat([found, self.canvas.pixels.detach()])
            yield self.iteration, total

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "found": self._recovered}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self._recovered = state["found"]

    def _prepare(self, count: int) -> None:
        """Build images and clones, `count` of each, and restore a kept state."""
        device = self.known.device
        self.canvas = Canvas(count, self.known.image).to(device)
        self.clones = Clones(self.sender, count).to(device)
        adam = AdamConfig(lr=self.config.lr, amsgrad=True)
        self.learners["image"] = Learner({"canvas": self.canvas}, adam)
        self.learners["clone"] = Learner({"clones": self.clones}, adam)
        self.resume()

    def _turn(self, rows: Tensor) -> None:
        """Take steps on the images, then on the clones."""
        config = self.config
        # Losses are summed over images, so that an image's gradient does not depend on the others.
        scale = rows.flatten(1).square().mean(1) if config.scaled else rows.new_ones(len(rows))
        for _ in range(config.inner):
            pixels: Tensor = self.canvas.pixels
            loss = (self._errors(pixels, rows) / scale).sum()
            prior = config.tv * measure_variation(pixels) + config.l2 * measure_square(pixels)
            descend(self.learners["image"], loss + prior)
        pixels = self.canvas.pixels.detach()
        for _ in range(config.inner):
            descend(self.learners["clone"], (self._errors(pixels, rows) / scale).sum())

    def _errors(self, pixels: Tensor, rows: Tensor) -> Tensor:
        """Compute the mean squared error of each image's sender output."""
        inputs, weights = self.known.normalise(pixels), self.clones.weights()
        if len(inputs) == 1:  # without vmap, which is slower
            sent = self._send(inputs[0], {name: each[0] for name, each in weights.items()})
        else:
            sent = vmap(self._send)(inputs, weights).squeeze(1)
        return (sent - rows).flatten(1).square().mean(1)

    def _send(self, image: Tensor, weights: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(self.sender, weights, (image[None],))
        return out


def measure_variation(pixels: Tensor) -> Tensor:
    """Compute the total variation: mean squared differences of neighbours, summed over images."""
    down = (pixels[:, :, 1:] - pixels[:, :, :-1]).square().flatten(1).mean(1)
    across = (pixels[..., 1:] - pixels[..., :-1]).square().flatten(1).mean(1)
    return (down + across).sum()


def measure_square(pixels: Tensor) -> Tensor:
    """Compute the mean square of each image, summed over images."""
    return pixels.square().flatten(1).mean(1).sum()
