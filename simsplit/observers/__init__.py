"""What a scenario has watch its run, one file each, and the literal table of them."""

from simsplit.observers.base import ObserverConfig
from simsplit.observers.jsonl import JsonlConfig

OBSERVERS: dict[str, type[ObserverConfig]] = {"jsonl": JsonlConfig}

__all__ = ["OBSERVERS", "ObserverConfig"]
