"""A sweep runs many cells of one scenario, one by one or in workers, and can be resumed."""

from simsplit.sweep.running import SweepResult, run_sweep

__all__ = ["SweepResult", "run_sweep"]
