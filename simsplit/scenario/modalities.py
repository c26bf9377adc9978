"""Parts made for images in a scenario of texts, and the other way round: refused as it is read."""

from collections.abc import Mapping, Sequence

from simsplit.attacks import ATTACKS, AttackConfig
from simsplit.data import DataConfig
from simsplit.data.texts import TextTable
from simsplit.errors import ScenarioError
from simsplit.methods import METHODS, MethodConfig
from simsplit.methods.base import IMAGES, TEXTS, Modality
from simsplit.models.fresh import SplitConfig
from simsplit.poisons.base import BatchPoisonConfig
from simsplit.poisons.malicious import FIELD, MaliciousConfig


def refuse_strange_attacks(
    attacks: Sequence[AttackConfig], data: DataConfig, model: SplitConfig
) -> None:
    """ScenarioError for attacks that cannot recover what the data are, or not by that model."""
    reads = _read(data)
    for index, attack in enumerate(attacks):
        _refuse_misfit(f"attacks.{index}.kind", attack, ATTACKS, reads, "does not recover")
        if attack.writes and model.word != "causal_lm":
            raise ScenarioError(
                f"attacks.{index}.kind",
                f"{attack.word} reads words off the gradients of what the model writes, and a "
                f"{model.word} writes none; use a causal_lm",
            )


def refuse_strange_methods(methods: Sequence[MethodConfig], data: DataConfig) -> None:
    """ScenarioError for methods that cannot be used on the data, or lack public ones."""
    reads = _read(data)
    for index, method in enumerate(methods):
        _refuse_misfit(f"method.{index}.kind", method, METHODS, reads, "cannot be used on")
        if method.public and not (data.auxiliary or data.public or data.support):
            raise ScenarioError(
                f"method.{index}",
                f"{method.word} needs public texts: set data.auxiliary to a part of the training "
                "texts, such as 0.2, or data.public to a source of its own",
            )
        if (
            method.pads_right
            and isinstance(data.source, TextTable)
            and data.source.padding == "left"
        ):
            raise ScenarioError(
                "data.source.padding",
                f"got left, but {method.word} mixes texts padded on the right",
            )


def refuse_strange_schemes(
    data: DataConfig, aggregation: str, malicious: MaliciousConfig | None
) -> None:
    """ScenarioError for what takes samples to be images, all of one shape."""
    if _read(data) == IMAGES:
        return
    if aggregation == "fused":
        raise ScenarioError(
            "aggregation",
            "got fused, which lays clients' batches side by side, and those of texts differ in "
            "length; allowed: splitfed_v1, splitfed_v2",
        )
    for index, poison in enumerate(malicious.poison if malicious else ()):
        if isinstance(poison, BatchPoisonConfig):
            raise ScenarioError(
                f"{FIELD}.poison.{index}.kind",
                f"{poison.word} changes images and their classes, got texts; allowed: tamper, "
                "replace",
            )


def _refuse_misfit(
    field: str,
    part: AttackConfig | MethodConfig,
    parts: Mapping[str, type[AttackConfig]] | Mapping[str, type[MethodConfig]],
    reads: frozenset[Modality],
    why: str,
) -> None:
    if not reads <= part.suits:
        (modality,) = reads
        fitting = ", ".join(kind for kind, each in parts.items() if reads <= each.suits)
        raise ScenarioError(field, f"{part.word} {why} {modality}; allowed: {fitting}")


def _read(data: DataConfig) -> frozenset[Modality]:
    return TEXTS if isinstance(data.source, TextTable) else IMAGES
