"""A fault that shows at a client's answer is not always the client's.

Where a plugin fails, or training diverges, each client would be expelled in its turn. So before a
client is expelled for such a fault, the server rehearses without any client. What fails there too
is no client's fault, and no client can make it fail there. What a rehearsal cannot show is decided
by numbers: a fault that every client has in one round is not theirs. A smaller number would let
hostile clients end the honest clients' run.
"""

import threading
import traceback
from collections import defaultdict

import torch

from simsplit.assembly.rehearsal import diverges
from simsplit.data import DataInfo
from simsplit.deploy.sent_sizes import COUNTED_RISE
from simsplit.deploy.server_tables import LeftOutTable, clean
from simsplit.deploy.trunk_watch import MOST_NORM
from simsplit.errors import (
    Fault,
    OutOfRangeError,
    PluginError,
    PluginFailedError,
    ProtocolError,
    RunFailedError,
    format_count,
)
from simsplit.legs import ClientId
from simsplit.running.rehearsing import rehearse
from simsplit.scenario import Scenario

RANGE = "range"
"""The kind of faults whose numbers are not finite, or too large."""
_ADVICE = "a smaller learning rate or train.clip_norm may help"
_KEPT = "the run's last checkpoint is kept"


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
