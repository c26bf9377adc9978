"""Golden cases on another device than the CPU, beside the same on the CPU."""

import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from golden.cases import CASES, Values, merge_values, write_texts
from golden.differences import differences
from golden.one_tree import carry_out

ROOT = Path(__file__).resolve().parents[2]
_REAL = re.compile("loss|perplexity")
"""Columns of real numbers; others are counts, bytes or shares."""


def find_differences(name: str, folder: Path) -> list[str]:
    """Return what differs between a case's outcomes on the two devices."""
    return differences(*(run_case(name, device, folder) for device in ("cpu", "auto")))


def run_case(name: str, device: str, folder: Path) -> dict[str, Any]:
    """Run a case on a device, and return its tables and the digests of its tensors."""
    case, folder = CASES[name], folder / device
    folder.mkdir(parents=True)
    attack = dict(case.attack)
    kind = [attack.pop("kind")] if attack else []
    job = {
        "file": _write(case.values, device, folder / "first.yaml"),
        "then": _write(merge_values(case.values, case.then), device, folder / "then.yaml")
        if case.then
        else None,
        "attack": [*kind, *(f"{field}={value}" for field, value in attack.items())],
    }
    return carry_out(job, folder / "run")


def _write(values: Values, device: str, file: Path) -> str:
    text = yaml.safe_dump({**values, "device": device}, sort_keys=False)
    placed = text.replace("$TREE", str(ROOT)).replace("$TEXTS", str(_make_texts()))
    file.write_text(placed, encoding="utf-8")
    return str(file)


@cache
def _make_texts() -> Path:
    folder = Path(tempfile.mkdtemp()) / "texts"
    write_texts(folder)
    return folder


def find_far(name: str, device: str, close: float) -> list[str]:
    """Return columns of a case's rounds that lie further apart than `close`, relative to size.

    Bytes and counts must be equal.
    """
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = (
            run_case(name, each, Path(folder) / str(side))["tables"]["rounds"]["columns"]
            for side, each in enumerate(("cpu", device))
        )
    return [
        f"{column}: {one} -> {other}"
        for column in ours
        for one, other in zip(ours[column], theirs[column], strict=True)
        if not _lies_near(one, other, close if _REAL.search(column) else 0.0, column)
    ]


def _lies_near(one: str, other: str, close: float, column: str) -> bool:
    if one == other or "accuracy" in column:  # a few samples of forty may change sides
        return True
    try:
        apart = abs(float(one) - float(other))
    except ValueError:
        return False
    return apart <= close * max(abs(float(one)), abs(float(other)))
