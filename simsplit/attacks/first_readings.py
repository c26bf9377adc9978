"""Attacks on sessions that end with the first reading: `mc`, `session_sip` and `dsi`.

`mc` (model completion, Fu et al. 2022) applies the public tail to the trunk's outputs: it predicts
each next token, and so the response that the model wrote. The pretrained tail is used unchanged;
`mc_trained` trains copies of head and tail first.
`session_sip` (SIP, Chen et al. 2024) reads the head's outputs with an inverter. `dsi` (Gu et al.
2026) takes the prompt from SIP and the response from the tail. Other attacks start from any of the
three.
"""

from typing import ClassVar, Literal

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.openings import READS_BOTH, OpenedConfig, SessionAttackConfig, Start
from simsplit.attacks.session_attack import SessionAttack, Steps
from simsplit.attacks.session_records import Record
from simsplit.attacks.threat import Knows, Sees, Threat, When


class Reading(SessionAttack):
    """An attack that ends with the first reading."""

    def read(self, record: Record) -> Steps:
        # There are no steps to yield; this makes a generator of `read`, as in other attacks.
        yield from ()
        tokens = self.opening.read(record)
        assert tokens is not None, "none of these attacks starts from zeros"
        return tokens


class McConfig(SessionAttackConfig):
    """Model completion: the pretrained tail's predictions from the trunk's outputs of sessions."""

    kind: Literal["mc"] = "mc"
    threat: ClassVar[Threat] = Threat((Sees.RETURNED,), (Knows.TAIL,), when=When.WRITING)
    opening: ClassVar[Start] = "mc"

    def build(self, known: Knowledge) -> Reading:
        return Reading(self, known)


class SessionSipConfig(OpenedConfig):
    """An inverter of the pretrained head, which reads sessions as `sip` reads texts of training."""

    kind: Literal["session_sip"] = "session_sip"
    opening: ClassVar[Start] = "sip"

    def build(self, known: Knowledge) -> Reading:
        return Reading(self, known)


class DsiConfig(OpenedConfig):
    """An inverter of the pretrained head for prompts, and the pretrained tail for responses."""

    kind: Literal["dsi"] = "dsi"
    threat: ClassVar[Threat] = READS_BOTH
    opening: ClassVar[Start] = "dsi"

    def build(self, known: Knowledge) -> Reading:
        return Reading(self, known)
