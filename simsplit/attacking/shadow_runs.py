"""Shadow runs are runs of an attacker on its own data: what their models make of candidates.

They are cells of a sweep over seeds, with `data.shadow` set to the seed of the run under attack. So
they resume and run on several machines as all cells do.
"""

from collections.abc import Iterator
from pathlib import Path

from simsplit.assembly.state import restore
from simsplit.attacking.exposing import read_losses
from simsplit.attacks.member_attack import CANDIDATES, Losses
from simsplit.data import Prepared
from simsplit.errors import RunError
from simsplit.parties.feed import Exam
from simsplit.results import SCENARIO
from simsplit.results.sweep_directory import SWEEP, SweepDirectory
from simsplit.scenario import Scenario, load_scenario

FEWEST = 2
_SAME = ("model", "method", "topology")


def read_shadows(folder: Path, victim: Scenario, data: Prepared, exam: Exam) -> list[Losses]:
    """Return what each shadow model makes of the candidates; RunError says why one is none."""
    paths = list(_list_finished(folder))
    if len(paths) < FEWEST:
        raise RunError(
            f"{folder} has {len(paths)} finished shadow runs, and lira needs {FEWEST} or more; run "
            f"the scenario as a sweep over other seeds with data.shadow: {victim.seed}"
        )
    return [_read_shadow(path, victim, data, exam) for path in paths]


def _list_finished(folder: Path) -> Iterator[Path]:
    """Yield the finished cells of a sweep."""
    if not (folder / SWEEP).is_file():
        raise RunError(f"{folder} is no sweep; lira's shadows are the cells of one")
    sweep = SweepDirectory.load(folder)
    yield from (sweep.run_path(c.name) for c in sweep.cells if sweep.is_finished(c.name))


def _read_shadow(path: Path, victim: Scenario, data: Prepared, exam: Exam) -> Losses:
    """Return what one shadow model makes of the candidates."""
    original = load_scenario(path / SCENARIO, {}, victim.plugins)
    if original.data.shadow != victim.seed:
        raise RunError(
            f"{path} is no shadow run of seed {victim.seed}: its data.shadow is "
            f"{original.data.shadow}, so it may have trained on candidates"
        )
    for name in _SAME:
        if original[name] != victim[name]:
            raise RunError(f"{path} has another {name} than the run under attack")
    # Its weights, in parts that have the candidates of the run under attack.
    asking = original.model_copy(update={"attacks": victim.attacks, "targets": victim.targets})
    client = victim.targets.client
    _, parts, done = restore(path, original, data, client, asking)
    return read_losses(parts, client, CANDIDATES, exam, done.round)
