"""The bench measures what a cut and its method cost, as ratios to a plain loop on this machine.

What only those who change simsplit measure is in tools/bench.py of a checkout.
"""

from collections.abc import Callable, Iterator

from simsplit.bench.overhead import overhead, own
from simsplit.bench.sides import Figures, Say
from simsplit.report.tables import Table

Bench = Callable[[str, bool, Say], Iterator[tuple[Table, Figures]]]

__all__ = ["Bench", "overhead", "own"]
