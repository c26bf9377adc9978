"""A party aligns its ids with the others before it joins a run, and keeps the ids that all have.

It blinds only points that another party of the roster has signed, each once: else a server could
have it blind points of its own, and try out ids.
"""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simsplit.data.joined_tables import JoinedSource, read_rows
from simsplit.deploy.alignment import (
    LEAST_IDS,
    MOST_FRAME,
    MOST_IDS,
    Blinder,
    check_points,
    make_statement,
    require_psi,
)
from simsplit.deploy.connection import JoiningSite, Say, join
from simsplit.deploy.frames import bytes_to_tensor, read_frame, write_frame
from simsplit.deploy.keys import Keys
from simsplit.deploy.seals import Seals, verify_signature
from simsplit.deploy.terms import Mode, digest_terms
from simsplit.errors import DataError, ProtocolError, RunError
from simsplit.legs import ClientId
from simsplit.results.directory import make_folder, replace
from simsplit.scenario import Scenario

COMMON = "common-ids.json"
"""The ids that all parties have, in a party's own folder."""


class AlignmentSite(JoiningSite):
    """One party's side of the alignment, on its owner's machine."""

    most_bytes = MOST_FRAME

    def __init__(self, terms: str, number: ClientId, seals: Seals, ids: list[str]) -> None:
        self.terms, self.number, self.seals, self.ids = terms, number, seals, ids
        self.common: list[str] = []
        """The ids that all parties have, sorted, once they are known."""
        self.start_stream()

    def describe_itself(self) -> dict[str, Any]:
        return {"client": self.number, "terms": self.terms}

    def start_stream(self) -> None:
        """Begin a new stream, with no secret yet."""
        super().start_stream()
        self._blinder: Blinder | None = None
        self._blinded: set[ClientId] = set()

    def answer(self, frame: bytes) -> bytes:
        header, tensors = read_frame(frame, MOST_FRAME)
        number = header.pop("number", None)
        if number != self._last_number + 1:
            raise ProtocolError("a request out of turn")
        self._last_number = number
        if header.keys() == {"blind"} and not tensors:
            answered = self._blind()
        elif header.keys() == {"blind_again", "hop", "from"} and len(tensors) == 2:
            answered = self._blind_again(header, *tensors)
        elif header.keys() == {"common"} and len(tensors) == 1:
            answered = self._take_common(tensors[0])
        else:
            raise ProtocolError("a request that is not one of the alignment")
        return write_frame({"number": number, "answer": None}, answered)

    def _blind(self) -> list[Tensor]:
        """Return this party's ids, blinded by a new secret and in an order that says nothing."""
        self._blinder, self._blinded = Blinder(), {self.number}
        # a sorted order would say where the ids of others lie between these
        secrets.SystemRandom().shuffle(self.ids)
        return self._sign(self.number, 0, self._blinder.blind(self.ids))

    def _blind_again(
        self, header: Mapping[str, Any], points: Tensor, signature: Tensor
    ) -> list[Tensor]:
        """Return another party's blinded ids, blinded by this party's secret too."""
        origin, hop, sender = (header[name] for name in ("blind_again", "hop", "from"))
        known = all(type(each) is int for each in (origin, hop, sender))
        others = self.seals.roster.keys() - {self.number}
        if not known or origin not in others or sender not in others or self._blinder is None:
            raise ProtocolError("to blind the ids of nobody else")
        if origin in self._blinded:
            raise ProtocolError(f"to blind the ids of client {origin} twice")
        self._blinded.add(origin)
        check_points(points)
        statement = make_statement(self.terms, origin, hop - 1, points)
        verify_signature(self.seals.roster[sender], statement, signature)
        return self._sign(origin, hop, self._blinder.blind_again(points))

    def _sign(self, origin: ClientId, hop: int, points: Tensor) -> list[Tensor]:
        statement = make_statement(self.terms, origin, hop, points)
        return [points, bytes_to_tensor(self.seals.sign(statement))]

    def _take_common(self, places: Tensor) -> list[Tensor]:
        """Keep the ids at the places that all parties have."""
        good = places.dtype == torch.int64 and places.dim() == 1 and len(places) >= LEAST_IDS
        found = places.tolist() if good else []
        if not found or found != sorted(set(found)) or found[0] < 0 or found[-1] >= len(self.ids):
            raise ProtocolError("places that are not those of different rows")
        self.common = sorted(self.ids[place] for place in found)
        return []


def align_ids(
    scenario: Scenario,
    client: ClientId,
    address: str,
    keys: Keys,
    out: Path,
    *,
    data: Path | None,
    mode: Mode,
    resume: bool,
    patience_s: float,
    say: Say,
) -> list[str] | None:
    """Return the ids that all parties have, or None if the scenario does not align them.

    A resumed party has them in its folder, unless it was stopped before they were known.
    """
    source = scenario.data.source
    if not isinstance(source, JoinedSource) or source.align is None:
        return None
    if resume and (known := _read_common(out / COMMON)) is not None:
        return known
    require_psi()
    party = [*source.files][client]
    ids = [*read_rows(source, party, data or source.files[party]).index]
    if not LEAST_IDS <= len(ids) <= MOST_IDS:
        raise DataError(
            f"data.source.files.{party}: has {len(ids):,} ids, and {LEAST_IDS} to {MOST_IDS:,} "
            "can be aligned"
        )
    seals = Seals(keys, scenario.clients.count)
    site = AlignmentSite(digest_terms(scenario, mode), client, seals, ids)
    join(address, keys, site, patience_s=patience_s, say=say)
    make_folder(out)
    replace(out / COMMON, json.dumps(site.common, indent=0).encode())
    say(f"aligned: {len(site.common):,} of {len(ids):,} rows have ids that all parties have")
    return site.common


def _read_common(file: Path) -> list[str] | None:
    """Read the common ids that this party has kept; None if it has none yet."""
    if not file.exists():
        return None
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        known = None
    if not isinstance(known, list) or not all(isinstance(each, str) for each in known):
        raise RunError(f"{file} is not the list of ids that simsplit wrote; align them again")
    return known
