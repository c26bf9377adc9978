"""MixGuard: a text client mixes what it sends with other texts, and alone knows how to unmix.

A batch becomes k inputs, the private one at a secret place among public ones, all with secret
tokens in them; m blinded mixtures of the k outputs of the head cross the cut (Eq. 13-17). What
comes back is unmixed (Eq. 18-19) into an approximation Z^ of the trunk's output, which a small
calibration model corrects (Eq. 20-21). Stage I trains that model on public data, with the rest
frozen; the plain output that it learns from crosses beside the mixtures, so the server sees public
pairs of both. In stage II it is frozen in private steps, each followed by one more public step.
The gradient of Z^ is noised by how much calibration had to correct (Eq. 28-29), as a part of what
came of it: residual streams are ten times as large in one model as in another, and a correction by
itself would drown the gradient here and do nothing there.

The gradients of the messages are one tensor times their weights, which gives the weights away (see
the attack gradient_ratio). `gradients: remixed` is the repair that suggests itself: they are sent
with fresh weights, and the replies scaled back, so that the head learns what it would have. The
trunk does not: it learns of a mixture that was never sent. `message_noise` is the other: noise of
its own on every message.

The paper leaves open, and here stands ours: how matrices are drawn (see `mixing`), that secret
tokens stand before what is learned and are attended to, the calibration model's bottleneck (a
quarter) and zero start, and that RMS is taken text by text. Calibration has AdamW, a rate and a
batch size of its own, as published; their values are lost in the text at hand, so ours stand here.

Padding is no part of a text: calibration's error, the sizes of noise and the noise itself are those
of real tokens, so padding teaches neither calibration nor the trunk. Messages' gradients are zero
where the private text is padded, with noise as without; so its length shows, to its batch's width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from simsplit.data.batches import Batch, padded
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.methods.base import (
    CUT_LEGS,
    TEXTS,
    Method,
    MethodConfig,
    Modality,
    Share,
    Site,
    Step,
    Trait,
)
from simsplit.methods.mixing import Sampler, Secrets, can_blind, draw, for_each
from simsplit.methods.secret_tokens import inserted
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg
from simsplit.phases import Aside, Phase, on_public_data
from simsplit.seeds import isolated, numpy_rng_for

CALIBRATE, REFINE = "calibrate", "refine"


class MixguardConfig(MethodConfig):
    """Mixes private texts with public ones, and blinds the mixtures."""

    kind: Literal["mixguard"] = "mixguard"
    messages: int = Field(default=3, ge=2)
    """m: how many mixtures are sent for a batch."""
    inputs: int = Field(default=3, ge=2)
    """k: how many texts are mixed, the private one included."""
    secrets: Literal["batch", "sample"] = "batch"
    """One pair of matrices for a batch (as published), or one for each text."""
    sampler: Sampler = "affine"
    """How secrets are drawn; `affine` unmixes affine trunks exactly, and needs an odd number of
    messages. With `general` ones a language model learned less than without any trunk."""
    blind: bool = True
    """Whether mixtures are blinded; if not, their signed sum is the private text's output."""
    condition: float | None = Field(default=None, gt=1)
    """Upper bound of the blinding matrices' condition number; a lower one amplifies errors less,
    and leaves fewer matrices to draw from. Null: what about a quarter of random ones are below, 4
    for three messages."""
    purest: float = Field(default=0.9, gt=0, le=1)
    """A single text's share of a message (its weight over the root of all squared weights) stays
    below this; of many messages and few texts, where a hundred draws do not reach it, the least of
    these is taken. 1: any share. Without a bound half of all draws have a message above .97."""
    tokens: int = Field(default=20, ge=0)
    """Secret tokens per text; published: 20 for classification, 40 for generation, none on CoLA."""
    calibrate: bool = True
    """Whether a calibration model corrects the unmixed features."""
    bottleneck: float = Field(default=0.25, gt=0, le=1)
    """Hidden width of the calibration model, relative to the features' width."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout in the calibration model."""
    warm_up: int = Field(default=2, ge=0)
    """Rounds of stage I, in which calibration learns from public data."""
    refine_every: int = Field(default=1, ge=0)
    """Private steps between two refinement steps of calibration; 0: no refinement."""
    calibration_lr: float = Field(default=1e-3, gt=0)
    """Calibration's learning rate, for AdamW; `train.lr_schedule` holds for it too."""
    calibration_batch_size: int | None = Field(default=None, ge=1)
    """Public texts in a step of calibration; null: as many as in training."""
    noise: Literal["adaptive", "fixed", "none"] = "adaptive"
    """Noise on the gradient: in proportion to the correction (adaptive), of fixed size, or none."""
    gamma: float = Field(default=1.0, ge=0)
    """Noise level: times RMS(gradient); adaptive: times RMS(correction) / RMS(corrected)."""
    gradients: Literal["shared", "remixed"] = "shared"
    """The weights that gradients are sent with: those that unmix (published), or fresh ones."""
    message_noise: float = Field(default=0.0, ge=0)
    """Noise on each gradient message separately, in units of its root mean square."""
    inference: Literal["plain", "mixed"] = "plain"
    """Evaluation of ordinary texts (plain, as published; the server sees those), or of texts that
    are mixed as in training."""
    calibrated_inference: bool | None = None
    """Whether the calibration model is used in evaluation; null: only if texts are mixed."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES, Trait.ALONE, Trait.VALUES})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    once: ClassVar[bool] = True
    superposes: ClassVar[frozenset[Leg]] = CUT_LEGS
    readings: ClassVar[tuple[str, ...]] = ("plain", "calibrated", "mixed")

    @property
    def public_batch_size(self) -> int | None:
        """How many texts calibration learns from at once."""
        return self.calibration_batch_size

    @property
    def added_tokens(self) -> int:
        """The secret tokens, which make each text so much longer."""
        return self.tokens

    @property
    def needs(self) -> Needs:
        """Features to unmix, and texts to mix with; public data if calibration learns."""
        own = (needs_leg(Leg.FEATURES), Need(Given.SUPPORT), Need(Given.UNMASKED))
        calibrates = self.calibrate and (self.warm_up or self.refine_every)
        public = (Need(Given.PUBLIC, "calibrate"),) if calibrates else ()
        return (*super().needs, *own, *public)

    @property
    def bound(self) -> float:
        """Of the condition number."""
        return self.condition or 4 * (self.messages / 3) ** 1.5

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        if self.sampler == "affine" and self.messages % 2 == 0:
            raise ValueError(
                "messages must be odd for affine secrets; an even number needs sampler: general"
            )
        if self.blind and not can_blind(self.messages, self.sampler, self.bound):
            raise ValueError(
                f"blinding matrices of {self.messages} messages are not drawn with a condition "
                f"number below {self.bound:g}; raise condition, or take fewer messages"
            )
        return self

    def drawn(self, rng: np.random.Generator, rows: int = 1) -> Secrets:
        """Draw the secrets of one batch of so many texts."""

        def one() -> Secrets:
            return draw(
                self.messages,
                self.inputs,
                self.sampler,
                rng,
                blind=self.blind,
                condition=self.bound,
                purest=self.purest,
            )

        return one() if self.secrets == "batch" else for_each([one() for _ in range(rows)])

    def read(self, reading: str) -> tuple[bool, bool]:
        """Whether an evaluation mixes texts, and whether it corrects features."""
        if reading in self.readings:
            return reading == "mixed", reading != "plain"
        mixes = self.inference == "mixed"
        corrects = self.calibrated_inference
        return mixes, mixes if corrects is None else corrects

    def in_sessions(self, reading: str = "") -> bool:
        """Unless texts are mixed: secrets are a batch's, and other texts are mixed in each time."""
        return not self.read(reading)[0]

    def build(self, site: Site) -> Method:
        """All of it on the client; the server knows nothing of it."""
        return Mixguard(self, site) if site.side == "client" else Method()


@dataclass
class _Mixed:
    """What a client keeps of a step."""

    secrets: Secrets
    rows: int
    public: bool
    """Whether the plain output is sent too, for calibration."""
    own: Tensor
    """Mask of the private texts' own tokens: all but secret ones."""
    real: Tensor
    """Mask of the private texts' tokens, secret ones included: all but padding."""
    error: Tensor | None = None
    scale: Tensor | None = None
    """Factor on each row's gradient, if it is rescaled."""


class Calibration(nn.Module):
    """Z + W_up GELU(W_down Z); the identity at first."""

    def __init__(self, width: int, middle: int, dropout: float) -> None:
        super().__init__()
        self.down = nn.Linear(width, middle)
        self.up = nn.Linear(middle, width)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, z: Tensor, *, learning: bool = False) -> Tensor:
        change = self.up(nn.functional.gelu(self.down(z)))
        return z + nn.functional.dropout(change, self.dropout.p, training=learning)


class Mixguard(Method):
    """The client's part of MixGuard, which is all of it."""

    def __init__(self, config: MixguardConfig, site: Site) -> None:
        self.config = config
        self.module = None
        if config.calibrate:
            width = site.shape[-1]
            with isolated(site.seed, "calibration"):
                middle = max(1, round(config.bottleneck * width))
                self.module = Calibration(width, middle, config.dropout)

    def plan(self, rounds: int) -> list[Phase]:
        """Stage I: rounds in which calibration learns from public data."""
        if not (self.config.calibrate and self.config.warm_up):
            return []
        return [on_public_data(CALIBRATE, self.config.warm_up)]

    def aside(self) -> Aside | None:
        """Refinement: steps of calibration between private steps."""
        if not (self.config.calibrate and self.config.refine_every):
            return None
        return Aside(on_public_data(REFINE, 0), self.config.refine_every)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Calibration's own, whatever the client's is."""
        return torch.optim.AdamW(parameters, lr=self.config.calibration_lr)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """k batches in one, the given one at a secret position."""
        config = self.config
        if not (step.training or config.read(step.reading)[0]):
            return batch
        if step.stock is None:
            raise ProtocolError("mixguard was given no texts to mix in")
        if batch.mask is not None:
            raise ProtocolError("mixguard mixes texts that are padded on the right alone")
        public = step.phase in (CALIBRATE, REFINE)
        tokens = 0 if public else config.tokens
        rng = step.rng("mixguard", step.phase)
        secrets = config.drawn(_secret(step), len(batch.labels))
        target, own = inserted(batch, tokens, step.stock.vocabulary, rng)
        others = [
            inserted(each, tokens, step.stock.vocabulary, rng)[0].inputs
            for each in step.stock.support(config.inputs - 1, len(batch.labels), rng)
        ]
        texts = [*others[: secrets.target], target.inputs, *others[secrets.target :]]
        longest = max(each.shape[1] for each in texts)
        inputs = torch.cat([padded(each, longest, step.stock.pad) for each in texts])
        labels = padded(target.labels, longest, IGNORED)
        masks = (padded(mask, longest, 0) for mask in (own, target.real))
        step.memo[self] = _Mixed(secrets, len(labels), public, *masks)
        return Batch(inputs, labels, batch.indices)

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """m mixtures of the k inputs' rows; on public data the plain rows follow."""
        mixed: _Mixed | None = step.memo.get(self)
        if mixed is None:
            return z
        z_KBLD = z.unflatten(0, (-1, mixed.rows))
        sent = mixed.secrets.mixed(z_KBLD).flatten(0, 1)
        return torch.cat([sent, z_KBLD[mixed.secrets.target]]) if mixed.public else sent

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Unmix the features, then correct them by the calibration model."""
        mixed: _Mixed | None = step.memo.get(self)
        if mixed is None:  # plain inference
            return self._corrected(u, step, learning=False)
        messages = len(mixed.secrets.decode)
        u_MBLD = u[: messages * mixed.rows].unflatten(0, (messages, mixed.rows))
        z = mixed.secrets.unmixed(u_MBLD)
        if mixed.public:
            corrected = self._corrected(z.detach(), step, learning=True)
            plain = u[messages * mixed.rows :].detach()
            mixed.error = mse_loss(corrected[mixed.real], plain[mixed.real])
            return corrected
        corrected = self._corrected(z, step, learning=False)
        if step.training and self.config.noise != "none":
            self._noise(z, corrected, mixed.real, step)
        return corrected

    def outgoing(self, grad: Tensor, step: Step) -> list[Share]:
        """The gradient as m messages, weighted, and noised one by one."""
        mixed: _Mixed | None = step.memo.get(self)
        if mixed is None:
            return [Share(grad)]
        if self.config.gradients == "remixed":
            mixed.scale = self._fresh_scale(mixed, step).to(grad)
            grad = grad * mixed.scale
        if self.config.message_noise:
            real = mixed.real.repeat(len(mixed.secrets.decode), 1)
            size = self.config.message_noise * _rms(grad, real)
            grad = (grad + size * _draws(grad, real, step.rng("message_noise"))).to(grad)
        return [Share(grad)]

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """The reply to a gradient, with its rescaling undone."""
        mixed: _Mixed | None = step.memo.get(self)
        if mixed is None or mixed.scale is None:
            return tensors[0]
        return tensors[0] / mixed.scale

    def _fresh_scale(self, mixed: _Mixed, step: Step) -> Tensor:
        """Each row's factor from its old weight to a fresh one."""
        fresh = self.config.drawn(_secret(step, "gradients"), mixed.rows)
        ratio = torch.as_tensor(fresh.decode / mixed.secrets.decode).view(len(fresh.decode), -1)
        return ratio.expand(-1, mixed.rows).reshape(-1, 1, 1)

    def tail_loss(self, step: Step) -> Tensor | None:
        """On public data: the distance of the corrected features from the plain ones."""
        mixed: _Mixed | None = step.memo.get(self)
        return None if mixed is None else mixed.error

    def own(self, step: Step) -> Tensor | None:
        """Client: mask of the sent tokens that are no secret tokens."""
        mixed: _Mixed | None = step.memo.get(self)
        return None if mixed is None else mixed.own

    def _corrected(self, z: Tensor, step: Step, *, learning: bool) -> Tensor:
        model = self.module
        if model is None or not (step.training or self.config.read(step.reading)[1]):
            return z
        if learning:
            out: Tensor = model(z, learning=True)
            return out
        frozen = {name: weight.detach() for name, weight in model.named_parameters()}
        return functional_call(model, frozen, (z,))  # type: ignore[no-any-return]

    def _noise(self, z: Tensor, corrected: Tensor, real: Tensor, step: Step) -> None:
        """Have the gradient of z noised on its way back to the server."""
        if not z.requires_grad:
            return
        scale = torch.full((len(z), 1, 1), self.config.gamma, device=z.device)
        if self.config.noise == "adaptive":
            whole, change = corrected.detach(), (corrected - z).detach()
            scale = scale * _rms(change, real) / _rms(whole, real).clamp(1e-12)
        rng = step.rng("noise")

        def noised(grad: Tensor) -> Tensor:
            return (grad + scale * _rms(grad, real) * _draws(grad, real, rng)).to(grad)

        z.register_hook(noised)


def _secret(step: Step, *purpose: str) -> np.random.Generator:
    """The client's own stream of this step's secrets."""
    mode = "train" if step.training else "evaluate"
    at = (mode, step.phase, step.round, step.number)
    return numpy_rng_for(step.seed, "secrets", *purpose, *at)


def _rms(x_BLD: Tensor, real_BL: Tensor) -> Tensor:
    """Text by text, of real tokens."""
    of_tokens_BL = x_BLD.square().mean(2) * real_BL
    return (of_tokens_BL.sum(1) / real_BL.sum(1).clamp(min=1)).sqrt()[:, None, None]


def _draws(x_BLD: Tensor, real_BL: Tensor, rng: torch.Generator) -> Tensor:
    """Standard Gaussian values for real tokens, zeros for padding; the same however much of it."""
    draws = torch.randn(int(real_BL.sum()), x_BLD.shape[2], generator=rng)
    return torch.zeros_like(x_BLD).masked_scatter(real_BL[..., None], draws.to(x_BLD))
