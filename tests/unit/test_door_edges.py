"""What a new user stumbled over, task by task: each has a test of its command."""

import numpy as np
import pandas as pd
import pytest
from builders import TINY
from PIL import Image
from typer.testing import CliRunner

from simsplit.__main__ import app
from simsplit.report.tables import Table
from simsplit.scenario.files import dump, merge

SHORT = {
    "schedule": {"rounds": 1},
    "clients": {"count": 2},
    "output": {"figures": False},
}


@pytest.fixture
def command():
    """Types a command; returns whether it went, what it prints, and what it says beside that."""

    def type_in(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        went = done.exception is None
        return went, done.stdout, done.stderr + ("" if went else str(done.exception))

    return type_in


@pytest.fixture
def run_scenario(command, tmp_path):
    def go(*words, **fields):
        base = {name: each for name, each in TINY.items() if name not in fields}
        (tmp_path / "s.yaml").write_text(dump(merge(base, merge(SHORT, fields))))
        return command("run", tmp_path / "s.yaml", "--out", tmp_path / "out", *words)

    return go


def draw_pets(folder, size):
    colours = np.random.default_rng(0)
    for pet in ("cat", "dog"):
        (folder / pet).mkdir(parents=True)
        for number in range(12):
            pixels = colours.integers(0, 255, (size, size, 3)).astype("uint8")
            Image.fromarray(pixels).save(folder / pet / f"{number}.png")
    return {"data": {"source": {"kind": "folder", "path": str(folder)}}}


def test_images_that_are_scaled_are_said_to_be(run_scenario, tmp_path):
    pets = draw_pets(tmp_path / "pets", 48)
    went, _, said = run_scenario(**pets)
    assert went
    assert "data.source.size" in said
    assert "48 x 48" in said


def test_a_size_that_was_asked_for_needs_no_word(run_scenario, tmp_path):
    pets = draw_pets(tmp_path / "pets", 48)
    pets["data"]["source"]["size"] = 32
    went, _, said = run_scenario(**pets)
    assert went
    assert "data.source.size" not in said


def test_a_column_that_numbers_the_rows_is_named(run_scenario, tmp_path):
    rows = np.random.default_rng(0)
    count = 80
    frame = {
        "id": np.arange(count),
        "age": rows.integers(20, 40, count),
        "ill": rows.integers(0, 2, count),
    }
    pd.DataFrame(frame).to_csv(tmp_path / "people.csv", index=False)
    source = {"kind": "table", "path": str(tmp_path / "people.csv"), "target": "ill"}
    went, _, said = run_scenario(model={"kind": "mlp"}, data={"source": source})
    assert went, said
    assert "drop: [id]" in said
    assert "drop: [age]" not in said


def test_a_model_that_is_not_here_names_the_folder_where_it_may_lie(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    went, _, said = command("plan", "papers/p3eft/small/sst2", "--no-timing")
    assert not went
    assert str(tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2") in said


def test_a_table_without_a_missing_cell_has_nothing_to_measure(command):
    went, said, told = command("reproduce", "lightsplit/table1", "--dry")
    assert went
    assert "0 cells" not in said + told
    assert "nothing" in said + told


def test_a_title_is_as_wide_as_the_terminal_and_a_heading_has_few_lines(capsys):
    from rich.console import Console

    title = "a title of many more words than the table's few columns have room for"
    table = Table(title, ("", "best on test (as papers select)"), [("round", "1")])
    Console(width=100).print(table.rich())
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == title
    above = lines[: next(place for place, line in enumerate(lines) if "─" in line)]
    assert len([line for line in above[1:] if line]) <= 3
