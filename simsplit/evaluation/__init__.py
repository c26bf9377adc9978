"""How a run is scored: by figures over held-out data, and by what its model writes."""

from simsplit.evaluation.evaluator import (
    ATTACK_SUCCESS,
    TRIGGERED,
    EvaluateConfig,
    Evaluator,
    Split,
    choose,
)

__all__ = ["ATTACK_SUCCESS", "TRIGGERED", "EvaluateConfig", "Evaluator", "Split", "choose"]
