"""A client at rest: a few flat tensors of what it owns, and little else.

Modules, parameters and optimizers take tens of kilobytes of Python objects for each client, however
small its weights are. At rest a client has one tensor for all weights of a type and one for all
moments. A layout, which clients have in common, says where each weight lies in them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simsplit.parties.tally import Tally

Kind = tuple[torch.dtype, torch.device]
SLAB_BYTES = 2**21
"""Size of the slabs that flat tensors are cut from; allocated one by one they would leave gaps."""


@dataclass(frozen=True)
class Place:
    """A tensor's name and form; its values lie densely, in the order of its strides."""

    name: str
    kind: Kind
    shape: torch.Size
    stride: tuple[int, ...]


class Layout:
    """The places of named tensors in flat ones, of which there is one for each type and device."""

    def __init__(self, places: tuple[Place, ...]) -> None:
        self.places = places
        self.kinds = tuple(dict.fromkeys(place.kind for place in self.places))
        self.of_kind = [[p for p in self.places if p.kind == kind] for kind in self.kinds]
        self._sizes = [[p.shape.numel() for p in places] for places in self.of_kind]
        self.spare: list[tuple[Tensor, ...]] = []
        """Flat tensors that no client has."""

    @property
    def widths(self) -> list[int]:
        """The bytes of each flat tensor."""
        sizes = map(sum, self._sizes)
        return [kind[0].itemsize * size for kind, size in zip(self.kinds, sizes, strict=True)]

    def blank(self) -> tuple[Tensor, ...]:
        """Return empty flat tensors for one more client."""
        if not self.kinds:
            return ()
        if not self.spare:
            sizes = list(map(sum, self._sizes))
            # A client larger than a slab gets a slab of its own.
            rows = max(1, SLAB_BYTES // max(1, sum(self.widths)))
            slabs = [
                torch.empty(rows, size, dtype=dtype, device=device)
                for (dtype, device), size in zip(self.kinds, sizes, strict=True)
            ]
            self.spare = list(zip(*(slab.unbind() for slab in slabs), strict=True))
        return self.spare.pop()

    def cut(self, flats: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Divide the flat tensors into the tensors' rows of numbers, kind by kind."""
        return [flat.split(sizes) for flat, sizes in zip(flats, self._sizes, strict=True)]


@dataclass(slots=True)
class FlatTensors:
    """Named tensors at rest: a layout, and the flat tensors that it divides."""

    layout: Layout
    flats: tuple[Tensor, ...]

    def split_by_name(self) -> dict[str, Tensor]:
        """Return each tensor by its name, as a view in its own shape and strides."""
        layout = self.layout
        parts = {
            place.name: line.as_strided(place.shape, place.stride)
            for places, lines in zip(layout.of_kind, layout.cut(self.flats), strict=True)
            for place, line in zip(places, lines, strict=True)
        }
        return {place.name: parts[place.name] for place in layout.places}

    def give_back(self) -> None:
        """Leave the flat tensors to another client."""
        if self.flats:
            self.layout.spare.append(self.flats)


@dataclass(slots=True)
class Flat:
    """All that a client at rest remembers."""

    weights: FlatTensors | None = None
    moments: FlatTensors | None = None
    """None before its first step."""
    taken: tuple[int, ...] = ()
    """Batches taken so far, source by source."""
    tally: Tally | None = None
    """The losses of a round that is not over."""


class Mirror:
    """The live tensors that clients are copied into and out of, one after another."""

    def __init__(self, tensors: Mapping[str, Tensor], known: list[Layout]) -> None:
        """Mirror `tensors`; `known` has the layouts so far: clients of equal forms share one."""
        places = tuple(
            Place(name, (tensor.dtype, tensor.device), tensor.shape, tensor.stride())
            for name, tensor in tensors.items()
        )
        if places not in [each.places for each in known]:
            known.append(Layout(places))
        self.layout = next(each for each in known if each.places == places)
        self._tensors = list(tensors.values())
        # Rows of numbers in the order of memory, kind by kind: `flatten` would copy a channels-last
        # tensor, and writes would miss the live one.
        lines = {n: t.detach().as_strided((t.numel(),), (1,)) for n, t in tensors.items()}
        self._lines = [[lines[place.name] for place in places] for places in self.layout.of_kind]

    def mirrors(self, tensors: Sequence[Tensor]) -> bool:
        """Tell whether these are the very tensors that it copies."""
        mine = self._tensors
        # Equal values are not enough: a reset optimizer has new tensors, to be copied anew.
        return len(mine) == len(tensors) and all(
            one is other for one, other in zip(mine, tensors, strict=True)
        )

    def read(self, kept: FlatTensors | None) -> FlatTensors:
        """Copy the live tensors out, over `kept` where that has the same layout."""
        with torch.no_grad():
            if kept is None or kept.layout is not self.layout:
                kept = FlatTensors(self.layout, self.layout.blank())
            for flat, lines in zip(kept.flats, self._lines, strict=True):
                torch.cat(lines, out=flat)
        return kept

    def write(self, kept: FlatTensors) -> None:
        """Copy kept tensors of the same layout into the live ones."""
        assert kept.layout is self.layout, "of another layout"
        with torch.no_grad():
            for lines, cut in zip(self._lines, self.layout.cut(kept.flats), strict=True):
                torch._foreach_copy_(lines, cut)
