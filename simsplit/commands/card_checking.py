"""`simsplit card` checks rows that somebody hands in for a board."""

from contextlib import chdir
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from simsplit.commands.options import DataFolder, Json, Plugin, load_plugins, print_json
from simsplit.errors import RunFailedError
from simsplit.showing.saying import echo

if TYPE_CHECKING:
    from simsplit.boards.card_checks import CheckedCard


def card(
    file: Annotated[Path, typer.Argument(help="Written by simsplit board --card.")],
    *,
    plugin: Plugin = None,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Also measure one cell again, which its digest draws.")
    ] = False,
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Check a card of a board: its fields, digests and rows."""
    from simsplit.boards.card_checks import check_card

    given = [str(Path(each).resolve()) if Path(each).is_file() else each for each in plugin or ()]
    checked = check_card(file, load_plugins(given))
    faults = list(checked.faults)
    again = ""
    if rerun and not faults:
        again = checked.draw_cell().setting
        faults += _measure_again(checked, data.resolve() if data else None)
    machines = sorted({row.machine for row in checked.card.rows})
    if as_json:
        print_json(
            {"rows": len(checked.card.rows), "machines": machines, "faults": faults, "again": again}
        )
    else:
        echo(f"{len(checked.card.rows)} rows of {checked.card.track}, tier {checked.card.tier}")
        for machine in machines:
            echo(f"measured on: {machine}")
        if again:
            echo(f"measured again: {again}")
    if faults:
        raise RunFailedError("\n".join([f"{len(faults)} faults", *faults[:8]]))


def _measure_again(checked: "CheckedCard", data: Path | None) -> list[str]:
    """Measure one cell in an empty folder, and return what comes out otherwise."""
    from simsplit.boards.card_checks import NO_ROWS, compare_rows
    from simsplit.boards.entries import build_board
    from simsplit.commands.table_measuring import MeasuringOptions, measure_lacking

    cell, card = checked.draw_cell(), checked.card

    build = partial(build_board, card.track, card.tier, checked.guest, seeds=[cell.seed])
    with TemporaryDirectory() as folder, chdir(folder):
        table = build(known=NO_ROWS).table
        options = MeasuringOptions(data=data, alone=True, quiet=True)
        outcome = measure_lacking([table], dict(cell.axes), options)
        rows = build().table.fresh
    failed = [f"{name}: {why.splitlines()[0]}" for name, why in outcome.failed.items()]
    measured = [row for row in rows if row.digest in cell.digests.values()]
    return failed or compare_rows(card, measured)
