"""C3-SL (Hsieh et al., MLSP 2022): several samples superposed in one, by circular convolution.

Groups of `ratio` samples: each is convolved with a fixed random key (N(0, 1/d), to unit norm) and
the group's sum is sent; correlation with a key gives its sample back, with the others as noise.
Both by FFT. Keys stand for a seed, which is broadcast. A last group may be smaller; how many
samples there are crosses beside the payload, in four bytes.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, pad

from simsplit.errors import ProtocolError
from simsplit.methods.base import Method, MethodConfig, Shape, Site, Step, Trait
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Leg
from simsplit.seeds import rng_for


class C3slConfig(MethodConfig):
    """Superposes samples of a batch, each convolved with a key of its own."""

    kind: Literal["c3sl"] = "c3sl"
    ratio: int = Field(default=8, ge=1)
    """How many samples are superposed in one."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES, Trait.SHAPE})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True
    superposes: ClassVar[frozenset[Leg]] = frozenset({Leg.SMASHED, Leg.SMASHED_GRAD})

    @property
    def needs(self) -> Needs:
        """Batches of at least two samples."""
        return (*super().needs, Need(Given.BATCH, "ratio", least=self.ratio))

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """The shape of a sample; a batch has fewer of them."""
        return (int(torch.Size(shape).numel()),)

    def build(self, site: Site) -> Method:
        return C3sl(site, self.ratio)


class C3sl(Method):
    """One side's half; clients draw the keys from the announced seed."""

    num_side = 1
    num_side_back = 0

    def __init__(self, site: Site, ratio: int) -> None:
        self.shape, self.d, self.ratio = site.shape, site.size, ratio
        self.sends = site.sends
        self.device = site.device
        self.drawn_from = site.seed
        self.keys_RF = self._draw(site.seed) if site.side == "server" else None

    def announce(self) -> tuple[Tensor, ...]:
        """The seed of the keys."""
        return (torch.tensor(self.drawn_from),)

    def hear(self, tensors: tuple[Tensor, ...]) -> None:
        """Draw the keys from the announced seed."""
        self.keys_RF = self._draw(int(tensors[0]))

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Convolve each sample with its key, and add up the group."""
        step.memo[self] = len(z)
        z_GRD = pad(z.flatten(1), (0, 0, 0, -len(z) % self.ratio)).unflatten(0, (-1, self.ratio))
        bound_GF = (torch.fft.rfft(z_GRD) * self._known()).sum(1)
        sent: Tensor = torch.fft.irfft(bound_GF, n=self.d)
        return sent

    def lift(self, z: Tensor, step: Step) -> Tensor:
        """Correlate with each key; padding samples are dropped."""
        out_GRD: Tensor = torch.fft.irfft(
            torch.fft.rfft(z)[:, None] * self._known().conj(), n=self.d
        )
        count = step.memo.get(self, len(z) * self.ratio)
        return out_GRD.flatten(0, 1)[:count].view(-1, *self.shape)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """The payload and its number of samples; for gradients the payload alone."""
        if not self.sends:
            return (x,)
        return x, torch.tensor([step.memo[self]], dtype=torch.int32, device=x.device)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """The payload; the number of samples is kept for the step."""
        if not self.sends and len(tensors) > 1:
            step.memo[self] = int(tensors[1])
        return tensors[0]

    def _draw(self, seed: int) -> Tensor:
        keys_RD = torch.randn(self.ratio, self.d, generator=rng_for(seed, "c3sl"))
        keys_RF: Tensor = torch.fft.rfft(normalize(keys_RD))
        return keys_RF.to(self.device)

    def _known(self) -> Tensor:
        if self.keys_RF is None:
            raise ProtocolError("c3sl: the keys were used before they were announced")
        return self.keys_RF
