"""SIP (Chen et al., CCS 2024): tokens are read off smashed data by an inverter of the public head.

It learns on what the pretrained head puts out for public texts; `epochs: 20`, `batch_size: 6`
(with Adam at 1e-3 and a weight decay of 1e-5) are the published code's. Of several messages for a
text each is read as if it were one, and the surest is its guess.
"""

from typing import Literal

from simsplit.attacks.inverters import InverterConfig
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import Read, SeenBatch, split_messages


class SipConfig(InverterConfig):
    """Reads tokens off smashed data by an inverter of the pretrained head."""

    kind: Literal["sip"] = "sip"

    def build(self, known: Knowledge) -> "Sip":
        return Sip(self, known)


class Sip(Inverting):
    """Applies the inverter to each message."""

    def recover(self, seen: SeenBatch) -> Read:
        return self.read(split_messages(self.known.smashed(seen.smashed), self.messages))
