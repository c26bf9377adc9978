"""TAG in closed form, ours: labels are read from a gradient by solving a linear system.

The gradient at the tail's features is linear in (softmax - labels), see `tail_derivative`. So the
attack solves for the cotangent d at the last layer's output. At one position d is, up to a factor
below zero, a projection of W_y - E[W]: the output matrix's row of the label minus its mean under
the tail's own prediction. The attack computes the cosine of -d with this difference for every
token, and the best token is the label. A cosine needs no scale: neither the mean's divisor, nor a
mixture's weight, nor clipping matters. With plain gradients the label's cosine is 1.

If the sign of the gradient is unknown, the sign with the larger mean cosine is taken, which takes
no second solution. How messages are combined first is `reads` (see `gradient_view`). TAG finds the
same labels by descent.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from simsplit.attacks.attack import TextAttackConfig
from simsplit.attacks.gradient_view import GradientView, Reading, view_gradients
from simsplit.attacks.inverters import LEAST
from simsplit.attacks.knowledge import Knowledge, is_mixed
from simsplit.attacks.tail_derivative import TailDerivative, get_weight
from simsplit.attacks.text_attack import Read, SeenBatch, TextAttack, pick_surer
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.legs import Leg
from simsplit.models.transformer import Tail, use_eager_attention

LEARNED = 0.1
"""Positions count as learned if their cotangent exceeds this share of the text's largest one."""


class TagLinearConfig(TextAttackConfig):
    """Labels in closed form: the token whose cotangent has the direction of the client's."""

    kind: Literal["tag_linear"] = "tag_linear"
    threat: ClassVar[Threat] = Threat((Sees.SMASHED, Sees.GRADIENTS), (Knows.TAIL,))
    iterations: int = Field(default=12, ge=0)
    """Steps of conjugate gradients through the tail's layers; 0: the gradient itself is read, as if
    the tail had no layers."""
    reads: Reading = "unmixed"
    """What is read of a text with several messages. unmixed: features and gradient combined with
    the weights that the gradients' ratio gives. messages: each message as if it were a text. mean:
    one gradient at the mean of the messages' features."""

    def build(self, known: Knowledge) -> "TagLinear":
        return TagLinear(self, known)


class TagLinear(TextAttack):
    """An attack that solves for the labels of each batch."""

    ahead: ClassVar[bool] = True

    def __init__(self, config: TagLinearConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        # The gradient is differentiated again, which fused attention kernels cannot do.
        tail = use_eager_attention(known.pretrained.own("tail"))
        assert isinstance(tail, Tail), "language models have no other tails"
        self.tail, self.table = tail, LabelTable(tail)

    def recover(self, seen: SeenBatch) -> Read:
        view = view_gradients(self.known, seen, self.config.reads)
        context = self.known.stack.get_context(seen.smashed.tensors)
        derivative = TailDerivative(self.tail, view.features, context)
        cotangent_RLD = derivative.solve(view.gradient, self.config.iterations)
        with torch.no_grad():
            # Row by row: the scores of all tokens need much memory.
            rows = zip(derivative.states, cotangent_RLD, strict=True)
            one, other = zip(*(self.table.read_row(*row) for row in rows), strict=True)
        signs = (one, other) if is_mixed(self.known, Leg.FEATURES_GRAD) else (one,)
        reads = [self._stack(rows, view.messages) for rows in signs]
        return pick_surer(reads[0], reads[-1])

    def _stack(self, rows: Sequence[Read], messages: int) -> Read:
        """Stack rows that were read one by one; rows that share a secret share their sureness."""
        tokens, sureness = zip(*rows, strict=True)
        return Read(torch.stack(tokens), self.together(torch.stack(sureness), messages))


def measure_norm(norm: nn.Module, like_D: Tensor) -> tuple[Tensor, bool]:
    """Return the factor of each value of a norm, and whether the norm centres.

    Gemma's norm multiplies by one more than its weight, Cohere's centres without being a layer norm
    of torch, and OLMo's has no weight. So factors are measured where no weight explains them.
    """
    known_D: Tensor | None = getattr(norm, "weight", None)
    weight_D = torch.ones_like(like_D) if known_D is None else get_weight(norm)
    # No value is near zero, by which factors are divided.
    probe_D = torch.linspace(1, 2, len(weight_D)).to(weight_D)
    probe_D[::2] *= -1
    with torch.no_grad():
        odd_D = (norm(probe_D[None])[0] - norm(-probe_D[None])[0]) / 2  # a bias cancels
        moved_D = (norm(probe_D[None] + 1)[0] - norm(-probe_D[None] + 1)[0]) / 2
    centred = bool(torch.allclose(odd_D, moved_D, rtol=1e-3, atol=1e-5))
    base_D = probe_D - probe_D.mean() if centred else probe_D
    measured_D = odd_D * base_D.square().mean().sqrt() / base_D
    known = torch.allclose(measured_D, weight_D, rtol=1e-3, atol=1e-4)
    return (weight_D if known else measured_D), centred


class LabelTable:
    """The cotangents that labels have at the last layer's output.

    The tail's norm divides by the state's size, after centring if it is a layer norm, and scales
    each value. Backwards it scales likewise, and takes away the part along the normalised state.
    """

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        read_VD = get_weight(tail.reader)
        scale_D, self.centred = measure_norm(tail.norm, read_VD[0])
        rows_VD = read_VD * scale_D
        self.rows_VD = rows_VD - rows_VD.mean(1, keepdim=True) if self.centred else rows_VD
        self.squares_V = self.rows_VD.square().sum(1)

    def read_row(self, states_LD: Tensor, cotangent_LD: Tensor) -> tuple[Read, Read]:
        """Return the best label of each position, and the best if the cotangent's sign is flipped.

        Sureness is the mean cosine over learned positions.
        """
        cosines_LV = self.compute_cosines(states_LD, cotangent_LD)
        sizes_L = cotangent_LD.norm(dim=-1)
        learned_L = sizes_L > LEARNED * sizes_L.max()
        best, worst = cosines_LV.max(-1), cosines_LV.min(-1)
        return (
            Read(best.indices, _mean_over(best.values, learned_L)),
            Read(worst.indices, _mean_over(-worst.values, learned_L)),
        )

    def choose_signs(self, view: GradientView) -> Tensor:
        """Return each row's sign in which the gradient has more of a label's direction, R.

        The gradient is taken for the cotangent, as if the tail had no layers.
        """
        with torch.no_grad():
            pairs = [self.read_row(*row) for row in zip(view.features, view.gradient, strict=True)]
        surer_R = torch.stack([one.sureness >= other.sureness for one, other in pairs])
        return torch.where(surer_R, 1.0, -1.0)

    def compute_cosines(self, states_LD: Tensor, cotangent_LD: Tensor) -> Tensor:
        """Compute the cosine of the cotangent with that of each label: L x V."""
        expected_LD = self.tail.reader(self.tail.norm(states_LD)).softmax(-1) @ self.rows_VD
        # A label's cotangent is -(W_y - E[W]) without its part along the state, up to a factor.
        dots_LV = (cotangent_LD * expected_LD).sum(-1, keepdim=True) - cotangent_LD @ self.rows_VD.T
        if self.centred:
            states_LD = states_LD - states_LD.mean(-1, keepdim=True)
        along_LD = normalize(states_LD, dim=-1)
        along_LV = along_LD @ self.rows_VD.T - (along_LD * expected_LD).sum(-1, keepdim=True)
        squares_LV = (
            self.squares_V
            - 2 * expected_LD @ self.rows_VD.T
            + expected_LD.square().sum(-1, keepdim=True)
            - along_LV.square()
        )
        sizes_LV = squares_LV.clamp_min(LEAST).sqrt()
        sizes_L1 = cotangent_LD.norm(dim=-1, keepdim=True).clamp_min(LEAST)
        cosines_LV: Tensor = dots_LV / sizes_LV / sizes_L1
        return cosines_LV


def _mean_over(values_L: Tensor, chosen_L: Tensor) -> Tensor:
    """Compute the mean of the chosen values."""
    return (values_L * chosen_L).sum() / chosen_L.sum().clamp_min(1)
