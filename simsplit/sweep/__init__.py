"""A sweep runs many cells of one scenario, one by one or in workers, and can be resumed."""

from simsplit.sweep.nodes import Cluster
from simsplit.sweep.running import run_sweep

__all__ = ["Cluster", "run_sweep"]
