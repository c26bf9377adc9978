"""The run directory: its tables, its checkpoints, what is said of it, and `Run`, which reads it."""

from simsplit.results.directory import (
    CHECKPOINTS,
    DATA,
    HOLDINGS,
    SCENARIO,
    SUMMARY,
    TRACEBACK,
    RunWriter,
)
from simsplit.results.run import Run, saved_scenario
from simsplit.results.sweep_directory import (
    SWEEP,
    CellEntry,
    RunProgress,
    SweepDirectory,
    progress_of,
    summary_of,
)

__all__ = [
    "CHECKPOINTS",
    "DATA",
    "HOLDINGS",
    "SCENARIO",
    "SUMMARY",
    "SWEEP",
    "TRACEBACK",
    "CellEntry",
    "Run",
    "RunProgress",
    "RunWriter",
    "SweepDirectory",
    "progress_of",
    "saved_scenario",
    "summary_of",
]
