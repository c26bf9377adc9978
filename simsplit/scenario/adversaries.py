"""Detectors, attacks and poisons that tables could not tell apart, or of clients that are none."""

from collections.abc import Sequence

from simsplit.attacks import AttackConfig
from simsplit.detectors import DetectorConfig
from simsplit.errors import ScenarioError
from simsplit.parties.config import ClientsConfig
from simsplit.poisons.malicious import FIELD, MaliciousConfig
from simsplit.results.recovers import RECOVERS


def refuse_ambiguous(
    detectors: Sequence[DetectorConfig],
    attacks: Sequence[AttackConfig],
    clients: ClientsConfig,
    target: int,
) -> None:
    """ScenarioError for two of which the tables could hold one alone, and for strange clients."""
    _refuse_two_aims(clients.malicious)
    _refuse_twins("detectors", [detector.title for detector in detectors])
    for index, detector in enumerate(detectors):
        for client in detector.trusted:
            _refuse_stranger(f"detectors.{index}.root", client, clients.count)
    _refuse_stranger("targets.client", target, clients.count)
    floors = [name for recovered in RECOVERS.values() for name in recovered.floors]
    _refuse_twins("attacks", [attack.title for attack in attacks], floors)
    forging = [index for index, attack in enumerate(attacks) if attack.active]
    if len(forging) > 1:
        raise ScenarioError(
            f"attacks.{forging[1]}", "a second one that changes what the server answers"
        )


def _refuse_two_aims(malicious: MaliciousConfig | None) -> None:
    poisons = malicious.poison if malicious else ()
    aims = [index for index, poison in enumerate(poisons) if poison.aims]
    if len(aims) > 1:
        raise ScenarioError(
            f"{FIELD}.poison.{aims[1]}",
            "a second one that aims at test samples; attack_success can be of one alone",
        )


def _refuse_stranger(field: str, client: int, count: int) -> None:
    if not 0 <= client < count:
        raise ScenarioError(field, f"must be a client between 0 and {count - 1}, got {client}")


def _refuse_twins(where: str, titles: Sequence[str], taken: Sequence[str] = ()) -> None:
    """Tables tell the entries of a list apart by their titles."""
    for index, title in enumerate(titles):
        if title in (*taken, *titles[:index]):
            raise ScenarioError(
                f"{where}.{index}.name", f"'{title}' is taken; give each a name of its own"
            )
