"""What the user is warned of before a run's first round."""

from collections.abc import Iterator

from simsplit.data import Prepared
from simsplit.running.accounting import MISSING, unknown_to
from simsplit.scenario import Scenario
from simsplit.scenario.doubts import doubts_of, doubts_of_data


def first_warnings(scenario: Scenario, data: Prepared, *, resumed: bool) -> Iterator[str]:
    """Yield the warnings about a scenario and its data; of a resumed run, only what is missing."""
    if unknown_to(scenario):
        yield MISSING
    if resumed:
        return
    yield from doubts_of(scenario)
    if data.at_hand:
        yield from doubts_of_data(scenario, data)
