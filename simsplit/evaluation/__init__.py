"""A run is scored by metrics over held-out data, and over texts that its model generates."""

from simsplit.evaluation.evaluator import (
    ATTACK_SUCCESS,
    ATTACK_SUCCESS_ALL,
    TRIGGERED,
    EvaluateConfig,
    Evaluator,
    Split,
    choose,
    list_figure_columns,
    list_success_columns,
)

__all__ = [
    "ATTACK_SUCCESS",
    "ATTACK_SUCCESS_ALL",
    "TRIGGERED",
    "EvaluateConfig",
    "Evaluator",
    "Split",
    "choose",
    "list_figure_columns",
    "list_success_columns",
]
