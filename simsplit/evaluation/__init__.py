"""How a run is scored: by metrics over held-out data, and over texts that its model generates."""

from simsplit.evaluation.evaluator import (
    ATTACK_SUCCESS,
    TRIGGERED,
    EvaluateConfig,
    Evaluator,
    Split,
    choose,
    columns_of,
)

__all__ = [
    "ATTACK_SUCCESS",
    "TRIGGERED",
    "EvaluateConfig",
    "Evaluator",
    "Split",
    "choose",
    "columns_of",
]
