"""A run warns its user before its first round, and of idle methods after it."""

from collections.abc import Callable, Iterator, Sequence

from simsplit.data import Prepared
from simsplit.methods import MethodConfig
from simsplit.progress import Observer, RoundTold
from simsplit.running.accounting import MISSING, unknown_to
from simsplit.scenario import Scenario
from simsplit.scenario.warnings import list_data_warnings, list_warnings


def first_warnings(scenario: Scenario, data: Prepared, *, resumed: bool) -> Iterator[str]:
    """Yield the warnings about a scenario and its data; of a resumed run, only what is missing."""
    if unknown_to(scenario):
        yield MISSING
    if resumed:
        return
    yield from list_warnings(scenario)
    if data.at_hand:
        yield from list_data_warnings(scenario, data)


class Idle(Observer):
    """Warns of methods that changed no token, or no label, in the first round of training.

    Such a defence is on and does nothing, at a strength that changes nothing.
    """

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
