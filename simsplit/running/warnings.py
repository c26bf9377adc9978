"""A run warns its user of likely mistakes before the first round, and of idle methods after it."""

from collections.abc import Callable, Iterator, Sequence

from simsplit.data import Prepared
from simsplit.methods import MethodConfig
from simsplit.progress import Observer, RoundEnded
from simsplit.running.accounting import MISSING, lacks_accountant
from simsplit.scenario import Scenario
from simsplit.scenario.warnings import list_data_warnings, list_warnings


def list_first_warnings(scenario: Scenario, data: Prepared, *, resumed: bool) -> Iterator[str]:
    """Yield the warnings about a scenario and its data; a resumed run repeats only `MISSING`."""
    if lacks_accountant(scenario):
        yield MISSING
    if resumed:
        return
    yield from list_warnings(scenario)
    if data.has_samples:
        yield from list_data_warnings(scenario, data)


class Idle(Observer):
    """The observer that warns of methods that changed no token or label in their first round.

    Such a defence is listed in the scenario and protects nothing.
    """

    def __init__(self, methods: Sequence[MethodConfig], warn: Callable[[str], None]) -> None:
        self.methods, self._warn, self._checked = methods, warn, False

    def round(self, ended: RoundEnded) -> None:
        """Check the methods' shares of changes in the first round of training."""
        if self._checked or not ended.main:
            return
        self._checked = True
        for index, method in enumerate(self.methods):
            column = method.changed_share_column
            # Clients that took no step report no share.
            shares = [row[column] for row in ended.clients if column is not None and column in row]
            if shares and not any(shares):
                self._warn(
                    f"scenario.method.{index}: {column} is 0 in round {ended.number}: the method "
                    "changed nothing, so it hides nothing; a lower epsilon changes more"
                )
