"""A fault that shows at a client's answer is not always the client's.

Where a plugin fails, or training diverges, each client would be expelled in its turn. So before a
client is expelled for such a fault, the server rehearses without any client. What fails there too
is no client's fault, and no client can make it fail there. What a rehearsal cannot show is decided
by numbers: a fault that every client has in one round is not theirs. A smaller number would let
hostile clients end the honest clients' run.

`expelled.csv` lists the clients that a deployed run continues without. It is kept in the run
directory, so that a server that was killed and resumed does not wait for a client that may not come
back.
"""

import csv
import io
import threading
import traceback
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch

from simsplit.assembly.rehearsal import diverges
from simsplit.data import DataInfo
from simsplit.deploy.client_session import clean
from simsplit.deploy.sent_sizes import COUNTED_RISE
from simsplit.deploy.trunk_watch import MOST_NORM
from simsplit.errors import (
    Fault,
    OutOfRangeError,
    PluginError,
    PluginFailedError,
    ProtocolError,
    RunError,
    RunFailedError,
    format_count,
)
from simsplit.foreign import read_csv, split_rows
from simsplit.legs import ClientId
from simsplit.results.directory import EXPELLED, replace, writing
from simsplit.running.rehearsing import rehearse
from simsplit.scenario import Scenario

Kind = Literal["expelled", "away", "without"]
"""expelled: because of what it sent. away: it did not come in time, and `clients.quorum` allows
that. without: by the server's owner."""
MOST_REASON = 300
"""Most characters of a reason, which may quote what a client has sent."""
RANGE = "range"
"""The kind of faults whose numbers are not finite, or too large."""
_ADVICE = "a smaller learning rate or train.clip_norm may help"
_KEPT = "the run's last checkpoint is kept"


class LeftOut(NamedTuple):
    """A client that the run continues without, from a round on."""

    client: ClientId
    round: int
    kind: Kind
    reason: str


class LeftOutTable:
    """The clients that are left out of a run; each is written down before the run continues."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Read the table of a run that is resumed; a new run has none."""
        self.file = path / EXPELLED
        self._rows: dict[ClientId, LeftOut] = {}
        self._lock = threading.Lock()
        if resume and self.file.exists():
            self._rows = {row.client: row for row in _read(self.file)}
        elif self.file.exists():  # of a run that ended before its directory was complete
            self.file.unlink()

    @property
    def clients(self) -> frozenset[ClientId]:
        """The clients that are left out."""
        return frozenset(self._rows)

    def get(self, client: ClientId) -> LeftOut | None:
        """Return the row of a client; None if it is not left out."""
        return self._rows.get(client)

    def add(self, client: ClientId, round_number: int, kind: Kind, reason: str) -> None:
        """Leave a client out; the first reason counts."""
        with self._lock:  # clients that train concurrently may be expelled at the same time
            if client not in self._rows:
                reason = clean(reason)[:MOST_REASON]
                self._rows[client] = LeftOut(client, round_number, kind, reason)
                self._write()

    def readmit(self, clients: Collection[ClientId]) -> None:
        """Admit clients again, as they were expelled for what is not their fault."""
        with self._lock:
            if wrong := self._rows.keys() & clients:
                self._rows = {n: row for n, row in self._rows.items() if n not in wrong}
                self._write()

    def _write(self) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([LeftOut._fields, *self._rows.values()])
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace(self.file, text.getvalue().encode())


class FaultJudge:
    """A judge of whether a client is to be expelled for a fault, or the run has to stop."""

    def __init__(self, scenario: Scenario, left_out: LeftOutTable) -> None:
        """Judge the faults of one run, and readmit clients in `left_out` that are not at fault."""
        self.scenario, self._left_out = scenario, left_out
        self._clients: defaultdict[tuple[int, str], set[ClientId]] = defaultdict(set)
        """The clients that have had a fault of a kind in a round."""
        self._diverges: bool | None = None
        """Whether a rehearsal diverges; None before the first."""
        self._lock = threading.RLock()

    def check(
        self,
        client: ClientId,
        round_number: int,
        error: Exception,
        info: DataInfo,
        device: torch.device,
    ) -> None:
        """Raise RunFailedError if an error that shows at a client's answer is not its fault."""
        fault = _find_plugin_fault(error)
        kind = _describe_kind(error, fault)
        if kind is None:
            return
        with self._lock:  # clients that train concurrently may fail at the same time
            if fault is not None:
                self._rehearse_plugin(round_number, fault, info, device)
            elif kind == RANGE:
                self._rehearse_training(round_number, info, device)
            self._count(client, round_number, kind, fault)

    def _rehearse_plugin(
        self, round_number: int, fault: Fault, info: DataInfo, device: torch.device
    ) -> None:
        """Raise PluginFailedError if the same hook fails without any client."""
        try:
            rehearse(self.scenario, None, device, info=info, round_number=round_number)
        except PluginError as error:
            if _name_hook(error.fault) == _name_hook(fault):
                raise PluginFailedError(
                    error.fault,
                    f"it fails without any client too, so no client is expelled for it; {_KEPT}: "
                    "mend the plugin and resume",
                ) from error

    def _rehearse_training(self, round_number: int, info: DataInfo, device: torch.device) -> None:
        """Raise RunFailedError if training on random samples diverges, as far as is known."""
        if self._diverges is None:
            limits = {"limit": MOST_NORM, "growth": COUNTED_RISE}
            self._diverges = diverges(self.scenario, info, device, **limits)
        if self._diverges:
            raise RunFailedError(
                f"round {round_number}: training diverges, with random samples too, so no client "
                f"is expelled for numbers that are not finite, or too large; {_KEPT}, and {_ADVICE}"
            )

    def _count(self, client: ClientId, round_number: int, kind: str, fault: Fault | None) -> None:
        """Raise RunFailedError if all clients have had a fault in a round, and readmit them."""
        alike = self._clients[round_number, kind]
        alike.add(client)
        present = self.scenario.clients.count - len(self._left_out.clients - alike)
        if len(alike) < present:
            return
        self._left_out.readmit(alike)
        some = f"all {format_count(present, 'client')}"
        if fault is not None:
            raise PluginFailedError(
                fault,
                f"it fails for {some} in round {round_number}, so none of them is expelled for "
                f"it; {_KEPT}: mend the plugin and resume",
            )
        if kind == RANGE:
            raise RunFailedError(
                f"round {round_number}: training diverges: numbers of {some} are not finite, or "
                f"too large, so none of them is expelled; {_KEPT}, and {_ADVICE}"
            )
        raise RunFailedError(
            f"round {round_number}: the server fails in the same way for {some}, so none of them "
            f"is expelled: {kind}; {_KEPT}"
        )


def _describe_kind(error: Exception, fault: Fault | None) -> str | None:
    """Return a kind of fault that may be the server's own; None: it is the client's."""
    if fault is not None:
        return " ".join(_name_hook(fault))
    if isinstance(error, OutOfRangeError):
        return RANGE
    if isinstance(error, ProtocolError):
        return None
    *_, last = traceback.extract_tb(error.__traceback__) or [None]
    place = "" if last is None else f" ({last.filename}, line {last.lineno})"
    return f"{type(error).__name__}: {clean(str(error))[:200]}{place}"


def _find_plugin_fault(error: BaseException | None) -> Fault | None:
    """Return the fault of a plugin that has caused an error; None if no plugin has."""
    while error is not None:
        if isinstance(error, PluginError):
            return error.fault
        error = error.__cause__
    return None


def _name_hook(fault: Fault) -> tuple[str, str, str, str]:
    return fault.file or fault.plugin, fault.part, fault.name, fault.hook


def _read(file: Path) -> list[LeftOut]:
    """Read the table; raise RunError if it is damaged."""
    try:
        return [_parse(row) for row in split_rows(read_csv(file))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} cannot be read ({type(error).__name__}); restore it") from None


def _parse(row: Mapping[str, Any]) -> LeftOut:
    if row["kind"] not in get_args(Kind):
        raise ValueError(row["kind"])
    return LeftOut(int(row["client"]), int(row["round"]), row["kind"], row["reason"] or "")
