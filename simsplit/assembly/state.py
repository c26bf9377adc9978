"""The state of a run's parts is collected here as named tensors, and restored from them.

A checkpoint holds these tensors. Frozen weights are left out, since parts are built with them.
Remote clients keep their own state (see `Pool.keep`).
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from simsplit.assembly.assembler import Assembler, Assembly, refuse_others
from simsplit.assembly.tying import refuse_copies
from simsplit.data import Prepared
from simsplit.errors import RunError
from simsplit.legs import ClientId
from simsplit.machine import find_device
from simsplit.parties.calls import LoadShared, SharedState
from simsplit.parties.on_disk import read_rows
from simsplit.phases import EVALUATE
from simsplit.results import CHECKPOINTS, checkpoints
from simsplit.results.checkpoints import Progress
from simsplit.results.row_file import RESTED
from simsplit.scenario import Scenario
from simsplit.states import select_below, split_by_client

_METHODS = "server.methods/"


def collect_state(parts: Assembly) -> dict[str, Tensor]:
    """Return the tensors of all owners by name."""
    pool, federation = parts.pool, parts.federation
    named: dict[str, Mapping[str, Tensor]] = {
        "server/": parts.server.learner.state(),
        _METHODS: parts.server.stack.state(),
        "joined/": parts.server.end.state(),
        RESTED: pool.collect_rested(),
    }
    own = {} if pool.remote else pool.collect_own(parts.clients)
    named |= {f"client/{client}/": tensors for client, tensors in own.items()}
    if parts.frozen is not None:
        named[""] = {"frozen": parts.frozen}
    if pool.remote:
        named["handover/"] = pool.collect_carried()
    if federation is not None:
        named |= {"average/": federation.state(), "copies/": pool.workshop_state()}
    elif not pool.remote:
        named["holder/"] = pool.ask(parts.exchange.holder or 0, SharedState())
    return {f"{owner}{name}": each for owner, own in named.items() for name, each in own.items()}


def restore_state(parts: Assembly, state: Mapping[str, Tensor], folder: Path | None = None) -> None:
    """Restore a state that `collect_state` returned; the exchange's holder must be set before.

    `folder` has the checkpoint, and the rows that it names if clients rested on disk.
    """
    refuse_others(parts.frozen, state.get("frozen"))
    refuse_copies(state, is_tied=parts.is_tied)
    parts.server.learner.load(select_below(state, "server/"))
    parts.server.stack.load(select_below(state, _METHODS))
    parts.server.end.load(select_below(state, "joined/"))
    if parts.pool.remote:
        parts.pool.load_carried(select_below(state, "handover/"))
    else:
        _restore_own(parts, state, folder)
    if parts.federation is not None:
        parts.federation.load(select_below(state, "average/"))
        parts.pool.load_workshop(select_below(state, "copies/"))
    elif not parts.pool.remote:
        parts.pool.ask(parts.exchange.holder or 0, LoadShared(select_below(state, "holder/")))


def _restore_own(parts: Assembly, state: Mapping[str, Tensor], folder: Path | None) -> None:
    """Restore what clients alone have, wherever it rested and is to rest."""
    rested = select_below(state, RESTED)
    if not rested:
        parts.pool.load_own(parts.clients, split_by_client(state))
    elif parts.pool.rests_on_disk:
        parts.pool.load_rested(rested)
    else:
        assert folder is not None, "rows lie beside the checkpoint"
        rows = read_rows(folder, rested, len(parts.clients))
        # The others have not begun, and are built so.
        parts.pool.load_own([*rows], {number: rows.read_state(number) for number in rows})


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
        restore_state(parts, tensors, path / CHECKPOINTS)
    parts.exchange.announce(parts.clients, counted=False)
    parts.exchange.moment.counted_phase = EVALUATE
    (parts.federation or parts.exchange).settle([client])
    return assembler, parts, done
