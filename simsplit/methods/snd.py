"""This module implements Split-and-Denoise (Mai et al., ICML 2024): noisy tokens, and a denoiser.

Noise of a uniformly random direction and a Gamma-distributed length is added to each token's
embedding (d_chi-privacy), which is then clipped to a norm. The trunk's output goes through a
denoiser on the client, a small transformer that also gets the clean embeddings and the noise as it
is after clipping. It learns on public data before training, at a rate of its own; its targets are
the trunk's outputs for the same texts without noise, which cross beside the noisy ones, so the
server sees both for public texts.

In the published code the head is the embedding layer alone. VFLAIR-LLM adds the noise to the head's
output instead (`at: cut`).

Our choices: the noise is a multiple of the tokens' mean norm unless `eta` is given; the denoiser
starts as the identity, and is causal like the trunk.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from simsplit.data.batches import Batch
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods.method import TEXTS, Method, MethodConfig, Shape, Site, Step, Trait
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.phases import Phase, build_public_phase
from simsplit.seeds import isolate, numpy_rng_for

DENOISE = "denoise"


class SndConfig(MethodConfig):
    """Noise on each sent token, and a denoiser for the returned features."""

    kind: Literal["snd"] = "snd"
    at: Literal["cut", "embeddings"] = "embeddings"
    """Where noise is added: the head's embeddings of tokens, as published, or what is sent."""
    noise: float = Field(default=1.0, gt=0)
    """Mean length of a token's noise, in units of the tokens' mean norm; `eta` overrides it."""
    eta: float | None = Field(default=None, gt=0)
    """Privacy parameter; lengths are drawn from Gamma(width, 1/eta). Null: `noise` sets them."""
    lengths: Literal["token", "element"] = "token"
    """Whether a length is drawn per token, or per value (`element`, as in the published code)."""
    clip: float | None = Field(default=1.0, gt=0)
    """Clipping norm of noisy tokens, in units of the clean tokens' mean norm; null: no clipping."""
    denoise: bool = True
    """Whether a denoiser is trained and used."""
    layers: int = Field(default=6, ge=1)
    """Layers of the denoiser."""
    heads: int = Field(default=8, ge=1)
    """Attention heads per layer of the denoiser; must divide the width of the cut."""
    lr: float = Field(default=1e-4, gt=0)
    """The denoiser's learning rate, for AdamW; `train.lr_schedule` applies to it too. Published:
    1e-4."""
    warm_up: int = Field(default=2, ge=0)
    """Rounds before training in which the denoiser learns from public data."""
    inference: bool = True
    """Whether noise is added in evaluation too."""
    modalities = TEXTS
    required_traits = frozenset({Trait.VALUES})
    ended_traits = frozenset({Trait.SAMPLES})
    once = True
    release: ClassVar[str] = (
        "noise is per unit of distance between embeddings (d_chi privacy, which is metric)"
    )

    @property
    def needs(self) -> Needs:
        """Features to denoise and public texts to learn from, if there is a denoiser."""
        if not self.denoise:
            return super().needs
        learned = (Need(Given.PUBLIC, "denoise"),) if self.warm_up else ()
        own = (need_leg(Leg.FEATURES, "denoise"), Need(Given.UNMASKED, "denoise"))
        return (*super().needs, *own, *learned)

    def get_required_traits(self) -> frozenset[Trait]:
        """Return the texts alone too, if its denoiser is to learn from each a second time."""
        again = self.denoise and self.at == "embeddings"
        alone = {Trait.SAMPLES, Trait.ALONE} if again else frozenset()
        return self.required_traits | alone

    def get_ended_traits(self) -> frozenset[Trait]:
        """Return SAMPLES if there is a denoiser: its training adds rows to the batch."""
        return self.ended_traits if self.denoise else frozenset()

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        """Return the shape unchanged; raise ScenarioError if `heads` does not divide its width."""
        if self.denoise and shape[-1] % self.heads:
            raise ScenarioError(
                f"{where}.heads", f"must divide the cut's width of {shape[-1]}, got {self.heads}"
            )
        return shape

    def can_run_in_sessions(self, reading: str = "") -> bool:
        """Return whether evaluation has no denoiser, which needs all tokens and their noise."""
        return not (self.denoise and self.inference)

    def build(self, site: Site) -> Method:
        return Snd(self, site) if site.side == "client" else Method()


class Denoiser(nn.Module):
    """A causal transformer whose inputs are returned features, clean smashed data and noise."""

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


class Snd(Method):
    """The client's half, which noises smashed data and denoises features.

    A step's memo holds what was noised, and the noise; on public data also the denoiser's error.
    """

    def __init__(self, config: SndConfig, site: Site) -> None:
        self.config = config
        self.changes_embeddings = config.at == "embeddings"
        self.module = None
        if config.denoise:
            with isolate(site.seed, "denoiser"):
                self.module = Denoiser(site.shape[-1], config.layers, config.heads)

    def plan_phases(self, rounds: int) -> list[Phase]:
        if not (self.config.denoise and self.config.warm_up):
            return []
        return [build_public_phase(DENOISE, self.config.warm_up)]

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the denoiser's optimizer, which does not depend on the client's."""
        return torch.optim.AdamW(parameters, lr=self.config.lr)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Return the batch; where embeddings are noised, with each public text a second time."""
        if step.phase != DENOISE or not self.changes_embeddings:
            return batch
        # Only the first time is noised: the denoiser learns from the trunk's outputs for both.
        return replace(batch, inputs=torch.cat([batch.inputs, batch.inputs]))

    def embed(self, x: Tensor, step: Step) -> Tensor:
        """Add noise to the embeddings, then clip, if they are what is noised."""
        if not (step.training or self.config.inference):
            return x
        if step.phase != DENOISE:
            return self._add_noise(x, step)
        first, again = x.chunk(2)
        return torch.cat([self._add_noise(first, step), again])

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Add noise to what is sent, then clip, unless embeddings are noised.

        On public data, append the plain rows.
        """
        if self.changes_embeddings or not (step.training or self.config.inference):
            return z
        sent = self._add_noise(z, step)
        return torch.cat([sent, z]) if step.phase == DENOISE else sent

    def _add_noise(self, x: Tensor, step: Step) -> Tensor:
        """Add noise and clip; store the clean values, and the noise as it is after clipping."""
        norms_BL1 = x.detach().norm(dim=-1, keepdim=True)
        noisy = x + self._draw_noise(x, norms_BL1.mean(), step)
        if self.config.clip is not None:
            limit = self.config.clip * norms_BL1.mean()
            noisy = noisy * (limit / noisy.detach().norm(dim=-1, keepdim=True)).clamp(max=1.0)
        clean = x.detach()
        step.memo[self] = clean, noisy.detach() - clean
        return noisy

    def decode(self, u: Tensor, step: Step) -> Tensor:
        model = self.module
        if self not in step.memo or model is None:
            return u
        clean, noise = step.memo[self]
        if step.phase == DENOISE:
            # Detached: the denoiser alone learns from public data, of the plain data sent beside.
            noisy, plain = u.detach().chunk(2)
            denoised: Tensor = model(noisy, clean, noise)
            step.memo[self, "error"] = mse_loss(denoised, plain)
            return denoised
        # In training proper, gradients pass through the denoiser and do not change it.
        frozen = {name: weight.detach() for name, weight in model.named_parameters()}
        inputs = (u, clean, noise)
        return functional_call(model, frozen, inputs)  # type: ignore[no-any-return]

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return, on public data, the distance of denoised features from plain ones."""
        error: Tensor | None = step.memo.get((self, "error"))
        return error

    def _draw_noise(self, z: Tensor, mean_norm: Tensor, step: Step) -> Tensor:
        """Draw directions, and gamma-distributed lengths: on the CPU, these from numpy's stream."""
        width = z.shape[-1]
        rng = step.make_rng("direction", device=z.device)
        draws = torch.randn(z.shape, generator=rng, device=rng.device)
        shape = z.shape if self.config.lengths == "element" else (*z.shape[:-1], 1)
        if rng.device.type != "cpu":
            widths = torch.full(shape, float(width), device=rng.device)
            lengths = torch._standard_gamma(widths, generator=rng)
        else:
            mode = "train" if step.training else "evaluate"
            scope = ("length", mode, step.phase, step.client, step.round, step.number)
            gamma = numpy_rng_for(step.seed, *scope).standard_gamma(width, shape)
            lengths = torch.from_numpy(gamma).float()
        if self.config.eta is not None:
            lengths = lengths / self.config.eta
        else:
            lengths = lengths * (self.config.noise * mean_norm.to(rng.device) / width)
        noise: Tensor = draws / draws.norm(dim=-1, keepdim=True) * lengths
        return noise.to(z)
