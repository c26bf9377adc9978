"""SIP (Chen et al., CCS 2024): an inverter of the public head reads tokens from smashed data.

The inverter learns from the pretrained head's outputs for public texts. `epochs: 20` and
`batch_size: 6` (with Adam at 1e-3 and a weight decay of 1e-5) are the published code's settings;
its dropout of .1 is left out here. If a text has several messages, each is read as if it were a
text, and the surest reading is the guess.
"""

from typing import Literal

from simsplit.attacks.inverters import InverterConfig
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import Read, SeenBatch, split_messages


class SipConfig(InverterConfig):
    """An inverter of the pretrained head, which reads tokens from smashed data."""

    kind: Literal["sip"] = "sip"

    def build(self, known: Knowledge) -> "Sip":
        return Sip(self, known)


class Sip(Inverting):
    """An attack that applies the inverter to each message."""

    def recover(self, seen: SeenBatch) -> Read:
        return self.read(split_messages(self.known.lift_smashed(seen.smashed), self.messages))
