"""simsplit: many clients train heads and tails against one shared trunk, and the cut is watched.

>>> from simsplit import load_scenario, run
>>> result = run(load_scenario("scenarios/quickstart.yaml"))  # doctest: +SKIP
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from simsplit.renamed import OldModules, find_by_old_name

if TYPE_CHECKING:
    from simsplit.assembly.trained import load_trained
    from simsplit.boards.data_frames import board
    from simsplit.errors import DataError, ProtocolError, RunError, ScenarioError, SimsplitError
    from simsplit.evidence.data_frames import papers
    from simsplit.experiment import run
    from simsplit.forecasting.planning import plan, plan_sweep
    from simsplit.methods.method import CodecConfig, Method, MethodConfig
    from simsplit.models import SplitModel
    from simsplit.report.numbers import compare
    from simsplit.report.ranking import rank
    from simsplit.results import Run
    from simsplit.scenario import Scenario, load_scenario, load_sweep, own
    from simsplit.sweep import run_sweep
    from simsplit.valuing.measuring import value_clients

__version__ = "0.1.0"

_HOMES = {
    "CodecConfig": "simsplit.methods.method",
    "DataError": "simsplit.errors",
    "Method": "simsplit.methods.method",
    "MethodConfig": "simsplit.methods.method",
    "ProtocolError": "simsplit.errors",
    "Run": "simsplit.results",
    "RunError": "simsplit.errors",
    "Scenario": "simsplit.scenario",
    "ScenarioError": "simsplit.errors",
    "SimsplitError": "simsplit.errors",
    "board": "simsplit.boards.data_frames",
    "compare": "simsplit.report.numbers",
    "load_scenario": "simsplit.scenario",
    "SplitModel": "simsplit.models",
    "load_sweep": "simsplit.scenario",
    "load_trained": "simsplit.assembly.trained",
    "own": "simsplit.scenario",
    "papers": "simsplit.evidence.data_frames",
    "plan": "simsplit.forecasting.planning",
    "plan_sweep": "simsplit.forecasting.planning",
    "rank": "simsplit.report.ranking",
    "run": "simsplit.experiment",
    "run_sweep": "simsplit.sweep",
    "value_clients": "simsplit.valuing.measuring",
}

sys.meta_path.append(OldModules())

__all__ = [
    "CodecConfig",
    "DataError",
    "Method",
    "MethodConfig",
    "ProtocolError",
    "Run",
    "RunError",
    "Scenario",
    "ScenarioError",
    "SimsplitError",
    "SplitModel",
    "board",
    "compare",
    "load_scenario",
    "load_sweep",
    "load_trained",
    "own",
    "papers",
    "plan",
    "plan_sweep",
    "rank",
    "run",
    "run_sweep",
    "value_clients",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for: `simsplit --help` needs none of torch."""
    if name not in _HOMES:
        return find_by_old_name(__name__, name)
    return getattr(import_module(_HOMES[name]), name)
