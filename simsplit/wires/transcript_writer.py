"""A transcript is written here, part by part, and says where it ends if the disk does.

A row of a table is written only after its tensors are on the disk. So a transcript whose recorder
was killed reads up to its last complete part.
"""

import csv
import errno
import io
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError
from torch import Tensor

from simsplit.errors import RunError
from simsplit.foreign import MOST_YAML, parse_yaml, refuse_link
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.sizes import format_size
from simsplit.wires.confined import MOST_INDEX, ConfinedFolder
from simsplit.wires.facts import (
    COLUMNS,
    FACTS,
    PACKETS,
    SAMPLE_COLUMNS,
    SAMPLES,
    TRUTH,
    TranscriptFacts,
    check_facts,
    check_number,
    parse_count,
    parse_ids,
)
from simsplit.wires.tensor_file import DTYPES, MOST_TENSOR, write_tensors

_LOG = logging.getLogger("simsplit")
PART = 64 * 2**20
"""Bytes of tensors after which a file is written; what is held in memory, at most, beside one
packet."""
SPARE = 256 * 2**20
"""Bytes that a transcript leaves free on its disk."""
_WRITABLE = frozenset(DTYPES.values())


class TranscriptWriter:
    """A writer of one transcript into a new folder, with a cap in bytes.

    After the cap, or when the disk is full, it takes nothing more, and `ended` says why. Nothing
    that it does after its start raises an error for the disk's sake: the loop goes on.
    """

    def __init__(
        self,
        path: Path | str,
        facts: TranscriptFacts,
        most: int | None = None,
        *,
        part: int = PART,
        append: bool = False,
    ) -> None:
        """Start a transcript in a new folder; `append`: go on with one that is there."""
        self.path = Path(path)
        self.facts = facts
        self.most = most
        self.nbytes = 0
        """Bytes of tensors that were taken, those of the truth included."""
        self.packets = 0
        """Packets that were taken."""
        self.ended = ""
        """Why it takes nothing more; empty while it does."""
        self._refused = False
        """Whether the disk did; what is held after another end is still written."""
        self.next_step = 0
        """The step after the last one of a transcript that goes on."""
        goes_on = append and (self.path / FACTS).is_file()
        if not goes_on:
            self._refuse_used()
        try:
            if goes_on:
                # A smaller packet would fit below the cap, after a gap that nobody could see.
                self.ended = self._read_ended()
            self.path.mkdir(parents=True, exist_ok=True)
            self._write_facts("recording")
            self._packets = _Table(self.path, PACKETS, COLUMNS, part)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror or error}") from None
        self._part = part
        self._samples: _Table | None = None
        self._known: set[int] = set()
        if goes_on:
            self._go_on()

    def add(
        self,
        leg: str,
        tensors: Sequence[Tensor],
        *,
        client: ClientId = 0,
        round: int = 1,  # noqa: A002 - the column's name
        step: int = 0,
        ids: Sequence[int] = (),
        phase: str = "train",
        session: int | None = None,
        position: int = 0,
        copy: bool = True,
    ) -> bool:
        """Take a packet, and copy tensors that may change; return False if it has ended."""
        for column, number in (("client", client), ("round", round)):
            check_number(column, number)
        held = [_hold(tensor, copy=copy) for tensor in tensors]
        if not self._has_room(held):
            return False
        names = tuple(f"{self.packets}.{number}" for number in range(len(held)))
        cells = {
            "client": client,
            "round": round,
            "step": step,
            "leg": leg,
            "phase": phase,
            "session": session,
            "position": position,
            "tensors": names,
            "ids": tuple(ids),
        }
        self.packets += 1
        named = dict(zip(names, held, strict=True))
        return self._guard(lambda: self._packets.add(named, cells))

    def add_packet(self, packet: Packet, phase: str, ids: Sequence[int] = ()) -> bool:
        """Take a packet as it crossed; return False if the transcript has ended."""
        return self.add(
            packet.leg,
            packet.tensors,
            client=packet.client,
            round=packet.round,
            step=packet.step,
            ids=ids,
            phase=phase,
            session=packet.session,
            position=packet.position,
        )

    def add_truth(
        self, ids: Sequence[int], inputs: Tensor | None = None, labels: Tensor | None = None
    ) -> bool:
        """Take the inputs and labels of samples; those of ids that it has already are left out."""
        places = {each: place for place, each in reversed(list(enumerate(ids)))}
        fresh = [places[each] for each in self.list_unknown(ids)]
        values = (("inputs", inputs), ("labels", labels))
        held = {n: _hold(each[fresh], copy=False) for n, each in values if each is not None}
        if not fresh or not held or not self._has_room(list(held.values())):
            return not self.ended
        if self._samples is None and not self._start_truth():
            return False
        samples = self._samples
        assert samples is not None
        cells = {name: f"{samples.taken}.{name}" for name in held}
        kept = tuple(ids[place] for place in fresh)
        self._known.update(kept)
        tensors = {cells[name]: each for name, each in held.items()}
        return self._guard(lambda: samples.add(tensors, {**cells, "ids": kept}))

    def list_unknown(self, ids: Sequence[int]) -> list[int]:
        """List the ids whose truth was not taken yet, each once."""
        return [each for each in dict.fromkeys(ids) if each not in self._known]

    def drop_from(self, number: int) -> None:
        """Drop the packets of a round and of later ones, which are recorded again."""
        self.flush()
        self._guard(lambda: self._packets.keep(lambda row: int(row["round"]) < number))

    def flush(self) -> None:
        """Write what is still held."""
        for table in (self._packets, self._samples):
            if table is not None and not self._refused:
                self._guard(table.flush)

    def close(self) -> None:
        """Write what is still held, and the facts; log why the end is missing, if it is."""
        self.flush()
        self._guard(lambda: self._write_facts("cut" if self.ended else "complete"))
        if self.ended:
            _LOG.warning("%s ends early: %s", self.path, self.ended)

    def _go_on(self) -> None:
        """Count what an earlier recorder has written."""
        self.packets, self.nbytes = self._packets.taken, self._packets.nbytes
        steps = (parse_count(row, "step") for row in self._packets.read())
        self.next_step = 1 + max(steps, default=-1)
        if (self.path / TRUTH).is_dir():
            self._start_truth()
            assert self._samples is not None
            self.nbytes += self._samples.nbytes
            self._known.update(*(parse_ids(row) for row in self._samples.read()))

    def _read_ended(self) -> str:
        """Return why an earlier recorder took nothing more; empty if it did."""
        folder = ConfinedFolder.open(self.path)
        values = parse_yaml(folder.read_text(FACTS, MOST_YAML))
        return check_facts(values, folder.describe(FACTS)).ended

    def _start_truth(self) -> bool:
        """Make the folder of the truth, which only its owner may enter."""

        def make() -> None:
            (self.path / TRUTH).mkdir(mode=0o700, exist_ok=True)
            self._samples = _Table(self.path / TRUTH, SAMPLES, SAMPLE_COLUMNS, self._part)

        return self._guard(make)

    def _has_room(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether tensors fit below the cap; end the transcript if they do not."""
        more = sum(tensor.nbytes for tensor in tensors)
        if not self.ended and self.most is not None and self.nbytes + more > self.most:
            self.ended = f"it has reached its cap of {format_size(self.most)} (most)"
        if self.ended:
            return False
        self.nbytes += more
        return True

    def _guard(self, write: Callable[[], object]) -> bool:
        """Write; if the disk refuses, end the transcript."""
        try:
            write()
        except OSError as error:
            self._refused = True
            self.ended = self.ended or f"the disk refused it: {error.strerror or error}"
            return False
        return True

    def _write_facts(self, status: str) -> None:
        import yaml

        facts = self.facts.model_copy(update={"status": status, "ended": self.ended})
        values = facts.model_dump(mode="json", exclude_defaults=True)
        text = yaml.safe_dump({"version": facts.version, **values}, sort_keys=False)
        partial = self.path / f"{FACTS}.partial"
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        partial.replace(self.path / FACTS)

    def _refuse_used(self) -> None:
        """Refuse a folder that has something in it: a transcript is never written over."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise RunError(f"cannot write {self.path}: it is no folder")
        if self.path.is_dir() and any(self.path.iterdir()):
            raise RunError(f"{self.path} is not empty; name a new folder for the transcript")


class _Table:
    """A table, and the files with the tensors of its rows."""

    def __init__(self, folder: Path, name: str, columns: Sequence[str], part: int) -> None:
        self.folder, self.file, self.columns, self.part = folder, folder / name, columns, part
        self._stem = name.removesuffix(".csv")
        files = sorted(folder.glob(f"{self._stem}-*.safetensors"))
        self._files = len(files)
        self.nbytes = sum(file.stat().st_size for file in files)
        """Bytes of the files that were there before."""
        self._tensors: dict[str, Tensor] = {}
        self._rows: list[dict[str, Any]] = []
        self._held = 0
        refuse_link(self.file)
        if not self.file.exists():
            self.file.write_text(_format_rows(columns, (), header=True), encoding="utf-8")
        self.taken = sum(1 for _ in self.read())
        """Rows that were taken."""

    def read(self) -> Iterator[dict[str | None, Any]]:
        """Yield the rows that are in the table."""
        folder = ConfinedFolder.open(self.folder)
        yield from folder.read_lines(self.file.name, MOST_INDEX)

    def add(self, tensors: Mapping[str, Tensor], cells: dict[str, Any]) -> None:
        """Take a row and its tensors; write a file if enough is held."""
        self.taken += 1
        self._tensors.update(tensors)
        self._rows.append(cells)
        self._held += sum(tensor.nbytes for tensor in tensors.values())
        if self._held >= self.part:
            self.flush()

    def keep(self, wanted: Callable[[Mapping[Any, Any]], bool]) -> None:
        """Keep the rows of the table that are wanted; tensors of the others stay in their files."""
        rows = [row for row in self.read() if wanted(row)]
        partial = self.file.with_name(f"{self.file.name}.partial")
        partial.write_text(_format_rows(self.columns, rows, header=True), encoding="utf-8")
        partial.replace(self.file)

    def flush(self) -> None:
        """Write the tensors that are held, and then their rows."""
        if not self._rows:
            return
        # while there is still some room: others write on the same disk
        free = shutil.disk_usage(self.folder).free
        if free < self._held + SPARE:
            raise OSError(errno.ENOSPC, f"only {format_size(free)} are free there")
        name = f"{self._stem}-{self._files:05d}.safetensors"
        tensors, rows = self._tensors, self._rows
        self._tensors, self._rows, self._held = {}, [], 0
        self._files += 1
        partial = self.folder / f"{name}.partial"
        try:
            partial.unlink(missing_ok=True)  # of a recorder that was killed
            write_tensors(partial, tensors)
            partial.replace(self.folder / name)
            self._append([{**row, "file": name} for row in rows])
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; if the disk takes a part of them only, take that part back."""
        text = _format_rows(self.columns, rows)
        before = self.file.stat().st_size
        try:
            with self.file.open("a", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError:
            os.truncate(self.file, before)
            raise


def _format_rows(
    columns: Sequence[str], rows: Iterable[Mapping[Any, Any]], *, header: bool = False
) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        lists = {
            name: " ".join(map(str, each)) for name, each in row.items() if isinstance(each, tuple)
        }
        writer.writerow({**row, **lists})
    return text.getvalue()


def _hold(tensor: Tensor, *, copy: bool = True) -> Tensor:
    """Return a tensor in the processor's memory; raise RunError for one that cannot be kept."""
    if tensor.dtype not in _WRITABLE:
        raise RunError(
            f"a transcript holds no tensors of {tensor.dtype}; allowed: "
            f"{', '.join(str(each).removeprefix('torch.') for each in DTYPES.values())}"
        )
    if tensor.nbytes > MOST_TENSOR:
        raise RunError(
            f"a packet of {format_size(tensor.nbytes)} is too large for a transcript; at most "
            f"{format_size(MOST_TENSOR)}: record smaller batches"
        )
    return tensor.detach().to("cpu", copy=copy).contiguous()


def parse_size(most: int | str) -> int:
    """Return a size in bytes, such as 2 GiB."""
    try:
        size = int(TypeAdapter(ByteSize).validate_python(most))
    except ValidationError:
        size = 0
    if size <= 0:
        raise RunError(f"most: must be a size such as 500 MB or 2 GiB, got '{most}'")
    return size
