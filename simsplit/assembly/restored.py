"""A run's parts as its last checkpoint has them, ready to be asked: nothing is trained any more."""

from pathlib import Path

from simsplit.assembly.assembler import Assembler, Assembly
from simsplit.assembly.state import put_back
from simsplit.data import Prepared
from simsplit.errors import RunError
from simsplit.machine import device_of
from simsplit.packets import ClientId
from simsplit.phases import EVALUATE
from simsplit.results import CHECKPOINTS, checkpoints
from simsplit.results.checkpoints import Progress
from simsplit.scenario import Scenario


def restored(
    path: Path,
    original: Scenario,
    data: Prepared,
    client: ClientId,
    scenario: Scenario | None = None,
) -> tuple[Assembler, Assembly, Progress]:
    """The parts of the run at `path`, and how far it had come; `client` has what is shared.

    `scenario` may differ from the run's own (`original`) in what does not touch the parts' state.
    """
    found = checkpoints.load(path / CHECKPOINTS, checkpoints.digest_of(original.identity()))
    if found is None:
        raise RunError(f"{path} has no checkpoint; did the run come to one?")
    tensors, done, _ = found
    scenario = scenario or original
    assembler = Assembler(scenario, data, device_of(scenario.device))
    parts = assembler.assemble()
    parts.exchange.holder = done.holder
    put_back(parts, tensors)
    parts.exchange.announce(parts.clients, counted=False)
    parts.exchange.moment.counted_as = EVALUATE
    (parts.federation or parts.exchange).settle([client])
    return assembler, parts, done
