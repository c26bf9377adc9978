"""Completion of a head to a classifier from a few labels and many samples without: MixMatch.

This is the recipe of the code of Fu et al. (2022), which is MixMatch (Berthelot et al., 2019)
without augmentations: a sample without a label gets the model's own sharpened prediction; inputs
and labels are mixed in pairs; predictions are those of a running average of the weights. The
classifier behind the head is batch normalisation, ReLU and one linear layer that starts at ones.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Beta
from torch.nn.functional import one_hot

from simsplit.seeds import derive_seed, isolate, rng_for


@dataclass(frozen=True)
class MixMatch:
    """The options of the recipe, as published."""

    steps: int = 25_600
    batch_size: int = 16
    lr: float = 2e-3
    temperature: float = 0.8
    """Predictions are raised to the power 1 / temperature."""
    alpha: float = 0.75
    """Parameter of the Beta distribution of mixed pairs."""
    weight: float = 50.0
    """Weight of samples without labels, to which it rises evenly over all steps."""
    decay: float = 0.999
    """Share that the average of the weights keeps of itself in a step."""


class Completion:
    """A head in the course of its completion."""

    def __init__(
        self, head: nn.Module, inputs: Tensor, classes: int, options: MixMatch, seed: int
    ) -> None:
        """Begin with a copy of the head, whose weights learn too."""
        self.options, self.inputs, self.classes, self.seed = options, inputs, classes, seed
        own = copy.deepcopy(head).eval()
        for weight in own.parameters():
            weight.requires_grad_()
        with torch.no_grad():
            width = own(inputs[:2]).flatten(1).shape[1]
        with isolate(seed, "completion"):
            last = nn.Linear(width, classes)
        nn.init.ones_(last.weight)
        self.model = nn.Sequential(own, nn.Flatten(), nn.BatchNorm1d(width), nn.ReLU(), last)
        self.model.to(inputs.device)
        self.average = copy.deepcopy(self.model)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=options.lr)

    def learn(self, rows: Tensor, labels: Tensor) -> Iterator[int]:
        """Learn from all inputs, of which these rows have labels; yield after each step."""
        rest = torch.ones(len(self.inputs), dtype=torch.bool)
        rest[rows] = False
        known = _draw_batches(torch.arange(len(rows)), self.options.batch_size, self.seed, "known")
        unknown = _draw_batches(rest.nonzero()[:, 0], self.options.batch_size, self.seed, "unknown")
        truth = one_hot(labels, self.classes).float().to(self.inputs.device)
        # Batch normalisation cannot normalise a single row.
        with isolate(self.seed, "completion", "steps"), torch.enable_grad():
            for step in range(self.options.steps):
                chosen, others = next(known), next(unknown)
                self._step(rows[chosen], truth[chosen], others, step)
                yield step + 1

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Return the class of each input, as the average of the weights has it."""
        self.average.eval()
        return torch.cat([self.average(each).argmax(1) for each in self.inputs.split(512)]).cpu()

    def _step(self, rows: Tensor, truth: Tensor, others: Tensor, step: int) -> None:
        options, model = self.options, self.model.train()
        x, u = self.inputs[rows], self.inputs[others]
        with torch.no_grad():
            sharp = model(u).softmax(1) ** (1 / options.temperature)
            guessed = sharp / sharp.sum(1, keepdim=True)
        inputs, targets = torch.cat([x, u]), torch.cat([truth, guessed])
        share = float(Beta(options.alpha, options.alpha).sample())
        share, order = max(share, 1 - share), torch.randperm(len(inputs)).to(inputs.device)
        mixed = share * inputs + (1 - share) * inputs[order]
        wanted = share * targets + (1 - share) * targets[order]
        scores = self._pass_interleaved(mixed, len(x))
        known, unknown = scores[: len(x)], scores[len(x) :]
        cross_entropy = -(known.log_softmax(1) * wanted[: len(x)]).sum(1).mean()
        mismatch = (unknown.softmax(1) - wanted[len(x) :]).square().mean()
        loss = cross_entropy + options.weight * (step / options.steps) * mismatch
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._follow()

    def _pass_interleaved(self, mixed: Tensor, known: int) -> Tensor:
        """Pass both halves apart, each with samples of the other, so that statistics agree."""
        swapped, half = mixed.clone(), known // 2
        if len(mixed) == 2 * known:
            swapped[known - half : known] = mixed[2 * known - half :]
            swapped[2 * known - half :] = mixed[known - half : known]
        first, second = self.model(swapped[:known]), self.model(swapped[known:])
        scores = torch.cat([first, second])
        if len(mixed) != 2 * known:
            return scores
        back = torch.arange(len(mixed))
        places, others = back[known - half : known].clone(), back[2 * known - half :].clone()
        back[known - half : known], back[2 * known - half :] = others, places
        return scores[back]

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average towards the weights, which then decay a little, as published."""
        decayed = 1 - 0.02 * self.options.lr
        pairs = zip(
            self.average.state_dict().values(), self.model.state_dict().values(), strict=True
        )
        for kept, new in pairs:
            if kept.is_floating_point():
                kept.lerp_(new, 1 - self.options.decay)
                new.mul_(decayed)


def _draw_batches(rows: Tensor, size: int, seed: int, name: str) -> Iterator[Tensor]:
    """Yield batches of rows without end, in another order each epoch; the rest is dropped."""
    rng = rng_for(derive_seed(seed, "completion"), name)
    while True:
        order = rows[torch.randperm(len(rows), generator=rng)]
        batches = order.split(min(size, len(order)))
        yield from (batch for batch in batches if len(batch) == len(batches[0]))
