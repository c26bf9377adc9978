"""MixGuard: a text client sends mixtures of its texts with others, and only it can unmix them.

A batch becomes k inputs, the private one at a secret position among public ones, all with secret
tokens inserted. The head's k outputs cross the cut as m blinded mixtures (Eq. 13-17). The client
unmixes the reply (Eq. 18-19) into an approximation Z^ of the trunk's output, and a small
calibration model corrects Z^ (Eq. 20-21). Stage I trains this model on public data while everything
else is frozen. The plain outputs that it learns from cross next to the mixtures, so the server sees
both for public texts. In stage II the model is frozen in private steps, and each private step is
followed by a public one that refines it. Noise is added to the gradient of Z^, in proportion to the
correction (Eq. 28-29). Here that is the correction relative to the corrected features: residual
streams are ten times as large in one model as in another, so an absolute correction would drown the
gradient in one and have no effect in the other.

The gradients of the messages are one tensor times the messages' weights, which reveals the weights
(see the attack gradient_ratio). Two options hide the weights. `gradients: remixed` sends gradients
with fresh weights and scales the replies back, so the head's gradient stays the same, but the trunk
learns from a mixture that was never sent. `message_noise` adds separate noise to every message.
Neither hides the labels: one message's gradient gives them away whatever its weight (tag_linear).

The paper leaves some choices open, and these are ours: how the matrices are drawn (see `mixing`);
that secret tokens come before the labelled tokens and are attended to; the calibration model's
bottleneck (a quarter) and its start at zero; and that the RMS is computed per text. As published,
calibration has AdamW with a learning rate and a batch size of its own. The paper's text at hand
lacks their values, so the values are ours too.

`gain: learned` is ours. Unmixing amplifies the errors of a trunk that is not linear, so the decoded
change of the private text's features, from what the head made of it, is too large by error. The
client knows what its head made, and fits one factor on that change to the plain outputs of public
texts, by least squares. It is applied as a constant that gradients pass unscaled. So nothing of it
crosses, and attacks read mixtures and gradients as they do without it.

Padding is not part of a text: calibration's error, the noise and its size involve real tokens only,
so padding teaches neither calibration nor the trunk. The messages' gradients are zero where the
private text is padded, with or without noise, so the server can see the text's length, up to the
batch's width.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from simsplit.data.batches import Batch, pad_tokens
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.methods.method import CUT_LEGS, TEXTS, Method, MethodConfig, Share, Site, Step, Trait
from simsplit.methods.mixing import Sampler, Secrets, can_blind, combine_rows, draw_secrets
from simsplit.methods.secret_tokens import insert_tokens
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.phases import Interleaved, Phase, build_public_phase
from simsplit.seeds import isolate, numpy_rng_for

CALIBRATE, REFINE = "calibrate", "refine"


class MixguardConfig(MethodConfig):
    """Blinded mixtures of each private text with public ones."""

    kind: Literal["mixguard"] = "mixguard"
    messages: int = Field(default=3, ge=2)
    """m: number of mixtures that are sent for a batch."""
    inputs: int = Field(default=3, ge=2)
    """k: number of texts in a mixture, the private one included."""
    secrets: Literal["batch", "sample"] = "batch"
    """One pair of matrices per batch (as published), or one per text (sample)."""
    sampler: Sampler = "affine"
    """How secrets are drawn. `affine` unmixes affine trunks exactly and needs an odd number of
    messages. With `general` secrets a language model learned less than without any trunk."""
    blind: bool = True
    """Whether mixtures are blinded; if not, their signed sum is the private text's output."""
    condition: float | None = Field(default=None, gt=1)
    """Upper bound of the blinding matrices' condition number. A lower bound amplifies errors less
    and leaves fewer matrices to draw from. Null: a bound that about a quarter of random matrices
    meet, which is 4 for three messages."""
    purest: float = Field(default=0.9, gt=0, le=1)
    """Upper bound of a single text's share in a message (its weight over the root of the sum of
    squared weights); 1: no bound. Without a bound, half of all draws have a message above 0.97. If
    none of 100 draws meets the bound, as with many messages and few texts, the draw with the
    smallest share is used."""
    draws: int = Field(default=1, ge=1)
    """Number of draws of which the one whose unmixing weights have the least sum of sizes is taken.
    More draws decode better: of 100, unmixing amplifies errors least."""
    tokens: int = Field(default=20, ge=0)
    """Secret tokens per text; published: 20 for classification, 40 for generation, 0 on CoLA."""
    gain: Literal["learned"] | None = None
    """Factor on the decoded change, the unmixed features minus the head's output, before
    calibration. learned: by least squares on calibration's public texts; null: one."""
    calibrate: bool = True
    """Whether a calibration model corrects the unmixed features."""
    bottleneck: float = Field(default=0.25, gt=0, le=1)
    """Hidden width of the calibration model, relative to the features' width."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout rate in the calibration model."""
    warm_up: int = Field(default=2, ge=0)
    """Rounds of stage I, in which calibration learns from public data."""
    refine_every: int = Field(default=1, ge=0)
    """Private steps between two refinement steps of calibration; 0: no refinement."""
    calibration_lr: float = Field(default=1e-3, gt=0)
    """Calibration's learning rate, for AdamW; `train.lr_schedule` applies to it too."""
    calibration_batch_size: int | None = Field(default=None, ge=1)
    """Public texts per step of calibration; null: as many as in a step of training."""
    noise: Literal["adaptive", "fixed", "none"] = "adaptive"
    """Noise on the gradient: in proportion to the correction (adaptive), of fixed size, or none."""
    gamma: float = Field(default=1.0, ge=0)
    """Noise level, in units of RMS(gradient), if `noise` is adaptive times RMS(correction) /
    RMS(corrected features)."""
    gradients: Literal["shared", "remixed"] = "shared"
    """Weights of the gradient messages: the ones that unmix (shared, as published), or fresh ones
    (remixed)."""
    message_noise: float = Field(default=0.0, ge=0)
    """Separate noise on each gradient message, in units of its root mean square; 0: none."""
    inference: Literal["plain", "mixed"] = "plain"
    """Evaluation of ordinary texts, which the server then sees (plain, as published), or of texts
    that are mixed as in training (mixed)."""
    calibrated_inference: bool | None = None
    """Whether the calibration model is used in evaluation; null: only if texts are mixed."""
    modalities = TEXTS
    required_traits = frozenset({Trait.SAMPLES, Trait.ALONE, Trait.VALUES})
    ended_traits = frozenset({Trait.SAMPLES})
    once = True
    superposes = CUT_LEGS
    readings = ("plain", "calibrated", "mixed")

    @property
    def public_batch_size(self) -> int | None:
        return self.calibration_batch_size

    @property
    def added_tokens(self) -> int:
        return self.tokens

    @property
    def needs(self) -> Needs:
        """Features to unmix, and texts to mix with; public data if calibration learns."""
        own = (need_leg(Leg.FEATURES), Need(Given.SUPPORT), Need(Given.UNMASKED))
        public = (Need(Given.PUBLIC, "calibrate"),) if self.has_public_steps else ()
        return (*super().needs, *own, *public)

    @property
    def has_public_steps(self) -> bool:
        """Whether calibration learns from public texts, in stage I or between private steps."""
        return self.calibrate and bool(self.warm_up or self.refine_every)

    @property
    def condition_bound(self) -> float:
        """Upper bound of the blinding matrices' condition number."""
        return self.condition or 4 * (self.messages / 3) ** 1.5

    @model_validator(mode="after")
    def _refuse_undrawable(self) -> Self:
        if self.sampler == "affine" and self.messages % 2 == 0:
            raise ValueError(
                f"messages: {self.messages} is even, but affine secrets need an odd number; "
                "use sampler: general, or an odd number"
            )
        if self.gain and not self.has_public_steps:
            raise ValueError(
                "gain: learned is fitted in calibration's public steps; set calibrate: true, and "
                "warm_up or refine_every above 0"
            )
        bound = self.condition_bound
        if self.blind and not can_blind(self.messages, self.sampler, bound):
            raise ValueError(
                f"condition: random blinding matrices for {self.messages} messages never have a "
                f"condition number below {bound:g}; raise condition, or take fewer messages"
            )
        return self

    def draw_secrets(self, rng: np.random.Generator, rows: int = 1) -> Secrets:
        """Draw the secrets of a batch of `rows` texts."""
        several = [
            draw_secrets(
                self.messages,
                self.inputs,
                self.sampler,
                rng,
                blind=self.blind,
                condition=self.condition_bound,
                purest=self.purest,
                draws=self.draws,
            )
            for _ in range(1 if self.secrets == "batch" else rows)
        ]
        return several[0] if self.secrets == "batch" else combine_rows(several)

    def parse_reading(self, reading: str) -> tuple[bool, bool]:
        """Return whether an evaluation mixes texts, and whether it corrects features."""
        if reading in self.readings:
            return reading == "mixed", reading != "plain"
        mixes = self.inference == "mixed"
        corrects = self.calibrated_inference
        return mixes, mixes if corrects is None else corrects

    def can_run_in_sessions(self, reading: str = "") -> bool:
        # Secrets are drawn per batch, and each pass would mix in other texts.
        return not self.parse_reading(reading)[0]

    def build(self, site: Site) -> Method:
        return Mixguard(self, site) if site.side == "client" else Method()


@dataclass
class _MixedBatch:
    """The client's state of a step with mixed texts."""

    secrets: Secrets
    rows: int
    """Number of private texts."""
    public: bool
    """Whether the plain output is sent too, for calibration."""
    own: Tensor
    """Mask of the private texts' own tokens, without the secret ones."""
    real: Tensor
    """Mask of the private texts' tokens, secret ones included, without padding."""
    made: Tensor | None = None
    """The head's output for the private texts, if its change has a gain."""
    error: Tensor | None = None
    """Calibration's error, on public data."""
    scale: Tensor | None = None
    """Factor on each row's gradient, if gradients are remixed."""


class Gain(nn.Module):
    """The factor on decoded changes that fits the true ones best, over all public texts so far."""

    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Least squares need two sums. As a buffer, they are in checkpoints and no optimizer moves
        # them; in double precision, since a run adds up thousands of batches.
        self.register_buffer("sums", torch.zeros(2, dtype=torch.float64))

    def fit(self, change_ND: Tensor, true_ND: Tensor) -> None:
        """Add the decoded and the true changes of some tokens."""
        change, true = change_ND.detach().double(), true_ND.detach().double()
        self.sums += torch.stack([(change * true).sum(), change.square().sum()])

    def forward(self, z: Tensor, made: Tensor) -> Tensor:
        """Scale the change from the head's output; gradients pass as if the factor were one."""
        product, square = self.sums
        if not square:  # nothing was fitted yet
            return z
        # Through the factor the head would lose a part of its gradient: that of the residual path,
        # along which the change is zero.
        offset: Tensor = (product / square - 1) * (z - made)
        return z + offset.detach().to(z)


class Calibration(nn.Module):
    """The model Z + W_up GELU(W_down Z), which is the identity at first."""

    def __init__(self, width: int, middle: int, dropout: float, *, gain: bool = False) -> None:
        super().__init__()
        self.gain = Gain() if gain else None
        self.down = nn.Linear(width, middle)
        self.up = nn.Linear(middle, width)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, z: Tensor, *, learning: bool = False) -> Tensor:
        change = self.up(nn.functional.gelu(self.down(z)))
        return z + nn.functional.dropout(change, self.dropout.p, training=learning)


class Mixguard(Method):
    """The client's half of MixGuard; the server has none."""

    def __init__(self, config: MixguardConfig, site: Site) -> None:
        self.config = config
        self.module = None
        if config.calibrate:
            width = site.shape[-1]
            with isolate(site.seed, "calibration"):
                middle = max(1, round(config.bottleneck * width))
                gain = config.gain is not None
                self.module = Calibration(width, middle, config.dropout, gain=gain)

    def plan_phases(self, rounds: int) -> list[Phase]:
        """Return stage I, in which calibration learns from public data."""
        if not (self.config.calibrate and self.config.warm_up):
            return []
        return [build_public_phase(CALIBRATE, self.config.warm_up)]

    def plan_interleaved_steps(self) -> Interleaved | None:
        if not (self.config.calibrate and self.config.refine_every):
            return None
        return Interleaved(build_public_phase(REFINE, 0), self.config.refine_every)

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Build calibration's optimizer, which does not depend on the client's."""
        return torch.optim.AdamW(parameters, lr=self.config.calibration_lr)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Join k batches in one, the given batch at a secret position."""
        config = self.config
        if not (step.training or config.parse_reading(step.evaluation_mode)[0]):
            return batch
        if step.stock is None:
            raise ProtocolError("mixguard: the client has no public texts to mix with")
        if batch.mask is not None:
            raise ProtocolError("mixguard: texts must be padded on the right, without a mask")
        public = step.phase in (CALIBRATE, REFINE)
        # Calibration mixes representations only; secret tokens hide private texts.
        tokens = 0 if public else config.tokens
        rng = step.make_rng("mixguard", step.phase)
        secrets = config.draw_secrets(_secrets_rng(step), len(batch.labels))
        target, own = insert_tokens(batch, tokens, step.stock.vocabulary, rng)
        others = [
            insert_tokens(each, tokens, step.stock.vocabulary, rng)[0].inputs
            for each in step.stock.draw_support(config.inputs - 1, len(batch.labels), rng)
        ]
        texts = [*others[: secrets.target], target.inputs, *others[secrets.target :]]
        longest = max(each.shape[1] for each in texts)
        inputs = torch.cat([pad_tokens(each, longest, step.stock.pad) for each in texts])
        labels = pad_tokens(target.labels, longest, IGNORED)
        masks = (pad_tokens(mask, longest, 0) for mask in (own, target.real))
        step.memo[self] = _MixedBatch(secrets, len(labels), public, *masks)
        return Batch(inputs, labels, batch.indices)

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Mix the rows of the k inputs into m messages; on public data the plain rows follow."""
        mixed: _MixedBatch | None = step.memo.get(self)
        if mixed is None:
            return z
        z_KBLD = z.unflatten(0, (-1, mixed.rows))
        sent = mixed.secrets.mix(z_KBLD).flatten(0, 1)
        if self.config.gain:
            mixed.made = z_KBLD[mixed.secrets.target].detach()
        return torch.cat([sent, z_KBLD[mixed.secrets.target]]) if mixed.public else sent

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Unmix the features, then correct them with the calibration model."""
        mixed: _MixedBatch | None = step.memo.get(self)
        if mixed is None:  # plain inference
            return self._correct(u, step, learning=False)
        messages = len(mixed.secrets.decode)
        u_MBLD = u[: messages * mixed.rows].unflatten(0, (messages, mixed.rows))
        z = mixed.secrets.unmix(u_MBLD)
        if mixed.public:
            # Only calibration learns from public data, so no gradient goes back through u.
            plain = u[messages * mixed.rows :].detach()
            z = self._scale_change(z.detach(), mixed, plain)
            corrected = self._correct(z, step, learning=True)
            mixed.error = mse_loss(corrected[mixed.real], plain[mixed.real])
            return corrected
        z = self._scale_change(z, mixed)
        corrected = self._correct(z, step, learning=False)
        if step.training and self.config.noise != "none":
            self._noise_gradient(z, corrected, mixed.real, step)
        return corrected

    def split_gradient(self, grad: Tensor, step: Step) -> list[Share]:
        """Return the gradient of the m messages, with fresh weights and noise if configured."""
        mixed: _MixedBatch | None = step.memo.get(self)
        if mixed is None:
            return [Share(grad)]
        if self.config.gradients == "remixed":
            # Each row's factor from its old weight to its new one.
            fresh = self.config.draw_secrets(_secrets_rng(step, "gradients"), mixed.rows).decode
            ratio = torch.as_tensor(fresh / mixed.secrets.decode).view(len(fresh), -1)
            mixed.scale = ratio.expand(-1, mixed.rows).reshape(-1, 1, 1).to(grad)
            grad = grad * mixed.scale
        if self.config.message_noise:
            real = mixed.real.repeat(len(mixed.secrets.decode), 1)
            size = self.config.message_noise * _rms(grad, real)
            rng = step.make_rng("message_noise", device=grad.device)
            grad = (grad + size * _draw_noise(grad, real, rng)).to(grad)
        return [Share(grad)]

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Return the reply to a gradient, scaled back if the gradient was remixed."""
        mixed: _MixedBatch | None = step.memo.get(self)
        if mixed is None or mixed.scale is None:
            return tensors[0]
        return tensors[0] / mixed.scale

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return, on public data, the distance of the corrected features from the plain ones."""
        mixed: _MixedBatch | None = step.memo.get(self)
        return None if mixed is None else mixed.error

    def get_own_tokens(self, step: Step) -> Tensor | None:
        mixed: _MixedBatch | None = step.memo.get(self)
        return None if mixed is None else mixed.own

    def _scale_change(self, z: Tensor, mixed: _MixedBatch, plain: Tensor | None = None) -> Tensor:
        """Scale the change from the head's output, after fitting the gain to plain outputs."""
        if mixed.made is None:
            return z
        assert isinstance(self.module, Calibration), "a gain is refused without calibration"
        gain, made = self.module.gain, mixed.made.to(z)
        assert gain is not None, "built with the method"
        if plain is not None:
            real = mixed.real
            gain.fit((z - made)[real], (plain - made)[real])
        scaled: Tensor = gain(z, made)
        return scaled

    def _correct(self, z: Tensor, step: Step, *, learning: bool) -> Tensor:
        model = self.module
        if model is None or not (
            step.training or self.config.parse_reading(step.evaluation_mode)[1]
        ):
            return z
        if learning:
            return model(z, learning=True)  # type: ignore[no-any-return]
        # Gradients pass through the frozen model to z, but private data do not train it.
        frozen = {name: weight.detach() for name, weight in model.named_parameters()}
        return functional_call(model, frozen, (z,))  # type: ignore[no-any-return]

    def _noise_gradient(self, z: Tensor, corrected: Tensor, real: Tensor, step: Step) -> None:
        """Add noise to the gradient of z on its way back to the server."""
        if not z.requires_grad:
            return
        scale = torch.full((len(z), 1, 1), self.config.gamma, device=z.device)
        if self.config.noise == "adaptive":
            whole, change = corrected.detach(), (corrected - z).detach()
            scale = scale * _rms(change, real) / _rms(whole, real).clamp(1e-12)
        rng = step.make_rng("noise", device=z.device)

        def add_noise(grad: Tensor) -> Tensor:
            return (grad + scale * _rms(grad, real) * _draw_noise(grad, real, rng)).to(grad)

        z.register_hook(add_noise)


def _secrets_rng(step: Step, *purpose: str) -> np.random.Generator:
    """Return the client's random stream for the secrets of this step."""
    mode = "train" if step.training else "evaluate"
    at = (mode, step.phase, step.round, step.number)
    return numpy_rng_for(step.seed, "secrets", *purpose, *at)


def _rms(x_BLD: Tensor, real_BL: Tensor) -> Tensor:
    """Return the root mean square of each text's real tokens, B x 1 x 1."""
    of_tokens_BL = x_BLD.square().mean(2) * real_BL
    return (of_tokens_BL.sum(1) / real_BL.sum(1).clamp(min=1)).sqrt()[:, None, None]


def _draw_noise(x_BLD: Tensor, real_BL: Tensor, rng: torch.Generator) -> Tensor:
    """Draw standard Gaussian values for real tokens, with zeros for padding."""
    if rng.device.type != "cpu":  # for all tokens: to count the real ones, the host would wait
        draws = torch.randn(x_BLD.shape, generator=rng, device=rng.device)
        return draws.to(x_BLD) * real_BL[..., None]
    # Only real tokens take numbers from the stream, so the amount of padding changes no draw.
    draws = torch.randn(int(real_BL.sum()), x_BLD.shape[2], generator=rng)
    return torch.zeros_like(x_BLD).masked_scatter(real_BL[..., None], draws.to(x_BLD))
