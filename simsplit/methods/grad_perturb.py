"""This module implements gradient perturbation for labels (Yang et al., 2022; arXiv 2203.02073).

Let g be the gradient of a sample's features, and g_c what it would be if the sample's class were c.
With numbers u_c from a Laplace distribution of scale 2 / epsilon, one for each sample and class,
the client sends

    g + sum over c of u_c g_c.

Another label changes g + sum u_c g_c as it changes u by a vector of length 2 in the sum of
absolute values. So each message alone is epsilon-label-DP, for a trunk and tail that are given.
Each step draws anew, and over the steps of a run budgets add up. As in VFLAIR's code the tail
itself learns from the true gradient. There, the sum is over as many classes as features; here,
over the classes.

The sum over classes is the gradient of one cross entropy, whose targets are the numbers u. It is
added as a loss term with the value 0, which has this gradient at the tail's input and at nothing
in the tail.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from simsplit.data.samples import get_classes
from simsplit.methods.method import LabelDefenceConfig, Method, Site, Step, Trait
from simsplit.needs import Given, Need


class GradPerturbConfig(LabelDefenceConfig):
    """Random multiples of each class's gradient, added to the feature gradients."""

    kind: Literal["grad_perturb"] = "grad_perturb"
    epsilon: float = Field(default=1.0, gt=0)
    """Privacy parameter of a label in one message; smaller values hide more. VFLAIR's runs use
    0.01 to 10."""
    accounted = True
    required_traits = frozenset({Trait.SAMPLES})
    columns = ("perturbed",)
    requires = (*LabelDefenceConfig.by_labels, Need(Given.TASK_GRADIENT))
    release: ClassVar[str] = (
        "each message has its own budget, and budgets add up over the steps of a run"
    )

    def build(self, site: Site) -> Method:
        return GradPerturb(self.epsilon) if site.side == "client" else Method()


class GradPerturb(Method):
    """The client's half, which adds the term to what goes back from the tail's input.

    In the table of clients, `perturbed` is the share of a round's batches whose gradient was
    perturbed.
    """

    def __init__(self, epsilon: float) -> None:
        self.scale = 2 / epsilon

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Return u unchanged, and store it if its gradient will be sent."""
        if torch.is_grad_enabled() and u.requires_grad:
            step.memo[self] = u
        return u

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return a term of value 0, whose gradient at the tail's input is the perturbation."""
        u = step.memo.pop(self, None)
        if u is None or step.outputs is None or step.labels is None:
            return None
        step.figures["perturbed"] = 0.0
        if not step.outputs.requires_grad:
            return None
        outputs = step.outputs
        rng = step.make_rng("grad_perturb", device=outputs.device)
        draws = draw_laplace((len(get_classes(step.labels)), outputs.shape[-1]), self.scale, rng)
        # A text's class stands at one of its positions, and only there is it predicted.
        rows = step.labels >= 0
        of_row = draws.to(outputs.device)[rows.nonzero()[:, 0]]
        kind = torch.promote_types(outputs.dtype, torch.float32)
        noise = cross_entropy(outputs[rows].to(kind), of_row.to(kind))
        grad: Tensor | None
        (grad,) = torch.autograd.grad(noise, u, retain_graph=True, allow_unused=True)
        if grad is None:  # the outputs do not depend on u
            return None
        step.figures["perturbed"] = 1.0
        term: Tensor = (grad * (u - u.detach())).sum()
        return term


def draw_laplace(shape: tuple[int, ...], scale: float, rng: torch.Generator) -> Tensor:
    """Draw from a Laplace distribution around 0, in double precision."""
    uniform = torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64) - 0.5
    size = -(1 - 2 * uniform.abs()).clamp_min(torch.finfo(torch.float64).tiny).log()
    return scale * uniform.sign() * size
