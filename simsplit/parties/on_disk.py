"""Clients at rest on disk: a row of a file for each, and a few numbers in memory.

Once a checkpoint has named a client's row, the client's next row is written to another place. So a
checkpoint costs an index, and stays whole whatever happens to the run after it: neither a kill nor
a full disk touches a row that it names. Places that no checkpoint names any more are used again.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simsplit.legs import ClientId
from simsplit.parties.flat import Flat, FlatTensors, Layout, Place
from simsplit.parties.sharing import collect_own_state
from simsplit.parties.tally import Tally
from simsplit.results import checkpoints
from simsplit.results.row_file import RESTED, ROWS, RowFile, compute_sum, refuse_damaged
from simsplit.states import select_below

ALIGNED = 16
"""Bytes at multiples of which flat tensors begin in a row."""
NOWHERE = -1
"""The place of a client without a row, and the layout of tensors that are not there."""


def count_row_bytes(learned: int, others: int, parameters: int, slots: int) -> int:
    """Return the bytes of a client's row, at most.

    `learned` are the bytes of its weights that learn, in so many parameters, `others` those of its
    buffers; its optimizer keeps `slots` tensors like each weight, and may count its steps.
    """
    whole = learned * (1 + slots) + others + 8 * parameters
    # Weights and moments are of a few types each, and each begins at such a multiple.
    return -(-(whole + 8 * ALIGNED) // ALIGNED) * ALIGNED


class OnDisk:
    """A place for clients at rest: rows of those that have begun to train."""

    def __init__(self, folder: Path, count: int, width: int, sources: Sequence[str]) -> None:
        """Rest `count` clients in a folder of checkpoints; the file is made with the first row.

        `sources` are the names of their streams of batches.
        """
        self.folder, self.sources = folder, tuple(sources)
        self.file = RowFile(folder / ROWS, width)
        self._opened = False
        self._layouts: list[Layout] = []
        self._row = np.zeros(width, np.uint8)
        self._flat = Flat()
        """The flat form that clients are copied into, one after another."""
        self._tallies: dict[ClientId, Tally] = {}
        self._slots = np.full(count, NOWHERE, np.int64)
        self._sums = np.zeros(count, np.int64)
        self._forms = np.full((count, 2), NOWHERE, np.int16)
        """The layouts of weights and of moments."""
        self._taken = np.zeros((count, len(self.sources)), np.int64)
        self._named = np.zeros(0, np.int32)
        """How many checkpoints name each place."""
        self._size = 0
        """The places of the file, used or free."""
        self._free: list[int] = []
        self._kept: dict[int, np.ndarray] = {}
        """The places that checkpoints name, by round."""

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._slots[number] != NOWHERE

    def __iter__(self) -> Iterator[ClientId]:
        return iter(np.flatnonzero(self._slots != NOWHERE).tolist())

    def prepare(self, number: ClientId) -> Flat:
        """Return the one flat form: a client's content lasts until the next one is copied in."""
        return self._flat

    def put(self, number: ClientId, flat: Flat) -> None:
        """Write a client's row, unless it lies there already or has not begun.

        A client that was only evaluated is as before; one that has not begun can be made again.
        """
        if flat.tally is None:
            self._tallies.pop(number, None)
        else:
            self._tallies[number] = flat.tally
        if not any(flat.taken):
            return
        self._open()
        length = self._pack(flat)
        row, slot = self._row[:length], int(self._slots[number])
        forms = [self._number_layout(each) for each in (flat.weights, flat.moments)]
        now = (compute_sum(row), *forms, *flat.taken)
        before = (self._sums[number], *self._forms[number], *self._taken[number])
        if slot != NOWHERE and now == before:
            return
        if slot == NOWHERE or self._named[slot]:
            slot = self._find_free_slot()
        self.file.write(slot, row)
        self._slots[number], self._sums[number] = slot, now[0]
        self._forms[number], self._taken[number] = forms, flat.taken

    def _open(self) -> None:
        """Make the file before the first row is written, unless checkpoints name rows of one."""
        if self._opened:
            return
        # Clients may have rested in memory meanwhile; the checkpoints before that are still whole.
        self._kept = checkpoints.list_named_slots(self.folder)
        self._find_all_free()
        if self._size:
            self.file.open(to_write=True)
        else:
            self.file.create()
        self._opened = True

    def get(self, number: ClientId) -> Flat | None:
        """Read a client's row; raise RunError if it is not what was written."""
        if number not in self:
            return None
        forms = [None if n == NOWHERE else self._layouts[n] for n in self._forms[number].tolist()]
        slot, length = int(self._slots[number]), _measure(forms)
        row = self.file.read(slot, length)
        refuse_damaged(self.file.path, number, row, int(self._sums[number]))
        weights, moments = _unpack(row, forms)
        taken = tuple(self._taken[number].tolist())
        return Flat(weights, moments, taken, self._tallies.get(number))

    def take_tally(self, number: ClientId) -> Tally:
        return self._tallies.pop(number, None) or Tally()

    def clear(self) -> None:
        """Forget all clients; what checkpoints name stays in the file."""
        self._tallies.clear()
        self._slots[:] = NOWHERE
        self._find_all_free()

    def read_state(self, number: ClientId) -> dict[str, Tensor]:
        """Return a client's state, as live clients have it; empty if it has no row."""
        flat = self.get(number)
        if flat is None:
            return {}
        own: dict[str, Tensor] = {}
        for kept in filter(None, (flat.weights, flat.moments)):
            own |= kept.split_by_name()
        return collect_own_state([own], zip(self.sources, flat.taken, strict=True))

    def state(self) -> dict[str, Tensor]:
        """Return where the rows lie, for a checkpoint to name them."""
        (clients,) = np.nonzero(self._slots != NOWHERE)
        forms, used = np.unique(self._forms[clients], axis=0, return_inverse=True)
        sizes = [_measure([self._layouts[n] for n in form if n != NOWHERE]) for form in forms]
        facts = {
            "sources": self.sources,
            "layouts": [_describe(layout) for layout in self._layouts],
        }
        return {
            "clients": torch.from_numpy(clients),
            "slots": torch.from_numpy(self._slots[clients]),
            "lengths": torch.from_numpy(np.array(sizes, np.int64)[used.ravel()]),
            "sums": torch.from_numpy(self._sums[clients]),
            "forms": torch.from_numpy(self._forms[clients]),
            "taken": torch.from_numpy(self._taken[clients]),
            "width": torch.tensor(self.file.width),
            "facts": torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8),
        }

    def load(self, state: Mapping[str, Tensor], *, to_write: bool = True) -> None:
        """Restore what `state` returned, of a checkpoint whose rows have been checked."""
        clients = state["clients"].numpy()
        facts = json.loads(bytes(state["facts"].tolist()))
        self.sources = tuple(facts["sources"])
        self._layouts = [*map(_build_layout, facts["layouts"])]
        self.file.width = int(state["width"])
        self._row = np.zeros(self.file.width, np.uint8)
        self._taken = np.zeros((len(self._slots), len(self.sources)), np.int64)
        self.clear()
        for ours, name in (
            (self._slots, "slots"),
            (self._sums, "sums"),
            (self._forms, "forms"),
            (self._taken, "taken"),
        ):
            ours[clients] = state[name].numpy()
        if len(clients):
            self.file.open(to_write=to_write)
            self._opened = True
        self._kept = checkpoints.list_named_slots(self.folder) if to_write else {}
        self._find_all_free()

    def keep(self, round_number: int) -> None:
        """Make rows durable, and write over none of them while that round's checkpoint exists."""
        self.file.sync()
        self._kept[round_number] = self._slots[self._slots != NOWHERE]
        self._find_all_free()

    def let_go(self, rounds: Collection[int]) -> None:
        """Use the places again that only checkpoints of other rounds than these have named."""
        self._kept = {number: slots for number, slots in self._kept.items() if number in rounds}
        self._find_all_free()

    def _find_all_free(self) -> None:
        """Count who names each place, and list those that are free."""
        used = [self._slots[self._slots != NOWHERE], *self._kept.values()]
        self._size = max([self._size, *(int(slots.max(initial=NOWHERE)) + 1 for slots in used)])
        self._named = np.zeros(self._size, np.int32)
        for slots in self._kept.values():
            self._named[slots] += 1
        free = self._named == 0
        free[used[0]] = False
        # The first places are taken first, so that the file grows as late as can be.
        self._free = np.flatnonzero(free)[::-1].tolist()

    def _find_free_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._size == len(self._named):
            more = np.zeros(max(64, self._size), np.int32)
            self._named = np.concatenate([self._named, more])
        self._size += 1
        return self._size - 1

    def _pack(self, flat: Flat) -> int:
        """Copy tensors into the one row, and return the bytes that they take."""
        end = 0
        for kept in filter(None, (flat.weights, flat.moments)):
            for tensor in kept.flats:
                start = _align(end)
                self._row[end:start] = 0  # what another client left between would change the sum
                end = start + tensor.nbytes
                self._row[start:end] = tensor.cpu().view(torch.uint8).numpy()
        return end

    def _number_layout(self, kept: FlatTensors | None) -> int:
        """Return a layout's number, under which rows of this run, and those after it, are read."""
        if kept is None:
            return NOWHERE
        for number, layout in enumerate(self._layouts):
            if layout is kept.layout:
                return number
        described = _describe(kept.layout)
        for number, layout in enumerate(self._layouts):
            if _describe(layout) == described:
                # Of a checkpoint; rows of a layout that seats have are copied in as a whole.
                self._layouts[number] = kept.layout
                return number
        self._layouts.append(kept.layout)
        return len(self._layouts) - 1


def read_rows(folder: Path, state: Mapping[str, Tensor], count: int) -> OnDisk:
    """Open the rows that a checkpoint names, to read; `state` is its part that tells of them."""
    rows = OnDisk(folder, count, 0, ())
    rows.load(state, to_write=False)
    return rows


def read_client(
    folder: Path, tensors: Mapping[str, Tensor], count: int, number: ClientId
) -> dict[str, Tensor]:
    """Read the state of one of `count` clients; empty if the checkpoint names no rows."""
    rested = select_below(tensors, RESTED)
    return read_rows(folder, rested, count).read_state(number) if rested else {}


def _align(place: int) -> int:
    return -(-place // ALIGNED) * ALIGNED


def _measure(layouts: Sequence[Layout | None]) -> int:
    """Return the bytes of a row with tensors of these layouts."""
    end = 0
    for layout in filter(None, layouts):
        for nbytes in layout.widths:
            end = _align(end) + nbytes
    return end


def _unpack(row: np.ndarray, layouts: Sequence[Layout | None]) -> list[FlatTensors | None]:
    """Return the tensors of a row as views of it, layout by layout."""
    whole, end, unpacked = torch.from_numpy(row), 0, list[FlatTensors | None]()
    for layout in layouts:
        flats = []
        for (dtype, _), nbytes in zip(layout.kinds, layout.widths, strict=True) if layout else ():
            start = _align(end)
            end = start + nbytes
            flats.append(whole[start:end].view(dtype))
        unpacked.append(None if layout is None else FlatTensors(layout, tuple(flats)))
    return unpacked


def _describe(layout: Layout) -> list[list[Any]]:
    """Describe a layout as plain values, on whatever devices its tensors are."""
    return [
        [
            place.name,
            str(place.kind[0]).removeprefix("torch."),
            list(place.shape),
            list(place.stride),
            layout.kinds.index(place.kind),
        ]
        for place in layout.places
    ]


def _build_layout(described: Sequence[Sequence[Any]]) -> Layout:
    """Build the layout that `_describe` has described, to read rows by the tensors' names."""
    # Tensors of one type lie apart where they were on two devices: numbers stand for these.
    return Layout(
        tuple(
            Place(
                name, (_find_dtype(dtype), torch.device("cpu", kind)), torch.Size(shape), (*stride,)
            )
            for name, dtype, shape, stride, kind in described
        )
    )


def _find_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"no type of tensors is called {name}")  # noqa: TRY004 - a file's content
    return found
