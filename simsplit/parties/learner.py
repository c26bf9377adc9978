"""One owner's trainable parts and the optimizer that steps them, kept for the whole run.

A client has a learner for its head and tail, the server one for the trunk. Optimizers are never
rebuilt: a learner whose moments restarted with each batch would train a different model. Several
clients may hold one learner (a shared head); a hand-over is then a packet of its live tensors.

Weights that never learn are the same on every machine that builds the run's parts. So they are
neither handed over, nor averaged, nor kept in checkpoints.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from simsplit.errors import ProtocolError
from simsplit.parties.optimizers import SLOW, OptimizerConfig

Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer | None]
"""Builds an optimizer over parameters; None leaves them to the common one."""
Travelling = tuple[tuple[str, ...], tuple[Tensor, ...]]
"""Names and live tensors that a hand-over carries."""


class Learner:
    """Named modules and their optimizers; its state is a flat dict of tensors."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        optimizer: OptimizerConfig,
        clip_norm: float | None = None,
        own: Mapping[str, Build] | None = None,
        proximal: float = 0.0,
    ) -> None:
        """Own the modules; `own` has methods' optimizers for theirs, by the module's name.

        `proximal` is FedProx's mu: the strength of the pull to the weights at the last `anchor`.
        """
        self.modules = dict(modules)
        every = [module for part in self.modules.values() for module in part.modules()]
        # A weight that two modules have in common takes one step.
        self.parameters = [
            p
            for p in dict.fromkeys(p for part in self.modules.values() for p in part.parameters())
            if p.requires_grad
        ]
        self.optimizers = self._build_optimizers(optimizer, own or {})
        # A factor is always of these rates: on the last round's rates, factors would multiply.
        self._base_lrs = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.clip_norm, self.proximal = clip_norm, proximal
        self._anchor: list[Tensor] = []
        # A segment whose weights never learn (the head under `learns: [trunk]`) always infers, like
        # one that a phase freezes: in training mode its running statistics would drift away from
        # the pretrained ones. A segment without weights (dropout alone) does as the phase says.
        self._able = frozenset(n for n, part in self.modules.items() if not _is_frozen(part))
        self.learning = self._able
        self._changing = self._list_changing()
        self._travel: Travelling = (), ()
        self._travel_key: tuple[bool, int] | None = None
        self.random = any(map(_draws, every))
        """Whether layers draw as they train."""
        self.may_draw = self.random or not all(map(_is_known, every))
        """Whether they do, or have code that may."""

    def train(self, training: bool) -> None:
        """Switch the layers to training or inference; frozen modules always infer."""
        # Each module is checked, since another learner may hold it too and have switched it.
        for name, module in self.modules.items():
            wanted = training and name in self.learning
            if module.training != wanted:
                module.train(wanted)

    def learn(self, names: frozenset[str]) -> None:
        """Let only the named modules learn from now on; a phase freezes the others."""
        learning = names & self._able
        if learning != self.learning:
            self.learning = learning
            held = {p for name in learning for p in self.modules[name].parameters()}
            for parameter in self.parameters:  # others never learn, in any phase
                parameter.requires_grad_(parameter in held)

    def set_lr_factor(self, factor: float, lr: float | None = None) -> None:
        """Set the learning rates to `factor` times the configured ones.

        `lr` replaces the configured rate, but not that of an optimizer that a method brings.
        """
        for optimizer, bases in zip(self.optimizers, self._base_lrs, strict=True):
            for group, base in zip(optimizer.param_groups, bases, strict=True):
                rate = base if lr is None or optimizer in self.brought else lr
                group["lr"] = rate * factor

    def clear(self) -> None:
        """Set the parameters' gradients to None."""
        for parameter in self.parameters:
            # None, not 0: an optimizer still moves a weight with gradient 0, by momentum and decay.
            parameter.grad = None

    def anchor(self) -> None:
        """Pull every step from now on to the present weights (FedProx), if `proximal` is set."""
        if self.proximal:
            self._anchor = [parameter.detach().clone() for parameter in self.parameters]

    def pull(self) -> None:
        """Add the proximal term's gradient to those of the step."""
        if self._anchor:
            for parameter, origin in zip(self.parameters, self._anchor, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - origin, alpha=self.proximal)

    def step(self) -> None:
        """Take one optimizer step."""
        for optimizer in self.optimizers:
            optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        """Return the live parameters and buffers that can change during a run."""
        return {n: tensor for n, tensor in self._list_tensors().items() if n in self._changing}

    def moments(self) -> dict[str, Tensor]:
        """Return the optimizers' live tensors, by the parameter's number and their name."""
        # Torch keys moments by the tensor, a state by a number that another process has too.
        kept = {p: state for each in self.optimizers for p, state in each.state.items()}
        return {
            f"optimizer.{index}.{name}": value
            for index, parameter in enumerate(self.parameters)
            for name, value in kept.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next step depends on."""
        return {**self.weights(), **self.moments()}

    def _list_tensors(self) -> dict[str, Tensor]:
        """List all live parameters and buffers, including constant ones; each by its first name."""
        named = (
            (f"{name}.{key}", tensor)
            for name, module in self.modules.items()
            for key, tensor in module.state_dict(keep_vars=True).items()
        )
        once: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in named:
            once.setdefault(id(tensor), (name, tensor))
        return dict(once.values())

    def _list_changing(self) -> frozenset[str]:
        """List the names of parameters that learn, and of buffers that can change.

        A norm's statistics change unless it always infers. Any other persistent buffer may be
        written at any time. Constants (rotary angles, masks, positions) are not persistent, so no
        state dict has them.
        """
        at_rest = {
            id(buffer)
            for name in self.modules.keys() - self._able
            for part in self.modules[name].modules()
            if isinstance(part, _NormBase)
            for buffer in part.buffers(recurse=False)
        }
        learned = {id(parameter) for parameter in self.parameters}
        return frozenset(
            name
            for name, tensor in self._list_tensors().items()
            if id(tensor) in learned
            or not (isinstance(tensor, nn.Parameter) or id(tensor) in at_rest)
        )

    @property
    def buffers(self) -> frozenset[str]:
        """The weights that the optimizer does not learn: running statistics, counters."""
        learned = {id(parameter) for parameter in self.parameters}
        return frozenset(n for n, tensor in self.weights().items() if id(tensor) not in learned)

    def list_travelling(self, *, moments: bool) -> Travelling:
        """List the names and live tensors that a hand-over carries."""
        # Moments appear with the first step, so their number shows whether the list is old.
        key = (moments, sum(len(each.state) for each in self.optimizers))
        if key != self._travel_key:
            carried = self.state() if moments else self.weights()
            self._travel = tuple(carried), tuple(carried.values())
            self._travel_key = key
        return self._travel

    @contextmanager
    def leave_untouched(self) -> Iterator[None]:
        """Open a context after which running statistics are restored, for a step never taken."""
        buffers = [buffer for module in self.modules.values() for buffer in module.buffers()]
        before = [buffer.clone() for buffer in buffers]
        yield
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)

    def load(self, state: Mapping[str, Tensor], *, moments: bool = True) -> None:
        """Copy a state that `state` returned into the live tensors.

        It may also have weights that never change, as checkpoints of earlier versions do. A state
        of before the first step has no moments, so those of later steps go. Without `moments` it
        is one of weights alone, and the present moments stay.
        """
        missing = self._changing - state.keys()
        if missing:
            raise ProtocolError(f"a learner's state lacks {', '.join(sorted(missing))}")
        with torch.no_grad():
            for name, tensor in self._list_tensors().items():
                if name in state:
                    tensor.copy_(state[name])
        if moments:
            self.forget_moments()  # of steps that were taken after that state
        self.load_moments(state)

    def take(self, state: Mapping[str, Tensor]) -> None:
        """Copy in what another learner's hand-over carried: weights, and moments if any."""
        own = self.weights()
        with torch.no_grad():
            for name, tensor in state.items():
                if name in own and own[name] is not tensor:
                    own[name].copy_(tensor)
        self.load_moments(state)

    def forget_slow(self) -> None:
        """Begin lookahead's slow weights anew: an average is not on the way from the old ones."""
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                if state.pop(SLOW, None) is not None:
                    self._travel_key = None

    def forget_moments(self) -> None:
        """Reset the optimizers' state."""
        self._travel_key = None
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def load_moments(self, state: Mapping[str, Tensor]) -> None:
        """Restore the optimizers' part of a state."""
        self._travel_key = None
        owner = {p: o for o in self.optimizers for g in o.param_groups for p in g["params"]}
        for name, value in state.items():
            if not name.startswith("optimizer."):
                continue
            _, index, slot = name.split(".", 2)
            parameter = self.parameters[int(index)]
            optimizer = owner[parameter]
            if slot == "step":  # counted on the CPU, except by fused kernels
                fused = optimizer.defaults.get("fused")
                live = torch.empty_like(value, device=parameter.device if fused else "cpu")
            else:  # in the parameter's layout: mixed ones take other kernels
                live = torch.empty_like(parameter, dtype=value.dtype)
            optimizer.state[parameter][slot] = live.copy_(value)

    def _build_optimizers(
        self, common: OptimizerConfig, own: Mapping[str, Build]
    ) -> list[torch.optim.Optimizer]:
        """Build the optimizers that methods bring, and one for all other parameters."""
        methods = dict(self.modules["method"].named_children()) if own else {}
        made, taken = [], set()
        for name, build in own.items():
            learned = [p for p in methods[name].parameters() if p.requires_grad]
            if learned and (optimizer := build(learned)) is not None:
                made.append(optimizer)
                taken |= set(learned)
        self.brought = made
        rest = [p for p in self.parameters if p not in taken]
        return [*([common.build(rest)] if rest else []), *made]


def _draws(layer: nn.Module) -> bool:
    """Tell whether a layer draws in training, as far as its attributes say: most are dropout."""
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RReLU):
        return True
    rates = [value for name, value in vars(layer).items() if "dropout" in name]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _is_known(layer: nn.Module) -> bool:
    """Tell whether a layer is torch's or ours, which draw nothing but what `_draws` tells."""
    return type(layer).__module__.partition(".")[0] in ("torch", "simsplit")


def _is_frozen(part: nn.Module) -> bool:
    """Tell whether a module has weights, and none of them learns."""
    weights = list(part.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def step_together(learners: Sequence[Learner]) -> None:
    """Take one optimizer step of all learners of a side; gradients are clipped together."""
    for learner in learners:
        # Before clipping, since the proximal term is part of the loss whose gradient is clipped.
        learner.pull()
    if (norm := learners[0].clip_norm) is not None:
        parameters = [p for learner in learners for p in learner.parameters]
        torch.nn.utils.clip_grad_norm_(parameters, norm)
    for learner in learners:
        learner.step()
        learner.clear()


Version = list[nn.Parameter]
"""Copies of a learner's parameters, in their order."""


class Versions:
    """Copies of a learner's parameters, made on demand, for gradients that return after an update.

    The weights of an autograd graph must not change before its backward pass. So a forward pass
    whose backward pass may be late runs on copies, one set for each state of the weights. The late
    gradient is that of the copies, and is then handed to the live weights.
    """

    def __init__(self, learner: Learner) -> None:
        # The module and the name that hold each live parameter.
        self._places = [
            (owner, name, parameter)
            for module in learner.modules.values()
            for owner in module.modules()
            for name, parameter in owner.named_parameters(recurse=False)
        ]
        self._updates = -1
        self._newest: Version = []

    @contextmanager
    def after(self, updates: int) -> Iterator[Version]:
        """Open a context in which modules hold a copy of the weights after `updates` updates."""
        if updates != self._updates:
            self._updates = updates
            # What is frozen is the same before and after.
            # A weight that stands in two places has one copy, which gets both gradients.
            copies = {
                live: nn.Parameter(live.detach().clone()) if live.requires_grad else live
                for *_, live in self._places
            }
            self._newest = [copies[live] for *_, live in self._places]
        version = self._newest
        for (owner, name, _), copy in zip(self._places, version, strict=True):
            setattr(owner, name, copy)
        try:
            yield version
        finally:
            for owner, name, live in self._places:
                setattr(owner, name, live)

    def hand_over(self, version: Version) -> None:
        """Hand the copies' gradients to the live parameters."""
        copies = {live: copy for (*_, live), copy in zip(self._places, version, strict=True)}
        for live, copy in copies.items():
            # Set, not added: the trunk steps after each backward pass, so none waits here.
            live.grad = copy.grad
            # Another client may still be in flight on the same copies.
            copy.grad = None
