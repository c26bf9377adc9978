"""All that a run's parts have come to know, as named tensors: what a checkpoint holds.

Weights that never learn are not among it: parts are built with them. Nor is what clients keep of
their own, where they are others' (see `Pool.keep`).
"""

from collections.abc import Mapping

from torch import Tensor

from simsplit.assembly.assembler import Assembly
from simsplit.assembly.frozen import refuse_others
from simsplit.parties.calls import LoadOwn, LoadShared, OwnState, SharedState
from simsplit.states import below, by_client


def state_of(parts: Assembly) -> dict[str, Tensor]:
    """Every owner's tensors under one name each."""
    state = {f"server/{name}": t for name, t in parts.server.learner.state().items()}
    own = {} if parts.pool.remote else parts.pool.ask_all(parts.clients, OwnState())
    for client, tensors in own.items():
        state |= {f"client/{client}/{name}": tensor for name, tensor in tensors.items()}
    if parts.frozen is not None:
        state["frozen"] = parts.frozen
    if parts.federation is not None:
        state |= {f"average/{name}": tensor for name, tensor in parts.federation.state().items()}
        copies = parts.pool.workshop_state()
        return state | {f"copies/{name}": tensor for name, tensor in copies.items()}
    if parts.pool.remote:
        return state
    shared = parts.pool.ask(parts.exchange.holder or 0, SharedState())
    return state | {f"holder/{name}": tensor for name, tensor in shared.items()}


def put_back(parts: Assembly, state: Mapping[str, Tensor]) -> None:
    """Bring parts to a state that `state_of` gave; they know already who the holder is."""
    refuse_others(parts.frozen, state.get("frozen"))
    parts.server.learner.load(below(state, "server/"))
    if not parts.pool.remote:
        own = by_client(state)
        parts.pool.ask_each({c: LoadOwn(own.get(c, {})) for c in parts.clients})
    if parts.federation is not None:
        parts.federation.load(below(state, "average/"))
        parts.pool.load_workshop(below(state, "copies/"))
    elif not parts.pool.remote:
        parts.pool.ask(parts.exchange.holder or 0, LoadShared(below(state, "holder/")))
