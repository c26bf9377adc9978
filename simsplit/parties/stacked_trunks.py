"""The server's copies of the trunk (splitfed_v1) as one tensor each: a row for every client.

The server's end runs them on the rows of a cohort, laid one after another as for a common trunk.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from simsplit.legs import ClientId
from simsplit.parties.learner import Learner
from simsplit.parties.stacked_adapters import reads_texts
from simsplit.parties.stacked_end import RowLayout
from simsplit.parties.stacked_learner import StackedLearner, StackedStep


class StackedTrunks:
    """What the server learns, once for each of several clients."""

    def __init__(
        self,
        learner: Learner,
        clients: Sequence[ClientId],
        moments: Sequence[Mapping[str, Tensor]],
        device: torch.device,
    ) -> None:
        """Copy a learner's present weights for each client, with that client's moments."""
        self.places = {client: place for place, client in enumerate(clients)}
        self._learner = StackedLearner([(learner,)] * len(clients), moments)
        self._device = device
        self._sizes: Sequence[int] = ()
        self.takes_texts = reads_texts(learner.modules["trunk"])
        self._groups: list[tuple[list[int], RowLayout, StackedStep]] = []
        """Members of a step whose copies run as one, by their places, and how."""

    def open(
        self, clients: Sequence[ClientId], sizes: Sequence[int], lengths: Sequence[int] = ()
    ) -> None:
        """Begin a step of these clients' copies, on so many rows of each; texts have lengths."""
        self._sizes = sizes
        alike: dict[int, list[int]] = {}
        for place, size in enumerate(sizes):
            # A norm's statistics take no rows that fill up, so copies then run size by size.
            alike.setdefault(size if self._learner.buffers else 0, []).append(place)
        self._groups = [
            (
                places,
                RowLayout(
                    [sizes[place] for place in places],
                    self._device,
                    [lengths[place] for place in places] if lengths else (),
                ),
                self._learner.open([self.places[clients[place]] for place in places]),
            )
            for places in alike.values()
        ]

    def run(self, segment: str, flat: Tensor) -> Tensor:
        """Run every client's copy of a segment on its rows; all clients' rows lie in one tensor."""
        if len(self._groups) == 1:
            ((_, layout, step),) = self._groups
            return layout.join(step.run(segment, layout.stack(flat)))
        return torch.cat(self.run_each(segment, flat.split([*self._sizes])))

    def run_each(self, segment: str, parts: Sequence[Tensor]) -> list[Tensor]:
        """Run every client's copy of a segment on its rows, which lie in tensors of their own."""
        made = dict[int, Tensor]()
        for places, layout, step in self._groups:
            rows = layout.stack([parts[place] for place in places])
            outputs = layout.split(step.run(segment, rows))
            made |= dict(zip(places, outputs, strict=True))
        return [made[place] for place in range(len(parts))]

    def learn(self) -> None:
        """Take one optimizer step of the copies that the step ran."""
        for *_, step in self._groups:
            step.end()

    def weights(self) -> dict[ClientId, dict[str, Tensor]]:
        """Return each client's weights, by the names of the learner's."""
        return dict(zip(self.places, self._learner.list_weights(), strict=True))

    def moments(self) -> dict[ClientId, dict[str, Tensor]]:
        """Return the moments of each client that has any, by the names of the learner's."""
        return dict(zip(self.places, self._learner.list_moments(), strict=True))
