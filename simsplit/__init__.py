"""simsplit: many clients train heads and tails against one shared trunk, and the cut is watched.

>>> from simsplit import load_scenario, run
>>> result = run(load_scenario("scenarios/quickstart.yaml"))  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simsplit.assembly.trained import load_trained
    from simsplit.auditing.audits import audit
    from simsplit.boards.board_frames import board
    from simsplit.errors import DataError, ProtocolError, RunError, ScenarioError, SimsplitError
    from simsplit.evidence.paper_frames import papers
    from simsplit.forecasting.planning import plan, plan_sweep
    from simsplit.methods.method import CodecConfig, Method, MethodConfig
    from simsplit.models import SplitModel
    from simsplit.opened_run import OpenedRun as Run
    from simsplit.report.numbers import compare
    from simsplit.report.ranking import rank
    from simsplit.scenario import Scenario, load_scenario, load_sweep, own
    from simsplit.sweep import run_sweep
    from simsplit.valuing.client_values import value_clients
    from simsplit.whole_run import run
    from simsplit.wires.recording import record
    from simsplit.wires.transcribing import transcribe

__version__: str  # of the installed package, whose tag named it

_HOMES = {
    "CodecConfig": "simsplit.methods.method.CodecConfig",
    "DataError": "simsplit.errors.DataError",
    "Method": "simsplit.methods.method.Method",
    "MethodConfig": "simsplit.methods.method.MethodConfig",
    "ProtocolError": "simsplit.errors.ProtocolError",
    "Run": "simsplit.opened_run.OpenedRun",
    "RunError": "simsplit.errors.RunError",
    "Scenario": "simsplit.scenario.Scenario",
    "ScenarioError": "simsplit.errors.ScenarioError",
    "SimsplitError": "simsplit.errors.SimsplitError",
    "audit": "simsplit.auditing.audits.audit",
    "board": "simsplit.boards.board_frames.board",
    "compare": "simsplit.report.numbers.compare",
    "load_scenario": "simsplit.scenario.load_scenario",
    "SplitModel": "simsplit.models.SplitModel",
    "load_sweep": "simsplit.scenario.load_sweep",
    "load_trained": "simsplit.assembly.trained.load_trained",
    "own": "simsplit.scenario.own",
    "papers": "simsplit.evidence.paper_frames.papers",
    "pack_bits": "simsplit.methods.bits.pack_bits",
    "plan": "simsplit.forecasting.planning.plan",
    "plan_sweep": "simsplit.forecasting.planning.plan_sweep",
    "rank": "simsplit.report.ranking.rank",
    "record": "simsplit.wires.recording.record",
    "run": "simsplit.whole_run.run",
    "run_sweep": "simsplit.sweep.run_sweep",
    "transcribe": "simsplit.wires.transcribing.transcribe",
    "unpack_bits": "simsplit.methods.bits.unpack_bits",
    "value_clients": "simsplit.valuing.client_values.value_clients",
}

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
    "audit",
    "board",
    "compare",
    "load_scenario",
    "load_sweep",
    "load_trained",
    "own",
    "pack_bits",
    "papers",
    "plan",
    "plan_sweep",
    "rank",
    "record",
    "run",
    "run_sweep",
    "transcribe",
    "unpack_bits",
    "value_clients",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for: `simsplit --help` needs none of torch."""
    if name == "__version__":
        return _read_version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file, _, own_name = _HOMES[name].rpartition(".")
    return getattr(import_module(file), own_name)


def _read_version() -> str:
    """Return the installed version, or "0+checkout" for files that are run without installing."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("simsplit")
    except PackageNotFoundError:
        return "0+checkout"


def __dir__() -> list[str]:
    """List the public names, for completion: none of them is loaded yet."""
    return sorted({*__all__, "__version__"})
