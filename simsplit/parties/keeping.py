"""The state that a client alone owns, as named tensors: its part of a checkpoint."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from simsplit.parties.client_end import ClientParts
from simsplit.parties.learner import Learner
from simsplit.parties.training import Training
from simsplit.poisons import Poison
from simsplit.states import select_below


class Keeping:
    """A client's own state: learners, moments that are not handed over, batches taken."""

    def __init__(
        self, parts: ClientParts, training: Training, poisons: Sequence[Poison] = ()
    ) -> None:
        self.parts, self.training, self.poisons = parts, training, poisons

    def state(self) -> dict[str, Tensor]:
        """Return everything that the client's next step depends on and no other client has."""
        state = collect_own_state(
            [each.state() for each in self._own()], self.training.taken.items()
        )
        state |= _prefix("poison", [poison.state() for poison in self.poisons])
        if self.parts.changes is not None:
            state |= _prefix("changes", [self.parts.changes.state()])
        # Moments that travel are saved with what clients share, once for all of them.
        if self.parts.moments_travel or self.parts.shared is None:
            return state
        return state | _prefix("moments", [self.parts.shared.moments()])

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.training.end.sessions.clear()
        for index, learner in enumerate(self._own()):
            learner.load(select_below(state, f"own.{index}."))
        for index, poison in enumerate(self.poisons):
            poison.load(select_below(state, f"poison.{index}."))
        if self.parts.changes is not None:
            self.parts.changes.load(select_below(state, "changes.0."))
        if self.parts.shared is not None:
            self.parts.shared.load_moments(select_below(state, "moments.0."))
        taken = self.training.taken
        taken.update({source: int(state[f"taken.{source}"]) for source in taken})

    def _own(self) -> list[Learner]:
        return [learner for learner in self.parts.learners if learner is not self.parts.shared]


def collect_own_state(
    learned: Iterable[Mapping[str, Tensor]], taken: Iterable[tuple[str, int]]
) -> dict[str, Tensor]:
    """Collect learners' states that a client alone has, and the batches taken of each source."""
    counts = {f"taken.{source}": torch.tensor(count) for source, count in taken}
    return _prefix("own", learned) | counts


def _prefix(name: str, states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{name}.{index}.{key}": tensor
        for index, state in enumerate(states)
        for key, tensor in state.items()
    }
