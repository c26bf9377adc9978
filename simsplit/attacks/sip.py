"""SIP (Chen et al., CCS 2024): tokens are read off smashed data by an inverter of the public head.

It learns on what the pretrained head puts out for public texts. Of several messages for a text each
is read as if it were one.
"""

from typing import Literal

from torch import Tensor

from simsplit.attacks.base import Knowledge
from simsplit.attacks.texts import InverterConfig, Inverting, Seen


class SipConfig(InverterConfig):
    """Reads tokens off smashed data by an inverter of the pretrained head."""

    kind: Literal["sip"] = "sip"

    def build(self, known: Knowledge) -> "Sip":
        return Sip(self, known)


class Sip(Inverting):
    """Applies the inverter to smashed data as they are."""

    def recover(self, seen: Seen) -> Tensor:
        return self.read(self.known.smashed(seen.smashed))
