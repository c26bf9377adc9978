"""The weights that parties send each other: their names, forms and ranges.

Clients hand shared segments on, or send them to be averaged. Optimizers' moments may come with what
is handed on. The receiver copies all of it into live tensors, so it must be complete and usable.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from simsplit.assembly.ownership import Ownership
from simsplit.errors import ProtocolError
from simsplit.models.fresh import Place
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.changes import CODES, SINCE
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import OptimizerConfig

_MOMENT = "optimizer."
_NEVER_NEGATIVE = frozenset({"running_var", "exp_avg_sq", "max_exp_avg_sq"})
"""The last parts of the names of variances, from which norms and optimizers take roots."""


class WeightBounds:
    """The weights, and moments, that a packet between the parties of a run has."""

    def __init__(self, owners: Ownership, client: ClientId) -> None:
        """Make them for a run; moments and coded changes cross where all clients are as this one.

        A site names its own client, so that no head of another's cut is built there.
        """
        self._owners = owners
        self._named: dict[Place | None, dict[str, Tensor]] = {}
        self.shared = owners.build_client_learner(owners.list_shared_modules(client))
        self.changes = owners.build_changes(self.shared)
        moves = not owners.averages and owners.scenario.clients.handover == "state"
        self.moments = (
            _list_moments(self.shared, owners.scenario.train.client)
            if moves and self.get_named(client)
            else {}
        )
        """For each parameter, the moments that its optimizer has after a step."""

    def get_named(self, client: ClientId) -> dict[str, Tensor]:
        """Return the weights of a client's shared segments before training, by name."""
        place = self._owners.depths.get_place(client)
        if place not in self._named:
            modules = self._owners.list_shared_modules(client)
            learner = self._owners.build_client_learner(modules)
            self._named[place] = {n: tensor.detach() for n, tensor in learner.weights().items()}
        return self._named[place]

    def check(self, packet: Packet) -> None:
        """Raise ProtocolError unless a packet has the shared segments' weights."""
        if len(set(packet.names)) != len(packet.tensors) or len(packet.names) != len(
            packet.tensors
        ):
            raise ProtocolError("weights without names, or with one name twice")
        brought = dict(zip(packet.names, packet.tensors, strict=True))
        if self.changes is not None and {CODES, SINCE} <= brought.keys():
            # what a client sends refers to the broadcast that it had in the same round
            is_late = packet.leg is Leg.HANDOVER and not bool(
                (brought[SINCE] == packet.round).all()
            )
            if is_late or not self.changes.fits(packet):
                raise ProtocolError("changes of weights that do not fit the shared segments")
            return
        moments = {name: brought.pop(name) for name in packet.names if name.startswith(_MOMENT)}
        _check_forms(brought, self.get_named(packet.client))
        self._check_moments(moments)

    def _check_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Raise ProtocolError unless each parameter has all moments of its optimizer, or none."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for name, tensor in moments.items():
            by_parameter.setdefault(name.split(".", 2)[1], {})[name] = tensor
        for index, brought in by_parameter.items():
            _check_forms(brought, self.moments.get(index, {}))


def _check_forms(brought: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> None:
    """Raise ProtocolError unless tensors have the names and forms of the known ones."""
    if others := brought.keys() - known.keys():
        raise ProtocolError(f"weights named {min(others)[:80]}, which no client shares")
    if missing := known.keys() - brought.keys():
        raise ProtocolError(f"weights without {min(missing)}")
    for name, own in known.items():
        tensor = brought[name]
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            raise ProtocolError(f"weights {name} of another shape or type")
        is_variance = name.rsplit(".", 1)[-1] in _NEVER_NEGATIVE
        if is_variance and bool((tensor < 0).any()):
            raise ProtocolError(f"weights {name} with values below 0")


def _list_moments(learner: Learner, config: OptimizerConfig) -> dict[str, dict[str, Tensor]]:
    """Return the moments of each parameter by name, from a step on copies of the parameters."""
    numbers: dict[Tensor, int] = {each: n for n, each in enumerate(learner.parameters)}
    moments: dict[str, dict[str, Tensor]] = {}
    for optimizer in learner.optimizers:
        if optimizer in learner.brought:
            twin = copy.deepcopy(optimizer)
        else:  # a copy would lack its hooks
            twin = config.build(copy.deepcopy(_list_parameters(optimizer)))
        for parameter in _list_parameters(twin):
            parameter.grad = torch.zeros_like(parameter)
        # Optimizers make their moments in the first step.
        twin.step()
        pairs = zip(_list_parameters(optimizer), _list_parameters(twin), strict=True)
        for parameter, copied in pairs:
            index = numbers[parameter]
            moments[str(index)] = {
                # Only the form is kept, in the memory of one number.
                f"{_MOMENT}{index}.{name}": value.new_zeros(()).expand(value.shape)
                for name, value in twin.state[copied].items()
                if isinstance(value, Tensor)
            }
    return moments


def _list_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
