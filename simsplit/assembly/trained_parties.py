"""The network that parties trained together: all of their heads, each on its own portion."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from simsplit.assembly.ownership import Ownership
from simsplit.data.portions import Portion
from simsplit.errors import RunError
from simsplit.legs import Leg
from simsplit.methods.method import Step
from simsplit.methods.stack import Stack
from simsplit.models.joins import Join, join_parts


class JoinedHeads(nn.Module):
    """All parties' heads as one, which takes whole samples; each party's methods are in it."""

    def __init__(
        self,
        heads: Sequence[nn.Module],
        portions: Sequence[Portion],
        stacks: Sequence[tuple[Stack, Stack]],
        how: Join,
    ) -> None:
        super().__init__()
        self.heads, self.portions, self.stacks = nn.ModuleList(heads), portions, stacks
        self.methods = nn.ModuleList([each.modules for pair in stacks for each in pair])
        self.how = how

    def forward(self, x: Tensor, *context: Tensor) -> Tensor:
        """Return what the server joins of all heads' outputs for whole samples, masks with them."""
        step = Step(0, 0, 0, 0, training=False)
        parts = []
        for head, portion, (client, server) in zip(
            self.heads, self.portions, self.stacks, strict=True
        ):
            own = [portion.select(each) for each in (x, *context)]
            sent = client.pack(Leg.SMASHED, client.encode(head(*own), step), step)
            parts.append(server.lift(server.unpack(Leg.SMASHED, sent, step), step))
        return join_parts(parts, self.how)


def read_portions(facts: Mapping[str, Any]) -> list[Portion]:
    """Return the parties' portions that `data.json` names; raise RunError if it names none."""
    if "portions" not in facts:
        raise RunError(
            "a deployed run of parties has each head at its party, and cannot be put together"
        )
    return [Portion.read(each) for each in facts["portions"]]


def fill(modules: Mapping[str, nn.Module], state: Mapping[str, Tensor]) -> None:
    """Copy a state into the modules that it names; frozen weights are not in it."""
    with torch.no_grad():
        for owner, module in modules.items():
            for key, tensor in module.state_dict(keep_vars=True).items():
                if (kept := state.get(f"{owner}.{key}")) is not None:
                    tensor.copy_(kept)


def join_heads(
    owners: Ownership, states: Sequence[Mapping[str, Tensor]], facts: Mapping[str, Any]
) -> JoinedHeads:
    """Build the joined heads, and fill them with each party's part of a checkpoint."""
    heads, stacks = [], []
    for party, state in enumerate(states):
        parts = owners.build_client_parts(party)
        fill({"head": parts.head, "method": parts.stack.modules}, state)
        parts.stack.receive_announcements(owners.party_stacks[party].announce())
        heads.append(parts.head)
        stacks.append((parts.stack, owners.party_stacks[party]))
    return JoinedHeads(heads, read_portions(facts), stacks, owners.scenario.joining.join)
