"""MixGuard's own adaptive attacks (Eq. 30): a model learns to unmix, an inverter reads its output.

The model psi takes the messages of a text, concatenated (`joint`) or summed (`cancel`), and learns
to output the head's output for that text. It learns online, on the public pairs that the server
sees during calibration (it recognises them because no gradient answers them), or offline, on public
texts that the attacker mixes with its own secrets, with or without secret tokens. SIP's inverter
then reads psi's output.

The paper does not specify psi. Here it is a bidirectional recurrent layer between two linear
layers, so that it can infer from the whole text how it was mixed. All messages of a text are scaled
by one factor. Psi's training targets are levelled, and so is its output before it is read, with
either sign.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from simsplit.attacks.attack import descend
from simsplit.attacks.inverters import InverterConfig, divide_by_level
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import Read, SeenBatch, split_messages
from simsplit.attacks.threat import Knows, Threat, When
from simsplit.data.batches import pad_tokens
from simsplit.legs import ClientId, Leg
from simsplit.methods.mixguard import MixguardConfig
from simsplit.methods.secret_tokens import insert_tokens
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolate, numpy_rng_for, rng_for
from simsplit.states import select_below


class _AdaptiveConfig(InverterConfig):
    reading: Literal["joint", "cancel"] = "joint"
    """joint: a text's messages are concatenated. cancel: they are summed."""
    unmixer: int = Field(default=256, ge=1)
    """Width of psi's recurrent layer in each direction."""


class AdaptiveOnlineConfig(_AdaptiveConfig):
    """An unmixer trained online on public pairs that the server sees during calibration."""

    kind: Literal["adaptive_online"] = "adaptive_online"
    threat: ClassVar[Threat] = Threat(
        knows=(Knows.HEAD, Knows.PUBLIC, Knows.DISGUISES), when=When.TRAINING
    )

    def build(self, known: Knowledge) -> "AdaptiveOnline":
        return AdaptiveOnline(self, known)


class AdaptiveOfflineConfig(_AdaptiveConfig):
    """An unmixer trained offline on public texts that the attacker mixes with its own secrets."""

    kind: Literal["adaptive_offline"] = "adaptive_offline"
    threat: ClassVar[Threat] = Threat(knows=(Knows.HEAD, Knows.SECRETS, Knows.PUBLIC))
    tokens: bool = True
    """Whether it inserts secret tokens into the texts, the same number as the method."""
    unmixing: int = Field(default=800, ge=1)
    """Training steps of the unmixer, each on a batch of public texts."""
    effort: ClassVar[tuple[str, ...]] = (*InverterConfig.effort, "unmixing")

    def build(self, known: Knowledge) -> "AdaptiveOffline":
        return AdaptiveOffline(self, known)


class Unmixer(nn.Module):
    """The attack's psi: recurrent layers that undo the mixing."""

    def __init__(self, messages: int, width: int, config: _AdaptiveConfig) -> None:
        super().__init__()
        self.joint = config.reading == "joint"
        taken, middle = messages * width if self.joint else width, config.unmixer
        self.into = nn.Linear(taken, 2 * middle)
        self.recurrent = nn.GRU(2 * middle, middle, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * middle, width)

    def forward(self, x_MBLD: Tensor) -> Tensor:
        """Estimate the head's output from a text's messages."""
        taken = torch.cat(tuple(x_MBLD), dim=-1) if self.joint else x_MBLD.sum(0)
        hidden = self.into(taken)
        # A residual connection, so that the linear layers alone can already add up messages.
        out: Tensor = self.out(hidden + self.recurrent(hidden)[0])
        return out


class _Adaptive(Inverting):
    """An attack that reads the output of a trained unmixer with an inverter."""

    def __init__(self, config: _AdaptiveConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        with isolate(known.seed, "unmixer"):
            unmixer = Unmixer(self.messages, known.shapes[0][-1], config)
        self.unmixer = unmixer.to(known.device)
        adam = AdamConfig(lr=config.lr)
        self.learners["unmixer"] = Learner({"unmixer": self.unmixer}, adam)

    def unmix(self, x_MBLD: Tensor, wanted_BLD: Tensor) -> None:
        """Take one training step of the unmixer, from messages and the wanted output."""
        self.learners["unmixer"].train(True)
        unmixed_BLD = self.unmixer(_level_together(x_MBLD))
        # The inverter reads levelled rows, so the scale of the head's output need not be learned.
        descend(self.learners["unmixer"], mse_loss(unmixed_BLD, divide_by_level(wanted_BLD)))

    def recover(self, seen: SeenBatch) -> Read:
        sent_MBLD = split_messages(self.known.lift_smashed(seen.smashed), self.messages)
        with torch.no_grad():
            unmixed_BLD = self.unmixer.eval()(_level_together(sent_MBLD))
        return self.read(unmixed_BLD[None])


def _level_together(x_MBLD: Tensor) -> Tensor:
    """Level all messages of a text by one factor, so that their proportions stay."""
    side_by_side = torch.cat(tuple(x_MBLD), dim=-1)
    return torch.stack(divide_by_level(side_by_side).chunk(len(x_MBLD), dim=-1))


class AdaptiveOnline(_Adaptive):
    """The online attack, which collects its training pairs from packets of training."""

    def __init__(self, config: AdaptiveOnlineConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self._unanswered: dict[ClientId, Tensor] = {}

    def observe(self, packet: Packet) -> None:
        """Learn from batches whose features get no gradient.

        Such batches are public. A packet of them holds the mixtures followed by the plain rows.
        """
        if packet.leg is Leg.FEATURES_GRAD:
            self._unanswered.pop(packet.client, None)
        elif packet.leg is Leg.SMASHED:
            # A batch counts as unanswered once the client's next packet of smashed data arrives.
            before = self._unanswered.pop(packet.client, None)
            self._unanswered[packet.client] = self.known.lift_smashed(packet).clone()
            # An abandoned private step is unanswered too, with m rows a text. It is mistaken for a
            # public one only where m + 1 divides their number.
            if before is not None and len(before) % (self.messages + 1) == 0:
                rows = split_messages(before, self.messages + 1)
                self.unmix(rows[:-1], rows[-1])

    def state(self) -> dict[str, Tensor]:
        waiting = {f"unanswered/{client}": rows for client, rows in self._unanswered.items()}
        return {**super().state(), **waiting}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        waiting = select_below(state, "unanswered/")
        device = self.known.device  # checkpoints are read on the CPU
        self._unanswered = {int(client): rows.to(device) for client, rows in waiting.items()}


class AdaptiveOffline(_Adaptive):
    """The offline attack, which trains on public texts that it mixes with its own secrets."""

    def __init__(self, config: AdaptiveOfflineConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        mixing = [method for method in known.methods if isinstance(method, MixguardConfig)]
        self.mixing = mixing[0] if mixing else None
        self.tokens = self.mixing.tokens if self.mixing and config.tokens else 0
        self.unmixing = config.unmixing

    @property
    def steps(self) -> int:
        return super().steps + self.unmixing

    def learn(self, number: int) -> None:
        # The inverter learns first: `work` skips its steps if another attack has trained an equal
        # one.
        if number < super().steps:
            super().learn(number)
        else:
            self.unmix(*self._draw_pair(number))

    def _draw_pair(self, number: int) -> tuple[Tensor, Tensor]:
        """Draw a public batch; return it mixed like a client's, and the head's output for it."""
        known, mixing = self.known, self.mixing
        inputs = self.messages if mixing is None else mixing.inputs
        rng = rng_for(known.seed, "tokens", number)
        drawn = [known.public(number * inputs + each) for each in range(inputs)]
        texts = [insert_tokens(each, self.tokens, self.vocabulary.size, rng)[0] for each in drawn]
        longest = max(text.inputs.shape[1] for text in texts)
        padded = [pad_tokens(text.inputs, longest, self.vocabulary.pad) for text in texts]
        with torch.no_grad():
            hidden_KBLD = torch.stack([self.head(each) for each in padded])
        if mixing is None:  # nothing is mixed: the text is hidden among others, in any order
            places = torch.randperm(inputs, generator=rng)
            return hidden_KBLD[places.to(hidden_KBLD.device)], hidden_KBLD[0]
        # Clients' secrets are unknown; the attacker's own have the same distribution.
        rng_of_secrets = numpy_rng_for(known.seed, "secrets", number)
        secrets = mixing.draw_secrets(rng_of_secrets, hidden_KBLD.shape[1])
        return secrets.mix(hidden_KBLD), hidden_KBLD[secrets.target]
