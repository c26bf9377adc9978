"""This module implements DualGuard (Liu et al., ACL 2025): ends that leave the pretrained ones.

Head and tail are moved away from the pretrained ones before the server sees anything; then the head
stops learning. With s(CE) = 1 / CE:

1. SIP's inverter learns to read public texts from the pretrained head's output: a recurrent layer
   of 256 units with a dropout of .1, AdamW at 1e-3 with a decay of 1e-5, two epochs.
2. In the warm-up, which takes two epochs, the inverter stays as it is, and an MLP of three layers
   with ReLU (d, 2d, 2d, d; nothing leads past it) replaces the trunk. Nothing crosses:
   L = L_T + 30 s( CE(inverter(H), x) ) + 70 s( CE(pretrained_tail(T), y) ).
   Adam trains the MLP at 1e-3, and head and tail at 1e-5.
3. The head is frozen, and L = L_T + 10 s( CE(pretrained_tail(T), y) ): the gradients that the
   server receives train its trunk so that the pretrained tail cannot read its output either. No
   gradient of smashed data is sent back, so a step has three crossings.

This follows the published code (ZJUWalker/DualGuard). Two of its settings are other parts of a
scenario: `model.lora.rank: 2` (on queries and values, alpha 32, dropout .1), and the rate of 1e-5
in training, which is `train.client.lr`. Differences: Padding is no part of a text here. Head and
tail learn by the client's optimizer in the warm-up too. The inverter's texts are the scenario's
public ones (there, WikiText).
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.methods.method import TEXTS, Method, MethodConfig, Site, Step, Trait
from simsplit.needs import Given, Need, need_leg
from simsplit.phases import WARM_UP, Phase, Segment, build_public_phase, build_warm_up
from simsplit.seeds import isolate

INVERTER = "inverter"
"""Name of the phase in which the inverter learns."""


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
    warm_up: int = Field(default=2, ge=1)
    """Rounds in which clients train without the server. Published: two epochs."""
    warm_up_lr: float | None = Field(default=1e-5, gt=0)
    """Learning rate of head and tail in the warm-up; null: as in `train.client`."""
    lr: float = Field(default=1e-3, gt=0)
    """The MLP's learning rate, for Adam; `train.lr_schedule` applies to it too."""
    inverter_rounds: int = Field(default=2, ge=1)
    """Rounds in which the inverter learns from public texts. Published: two epochs."""
    inverter_lr: float = Field(default=1e-3, gt=0)
    """The inverter's learning rate, for AdamW; `train.lr_schedule` applies to it too."""
    hidden: int = Field(default=256, ge=1)
    """Width of the inverter's recurrent layer."""
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
        Need(Given.PUBLIC),
    )

    def build(self, site: Site) -> Method:
        return Dualguard(self, site) if site.side == "client" else Method()


class FrozenReader(nn.Module):
    """SIP's inverter: a recurrent layer, dropout, and scores of all tokens at each position."""

    def __init__(self, width: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.recurrent = nn.GRU(width, hidden, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.words = nn.Linear(hidden, vocabulary)

    def forward(self, z_BLD: Tensor) -> Tensor:
        # Not every device computes a recurrent layer in half precision.
        with torch.autocast(z_BLD.device.type, enabled=False):
            scores: Tensor = self.words(self.dropout(self.recurrent(z_BLD.float())[0]))
        return scores


class Dualguard(Method):
    """The client's half, which does everything; a step's memo holds inputs of the loss terms."""

    freezes: frozenset[Segment] = frozenset({"head"})

    def __init__(self, config: DualguardConfig, site: Site) -> None:
        self.config, self.public_tail, width = config, site.tail, site.shape[-1]
        self.inverter: FrozenReader | None = None
        with isolate(site.seed, "dualguard"):
            wide = 2 * width
            into, middle = nn.Linear(width, wide), nn.Linear(wide, wide)
            out = nn.Linear(wide, width)
            self.trunk = nn.Sequential(into, nn.ReLU(), middle, nn.ReLU(), out)
            if site.tokens is not None:
                vocabulary = len(site.tokens.embeddings)
                self.inverter = FrozenReader(width, config.hidden, vocabulary)
        parts = {"trunk": self.trunk, "inverter": self.inverter}
        self.module = nn.ModuleDict({n: part for n, part in parts.items() if part is not None})

    def plan_phases(self, rounds: int) -> list[Phase]:
        """Return the phases of the inverter and of the warm-up, in which nothing crosses."""
        config = self.config
        return [
            build_public_phase(INVERTER, config.inverter_rounds, crosses=False),
            build_warm_up(config.warm_up, crosses=False, lr=config.warm_up_lr),
        ]

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the optimizer of MLP and inverter, which does not depend on the client's."""
        config = self.config
        groups = [{"params": [*self.trunk.parameters()], "lr": config.lr, "weight_decay": 0.0}]
        if self.inverter is not None:
            of_inverter = {"lr": config.inverter_lr, "weight_decay": 1e-5}
            groups.append({"params": [*self.inverter.parameters()], **of_inverter})
        return torch.optim.AdamW(groups)  # without a decay, the same as Adam

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Return the batch unchanged; before training, store its tokens for the inverter."""
        if step.training and step.phase in (INVERTER, WARM_UP):
            real = batch.real if batch.mask is None else batch.mask
            step.memo[self, "tokens"] = batch.inputs[real], real
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Return z unchanged; before training, store the inverter's error on it."""
        if (self, "tokens") in step.memo:
            tokens, real = step.memo.pop((self, "tokens"))
            learns = step.phase == INVERTER
            step.memo[self, "error"] = self._measure_inverter(z, tokens, real, learns=learns)
        return z

    def stand_in(self, z: Tensor, step: Step) -> Tensor:
        output: Tensor = self.trunk(z)
        return output

    def decode(self, u: Tensor, step: Step) -> Tensor:
        if step.training and step.phase != INVERTER:
            step.memo[self] = u
        return u

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return the terms against inverter and pretrained tail, or the inverter's own loss."""
        read: Tensor | None = step.memo.pop((self, "error"), None)
        if read is not None:
            step.figures["dualguard_inverter_ce"] = read.detach()
        u: Tensor | None = step.memo.pop(self, None)
        if step.phase == INVERTER:
            return read
        if u is None or step.labels is None or step.task is None or not step.task.requires_grad:
            return None  # another method's phase, in which the task is not learned
        if self.public_tail is None:
            raise ProtocolError("dualguard needs the pretrained tail, got none")
        context = () if step.mask is None else (step.mask,)
        learned = step.labels != IGNORED
        entropy = nn.functional.cross_entropy(
            self.public_tail(u, *context)[learned].float(), step.labels[learned]
        )
        step.figures["dualguard_tail_ce"] = entropy.detach()
        if read is None:
            return self.config.distance / entropy
        return self.config.start / entropy + self.config.inversion / read

    def _measure_inverter(
        self, z: Tensor, tokens_N: Tensor, real_BL: Tensor, *, learns: bool
    ) -> Tensor:
        """Return the inverter's cross entropy; its gradient reaches the inverter, or else z."""
        inverter = self.inverter
        if inverter is None:
            raise ProtocolError("dualguard needs the model's vocabulary, got none")
        if learns:
            scores = inverter(z.detach())
        else:
            frozen = {name: weight.detach() for name, weight in inverter.named_parameters()}
            scores = functional_call(inverter, frozen, (z,))
        return nn.functional.cross_entropy(scores[real_BL], tokens_N)
