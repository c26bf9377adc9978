"""A run as its user opens it: its tables, and what rooms above `results` make of them."""

from functools import cached_property
from typing import TYPE_CHECKING

from simsplit.results import SCENARIO, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simsplit.scenario import Scenario


class OpenedRun(Run):
    """A run directory's content, its scenario and a figure of its clients. Its public name is Run.

    >>> from simsplit import Run
    >>> Run.load("runs/first").plot_clients()  # doctest: +SKIP
    """

    @cached_property
    def scenario(self) -> "Scenario":
        """The resolved scenario: `run.scenario.clients.count`, or `["clients"]["count"]`.

        A run with plugins' parts needs `Run.load(path, plugins=[...])`; `fields` needs none.
        """
        from simsplit.scenario import load_scenario

        return load_scenario(self.path / SCENARIO, plugins=self.plugins)

    def plot_clients(self) -> "Figure":
        """Draw clients' losses and accuracies over rounds, and who helps if it was measured."""
        from simsplit.report.client_tables import draw_clients

        return draw_clients(self)
