"""SIP (Chen et al., CCS 2024): an inverter of the public head reads tokens from smashed data.

The inverter learns from the pretrained head's outputs for public texts. `epochs: 20` and
`batch_size: 6` (with a dropout of .1, and Adam at 1e-3 with a weight decay of 1e-5) are the
published code's settings. If a text has several messages, each is read as if it were a
text, and the surest reading is the guess.

With `looks: 2`, ours, the readings of two epochs are compared: a private text that crosses among
other texts each time (`cover` with fresh covers) is the one that comes twice. With `picks:
strangest`, ours too, one epoch is enough where covers are of another kind than the private text.
"""

from typing import Literal

import torch

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.telling_private import Telling, TellingConfig, compute_agreement
from simsplit.attacks.text_attack import Read, SeenBatch, split_messages
from simsplit.packets import Packet


class SipConfig(TellingConfig):
    """An inverter of the pretrained head, which reads tokens from smashed data."""

    kind: Literal["sip"] = "sip"

    def build(self, known: Knowledge) -> "Sip":
        return Sip(self, known)


class Sip(Telling):
    """An attack that applies the inverter to each message."""

    def recover(self, seen: SeenBatch) -> Read:
        """Return one guess per message, the surest being the one that is told to be private."""
        read = self._read_packet(seen.smashed)
        tokens_MBL, *others = (
            each.tokens.unflatten(0, (self.messages, -1))
            for each in (read, *map(self._read_packet, seen.again))
        )
        if self.config.picks == "strangest":
            return Read(read.tokens, -self.public.measure_familiarity(tokens_MBL).flatten())
        if not others:
            return read
        rarity_V = self.public.rarity_V
        each_MB = [compute_agreement(tokens_MBL, other, rarity_V).amax(1) for other in others]
        return Read(read.tokens, torch.stack(each_MB).mean(0).flatten())

    def _read_packet(self, packet: Packet) -> Read:
        return self.read(split_messages(self.known.lift_smashed(packet), self.messages))
