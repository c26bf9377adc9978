"""This module implements DualGuard (Liu et al., ACL 2025), as PIDI's paper describes it.

Head and tail are moved away from the pretrained ones before the server sees anything; then the head
stops learning. In the warm-up, an MLP at the client replaces the trunk, and nothing crosses. With
s(CE) = 1 / CE, the loss

    L = L_T + 30 s( CE(inverter(H), x) ) + 70 s( CE(pretrained_tail(T), y) )

trains head and tail so that neither an inverter of H nor the public pretrained tail can read the
text. Then the head is frozen and L = L_T + 10 s( CE(pretrained_tail(T), y) ): the gradients that
the server receives train its trunk so that the pretrained tail cannot read its output either. No
gradient of smashed data is sent back, so a step has three crossings.

PIDI's paper gives no further details. Our choices: The inverter is a part of the client, two layers
that read each token separately; its outputs are scored against the public embeddings, and it learns
together with the head that evades it. The MLP adds a correction to H that is zero at first. 1 / CE
explodes where the pretrained tail is confident, which ADMI's paper mentions without a remedy; so
`floor` is added to the divisor. Padding is not part of a text.

DualGuard's own code (ZJUWalker/DualGuard) is not followed. Its inverter is a pretrained, frozen
GRU; its MLP has three layers (d, 2d, 2d, d) with ReLU, no connection past it, and the learning rate
1e-3; head and tail learn with 1e-5 through LoRA of rank 2; and it has no floor.
"""

from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.methods.method import TEXTS, Method, MethodConfig, Site, Step, Trait
from simsplit.needs import Given, Need, need_leg
from simsplit.packets import Leg
from simsplit.phases import WARM_UP, Phase, Segment, build_warm_up
from simsplit.seeds import isolate


class DualguardConfig(MethodConfig):
    """A warm-up away from the pretrained weights, without the server; then a frozen head."""

    kind: Literal["dualguard"] = "dualguard"
    inversion: float = Field(default=30.0, ge=0)
    """Weight of the inverter's 1 / CE in the warm-up."""
    start: float = Field(default=70.0, ge=0)
    """Weight of the pretrained tail's 1 / CE in the warm-up."""
    distance: float = Field(default=10.0, ge=0)
    """Weight of the pretrained tail's 1 / CE in training (lambda3). Published runs use 1, 5, 10 and
    50."""
    floor: float = Field(default=0.1, ge=0)
    """Number added to a cross entropy before 1 is divided by it. Published: 0."""
    warm_up: int = Field(default=2, ge=1)
    """Rounds in which clients train without the server. Published: two epochs."""
    lr: float = Field(default=2e-4, gt=0)
    """Learning rate of the MLP and the inverter, for AdamW; `train.lr_schedule` applies to it too.
    """
    modalities = TEXTS
    required_traits = frozenset({Trait.SAMPLES})
    ended_traits = frozenset({Trait.ALONE})
    once = True
    reads_tokens = True
    reads_tail = True
    works_in_sessions = True
    stops = frozenset({Leg.SMASHED_GRAD})
    columns = ("dualguard_inverter_ce", "dualguard_tail_ce")
    requires = (
        need_leg(Leg.FEATURES),
        Need(Given.CAUSAL),
        Need(Given.KNOWN_TAIL),
    )

    def build(self, site: Site) -> Method:
        return Dualguard(self, site) if site.side == "client" else Method()


class Dualguard(Method):
    """The client's half, which does everything; a step's memo holds inputs of the loss terms."""

    freezes: frozenset[Segment] = frozenset({"head"})

    def __init__(self, config: DualguardConfig, site: Site) -> None:
        self.config, self.public_tail, self.tokens = config, site.tail, site.tokens
        with isolate(site.seed, "dualguard"):
            self.trunk = _make_two_layers(site.shape[-1])
            self.inverter = _make_two_layers(site.shape[-1])
        for weight in self.trunk[-1].parameters():
            nn.init.zeros_(weight)
        self.module = nn.ModuleDict({"trunk": self.trunk, "inverter": self.inverter})

    def plan_phases(self, rounds: int) -> list[Phase]:
        """Return the warm-up, in which nothing crosses."""
        return [build_warm_up(self.config.warm_up, crosses=False)]

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return an AdamW for the MLP and the inverter, whatever optimizer the client has."""
        return torch.optim.AdamW(parameters, lr=self.config.lr)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Return the batch unchanged, and in the warm-up store its tokens as inverter targets."""
        if step.training and step.phase == WARM_UP:
            real = batch.real if batch.mask is None else batch.mask
            step.memo[self, "tokens"] = batch.inputs[real], real
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Return z unchanged; in the warm-up, store the inverter's losses on it."""
        if (self, "tokens") in step.memo:
            step.memo[self, "read"] = self._invert(z, *step.memo.pop((self, "tokens")))
        return z

    def stand_in(self, z: Tensor, step: Step) -> Tensor:
        """Return z plus the MLP's correction."""
        output: Tensor = z + self.trunk(z)
        return output

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Return u unchanged, and store it for the pretrained tail."""
        if step.training:
            step.memo[self] = u
        return u

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return the terms against inverter and pretrained tail, plus the inverter's own loss."""
        u: Tensor | None = step.memo.pop(self, None)
        if u is None or step.labels is None or step.task is None or not step.task.requires_grad:
            return None  # another method's phase, in which the task is not learned
        if self.public_tail is None:
            raise ProtocolError("dualguard needs the pretrained tail, got none")
        in_warm_up = step.phase == WARM_UP
        context = () if step.mask is None else (step.mask,)
        learned = step.labels != IGNORED
        entropy = nn.functional.cross_entropy(
            self.public_tail(u, *context)[learned].float(), step.labels[learned]
        )
        step.figures["dualguard_tail_ce"] = entropy.detach()
        term = self._invert_entropy(
            entropy, self.config.start if in_warm_up else self.config.distance
        )
        if not in_warm_up:
            return term
        inverting, evading = cast("tuple[Tensor, Tensor]", step.memo.pop((self, "read")))
        step.figures["dualguard_inverter_ce"] = inverting.detach()
        return term + inverting + self._invert_entropy(evading, self.config.inversion)

    def _invert_entropy(self, entropy: Tensor, weight: float) -> Tensor:
        return weight / (entropy + self.config.floor)

    def _invert(self, z: Tensor, ids_N: Tensor, real_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inverter's cross entropy twice, to train first itself and then the head."""
        if self.tokens is None:
            raise ProtocolError("dualguard needs the model's vocabulary, got none")
        inverter, table_VD = self.inverter, self.tokens.embeddings
        # Each loss trains one of the two: in the first z is detached, in the second the inverter.
        frozen = {name: weight.detach() for name, weight in inverter.named_parameters()}
        z_ND = z[real_BL]
        inverting = inverter(z_ND.detach()) @ table_VD.T
        evading = functional_call(inverter, frozen, (z_ND,)) @ table_VD.T
        entropy = nn.functional.cross_entropy
        return entropy(inverting.float(), ids_N), entropy(evading.float(), ids_N)


def _make_two_layers(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
