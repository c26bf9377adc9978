"""This module implements the Gradients Scrutinizer (Fu et al., NDSS 2023) against hijacking.

A gradient of the task points one way for samples of one label, and other ways for other labels. A
gradient forged by FSHA depends on no label. So a client compares the gradients that it gets back,
pair by pair: s = (1 + cosine) / 2. Let m and d be the mean and the standard deviation of s over a
batch's pairs, of one label (index 1) and of two (index 0). Then

    gap = (m1 - m0) / (m1 + m0),
    error = mean over both series of the deviation of m from the best parabola over all steps,
    overlap = common / whole length of the intervals m1 +- d1 and m0 +- d0,
    score = sigmoid(5 (sign(gap) |gap|^.4 ln(7 error + e^-2) ln(overlap + 1/e) - .7)).

These are the published code's numbers. The score is near one if the server is honest, and the
published verdict is an attack below .5. In the published code the overlap of an honest run starts
at the lower of both lower ends, which is longer than what is common; here it is what is common for
everyone, as the code has it for FSHA. The column is the mean of the scores of a round's steps. The
client sends and changes nothing for it. If clients share a head, the sums over steps move with it.

The threshold does not carry over to every setting: gradients of one label must stay alike. On
MNIST (MnistNet, batches of 64, one seed) honest servers had .55 to .81 at rates of 1e-5, 1e-4 and
1e-3, and FSHA had .03 to .04. On scikit-learn's digits behind the first block of a narrow ResNet-20
(one seed) an honest server fell from .30 to .07 in eight rounds, and FSHA had .04 from the first.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods.method import Method, MethodConfig, Site, Step, Trait
from simsplit.needs import Given, Need, need_leg


class GradientsScrutinizerConfig(MethodConfig):
    """A score of how the server's gradients differ between labels; nothing is sent for it."""

    kind: Literal["gradients_scrutinizer"] = "gradients_scrutinizer"
    after: int = Field(default=50, ge=0)
    """Number of a client's batches before the first score, 50 in the published code; the parabola
    fits any few. It must be smaller than the number of batches of the client that has most."""
    required_traits = frozenset({Trait.SAMPLES})
    start_field = "after"
    columns = ("gradients_scrutinizer",)
    once = True
    requires = (need_leg(Leg.SMASHED_GRAD), Need(Given.CLASSIFIES))

    def build(self, site: Site) -> Method:
        return GradientsScrutinizer(self) if site.side == "client" else Method()


class SeriesSums(nn.Module):
    """Sums over steps t, from which the best parabola of each series and its error follow."""

    times_5: Tensor
    products_23: Tensor
    squares_2: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times_5", torch.zeros(5, dtype=torch.float64))
        self.register_buffer("products_23", torch.zeros(2, 3, dtype=torch.float64))
        self.register_buffer("squares_2", torch.zeros(2, dtype=torch.float64))

    def add(self, means_2: Tensor) -> None:
        """Add the next step's two means."""
        powers_5 = self.times_5[0] ** torch.arange(5).to(self.times_5)
        means_2 = means_2.to(self.times_5)
        self.times_5 += powers_5
        self.products_23 += means_2[:, None] * powers_5[:3]
        self.squares_2 += means_2.square()

    def measure_error(self) -> float:
        """Return the mean over both series of the root mean square error of the best parabola."""
        steps = float(self.times_5[0])
        if steps <= 3:
            return 0.0
        # Times between 0 and 1: their powers would differ by many orders of magnitude otherwise.
        scale_5 = steps ** torch.arange(5).to(self.times_5)
        times_5, products_23 = self.times_5 / scale_5, self.products_23 / scale_5[:3]
        places = torch.arange(3, device=times_5.device)
        normal_33 = times_5[places[:, None] + places]
        fitted_2 = (torch.linalg.solve(normal_33, products_23.T).T * products_23).sum(1)
        return float(((self.squares_2 - fitted_2).clamp_min(0) / steps).sqrt().mean())


class GradientsScrutinizer(Method):
    """The client's half, which compares the gradients of a batch's samples."""

    def __init__(self, config: GradientsScrutinizerConfig) -> None:
        self.config = config
        self.module = self.series = SeriesSums()

    def transform(self, batch: Batch, step: Step) -> Batch:
        if step.training:
            step.memo[self] = batch.labels
        return batch

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        labels = step.memo.pop(self, None) if step.leg is Leg.SMASHED_GRAD else None
        if labels is None or labels.ndim != 1 or len(labels) != len(tensors[0]):
            return tensors[0]
        gradients_ND = tensors[0].detach().flatten(1)
        # With one label, or one sample of each, one of the two kinds of pairs is missing.
        paired = len(labels.unique()) not in (1, len(labels))
        if paired and gradients_ND.isfinite().all():
            means_2, stds_2 = compare_pairs(gradients_ND, labels)
            self.series.add(means_2)
            if step.number >= self.config.after:
                error = self.series.measure_error()
                step.figures["gradients_scrutinizer"] = compute_score(means_2, stds_2, error)
        return tensors[0]


def compare_pairs(gradients_ND: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of similarities, each of pairs of two labels, then of one."""
    unit_ND = nn.functional.normalize(gradients_ND.float(), dim=1)
    similar_NN = (1 + unit_ND @ unit_ND.T) / 2
    # The published code gives pairs with a gradient of zeros 0, not the middle.
    zero_N = unit_ND.square().sum(1) == 0
    similar_NN[zero_N] = 0
    similar_NN[:, zero_N] = 0
    upper_NN = torch.ones_like(similar_NN, dtype=torch.bool).triu(1)
    same_NN = labels_N[:, None] == labels_N
    pairs = [similar_NN[upper_NN & ~same_NN], similar_NN[upper_NN & same_NN]]
    means_2 = torch.stack([kind.mean() for kind in pairs])
    return means_2, torch.stack([kind.std(correction=0) for kind in pairs])


def compute_score(means_2: Tensor, stds_2: Tensor, error: float) -> float:
    """Return the score of a step from means and deviations (two labels, one) and the error."""
    (two, one), (spread_two, spread_one) = means_2.tolist(), stds_2.tolist()
    gap = (one - two) / max(one + two, 1e-12)
    lows, highs = (two - spread_two, one - spread_one), (two + spread_two, one + spread_one)
    whole, common = max(highs) - min(lows), max(0.0, min(highs) - max(lows))
    overlap = common / whole if whole > 0 else 1.0
    raised = math.copysign(abs(gap) ** 0.4, gap)
    x = raised * math.log(7 * error + math.exp(-2)) * math.log(overlap + math.exp(-1)) - 0.7
    return 1 / (1 + math.exp(-5 * x))
