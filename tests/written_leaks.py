"""Leaks that are written by hand: a row for each target, with its figures as columns."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from simsplit.attacks.known_pairs import is_ceiling
from simsplit.results.leak_table import ATTACK, CEILING, COLUMNS, FLOOR, TABLE, WRITTEN
from simsplit.results.recovered_kinds import KINDS

_PLACE = ("round", "attack", "target", "label", "view", "adapter", "samples", "known")


def find_role(kind: str, attack: str) -> str:
    if attack == WRITTEN:
        return WRITTEN
    if attack in KINDS[kind].guesses:
        return FLOOR
    return CEILING if kind == "sessions" and is_ceiling(attack) else ATTACK


def make_leaks(kind: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Make the table; figures that are empty are left out."""
    made = []
    for row in rows:
        own = {"metric", "value", "low", "high"} & row.keys()
        place = {name: row[name] for name in _PLACE if name in row} | {n: row[n] for n in own}
        place |= {"kind": kind, "role": find_role(kind, row["attack"])}
        figures = {name: value for name, value in row.items() if name not in place}
        made += [place] if own else []
        made += [
            {**place, "metric": metric, "value": value}
            for metric, value in figures.items()
            if value != ""
        ]
    table = pd.DataFrame(made, columns=list(COLUMNS))
    table["view"] = table["view"].astype(object).fillna("")
    return table.astype({"target": "Int64", "label": "Int64", "adapter": "Int64"})


def write_leaks(path: Path, kind: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write them as a run's table."""
    make_leaks(kind, rows).to_csv(path / f"{TABLE}.csv", index=False)


def group_by_target(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per attack and target, with its figures as columns."""
    grouped: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in rows:
        place = row["attack"], row["target"]
        wide = grouped.setdefault(place, {name: row[name] for name in ("attack", "target")})
        wide[row["metric"]] = row["value"]
    return list(grouped.values())
