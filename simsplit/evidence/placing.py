"""Cells that are to be measured get the place of their data and the device to compute on."""

from dataclasses import replace
from pathlib import Path

from simsplit.errors import SimsplitError
from simsplit.evidence.cell_uses import list_folders
from simsplit.evidence.data_at_hand import explain_absence, move_data
from simsplit.evidence.digests import dump_fields
from simsplit.evidence.selecting import Selection
from simsplit.machine import find_device
from simsplit.sweep import Cluster


def place_data(selection: Selection, data: Path | None) -> Selection:
    """Return a selection whose cells read data from a folder, without the cells that lack data."""
    cells, absent = [], {}
    for chosen in selection.cells:
        cell = chosen.cell
        if data is not None:
            base = move_data(cell.base, data)
            uses = replace(cell.uses, folders=list_folders(dump_fields(base)))
            cell = replace(cell, base=base, uses=uses)
        if (why := explain_absence(cell.base, chosen.table.models)) is not None:
            absent[chosen.table.full_name] = why
        else:
            cells.append(replace(chosen, cell=cell))
    return replace(selection, cells=cells, absent={**selection.absent, **absent})


def names_gpu(device: str | None, cluster: Cluster | None) -> bool:
    """Return whether `--device` names a GPU, for which minutes are estimated otherwise."""
    if device is None:
        return False
    if cluster is not None:
        raise SimsplitError(
            "--device: names a device of this machine; cells of a cluster compute on the GPUs of "
            "--gpus-per-cell"
        )
    return find_device(device).type != "cpu"


def place_cells(selection: Selection, device: str | None) -> Selection:
    """Return a selection whose cells compute on a device; None leaves it to their scenarios."""
    if device is None:
        return selection
    cells = []
    for chosen in selection.cells:
        base = chosen.cell.base.model_copy(update={"device": device})
        options = (*chosen.cell.options, "--device", device)
        cells.append(replace(chosen, cell=replace(chosen.cell, base=base, options=options)))
    return replace(selection, cells=cells)
