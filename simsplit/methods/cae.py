"""This module implements the confusional autoencoder (Liu et al., arXiv 2112.05409).

An autoencoder of labels is trained before anything else, and stays at the client. Its encoder turns
a class into a soft label that looks like other classes, its decoder finds the class again. The
model learns the soft labels, so gradients and features tell these; predictions are decoded. With
CE the cross entropy to the label, H the entropy averaged over classes, d = encoder(y), the
autoencoder minimises

    10 CE(decoder(d), y) - strength H(d) - CE(d, y).

As in the published code, both CE take the softmax of probabilities once more, labels are the
softmax of uniform numbers over 0.025, each half is one hidden layer between weights of deviation
0.01, and Adam's rate is 5e-4 on batches of 128 of 30,000 labels. DCAE of the same paper is `cae`
followed by `discrete_sgd`. We depart in two sizes, for speed: hidden layers have (2 + 6 K)^2 units
for K classes, but at most 1024, and `steps` are fewer than published (12,000 for two classes), at
which the soft labels hardly move any more.

For two classes, and without the decoder's term, the best encoder has a closed form: it gives the
true class the probability q with log((1 - q) / q) = (2 / strength)(1 - tanh(q - 1/2)), which is
below one half at any strength. At the published strengths (up to 2) q is about 0.2 at most: the
classes are as good as swapped, and an attack that finds two groups without names reads them.
"""

from functools import lru_cache
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from simsplit.methods.method import LabelDefenceConfig, Loss, Method, Site, Step, Trait
from simsplit.needs import Given, Need
from simsplit.seeds import rng_for

_LABELS, _BATCH, _RATE = 30_000, 128, 5e-4
_TEMPERATURE, _DEVIATION, _RIGHT = 0.025, 0.01, 10
_MOST_UNITS = 1024


class CaeConfig(LabelDefenceConfig):
    """Soft labels of an autoencoder that looks confused; predictions are decoded."""

    kind: Literal["cae"] = "cae"
    strength: float = Field(default=1.0, ge=0)
    """Weight of the soft labels' entropy. Published: 0 to 2."""
    steps: int = Field(default=4000, ge=1)
    """Number of the autoencoder's training steps, before the run."""
    required_traits = frozenset({Trait.SAMPLES})
    columns = ("cae_confusion", "cae_decoded")
    requires = (Need(Given.SCORING), Need(Given.CLASSIFIES))

    def build(self, site: Site) -> Method:
        return Cae(self, site) if site.side == "client" else Method()


class Cae(Method):
    """The client's half, which has the autoencoder.

    In the table of clients, `cae_confusion` is the largest probability that a soft label gives its
    own class, and `cae_decoded` the share of classes that the decoder finds again.
    """

    def __init__(self, config: CaeConfig, site: Site) -> None:
        self.config, self.site = config, site

    def compute_task_loss(
        self, outputs: Tensor, labels: Tensor, loss: Loss, step: Step
    ) -> Tensor | None:
        if not step.training:
            return None
        rows = labels >= 0
        autoencoder = self._autoencoder(outputs)
        soft_KK = autoencoder.make_soft_labels()
        step.figures["cae_confusion"] = soft_KK.diagonal().max()
        step.figures["cae_decoded"] = autoencoder.compute_decoded_share()
        return cross_entropy(outputs[rows].float(), soft_KK[labels[rows]])

    def read_outputs(self, outputs: Tensor, step: Step) -> Tensor:
        decoded: Tensor = self._autoencoder(outputs).decoder(outputs.float().softmax(-1))
        return decoded.log_softmax(-1)

    def _autoencoder(self, outputs: Tensor) -> "Autoencoder":
        # Trained when it is first needed: an attack that builds a method has no use for it.
        size = (outputs.shape[-1], self.config.strength, self.config.steps)
        return train_autoencoder(*size, seed=self.site.seed).to(outputs.device)


class Autoencoder(nn.Module):
    """Encoder and decoder of labels; both return logits."""

    def __init__(self, classes: int, rng: torch.Generator) -> None:
        super().__init__()
        self.classes = classes
        units = min((2 + 6 * classes) ** 2, _MOST_UNITS)
        self.encoder = _build_half(classes, units, rng)
        self.decoder = _build_half(classes, units, rng)

    @torch.no_grad()
    def make_soft_labels(self) -> Tensor:
        """Return the soft label of each class, K x K."""
        weight = next(self.parameters())
        labels = one_hot(torch.arange(self.classes, device=weight.device)).to(weight)
        soft: Tensor = self.encoder(labels).softmax(1)
        return soft

    @torch.no_grad()
    def compute_decoded_share(self) -> Tensor:
        """Return the share of classes that the decoder finds in their soft labels."""
        found = self.decoder(self.make_soft_labels()).argmax(1)
        right: Tensor = found == torch.arange(self.classes, device=found.device)
        return right.double().mean()


def _build_half(classes: int, units: int, rng: torch.Generator) -> nn.Sequential:
    half = nn.Sequential(
        nn.utils.skip_init(nn.Linear, classes, units),
        nn.ReLU(),
        nn.utils.skip_init(nn.Linear, units, classes),
    )
    with torch.no_grad():
        for name, weight in half.named_parameters():
            drawn = _DEVIATION * torch.randn(weight.shape, generator=rng)
            weight.copy_(drawn if name.endswith("weight") else torch.zeros_like(weight))
    return half


@lru_cache(maxsize=16)
@torch.enable_grad()
def train_autoencoder(classes: int, strength: float, steps: int, *, seed: int) -> Autoencoder:
    """Train the autoencoder of this many classes; the same for the same arguments."""
    rng = rng_for(seed, "cae", classes)
    made = Autoencoder(classes, rng)
    uniform = torch.rand(_LABELS, classes, generator=rng)
    labels = ((uniform.softmax(1).log()) / _TEMPERATURE).softmax(1)
    optimizer = torch.optim.Adam(made.parameters(), lr=_RATE)
    parts = labels.split(_BATCH)
    for number in range(steps):
        optimizer.zero_grad()
        compute_loss(made, parts[number % len(parts)], strength).backward()
        optimizer.step()
    return made.requires_grad_(requires_grad=False).eval()


def compute_loss(autoencoder: Autoencoder, labels: Tensor, strength: float) -> Tensor:
    """Return what the autoencoder minimises on a batch of labels."""
    soft = autoencoder.encoder(labels).softmax(1)
    right = autoencoder.decoder(soft).softmax(1)
    entropy = -(soft * (soft + 1e-6).log()).mean()
    lost = _RIGHT * cross_entropy(right, labels) - cross_entropy(soft, labels)
    whole: Tensor = lost - strength * entropy
    return whole
