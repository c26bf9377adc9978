"""UnSplit (Erdogan et al., WPES 2022): find an image and a head that would have sent what was sent.

No auxiliary data: the attacker knows the head's architecture alone. By turns it takes steps on the
image (matching what was sent, under total variation and an L2 prior) and on a clone of the head. It
is feature matching, and the prior pulls what cannot be matched to black: hold it against the black
image. The attacker gets what the trunk gets, and the clone's output is not projected (`upstream`);
or it matches what crossed, in the projected space (`adaptive`), where `scaled` divides by the
target's mean square, so that a method that merely makes payloads small protects nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, vmap

from simsplit.attacks.base import Attack, AttackConfig, Done, descend, payloads
from simsplit.attacks.knowledge import Knowledge, Surrogate
from simsplit.methods import Step
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Leg, Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig


class UnsplitConfig(AttackConfig):
    """Alternately optimizes images and a clone of the head to match what was sent."""

    kind: Literal["unsplit"] = "unsplit"
    effort: ClassVar[tuple[str, ...]] = ("outer",)
    objective: Literal["upstream", "adaptive"] = "upstream"
    """upstream: match the trunk's input; adaptive: match what crossed the wire."""
    scaled: bool = False
    """Whether the matching loss is divided by the mean square of what is matched."""
    outer: int = Field(default=1000, ge=1)
    """Number of alternations."""
    inner: int = Field(default=100, ge=1)
    """Steps per alternation on the image, and as many on the clone."""
    tv: float = Field(default=0.1, ge=0)
    """Weight of the total variation (mean squared differences, by direction)."""
    l2: float = Field(default=1.0, ge=0)
    """Weight of the image's mean square, which pulls towards black."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam (amsgrad), for image and clone."""
    clones: Literal["one", "batched"] = "one"
    """one: image after image, with one clone that carries over, as published. batched: all images
    at once, each with its own clone; several times faster, but not the published attack."""
    public: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        """Packets whose rows are single images."""
        if self.objective == "upstream":
            return super().needs
        return (*super().needs, Need(Given.SAMPLES, "objective", Leg.SMASHED))

    def build(self, known: Knowledge) -> "Unsplit":
        return Unsplit(self, known)


class Sender(nn.Module):
    """The attacker's model of a client: its head and, for `adaptive`, its methods."""

    def __init__(self, surrogate: Surrogate, seed: int, *, whole: bool) -> None:
        super().__init__()
        self.head, self.seed, self.whole = surrogate.head, seed, whole
        self.methods = surrogate.stack.modules if whole else nn.ModuleDict()
        self.stack = surrogate.stack

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        if not self.whole:
            return out
        return self.stack.encode(out, Step(-1, 0, 0, self.seed, training=False))


class Canvas(nn.Module):
    """The images that are being optimized."""

    def __init__(self, count: int, image: tuple[int, ...]) -> None:
        super().__init__()
        self.pixels = nn.Parameter(torch.full((count, *image), 0.5))


class Clones(nn.Module):
    """The senders' weights, stacked: one copy for each image that is being optimized."""

    def __init__(self, sender: nn.Module, count: int) -> None:
        super().__init__()
        self.names = [name for name, _ in sender.named_parameters()]
        copies = [weight.detach().expand(count, *weight.shape) for weight in sender.parameters()]
        self.stacked = nn.ParameterList(nn.Parameter(copy.clone()) for copy in copies)

    def weights(self) -> dict[str, Tensor]:
        """The stacked weights under the sender's names."""
        return dict(zip(self.names, self.stacked, strict=True))


class Unsplit(Attack):
    """Optimizes images in groups: one by one, or all at once."""

    def __init__(self, config: UnsplitConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        surrogate, adaptive = known.surrogate("unsplit"), config.objective == "adaptive"
        # in inference, where batch normalisation treats every image alike
        self.sender = Sender(surrogate, known.seed, whole=adaptive).eval()
        self.canvas: Canvas | None = None
        self.clones: Clones | None = None
        self._found = torch.empty(0)
        self._resumed: Mapping[str, Tensor] = {}

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Fit images and clones by turns; yields after each turn."""
        rows = self._targets(targets)
        groups = rows.split(len(rows) if self.config.clones == "batched" else 1)
        self._prepare(len(groups[0]))
        turns, total = self.config.outer, self.config.outer * len(groups)
        while self.iteration < total:
            group, turn = divmod(self.iteration, turns)
            if turn == 0:
                self._start_over()
            self._turn(groups[group])
            self.iteration += 1
            if self.iteration % turns == 0:
                self._found = torch.cat([self._found.to(rows.device), self._pixels().detach()])
            yield self.iteration, total

    @property
    def recovered(self) -> Tensor:
        """The images that are finished so far."""
        return self._found

    def state(self) -> dict[str, Tensor]:
        """The networks, and the finished images."""
        return {**super().state(), "found": self._found}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, once the number of images is known."""
        self._resumed = state
        self.iteration, self._found = int(state["iteration"]), state["found"]

    def _prepare(self, count: int) -> None:
        device = self.known.device
        self.canvas = Canvas(count, self.known.image).to(device)
        self.clones = Clones(self.sender, count).to(device)
        adam = AdamConfig(lr=self.config.lr, amsgrad=True)
        self.learners["image"] = Learner({"canvas": self.canvas}, adam)
        self.learners["clone"] = Learner({"clones": self.clones}, adam)
        if self._resumed:
            super().load(self._resumed)

    def _start_over(self) -> None:
        """Grey images and new optimizers; the clones keep their weights."""
        with torch.no_grad():
            self._pixels().fill_(0.5)
        for learner in self.learners.values():
            learner.forget_moments()

    def _targets(self, targets: Sequence[Packet]) -> Tensor:
        sent = payloads(targets)
        if self.config.objective == "upstream":
            return torch.cat([self.known.smashed(packet) for packet in sent])
        return torch.cat([self.known.sent(p, self.known.step(p)).detach() for p in sent])

    def _turn(self, rows: Tensor) -> None:
        """Steps on the images, then on the clones; losses are summed over images."""
        config = self.config
        scale = rows.flatten(1).square().mean(1) if config.scaled else rows.new_ones(len(rows))
        for _ in range(config.inner):
            pixels = self._pixels()
            missed = (self._missed(pixels, rows) / scale).sum()
            prior = config.tv * _variation(pixels) + config.l2 * _square(pixels)
            descend(self.learners["image"], missed + prior)
        pixels = self._pixels().detach()
        for _ in range(config.inner):
            descend(self.learners["clone"], (self._missed(pixels, rows) / scale).sum())

    def _missed(self, pixels: Tensor, rows: Tensor) -> Tensor:
        """For each image, the mean squared distance of its clone's output."""
        assert self.clones is not None, "made before the first turn"
        inputs, weights = self.known.normalised(pixels), self.clones.weights()
        if len(inputs) == 1:  # without vmap, which is slower
            sent = self._through(inputs[0], {name: each[0] for name, each in weights.items()})
        else:
            sent = vmap(self._through)(inputs, weights).squeeze(1)
        return (sent - rows).flatten(1).square().mean(1)

    def _through(self, image: Tensor, weights: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(self.sender, weights, (image[None],))
        return out

    def _pixels(self) -> Tensor:
        assert self.canvas is not None, "made before the first turn"
        return self.canvas.pixels


def _variation(pixels: Tensor) -> Tensor:
    """Mean squared differences of neighbouring pixels, for each image and direction, summed."""
    down = (pixels[:, :, 1:] - pixels[:, :, :-1]).square().flatten(1).mean(1)
    across = (pixels[..., 1:] - pixels[..., :-1]).square().flatten(1).mean(1)
    return (down + across).sum()


def _square(pixels: Tensor) -> Tensor:
    return pixels.square().flatten(1).mean(1).sum()
