"""DualGuard (Liu et al., ACL 2025), as PIDI's paper compares with it: head and tail are led away
from the pretrained ones before the server sees anything, and then the head no longer learns.

In the warm-up an MLP is in the trunk's place, at the client; nothing crosses. With s(CE) = 1 / CE,

    L = L_T + 30 s( CE(inverter(H), x) ) + 70 s( CE(pretrained_tail(T), y) )

leads head and tail to where neither an inverter of H nor the tail that everybody knows reads the
text. Then the head is frozen, and L = L_T + 10 s( CE(pretrained_tail(T), y) ): what the server is
sent back teaches its trunk to be unreadable too. No gradient of smashed data is sent back: three
crossings a step.

No code of it is public, and the paper at hand tells no more; here stands ours. The inverter is the
client's own, two layers that read each token alone, held against the public embeddings; it learns
along with the head that evades it. The MLP adds to H, nothing at first. As 1 / CE explodes where
a pretrained tail is sure of itself, `floor` is added to its divisor; the paper on ADMI only says
that this is so. Padding is no part of a text.
"""

from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.methods.base import TEXTS, Method, MethodConfig, Modality, Site, Step, Trait
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg
from simsplit.phases import WARM_UP, Phase, Segment, warming_up
from simsplit.seeds import isolated


class DualguardConfig(MethodConfig):
    """A warm-up away from the pretrained weights, without the server; then the head is frozen."""

    kind: Literal["dualguard"] = "dualguard"
    inversion: float = Field(default=30.0, ge=0)
    """Weight of 1 / CE of the inverter, in the warm-up."""
    start: float = Field(default=70.0, ge=0)
    """Weight of 1 / CE of the pretrained tail, in the warm-up."""
    distance: float = Field(default=10.0, ge=0)
    """The same in training (lambda3); published runs use 1, 5, 10 and 50."""
    floor: float = Field(default=0.1, ge=0)
    """Added to cross entropies before they divide; 0: as published."""
    warm_up: int = Field(default=2, ge=1)
    """Rounds in which clients are on their own; published: two epochs."""
    lr: float = Field(default=2e-4, gt=0)
    """The MLP's and the inverter's learning rate, for AdamW; `train.lr_schedule` holds for it."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.ALONE})
    once: ClassVar[bool] = True
    reads_tokens: ClassVar[bool] = True
    reads_tail: ClassVar[bool] = True
    passes: ClassVar[bool] = True
    stops: ClassVar[frozenset[Leg]] = frozenset({Leg.SMASHED_GRAD})
    reported: ClassVar[tuple[str, ...]] = ("dualguard_inverter_ce", "dualguard_tail_ce")
    requires: ClassVar[Needs] = (
        needs_leg(Leg.FEATURES),
        Need(Given.CAUSAL),
        Need(Given.KNOWN_TAIL),
    )

    def build(self, site: Site) -> Method:
        """All of it on the client; the server knows nothing of it."""
        return Dualguard(self, site) if site.side == "client" else Method()


class Dualguard(Method):
    """The client's part, which is all of it; a step's memo has what its terms are of."""

    freezes: frozenset[Segment] = frozenset({"head"})

    def __init__(self, config: DualguardConfig, site: Site) -> None:
        self.config, self.known, self.tokens = config, site.tail, site.tokens
        with isolated(site.seed, "dualguard"):
            self.trunk, self.inverter = _two_layers(site.shape[-1]), _two_layers(site.shape[-1])
        for weight in self.trunk[-1].parameters():
            nn.init.zeros_(weight)
        self.module = nn.ModuleDict({"trunk": self.trunk, "inverter": self.inverter})

    def plan(self, rounds: int) -> list[Phase]:
        """The warm-up, in which nothing crosses."""
        return [warming_up(self.config.warm_up, crosses=False)]

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The MLP's and the inverter's own, whatever the client's is."""
        return torch.optim.AdamW(parameters, lr=self.config.lr)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Keep the tokens, for the inverter to be held against."""
        if step.training and step.phase == WARM_UP:
            real = batch.real if batch.mask is None else batch.mask
            step.memo[self, "tokens"] = batch.inputs[real], real
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Return z unchanged; in the warm-up, keep how well the inverter reads it."""
        if (self, "tokens") in step.memo:
            step.memo[self, "read"] = self._read(z, *step.memo.pop((self, "tokens")))
        return z

    def stand_in(self, z: Tensor, step: Step) -> Tensor:
        """In place of the trunk's output."""
        made: Tensor = z + self.trunk(z)
        return made

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Return u unchanged; keep it for the pretrained tail."""
        if step.training:
            step.memo[self] = u
        return u

    def tail_loss(self, step: Step) -> Tensor | None:
        """What makes inverter and pretrained tail read less; and what the inverter learns from."""
        u: Tensor | None = step.memo.pop(self, None)
        if u is None or step.labels is None or step.task is None or not step.task.requires_grad:
            return None  # in a phase of another method's the task is not learned
        if self.known is None:
            raise ProtocolError("dualguard was not given the tail as it was before training")
        alone = step.phase == WARM_UP
        context = () if step.mask is None else (step.mask,)
        asked = step.labels != IGNORED
        entropy = nn.functional.cross_entropy(
            self.known(u, *context)[asked].float(), step.labels[asked]
        )
        step.told["dualguard_tail_ce"] = entropy.detach()
        term = self._inverse(entropy, self.config.start if alone else self.config.distance)
        if not alone:
            return term
        learned, evaded = cast("tuple[Tensor, Tensor]", step.memo.pop((self, "read")))
        step.told["dualguard_inverter_ce"] = learned.detach()
        return term + learned + self._inverse(evaded, self.config.inversion)

    def _inverse(self, entropy: Tensor, weight: float) -> Tensor:
        return weight / (entropy + self.config.floor)

    def _read(self, z: Tensor, ids_N: Tensor, real_BL: Tensor) -> tuple[Tensor, Tensor]:
        """The inverter's cross entropy: as it learns from it, and as the head does."""
        if self.tokens is None:
            raise ProtocolError("dualguard was not told the model's vocabulary")
        inverter, table_VD = self.inverter, self.tokens.embeddings
        frozen = {name: weight.detach() for name, weight in inverter.named_parameters()}
        here_ND = z[real_BL]
        learning = inverter(here_ND.detach()) @ table_VD.T
        evading = functional_call(inverter, frozen, (here_ND,)) @ table_VD.T
        entropy = nn.functional.cross_entropy
        return entropy(learning.float(), ids_N), entropy(evading.float(), ids_N)


def _two_layers(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
