"""The cells that measure a table at a tier, and which rows of the table they stand for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simsplit.errors import ScenarioError
from simsplit.evidence.claims import Axes, Claim, Measured, Tier
from simsplit.evidence.digests import digest_of
from simsplit.evidence.measurements import write_setting
from simsplit.report.short_names import value_of
from simsplit.scenario import Cell, Sweep, load_sweep


@dataclass(frozen=True)
class MeasuringCell:
    """A cell of a sweep, as it measures one seed of one row of a table."""

    cell: Cell
    sweep: Sweep
    file: Path
    axes: Axes
    digest: str
    takes_min: float
    """Minutes, as the claim has it."""

    @property
    def seed(self) -> int:
        """The seed of its draws."""
        return self.cell.scenario.seed

    @property
    def setting(self) -> str:
        """Its axes as rows of measurements have them."""
        return write_setting(self.axes)


def cells_of(
    claim: Claim, tier: Tier, folder: Path, overrides: Mapping[str, Any] | None = None
) -> list[MeasuringCell]:
    """List the cells that measure a table at a tier, those of no printed row left out.

    `folder` is the claims' own; `overrides` are of fields, as `--set` takes them.
    """
    made: list[MeasuringCell] = []
    for entry in claim.measured.get(tier, ()):
        file = folder / entry.scenario
        sweep = load_sweep(file, _that_apply(overrides or {}, file))
        for cell in sweep.cells:
            axes = _axes(cell, sweep, entry)
            if _is_printed(axes, claim):
                digest = digest_of(cell.scenario)
                made.append(MeasuringCell(cell, sweep, file, axes, digest, entry.takes_min))
    return made


def unmeasured_rows(claim: Claim, cells: Iterable[MeasuringCell]) -> list[Axes]:
    """List the printed rows that no cell of a tier measures."""
    known = [cell.axes for cell in cells]
    return [axes for axes, _ in claim.rows if not any(_agree(axes, other) for other in known)]


def _axes(cell: Cell, sweep: Sweep, entry: Measured) -> dict[str, str]:
    """Return the axes of a cell: its swept fields by short names, but for the seed."""
    short = sweep.fields
    own = {"cell": cell.label} if cell.label else {}
    for field, value in cell.settings.items():
        if field == "seed":
            continue
        name = entry.rename.get(short[field], short[field])
        own[name] = _word(field, value)
    if cell.label and "cell" in entry.rename:
        own[entry.rename["cell"]] = own.pop("cell")
    axes = {**entry.with_, **own}
    return {name: entry.words.get(name, {}).get(value, value) for name, value in axes.items()}


def _word(field: str, value: object) -> str:
    """Return a swept value as a word without spaces, which statements can name."""
    if field == "method" and value in ([], ()):
        return "raw"
    return value_of(value).replace(" + ", "+").replace(" ", "-")


def _is_printed(axes: Axes, claim: Claim) -> bool:
    return any(_agree(row, axes) for row, _ in claim.rows)


def _agree(row: Axes, axes: Axes) -> bool:
    """Tell whether a printed row is what a cell with these axes measures."""
    return all(axes.get(name) == value for name, value in row.items())


def seeds_of(cells: Sequence[MeasuringCell]) -> Iterator[int]:
    """List the seeds of cells, each once."""
    yield from dict.fromkeys(cell.seed for cell in cells)


def _that_apply(overrides: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    if "name" in overrides:
        raise ScenarioError("name", f"is {file.stem}'s own: rows are tied to it")
    return overrides
