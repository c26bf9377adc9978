"""A defence that can be on and do nothing, at a strength that changes nothing, is told of."""

from collections.abc import Callable, Sequence

from simsplit.methods import MethodConfig
from simsplit.progress import Observer, RoundTold


class Idle(Observer):
    """Warns of methods that changed no token, or no label, in the first round of training."""

    def __init__(self, methods: Sequence[MethodConfig], warn: Callable[[str], None]) -> None:
        self.methods, self._warn, self.looked = methods, warn, False

    def round(self, told: RoundTold) -> None:
        """Look at the first round of training."""
        if self.looked or not told.main:
            return
        self.looked = True
        for index, method in enumerate(self.methods):
            column = method.changes
            # who took no step has no share to report
            shares = [row[column] for row in told.clients if column is not None and column in row]
            if shares and not any(shares):
                self._warn(
                    f"scenario.method.{index}: {column} is 0 in round {told.number}: it "
                    "changed nothing, and so hides nothing; a lower epsilon changes more"
                )
