"""A run directory has a run's tables, checkpoints and facts; `Run` reads it."""

from simsplit.results.directory import (
    CHECKPOINTS,
    DATA,
    HOLDINGS,
    SCENARIO,
    SUMMARY,
    TRACEBACK,
    TUNED,
    RunWriter,
)
from simsplit.results.read_tables import load_saved_scenario
from simsplit.results.run import Run
from simsplit.results.sweep_directory import (
    SWEEP,
    CellEntry,
    RunProgress,
    SweepDirectory,
    read_progress,
    read_summary,
)

__all__ = [
    "CHECKPOINTS",
    "DATA",
    "HOLDINGS",
    "SCENARIO",
    "SUMMARY",
    "SWEEP",
    "TRACEBACK",
    "TUNED",
    "CellEntry",
    "Run",
    "RunProgress",
    "RunWriter",
    "SweepDirectory",
    "load_saved_scenario",
    "read_progress",
    "read_summary",
]
