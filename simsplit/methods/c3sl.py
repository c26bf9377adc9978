"""C3-SL (Hsieh et al., MLSP 2022): several samples are superposed by circular convolution.

Each sample of a group of `ratio` samples is convolved with a fixed random key (N(0, 1/d), scaled to
unit norm), and the sum of the group is sent. Correlation with a key recovers its sample, with the
other samples as noise. Both use the FFT. The server broadcasts the seed of the keys instead of the
keys. The last group may be smaller; the number of samples crosses next to the payload, in four
bytes.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, pad

from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.methods.method import BACK, Method, MethodConfig, Shape, Site, Step, Trait
from simsplit.needs import Given, Need, Needs
from simsplit.packets import TensorForm
from simsplit.seeds import rng_for


class C3slConfig(MethodConfig):
    """A superposition of the batch's samples, each convolved with a different key."""

    kind: Literal["c3sl"] = "c3sl"
    ratio: int = Field(default=8, ge=1)
    """Number of samples that are superposed in one row."""
    required_traits = frozenset({Trait.VALUES})
    ended_traits = frozenset({Trait.SAMPLES, Trait.SHAPE})
    once = True
    reencodes = True
    superposes = frozenset({Leg.SMASHED, Leg.SMASHED_GRAD})

    @property
    def needs(self) -> Needs:
        return (*super().needs, Need(Given.BATCH, "ratio", least=self.ratio))

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        """Return the flat shape of a row; a batch has fewer rows than samples."""
        return (int(torch.Size(shape).numel()),)

    def build(self, site: Site) -> Method:
        return C3sl(site, self.ratio)


class C3sl(Method):
    """One side's half; clients draw the keys from the announced seed."""

    def __init__(self, site: Site, ratio: int) -> None:
        self.shape, self.d, self.ratio, self.sends = site.shape, site.size, ratio, site.sends
        self.seed, self.device = site.seed, site.device
        self.keys_RF = self._draw_keys(site.seed) if site.side == "server" else None

    def announce(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.seed),)

    def receive_announcement(self, tensors: tuple[Tensor, ...]) -> None:
        self.keys_RF = self._draw_keys(int(tensors[0]))

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Convolve each sample with its key, and add up each group."""
        step.memo[self] = len(z)
        z_GRD = pad(z.flatten(1), (0, 0, 0, -len(z) % self.ratio)).unflatten(0, (-1, self.ratio))
        bound_GF = (torch.fft.rfft(z_GRD) * self._require_keys()).sum(1)
        sent: Tensor = torch.fft.irfft(bound_GF, n=self.d)
        return sent

    def lift(self, z: Tensor, step: Step) -> Tensor:
        """Correlate each row with all keys, and drop the samples that pad the last group."""
        out_GRD: Tensor = torch.fft.irfft(
            torch.fft.rfft(z)[:, None] * self._require_keys().conj(), n=self.d
        )
        count = step.memo.get(self, len(z) * self.ratio)
        return out_GRD.flatten(0, 1)[:count].view(-1, *self.shape)

    def pack_form(self, x: TensorForm, leg: Leg) -> tuple[TensorForm, ...]:
        return (x, TensorForm((1,), torch.int32)) if leg in BACK else (x,)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        if not self.sends:
            return (x,)
        return x, torch.tensor([step.memo[self]], dtype=torch.int32, device=x.device)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Return the payload, and keep the number of samples for `lift`."""
        if not self.sends and len(tensors) > 1:
            rows, samples = len(tensors[0]), int(tensors[1])
            if not (rows - 1) * self.ratio < samples <= rows * self.ratio:
                raise ProtocolError(f"c3sl: {samples} samples in {rows} rows of {self.ratio}")
            step.memo[self] = samples
        return tensors[0]

    def _draw_keys(self, seed: int) -> Tensor:
        keys_RD = torch.randn(self.ratio, self.d, generator=rng_for(seed, "c3sl"))
        keys_RF: Tensor = torch.fft.rfft(normalize(keys_RD))
        return keys_RF.to(self.device)

    def _require_keys(self) -> Tensor:
        if self.keys_RF is None:
            raise ProtocolError("c3sl: the client has no keys, since nothing was announced to it")
        return self.keys_RF
