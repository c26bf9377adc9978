"""Poisons without effect, detectors and attacks without sight: refused as a scenario is read."""

from collections.abc import Sequence

from simsplit.attacks import AttackConfig
from simsplit.detectors import DetectorConfig
from simsplit.errors import ScenarioError
from simsplit.methods import MethodConfig
from simsplit.poisons.malicious import FIELD, MaliciousConfig
from simsplit.poisons.tampering import ReplaceConfig, TamperConfig

_U_SHAPED = ("features", "features_grad")
"""Signals that a vanilla cut does not have."""
TAKEN = ("black", "mean_image", "originals", "random_words", "frequent_word")
"""Names in the tables that no attack may have."""
_SMASHED = frozenset({"payload", "smashed_grad"})


def refuse_idle_poisons(
    malicious: MaliciousConfig | None, topology: str, shared: str | None
) -> None:
    """ScenarioError for what could not do anything here."""
    if malicious is None:
        return
    aims = [index for index, poison in enumerate(malicious.poison) if poison.aims]
    if len(aims) > 1:
        raise ScenarioError(
            f"{FIELD}.poison.{aims[1]}",
            "a second one that aims at test samples; attack_success can be of one alone",
        )
    for index, poison in enumerate(malicious.poison):
        field = f"{FIELD}.poison.{index}"
        if isinstance(poison, ReplaceConfig) and shared is None:
            raise ScenarioError(
                field, "clients share nothing that could be replaced; needs clients.heads: shared"
            )
        if isinstance(poison, TamperConfig) and poison.leg in _U_SHAPED and topology == "vanilla":
            raise ScenarioError(f"{field}.leg", f"got {poison.leg}; {_no_such_leg('smashed')}")


def refuse_blind(
    detectors: Sequence[DetectorConfig],
    topology: str,
    schedule: str,
    count: int,
    methods: Sequence[MethodConfig] = (),
) -> None:
    """ScenarioError for detectors that would see nothing, or could not be told apart."""
    _refuse_twins("detectors", [detector.title for detector in detectors])
    for index, detector in enumerate(detectors):
        field = f"detectors.{index}"
        if (wrong := _unseen(detector, topology, methods)) is not None:
            raise ScenarioError(f"{field}.signal", wrong)
        if detector.by_turns and schedule != "per_client":
            raise ScenarioError(
                field, f"judges whole turns of clients: needs schedule per_client, got {schedule}"
            )
        for client in detector.trusted:
            if not 0 <= client < count:
                raise ScenarioError(
                    f"{field}.root", f"must be clients between 0 and {count - 1}, got {client}"
                )


def refuse_unfit_attacks(
    attacks: Sequence[AttackConfig], client: int, count: int, *, auxiliary: bool, on_hosts: bool
) -> None:
    """ScenarioError for attacks that lack what they live on, or could not be told apart."""
    if not attacks:
        return
    if client >= count:
        raise ScenarioError("targets.client", f"must be one of {count} clients, got {client}")
    _refuse_twins("attacks", [attack.title for attack in attacks], TAKEN)
    for index, attack in enumerate(attacks):
        field = f"attacks.{index}"
        if attack.public and not auxiliary:
            raise ScenarioError(
                field,
                f"{attack.title} needs auxiliary data: set data.auxiliary to the part of the "
                "training samples that is public, such as 0.5",
            )
        if attack.online and on_hosts:
            raise ScenarioError(
                field,
                f"{attack.title} follows training by the server's wire, which splitfed_v1's "
                "steps do not pass; choose another aggregation",
            )
    forging = [index for index, attack in enumerate(attacks) if attack.active]
    if len(forging) > 1:
        raise ScenarioError(
            f"attacks.{forging[1]}", "a second one that changes what the server answers"
        )


def _refuse_twins(where: str, titles: Sequence[str], taken: Sequence[str] = ()) -> None:
    """Tables tell the entries of a list apart by their titles."""
    for index, title in enumerate(titles):
        if title in (*taken, *titles[:index]):
            raise ScenarioError(
                f"{where}.{index}.name", f"'{title}' is taken; give each a name of its own"
            )


def _unseen(detector: DetectorConfig, topology: str, methods: Sequence[MethodConfig]) -> str | None:
    """What is wrong with the signals that a detector reads."""
    compared = detector.sketched[:1]
    for signal in (*detector.signals, *compared):
        if topology == "vanilla" and signal in _U_SHAPED:
            return f"got {signal}; {_no_such_leg('payload, smashed_grad')}"
    for method in methods:
        if method.superposes and set(compared) & _SMASHED:
            return f"got {compared[0]}, but {method.word} sends no single samples; use features"
    return None


def _no_such_leg(allowed: str) -> str:
    return f"a vanilla cut has no feature legs; allowed: {allowed}"
