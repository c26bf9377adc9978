"""The run directory: its tables, its checkpoints, what is said of it, and `Run`, which reads it."""

from simsplit.results.directory import (
    CHECKPOINTS,
    SCENARIO,
    SUMMARY,
    TRACEBACK,
    Run,
    RunWriter,
)

__all__ = ["CHECKPOINTS", "SCENARIO", "SUMMARY", "TRACEBACK", "Run", "RunWriter"]
