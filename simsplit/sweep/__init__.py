"""Many cells of one scenario: planned, run one by one or side by side, resumed."""

from simsplit.sweep.running import SweepResult, run_sweep

__all__ = ["SweepResult", "run_sweep"]
