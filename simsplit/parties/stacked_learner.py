"""Several clients' learners as one: each weight and moment is a tensor with a row per client.

A loop over clients with small layers spends its time on calls, not on numbers. Stacked, a step of
all clients is one call for each weight. Optimizers of torch count steps once for a whole tensor,
and clients may have taken different numbers of steps, so SGD, Adam and AdamW are written out here.

While clients are stacked their own modules are out of date; `settle` brings them up to date.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from simsplit.parties.learner import Learner
from simsplit.parties.stacked_adapters import AdaptedCall, reads_texts
from simsplit.states import select_below

Learners = tuple[Learner, ...]
Options = Mapping[str, Any]
_SMALL = 1e-6
"""What torch adds to a norm before it divides by it."""


@dataclass
class _Weight:
    """One parameter of all clients."""

    values: Tensor
    moments: dict[str, Tensor]
    begun: Tensor
    """Which clients' optimizers have a state for it."""
    options: Options
    optimizer: type[torch.optim.Optimizer]
    origin: Tensor | None
    """The values to which FedProx pulls."""
    proximal: float
    """The strength of that pull."""
    owned: list[nn.Parameter]
    """The clients' own parameters."""
    states: list[dict[str, Tensor]]
    """What their optimizers keep of these; of one that has taken no step it is empty."""


@dataclass
class _Buffer:
    """One buffer of all clients that can change, such as a norm's running mean."""

    values: Tensor
    owned: list[Tensor]
    """The clients' own buffers."""


class StackedLearner:
    """The learners of clients with equal modules and optimizers."""

    def __init__(
        self, clients: Sequence[Learners], moments: Sequence[Mapping[str, Tensor]] = ()
    ) -> None:
        """Copy in the weights, buffers and moments of these clients' learners.

        `moments` has those of clients that have one learner in common, by the learner's names.
        """
        self.count, self.pattern = len(clients), clients[0]
        columns = list(zip(*clients, strict=True))
        self.weights = [weight for learners in columns for weight in _gather(learners, moments)]
        self.buffers = [buffer for learners in columns for buffer in _gather_buffers(learners)]
        numbers = {id(weight.owned[0]): n for n, weight in enumerate(self.weights)}
        numbers |= {
            id(buffer.owned[0]): len(self.weights) + n for n, buffer in enumerate(self.buffers)
        }
        self.calls = {
            segment: (AdaptedCall if reads_texts(module) else StackedCall)(module, numbers)
            for learner in self.pattern
            for segment, module in learner.modules.items()
        }

    def open(self, rows: Sequence[int]) -> "StackedStep":
        """Begin a step of the clients in these rows."""
        for learner in self.pattern:
            learner.train(True)
        if len(rows) == self.count or not self.weights:
            return StackedStep(self, None)
        return StackedStep(self, torch.tensor(rows, device=self.weights[0].values.device))

    @torch.no_grad()
    def settle(self) -> None:
        """Copy all rows back into the clients' own modules and optimizers."""
        for weight in self.weights:
            torch._foreach_copy_([p.detach() for p in weight.owned], [*weight.values.unbind()])
            for name, moment in _list_begun(weight):
                for row, own in moment:
                    weight.states[row].setdefault(name, torch.empty_like(own)).copy_(own)
        for buffer in self.buffers:
            torch._foreach_copy_(buffer.owned, [*buffer.values.unbind()])

    def list_weights(self) -> list[dict[str, Tensor]]:
        """List each row's weights and buffers, where all clients have one learner in common."""
        (learner,) = self.pattern
        owned: list[_Weight | _Buffer] = [*self.weights, *self.buffers]
        rows = {id(each.owned[0]): each.values.unbind() for each in owned}
        names = [(name, rows[id(tensor)]) for name, tensor in learner.weights().items()]
        return [{name: each[row] for name, each in names} for row in range(self.count)]

    def list_moments(self) -> list[dict[str, Tensor]]:
        """List each row's moments likewise; none of a row that has taken no step."""
        made: list[dict[str, Tensor]] = [{} for _ in range(self.count)]
        for place, weight in enumerate(self.weights):
            for name, moment in _list_begun(weight):
                for row, own in moment:
                    made[row][f"optimizer.{place}.{name}"] = own.clone()
        return made


class StackedStep:
    """One step of some of the clients, from the forward pass to the optimizer."""

    def __init__(self, learner: StackedLearner, rows: Tensor | None) -> None:
        """Begin it; `rows` None: all clients take it, and their weights are changed in place."""
        self._learner, self._rows = learner, rows
        self._leaves = [
            self._select(weight.values).detach().requires_grad_(weight.owned[0].requires_grad)
            for weight in learner.weights
        ]
        self._buffers = [self._select(each.values) for each in learner.buffers]

    def run(self, segment: str, x: Tensor) -> Tensor:
        """Run every client's segment on its rows of `x`."""
        return self._learner.calls[segment]([*self._leaves, *self._buffers], x)

    @torch.no_grad()
    def end(self) -> None:
        """Take one optimizer step of these clients."""
        learning = [
            (weight, leaf, self._pull(weight, leaf))
            for weight, leaf in zip(self._learner.weights, self._leaves, strict=True)
            if leaf.grad is not None
        ]
        _clip([grad for *_, grad in learning], self._learner.pattern[0].clip_norm)
        for weight, leaf, grad in learning:
            moments = {name: self._select(moment) for name, moment in weight.moments.items()}
            step = STEPS[weight.optimizer]
            step(weight, leaf.detach(), grad, moments, self._select(weight.begun))
            self._put_back(weight.values, leaf.detach())
            for name, moment in moments.items():
                self._put_back(weight.moments[name], moment)
            self._put_back(weight.begun, torch.ones_like(self._select(weight.begun)))
        for kept, buffer in zip(self._learner.buffers, self._buffers, strict=True):
            self._put_back(kept.values, buffer)

    def _pull(self, weight: _Weight, leaf: Tensor) -> Tensor:
        """Return a weight's gradient, with the pull of FedProx where weights are averaged."""
        assert leaf.grad is not None, "only weights that learn are pulled"
        if weight.origin is None:
            return leaf.grad
        return leaf.grad.add(leaf.detach() - self._select(weight.origin), alpha=weight.proximal)

    def _select(self, values: Tensor) -> Tensor:
        return values if self._rows is None else values.index_select(0, self._rows)

    def _put_back(self, kept: Tensor, rows: Tensor) -> None:
        """Write rows of this step back, unless they are the kept ones."""
        if self._rows is not None:
            kept.index_copy_(0, self._rows, rows)
        elif rows.data_ptr() != kept.data_ptr():
            kept.copy_(rows)


class StackedCall:
    """A module that runs with a row of weights for each row of inputs."""

    def __init__(self, module: nn.Module, numbers: Mapping[int, int]) -> None:
        """Find where the module holds its stacked tensors, which have numbers by their id."""
        self._module = module
        self._places: list[tuple[dict[str, Any], str, int]] = [
            (table, name, numbers[id(tensor)])
            for part in module.modules()
            for table in (part._parameters, part._buffers)
            for name, tensor in table.items()
            if id(tensor) in numbers
        ]
        self._mapped = vmap(self._call)

    def __call__(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs of all rows."""
        # Other kernels of attention have no stacked form: they would run client by client.
        with sdpa_kernel(SDPBackend.MATH):
            made: Tensor = self._mapped([tensors[number] for *_, number in self._places], x)
        return made

    def _call(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """Run the module with one row; torch's `functional_call` takes longer than small layers."""
        before = [table[name] for table, name, _ in self._places]
        try:
            self._put(tensors)
            made: Tensor = self._module(x)
        finally:
            self._put(before)
        return made

    def _put(self, tensors: Sequence[Tensor | None]) -> None:
        for (table, name, _), tensor in zip(self._places, tensors, strict=True):
            table[name] = tensor


def _list_begun(weight: _Weight) -> Iterator[tuple[str, list[tuple[int, Tensor]]]]:
    """Yield each moment of a weight, by row, of the clients that have taken a step."""
    begun = weight.begun.nonzero().flatten().tolist()
    for name, moment in weight.moments.items():
        own = moment if name != "step" or weight.options.get("fused") else moment.cpu()
        rows = own.unbind()
        yield name, [(row, rows[row]) for row in begun]


def _gather(learners: Sequence[Learner], moments: Sequence[Mapping[str, Tensor]]) -> list[_Weight]:
    """Stack the parameters of one learner of each client, with their moments."""
    pattern = learners[0]
    if not pattern.parameters:
        return []
    (optimizer,) = pattern.optimizers
    options = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    anchors = [learner._anchor for learner in learners]
    gathered = []
    for place in range(len(pattern.parameters)):
        owned = [learner.parameters[place] for learner in learners]
        if moments:
            states = [select_below(kept, f"optimizer.{place}.") for kept in moments]
        else:
            pairs = zip(learners, owned, strict=True)
            states = [learner.optimizers[0].state[p] for learner, p in pairs]
        values = torch.stack([p.detach() for p in owned])
        origin = torch.stack([each[place] for each in anchors]) if all(anchors) else None
        names = _list_moments(optimizer, options)
        gathered.append(
            _Weight(
                values,
                {name: _stack_moment(states, name, values) for name in names},
                torch.tensor([bool(state) for state in states], device=values.device),
                options,
                type(optimizer),
                origin=origin,
                proximal=pattern.proximal,
                owned=owned,
                states=states,
            )
        )
    return gathered


def _gather_buffers(learners: Sequence[Learner]) -> Iterator[_Buffer]:
    """Stack the buffers that can change."""
    if not (changing := learners[0].buffers):
        return
    live = [learner.weights() for learner in learners]
    for name in sorted(changing):
        owned = [weights[name] for weights in live]
        yield _Buffer(torch.stack(owned), owned)


def _list_moments(optimizer: torch.optim.Optimizer, options: Options) -> list[str]:
    """List the names under which torch keeps an optimizer's moments."""
    if isinstance(optimizer, torch.optim.SGD):
        return ["momentum_buffer"] if options["momentum"] else []
    return ["step", "exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if options["amsgrad"] else [])]


def _stack_moment(states: Sequence[Mapping[str, Tensor]], name: str, values: Tensor) -> Tensor:
    """Stack one moment of all clients; it is 0 of those that have taken no step."""
    # Counted on the CPU, except by fused kernels: rows are chosen where the values are.
    blank = torch.zeros(()) if name == "step" else torch.zeros_like(values[0])
    return torch.stack([state.get(name, blank) for state in states]).to(values.device)


def _clip(grads: Sequence[Tensor], most: float | None) -> None:
    """Clip each client's gradients together by their norm, in place."""
    if most is None or not grads:
        return
    squares = [grad.flatten(1).square().sum(1) for grad in grads]
    norms = torch.stack(squares).sum(0).sqrt()
    factors = (most / (norms + _SMALL)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(_spread(factors, grad))


def _spread(by_client: Tensor, like: Tensor) -> Tensor:
    """Return a value per client in a shape that multiplies a stacked tensor."""
    return by_client.to(like.device).view(-1, *[1] * (like.ndim - 1))


def _step_sgd(
    weight: _Weight, values: Tensor, grad: Tensor, moments: Mapping[str, Tensor], begun: Tensor
) -> None:
    options = weight.options
    if options["maximize"]:
        grad = grad.neg()
    if options["weight_decay"]:
        grad = grad.add(values, alpha=options["weight_decay"])
    if options["momentum"]:
        buffer = moments["momentum_buffer"]
        if options["dampening"]:  # torch's first step is not dampened
            taken = grad * _spread(1 - options["dampening"] * begun.to(grad), grad)
        else:
            taken = grad
        buffer.mul_(options["momentum"]).add_(taken)
        grad = grad.add(buffer, alpha=options["momentum"]) if options["nesterov"] else buffer
    values.add_(grad, alpha=-options["lr"])


def _step_adam(
    weight: _Weight, values: Tensor, grad: Tensor, moments: Mapping[str, Tensor], begun: Tensor
) -> None:
    del begun
    options = weight.options
    if options["maximize"]:
        grad = grad.neg()
    if options["weight_decay"]:
        if weight.optimizer is torch.optim.AdamW:
            values.mul_(1 - options["lr"] * options["weight_decay"])
        else:
            grad = grad.add(values, alpha=options["weight_decay"])
    first, second = options["betas"]
    steps = moments["step"].add_(1).double()
    mean = moments["exp_avg"].lerp_(grad, 1 - first)
    square = moments["exp_avg_sq"].mul_(second).addcmul_(grad, grad, value=1 - second)
    if options["amsgrad"]:
        square = torch.maximum(moments["max_exp_avg_sq"], square, out=moments["max_exp_avg_sq"])
    # Clients may have taken different numbers of steps, so each has corrections of its own.
    size = (options["lr"] / (1 - first**steps)).to(values)
    root = (1 - second**steps).sqrt().to(values)
    scale = (square.sqrt() / _spread(root, values)).add_(options["eps"])
    values.sub_(mean / scale * _spread(size, values))


STEPS = {torch.optim.SGD: _step_sgd, torch.optim.Adam: _step_adam, torch.optim.AdamW: _step_adam}
"""The steps of the optimizers that are elementwise, and known here."""
