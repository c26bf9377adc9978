"""Check a card that somebody hands in: nothing in it is believed before it fits the board.

A value cannot be checked by looking at it. So one cell, drawn by the card's own digest, can be
measured again: nobody who hands in can choose which.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simsplit.boards.entries import Board, build_board
from simsplit.boards.guests import Guest
from simsplit.errors import DataError
from simsplit.evidence.claims import Tier
from simsplit.evidence.evidence_tables import KnownRows
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.measuring_cells import MeasuringCell
from simsplit.foreign import read_text
from simsplit.plugins import Plugins

_MOST_BYTES = 4 * 2**20
OTHER_MACHINE = 0.05
"""How much a value may differ on another machine, as a share of the larger one."""
_SAME_MACHINE = 1e-6
NO_ROWS = KnownRows({}, {})


class CardRow(BaseModel):
    """A row of a card, as it must be."""

    model_config = ConfigDict(extra="forbid", strict=True)
    setting: str = Field(max_length=500)
    seed: int = Field(ge=0)
    figure: str = Field(max_length=200)
    value: float = Field(allow_inf_nan=False)
    digest: str = Field(pattern=r"^[0-9a-f]{16}$")
    version: str = Field(min_length=1, max_length=40)
    machine: str = Field(min_length=1, max_length=1000)
    threads: int = Field(ge=1)
    minutes: float = Field(ge=0, allow_inf_nan=False)
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d")


class _CardPlugin(BaseModel):
    """The name and digest of a plugin's file."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(max_length=200)
    digest: str = Field(max_length=100)


class Card(BaseModel):
    """What is handed in: methods and attacks on a track at a tier, and their rows."""

    model_config = ConfigDict(extra="forbid", strict=True)
    track: str
    tier: Tier
    methods: list[dict[str, Any]] = Field(max_length=50)
    attacks: list[dict[str, Any]] = Field(max_length=50)
    plugins: list[_CardPlugin]
    rows: list[CardRow] = Field(min_length=1, max_length=20_000)


@dataclass(frozen=True)
class CheckedCard:
    """A card beside the board that it belongs to, and what is wrong with it."""

    card: Card
    guest: Guest
    board: Board
    faults: Sequence[str]
    digest: str

    def draw_cell(self) -> MeasuringCell:
        """Return the cell to be measured again, which the card's digest chooses."""
        cells = self.board.own_cells
        return cells[int(self.digest, 16) % len(cells)]


def read_card(file: Path) -> tuple[Card, str]:
    """Read a card and the digest of its text; raise DataError, by the field, for what is none."""
    text = read_text(file, _MOST_BYTES)
    try:
        card = Card.model_validate(json.loads(text))
    except (ValueError, RecursionError) as error:
        why = f"is no JSON ({error})"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc'])) or 'the card'}: {first['msg']}"
        raise DataError(f"{file}: {why}") from None
    return card, hashlib.sha256(text.encode()).hexdigest()[:16]


def check_card(file: Path, plugins: Plugins) -> CheckedCard:
    """Hold a card against the board of this version, with the plugins that came with it."""
    card, digest = read_card(file)
    guest = Guest(card.methods, card.attacks, plugins)
    seeds = sorted({row.seed for row in card.rows})
    board = build_board(card.track, card.tier, guest, seeds=seeds, known=NO_ROWS)
    faults = [*_check_plugins(card, plugins), *_check_rows(card, board)]
    return CheckedCard(card, guest, board, faults, digest)


def _check_plugins(card: Card, plugins: Plugins) -> Iterator[str]:
    """Yield the plugins that are not those of the card."""
    here = {str(each["digest"]) for each in plugins.describe_origins()}
    stated = {each.digest: each.name for each in card.plugins}
    for digest in stated.keys() - here:
        yield f"plugins: {stated[digest]} has another digest here, or is not given (--plugin)"
    if extra := here - stated.keys():
        yield f"plugins: {len(extra)} given that the card does not name"


def _check_rows(card: Card, board: Board) -> Iterator[str]:
    """Yield rows that no cell of the board has, and figures that a cell lacks."""
    wanted = {
        (cell.setting, cell.seed, figure): digest
        for cell in board.own_cells
        for figure, digest in cell.digests.items()
    }
    seen: set[tuple[str, int, str]] = set()
    for place, row in enumerate(card.rows):
        key = (row.setting, row.seed, row.figure)
        if key in seen:
            yield f"rows.{place}: {row.setting}, seed {row.seed}, {row.figure} stands there twice"
        elif key not in wanted:
            yield f"rows.{place}: the board has no {row.figure} of {row.setting}"
        elif wanted[key] != row.digest:
            yield f"rows.{place}.digest: {row.digest} is of another scenario or plugin"
        seen.add(key)
    if lacking := [key for key in wanted if key not in seen]:
        setting, seed, figure = lacking[0]
        yield f"rows: {len(lacking)} lack, such as {figure} of {setting}, seed {seed}"


def compare_rows(card: Card, measured: Sequence[Measurement]) -> list[str]:
    """Return the figures that come out otherwise than the card has them."""
    stated: Mapping[tuple[str, int, str], CardRow] = {
        (row.setting, row.seed, row.figure): row for row in card.rows
    }
    faults = []
    for row in measured:
        if (claim := stated.get(row.key)) is None:
            continue
        share = _SAME_MACHINE if claim.machine == row.machine else OTHER_MACHINE
        if not math.isclose(claim.value, row.value, rel_tol=share, abs_tol=_SAME_MACHINE):
            faults.append(f"{row.figure} of {row.setting}: {claim.value:g}, here {row.value:g}")
    return faults
