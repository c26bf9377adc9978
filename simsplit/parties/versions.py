"""Earlier versions of a learner's parameters, for gradients that return after an update.

The weights of an autograd graph must not change before its backward pass. So a forward pass whose
backward pass may be late runs on copies, one set for each state of the weights. The late gradient
is that of the copies, and is then handed to the live weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from simsplit.parties.learner import Learner


@dataclass(frozen=True)
class _Place:
    """The module and name that hold a parameter."""

    owner: nn.Module
    name: str
    live: nn.Parameter


Version = dict[int, nn.Parameter]
"""Copies by the index of their place."""


class Versions:
    """Copies of a learner's parameters, made on demand."""

    def __init__(self, learner: Learner) -> None:
        self._places = [
            _Place(owner, name, parameter)
            for module in learner.modules.values()
            for owner in module.modules()
            for name, parameter in owner.named_parameters(recurse=False)
        ]
        self._updates = -1
        self._newest: Version = {}

    @contextmanager
    def after(self, updates: int) -> Iterator[Version]:
        """Open a context in which modules hold a copy of the weights after `updates` updates."""
        if updates != self._updates:
            self._updates = updates
            self._newest = {
                number: nn.Parameter(place.live.detach().clone(), place.live.requires_grad)
                for number, place in enumerate(self._places)
            }
        version = self._newest
        for number, place in enumerate(self._places):
            setattr(place.owner, place.name, version[number])
        try:
            yield version
        finally:
            for place in self._places:
                setattr(place.owner, place.name, place.live)

    def hand_over(self, version: Version) -> None:
        """Hand the copies' gradients to the live parameters."""
        for number, copy in version.items():
            # Set, not added: the trunk steps after each backward pass, so none waits here.
            self._places[number].live.grad = copy.grad
            # Another client may still be in flight on the same copies.
            copy.grad = None
