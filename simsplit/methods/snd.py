"""Split-and-Denoise (Mai et al., ICML 2024): tokens are noised one by one; the client denoises.

Noise of a uniformly random direction and a Gamma-distributed length is added to each token (that is
d_chi-privacy), which is then clipped to a norm. What the trunk makes of it goes through a denoiser
on the client, a small transformer that is also shown the clean values and the noise. It learns on
public data, before training, from what the trunk makes of the same texts without noise; those cross
beside them, so the server sees public pairs of both.

Ours: noise is a multiple of the tokens' average norm unless `eta` says how much; the denoiser
starts as nothing but what it is given, and looks at no later token, as the trunk does not.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from simsplit.errors import ScenarioError
from simsplit.methods.base import (
    TEXTS,
    Method,
    MethodConfig,
    Modality,
    Shape,
    Site,
    Step,
    Trait,
)
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg
from simsplit.phases import Phase, on_public_data
from simsplit.seeds import isolated, numpy_rng_for

DENOISE = "denoise"


class SndConfig(MethodConfig):
    """Adds noise to each token that is sent, and denoises the returned features."""

    kind: Literal["snd"] = "snd"
    noise: float = Field(default=1.0, gt=0)
    """Mean length of a token's noise, in units of the tokens' mean norm."""
    eta: float | None = Field(default=None, gt=0)
    """Privacy parameter, instead of `noise`: lengths are drawn from Gamma(width, 1/eta)."""
    lengths: Literal["token", "element"] = "token"
    """One length per token, or (as in the published code) one per value."""
    clip: float | None = Field(default=1.0, gt=0)
    """Clipping norm of noisy tokens, in units of the clean ones' mean norm; null: no clipping."""
    denoise: bool = True
    """Whether a denoiser is trained and used."""
    layers: int = Field(default=6, ge=1)
    """Layers of the denoiser."""
    heads: int = Field(default=8, ge=1)
    """Attention heads per layer of the denoiser."""
    warm_up: int = Field(default=2, ge=0)
    """Rounds in which the denoiser learns from public data."""
    inference: bool = True
    """Whether noise is added in evaluation too."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    once: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """For the denoiser: features to denoise, and public texts to learn from."""
        if not self.denoise:
            return super().needs
        learned = (Need(Given.PUBLIC, "denoise"),) if self.warm_up else ()
        own = (needs_leg(Leg.FEATURES, "denoise"), Need(Given.UNMASKED, "denoise"))
        return (*super().needs, *own, *learned)

    def undoes(self) -> frozenset[Trait]:
        """With a denoiser, rows for its training follow those of the batch."""
        return self.ends if self.denoise else frozenset()

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """The same shape; raises ScenarioError if `heads` does not divide its width."""
        if self.denoise and shape[-1] % self.heads:
            raise ScenarioError(
                f"{where}.heads", f"must divide the width of {shape[-1]}, got {self.heads}"
            )
        return shape

    def in_sessions(self, reading: str = "") -> bool:
        """Without a denoiser, which looks at all tokens and at the noise of each."""
        del reading
        return not (self.denoise and self.inference)

    def build(self, site: Site) -> Method:
        """All of it on the client; the server knows nothing of it."""
        return Snd(self, site) if site.side == "client" else Method()


class Denoiser(nn.Module):
    """A causal transformer on returned features, clean smashed data and noise."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.into = nn.Linear(3 * width, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, noisy_BLD: Tensor, clean_BLD: Tensor, noise_BLD: Tensor) -> Tensor:
        hidden = self.into(torch.cat([noisy_BLD, clean_BLD, noise_BLD], dim=-1))
        ahead = nn.Transformer.generate_square_subsequent_mask(
            hidden.shape[1], device=hidden.device, dtype=hidden.dtype
        )
        out: Tensor = noisy_BLD + self.out(self.blocks(hidden, mask=ahead, is_causal=True))
        return out


@dataclass
class _Noised:
    """What a client keeps of a step."""

    clean: Tensor
    noise: Tensor
    public: bool
    """Whether the plain output is sent too, for the denoiser to learn from."""
    error: Tensor | None = None


class Snd(Method):
    """The client's part: noises what is sent, denoises what returns."""

    def __init__(self, config: SndConfig, site: Site) -> None:
        self.config = config
        self.module = None
        if config.denoise:
            with isolated(site.seed, "denoiser"):
                self.module = Denoiser(site.shape[-1], config.layers, config.heads)

    def plan(self, rounds: int) -> list[Phase]:
        """Rounds in which the denoiser learns from public data."""
        if not (self.config.denoise and self.config.warm_up):
            return []
        return [on_public_data(DENOISE, self.config.warm_up)]

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Add noise, and clip; on public data the plain rows follow."""
        if not (step.training or self.config.inference):
            return z
        norms_BL1 = z.detach().norm(dim=-1, keepdim=True)
        noise = self._noise(z, norms_BL1.mean(), step)
        sent = z + noise
        if self.config.clip is not None:
            limit = self.config.clip * norms_BL1.mean()
            sent = sent * (limit / sent.detach().norm(dim=-1, keepdim=True)).clamp(max=1.0)
        public = step.phase == DENOISE
        step.memo[self] = _Noised(z.detach(), noise, public)
        return torch.cat([sent, z]) if public else sent

    def decode(self, u: Tensor, step: Step) -> Tensor:
        noised: _Noised | None = step.memo.get(self)
        model = self.module
        if noised is None or model is None:
            return u
        if noised.public:
            noisy, plain = u.detach().chunk(2)
            made: Tensor = model(noisy, noised.clean, noised.noise)
            noised.error = mse_loss(made, plain)
            return made
        frozen = {name: weight.detach() for name, weight in model.named_parameters()}
        told = (u, noised.clean, noised.noise)
        return functional_call(model, frozen, told)  # type: ignore[no-any-return]

    def tail_loss(self, step: Step) -> Tensor | None:
        """On public data: the distance of the denoised features from the plain ones."""
        noised: _Noised | None = step.memo.get(self)
        return None if noised is None else noised.error

    def _noise(self, z: Tensor, average: Tensor, step: Step) -> Tensor:
        width = z.shape[-1]
        draws = torch.randn(z.shape, generator=step.rng("direction"))
        shape = z.shape if self.config.lengths == "element" else (*z.shape[:-1], 1)
        mode = "train" if step.training else "evaluate"
        scope = ("length", mode, step.phase, step.client, step.round, step.number)
        gamma = numpy_rng_for(step.seed, *scope).standard_gamma(width, shape)
        lengths = torch.from_numpy(gamma).float()
        if self.config.eta is not None:
            lengths = lengths / self.config.eta
        else:
            lengths = lengths * (self.config.noise * average.cpu() / width)
        noise: Tensor = draws / draws.norm(dim=-1, keepdim=True) * lengths
        return noise.to(z)
