"""A run's parts are restored from its last checkpoint, to be attacked or to write texts."""

from pathlib import Path

from simsplit.assembly.assembler import Assembler, Assembly
from simsplit.assembly.state import restore_state
from simsplit.data import Prepared
from simsplit.errors import RunError
from simsplit.machine import find_device
from simsplit.packets import ClientId
from simsplit.phases import EVALUATE
from simsplit.results import CHECKPOINTS, checkpoints
from simsplit.results.checkpoints import Progress
from simsplit.scenario import Scenario


def restore(
    path: Path,
    original: Scenario,
    data: Prepared,
    client: ClientId,
    scenario: Scenario | None = None,
) -> tuple[Assembler, Assembly, Progress]:
    """Return the parts of the run at `path`, and its progress; `client` gets the shared weights.

    `scenario` may differ from the run's own (`original`) in fields that the parts' state does not
    depend on.
    """
    checkpoint = checkpoints.load(
        path / CHECKPOINTS, checkpoints.compute_digest(original.identity())
    )
    if checkpoint is None:
        raise RunError(f"{path} has no checkpoint; did the run write one?")
    tensors, done, _ = checkpoint
    scenario = scenario or original
    assembler = Assembler(scenario, data, find_device(scenario.device))
    parts = assembler.assemble()
    parts.exchange.holder = done.holder
    with checkpoints.refuse_misfits(path):
        restore_state(parts, tensors)
    parts.exchange.announce(parts.clients, counted=False)
    parts.exchange.moment.counted_phase = EVALUATE
    (parts.federation or parts.exchange).settle([client])
    return assembler, parts, done
