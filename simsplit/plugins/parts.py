"""A plugin adds parts by the dicts that its module exports; this registry names the dicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from simsplit.attacks import ATTACKS, AttackConfig
from simsplit.config import Config
from simsplit.data import PARTITIONS, SOURCES, Dealing, SourceConfig
from simsplit.data.image_tables import TableConfig
from simsplit.data.texts import TextTable
from simsplit.detectors import DETECTORS, DetectorConfig
from simsplit.evaluation.evaluator import AnyMetric
from simsplit.methods import METHODS, MethodConfig
from simsplit.models import MODELS
from simsplit.models.fresh import SplitConfig
from simsplit.observers import OBSERVERS, ObserverConfig
from simsplit.poisons import POISONS, PoisonConfig
from simsplit.schedules.averaging import StrategyConfig
from simsplit.schedules.strategies import STRATEGIES
from simsplit.topologies import TOPOLOGIES


@dataclass(frozen=True)
class Part:
    """A kind of parts that plugins can add."""

    word: str
    """The name of such a part in messages."""
    bases: tuple[type[Config], ...]
    """A config must be a subclass of one of these."""
    shipped: Mapping[str, type[Config]]


PARTS: dict[str, Part] = {
    "METHODS": Part("method", (MethodConfig,), METHODS),
    "MODELS": Part("model", (SplitConfig,), MODELS),
    "SOURCES": Part("data source", (SourceConfig, TableConfig, TextTable), SOURCES),
    "PARTITIONS": Part("partition", (Dealing,), PARTITIONS),
    "ATTACKS": Part("attack", (AttackConfig,), ATTACKS),
    "DETECTORS": Part("detector", (DetectorConfig,), DETECTORS),
    "POISONS": Part("poison", (PoisonConfig,), POISONS),
    "STRATEGIES": Part("strategy", (StrategyConfig,), STRATEGIES),
    "OBSERVERS": Part("observer", (ObserverConfig,), OBSERVERS),
}
"""Kinds of parts by the name of the dict (kind -> config class) that a plugin exports."""
METRICS = "METRICS"
"""The dict of metrics, which are plain functions of outputs and labels: name -> function."""
SHAPES = "TOPOLOGIES"
"""The dict of topologies, which are plain values: name -> Topology."""
EXPORTS = (*PARTS, METRICS, SHAPES)
WORDS: dict[tuple[str, ...], str] = {get_args(AnyMetric): METRICS, tuple(TOPOLOGIES): SHAPES}
"""Values of fields that name such parts: the values that ship -> the dict that adds to them."""
