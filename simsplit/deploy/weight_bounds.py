"""The weights that parties send each other: their names, forms and ranges.

Clients hand shared segments on, or send them to be averaged. Optimizers' moments may come with what
is handed on. The receiver copies all of it into live tensors, so it must be complete and usable.

Moments say how far the receiver's next step goes, whatever its own gradient is. Those that Adam
makes of any gradients bound that step (Cauchy-Schwarz): with g_i the gradients, m = (1 - b1) sum
b1^i g_i and v = (1 - b2) sum b2^i g_i^2, so that m^2 <= v (1 - b1)^2 / (1 - b2) sum (b1^2 / b2)^i.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import TypeGuard

import torch
from torch import Tensor, nn

from simsplit.assembly.ownership import Ownership
from simsplit.errors import ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.models.fresh import Place
from simsplit.packets import Packet
from simsplit.parties.changes import CODES, SINCE
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import MomentsConfig, OptimizerConfig
from simsplit.states import measure_norm

_MOMENT = "optimizer."
_ADAMS = frozenset({"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"})
"""Moments whose size says nothing of the next step's: Adam divides them by each other."""
SPARE = 4.0
"""How many times the bound of Adam's first moment, since low precision rounds both moments."""
TINY = 1e-30
"""The square of a first moment beside which the second may be 0, as small squares underflow."""
MARGIN = 1.01
"""Norms are summed in another order on other machines: a sender names a power of two that is larger
than its norm by this factor at least, and a receiver complains only beyond it."""
MOST_POWER = 60
_NEVER_NEGATIVE = frozenset({"running_var", "exp_avg_sq", "max_exp_avg_sq"})
"""The last parts of the names of variances, from which norms and optimizers take roots."""


class WeightBounds:
    """The weights, and moments, that a packet between the parties of a run has."""

    def __init__(self, owners: Ownership, client: ClientId) -> None:
        """Make them for a run; moments and coded changes cross where all clients are as this one.

        A site names its own client, so that no head of another's cut is built there.
        """
        self._owners, self._client = owners, client
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
        numbers: dict[Tensor, int] = {each: n for n, each in enumerate(self.shared.parameters)}
        self._groups = {
            str(numbers[each]): (optimizer, group)
            for optimizer in self.shared.optimizers
            for group in optimizer.param_groups
            for each in group["params"]
        }
        """For each parameter, its optimizer and the options of that."""

    @property
    def start_norm(self) -> float:
        """The largest norm of the shared weights before training; 1 at least."""
        return max(1.0, measure_norm(self.get_named(self._client).values()))

    def get_named(self, client: ClientId) -> dict[str, Tensor]:
        """Return the weights of a client's shared segments before training, by name."""
        place = self._owners.depths.get_place(client)
        if place not in self._named:
            modules = self._owners.list_shared_modules(client)
            learner = self._owners.build_client_learner(modules)
            self._named[place] = {n: tensor.detach() for n, tensor in learner.weights().items()}
        return self._named[place]

    def check(self, packet: Packet, steps: int | None = None) -> None:
        """Raise ProtocolError unless a packet has the shared segments' weights.

        `steps` are those of all clients that the weights include; None of weights that are sealed
        or without moments, whose values are not checked.
        """
        if not len(set(packet.names)) == len(packet.names) == len(packet.tensors):
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
        self._check_moments(moments, steps)

    def find_adams_reach(self, steps: int, weights: Iterable[Tensor]) -> float:
        """Return how much larger Adam makes a norm in some steps at most, whatever the data are.

        Others' steps are as large as their gradients, for which there is no bound.
        """
        train = self._owners.scenario.train
        adams = [each for each in (train.client, train.server) if isinstance(each, MomentsConfig)]
        values = max((each.numel() for each in weights), default=0)
        return max((each.lr for each in adams), default=0.0) * max(0, steps) * math.sqrt(values)

    def check_variances(self, weights: Mapping[str, Tensor]) -> None:
        """Raise ProtocolError if variances that were read from changes in few bits are below 0.

        Rounding moves a change by one level at most, as far as a variance near 0 may fall below it.
        """
        for name, tensor in weights.items():
            if self.changes is not None and _is_variance(name):
                level = 2.0 * float(tensor.abs().max()) / (2**self.changes.bits - 1)
                if bool((tensor < -level).any()):
                    raise ProtocolError(f"weights {name} with values below 0")

    def find_power(self, packet: Packet) -> int:
        """Return the power of two below which the largest norm of handed weights lies.

        What is in a seal is known to nobody else, so its sender says so much of its size.
        """
        norm = MARGIN * self.measure(packet)
        if norm <= 1.0:
            return 0
        return math.ceil(math.log2(norm)) if norm < 2.0**MOST_POWER else MOST_POWER

    def measure(self, packet: Packet) -> float:
        """Return the largest norm of handed weights, and of the steps that their momentum takes."""
        pairs = zip(packet.names, packet.tensors, strict=True)
        return max((self._find_reach(n) * measure_norm([t]) for n, t in pairs), default=0.0)

    def _find_reach(self, name: str) -> float:
        """Return the factor by which a tensor counts in the size of what is handed on."""
        if not name.startswith(_MOMENT):
            return 1.0
        _, index, slot = name.split(".", 2)
        if slot in _ADAMS:
            return 0.0
        if slot != "momentum_buffer":
            return 1.0
        _, options = self._groups[index]
        return float(options["lr"]) / max(0.01, 1.0 - float(options["momentum"]))

    def _check_moments(self, moments: Mapping[str, Tensor], steps: int | None) -> None:
        """Raise ProtocolError unless each parameter has all moments of its optimizer, or none."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for name, tensor in moments.items():
            by_parameter.setdefault(name.split(".", 2)[1], {})[name] = tensor
        for index, brought in by_parameter.items():
            _check_forms(brought, self.moments.get(index, {}))
            if steps is not None:
                slots = {name.split(".", 2)[2]: tensor for name, tensor in brought.items()}
                self._check_values(index, slots, steps)

    def _check_values(self, index: str, slots: Mapping[str, Tensor], steps: int) -> None:
        """Raise ProtocolError unless a parameter's moments can come from that many steps."""
        if "step" in slots:
            step = float(slots["step"])
            if not (1 <= step <= steps and step.is_integer()):
                raise ProtocolError(f"moments of step {step:g}, after {steps} steps of all clients")
        optimizer, options = self._groups[index]
        if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
            return
        beta1, beta2 = map(float, options["betas"])
        most = SPARE * _bound_first_moment(beta1, beta2, steps)
        first, second = (slots[name].double() for name in ("exp_avg", "exp_avg_sq"))
        if bool((first.square() > most * second + TINY).any()):
            raise ProtocolError("a first moment that its second moment does not allow")


def _bound_first_moment(beta1: float, beta2: float, steps: int) -> float:
    """Return the most that m^2 / v is after some steps of Adam, with any gradients."""
    if beta2 == 0.0:
        return math.inf
    ratio = beta1**2 / beta2
    total = 1.0 / (1.0 - ratio) if ratio < 1.0 else math.inf
    if ratio >= 1.0 and steps * math.log(ratio) < 700:  # e^700 is about the largest float
        total = sum(ratio**number for number in range(steps))
    return (1.0 - beta1) ** 2 / (1.0 - beta2) * total


def is_power(value: object) -> TypeGuard[int]:
    """Return whether a value is a power of two that a seal may name as its weights' size."""
    # Not isinstance, as True is an int too.
    return type(value) is int and 0 <= value <= MOST_POWER


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
        if _is_variance(name) and bool((tensor < 0).any()):
            raise ProtocolError(f"weights {name} with values below 0")


def _is_variance(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in _NEVER_NEGATIVE


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
