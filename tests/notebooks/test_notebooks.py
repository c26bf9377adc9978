"""Notebooks run from a fresh clone to their end, and are committed without what they print."""

from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_they_are_there():
    assert {path.name[:2] for path in NOTEBOOKS} >= {"01", "02", "03"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path: Path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_name_scenarios_that_ship(path: Path):
    """From a wheel there are no files beside a notebook."""
    assert "../" not in path.read_text()


SHORTER = {
    "01_quickstart": {
        '"schedule.rounds": "8"': '"schedule.rounds": "2", "threads": "1"',
        '"data.train_samples": "800"': '"data.train_samples": "400"',
    },
    "02_client_signals": {
        '"rounds": 6': '"rounds": 2',
        '"train_samples": 900': '"train_samples": 300',
    },
    "03_scaling": {
        '"[5, 20, 80]"': '"[3, 6, 12]"',
        '"schedule.epochs": "3"': '"schedule.epochs": "1"',
        '"data.train_samples": "800"': '"data.train_samples": "200"',
    },
    "04_reconstruction": {
        '"data.train_samples": "500"': '"data.train_samples": "130", "attacks.0.pairs": "60"',
        '"targets.count": "10"': '"targets.count": "4"',
        '"schedule.rounds": "4"': '"schedule.rounds": "1"',
        '"attacks.0.iterations": "150"': '"attacks.0.iterations": "10"',
        '"attacks.1.outer": "6"': '"attacks.1.outer": "1"',
        '"outer": "6", "inner": "40"': '"outer": "1", "inner": "10"',
    },
    "05_split_llm": {
        '"model.tail": "1"': '"model.tail": "1", "data.train_samples": "160"',
        '"attacks.0.lr": "0.005", "attacks.2.lr": "0.005", "attacks.1.iterations": "60"': (
            ", ".join(f'"attacks.{attack}.iterations": "5"' for attack in range(5))
            + "".join(
                f', "attacks.{search}.starts": "16", "attacks.{search}.refinements": "2"'
                for search in (1, 2)
            )
            + ', "targets.count": "4", "data.test_samples": "24"'
        ),
    },
    "06_labels": {
        '"data.train_samples": "300"': '"data.train_samples": "64", "data.test_samples": "40"',
        '"schedule.rounds": "4"': '"schedule.rounds": "1"',
        '"evaluate.every": "2"': '"evaluate.every": "1"',
        '"targets.every": "2"': '"targets.every": "1"',
        '"targets.count": "100"': '"targets.count": "30"',
    },
    "07_generation": {
        '"model.name": "simsplit/demo"': '"model.name": "simsplit/ci"',
        '"targets.count": "8"': '"targets.count": "2", "model.head": "1", "model.tail": "1"',
        "for n in (1, 2):": "for n in (1,):",
        "for n in (8, 16, 24)": "for n in (4, 8)",
        "for sigma in (0.25, 1, 4)": "for sigma in (1,)",
    },
    "11_audit": {'"iterations": 400': '"iterations": 20'},
}
"""What their runs are cut down to here: a reader's are as long as pictures need them."""


def shorten(notebook: nbformat.NotebookNode, changes: dict[str, str]) -> None:
    """Replace every phrase by that of a shorter run; each must be there."""
    for long, short in changes.items():
        results = [cell for cell in notebook.cells if long in cell.source]
        assert results, f"{long} is not there any more"
        for cell in results:
            cell.source = cell.source.replace(long, short)


@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(path: Path):
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    shorten(notebook, SHORTER.get(path.stem, {}))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    shown = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("image/png" in out.get("data", {}) for out in shown)
    printed = "".join(out["text"] for out in shown if out.get("name") == "stderr")
    # Matplotlib says so wherever it draws for the first time
    assert not printed.replace(
        "Matplotlib is building the font cache; this may take a moment.", ""
    ).strip()
