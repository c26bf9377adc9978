"""Observers watch a run and record it; this table names the kinds that a scenario may use."""

from simsplit.observers.jsonl import JsonlConfig
from simsplit.observers.mlflow import MLflowConfig
from simsplit.observers.observer import ObserverConfig
from simsplit.observers.tensorboard import TensorBoardConfig
from simsplit.observers.wandb import WandbConfig
from simsplit.observers.wire_recorder import TranscriptConfig

OBSERVERS: dict[str, type[ObserverConfig]] = {
    "jsonl": JsonlConfig,
    "transcript": TranscriptConfig,
    "tensorboard": TensorBoardConfig,
    "mlflow": MLflowConfig,
    "wandb": WandbConfig,
}

__all__ = ["OBSERVERS", "ObserverConfig"]
