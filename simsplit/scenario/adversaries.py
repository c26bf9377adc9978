"""Detectors, attacks and poisons must have different names in tables, and clients that exist."""

from collections.abc import Sequence

from simsplit.attacks import AttackConfig
from simsplit.detectors import DetectorConfig
from simsplit.errors import ScenarioError
from simsplit.parties.train_config import ClientsConfig
from simsplit.poisons.malicious import FIELD, MaliciousConfig
from simsplit.results.recovers import RECOVERS


def refuse_ambiguous(
    detectors: Sequence[DetectorConfig],
    attacks: Sequence[AttackConfig],
    clients: ClientsConfig,
    target: int,
) -> None:
    """Raise ScenarioError for entries that tables would confuse, or clients that do not exist."""
    _refuse_two_aims(clients.malicious)
    _refuse_twins("detectors", [detector.title for detector in detectors])
    for index, detector in enumerate(detectors):
        for client in detector.trusted:
            _refuse_stranger(f"detectors.{index}.root", client, clients.count)
    _refuse_stranger("targets.client", target, clients.count)
    # Tables list floors beside attacks, so no attack may have the name of one.
    floors = [name for recovered in RECOVERS.values() for name in recovered.floors]
    _refuse_twins("attacks", [attack.title for attack in attacks], floors)
    # The wire has room for one forger.
    forging = [index for index, attack in enumerate(attacks) if attack.active]
    if len(forging) > 1:
        raise ScenarioError(
            f"attacks.{forging[1]}",
            f"is the second attack that changes the server's answers, after attacks.{forging[0]}; "
            "only one is allowed",
        )


def _refuse_two_aims(malicious: MaliciousConfig | None) -> None:
    """Raise ScenarioError for a second poison with an aim: there is one `attack_success`."""
    poisons = malicious.poison if malicious else ()
    aims = [index for index, poison in enumerate(poisons) if poison.aims]
    if len(aims) > 1:
        raise ScenarioError(
            f"{FIELD}.poison.{aims[1]}",
            f"is the second poison that aims at test samples, after {FIELD}.poison.{aims[0]}; only "
            "one is allowed, since attack_success measures one",
        )


def _refuse_stranger(field: str, client: int, count: int) -> None:
    """Raise ScenarioError for a client number out of range."""
    if not 0 <= client < count:
        raise ScenarioError(field, f"must be a client between 0 and {count - 1}, got {client}")


def _refuse_twins(where: str, titles: Sequence[str], taken: Sequence[str] = ()) -> None:
    """Raise ScenarioError for two entries with one title, by which tables distinguish them."""
    for index, title in enumerate(titles):
        if title in (*taken, *titles[:index]):
            raise ScenarioError(
                f"{where}.{index}.name", f"'{title}' is taken; give each a name of its own"
            )
