"""The columns of a run's tables follow from its scenario."""

from simsplit.attacking import Attacking
from simsplit.detectors.watch import Watch
from simsplit.evaluation import ATTACK_SUCCESS_ALL
from simsplit.results.ledger import TableColumns
from simsplit.rows import DetectionRow
from simsplit.scenario import Scenario


def table_columns(scenario: Scenario) -> TableColumns:
    """Return the columns that this scenario adds to those of every run."""
    return TableColumns(
        scenario.figures,
        own_figures=_own_figures(scenario),
        handed=scenario.shares,
        methods=bool(scenario.method),
        cohort=not scenario.cohort.whole,
        staleness=scenario.schedule.kind == "asynchronous",
        malicious=bool(scenario.detectors or scenario.clients.malicious),
        signals=Watch.list_columns(scenario.detectors),
        detections=DetectionRow.columns() if scenario.detectors else (),
        reported=[name for method in scenario.method for name in method.columns],
        attacked=Attacking.columns(scenario),
    )


def _own_figures(scenario: Scenario) -> list[str]:
    """Return the figures of a client's own model; a mean over all clients is none."""
    own = scenario.clients.heads == "per_client"
    return [name for name in scenario.figures if own and name != ATTACK_SUCCESS_ALL]
