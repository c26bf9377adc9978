"""SIP (Chen et al., CCS 2024): an inverter of the public head reads tokens from smashed data.

The inverter learns from the pretrained head's outputs for public texts. `epochs: 20` and
`batch_size: 6` (with a dropout of .1, and Adam at 1e-3 with a weight decay of 1e-5) are the
published code's settings. If a text has several messages, each is read as if it were a
text, and the surest reading is the guess.

With `looks: 2`, ours, the readings of two epochs are compared: a private text that crosses among
other texts each time (`cover` with fresh covers) is the one that comes twice.
"""

from typing import Literal

import torch
from pydantic import Field

from simsplit.attacks.inverters import InverterConfig
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.span_search import agreement
from simsplit.attacks.text_attack import Read, SeenBatch, split_messages
from simsplit.packets import Packet


class SipConfig(InverterConfig):
    """An inverter of the pretrained head, which reads tokens from smashed data."""

    kind: Literal["sip"] = "sip"
    looks: int = Field(default=1, ge=1, le=2)
    """Number of epochs that it observes; 2: of several messages, the one that is read in both is
    taken for the private text."""

    @property
    def exposures(self) -> int:
        """Number of epochs in which it sees the targets' packets."""
        return self.looks

    def build(self, known: Knowledge) -> "Sip":
        return Sip(self, known)


class Sip(Inverting):
    """An attack that applies the inverter to each message."""

    def recover(self, seen: SeenBatch) -> Read:
        """Return one guess per message; what comes again in another epoch is the surest."""
        read = self._read_packet(seen.smashed)
        if not seen.again:
            return read
        tokens_MBL, *others = (
            each.tokens.unflatten(0, (self.messages, -1))
            for each in (read, *map(self._read_packet, seen.again))
        )
        alike_MB = torch.stack([agreement(tokens_MBL, other).amax(1) for other in others]).mean(0)
        return Read(read.tokens, alike_MB.flatten())

    def _read_packet(self, packet: Packet) -> Read:
        return self.read(split_messages(self.known.lift_smashed(packet), self.messages))
