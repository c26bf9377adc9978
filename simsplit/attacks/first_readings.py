"""Attacks on sessions that end with the first reading: `mc`, `session_sip` and `dsi`.

`mc` (model completion, Fu et al. 2022) puts what the trunk made through the tail that everyone can
download: it foretells each next token, and so what the model wrote. `session_sip` (SIP, Chen et al.
2024) reads what the head put out. `dsi` (Gu et al. 2026) takes the prompt from SIP and the response
from the tail. Other attacks start from any of the three.
"""

from typing import Literal

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.openings import OpenedConfig, Opening, SessionAttackConfig, Start
from simsplit.attacks.session_attack import SessionAttack, Steps
from simsplit.attacks.session_records import Record


class Reading(SessionAttack):
    """An attack that ends with the first reading."""

    def read(self, record: Record) -> Steps:
        yield from ()
        tokens = self.opening.read(record)
        assert tokens is not None, "these openings read"
        return tokens


def _reading(config: SessionAttackConfig, known: Knowledge) -> Reading:
    return Reading(config, Opening(config.opening, config, known), known)


class McConfig(SessionAttackConfig):
    """Puts what the trunk makes of sessions through the pretrained tail."""

    kind: Literal["mc"] = "mc"

    @property
    def opening(self) -> Start:
        return "mc"

    def build(self, known: Knowledge) -> Reading:
        return _reading(self, known)


class SessionSipConfig(OpenedConfig):
    """Reads sessions by an inverter of the pretrained head, as `sip` reads texts of training."""

    kind: Literal["session_sip"] = "session_sip"

    @property
    def opening(self) -> Start:
        return "sip"

    def build(self, known: Knowledge) -> Reading:
        return _reading(self, known)


class DsiConfig(OpenedConfig):
    """Reads prompts by an inverter of the pretrained head, and responses by the pretrained tail."""

    kind: Literal["dsi"] = "dsi"

    @property
    def opening(self) -> Start:
        return "dsi"

    def build(self, known: Knowledge) -> Reading:
        return _reading(self, known)
