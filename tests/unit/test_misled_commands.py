"""Commands typed nearly right: what they answer leads to what was meant."""

import json
import subprocess
import sys

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from simsplit.__main__ import app
from simsplit.commands.fields import find_field
from simsplit.errors import DataError, ScenarioError, SimsplitError
from simsplit.scenario import load_scenario


def answer(*words):
    """Return the exit code of a command, and what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "simsplit", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_a_misspelled_command_is_asked_about_once():
    code, said = answer("runn")
    assert code == 2
    assert said.count("'run'") == 1


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--rounds", "schedule.rounds"),
        ("--seed", "seed"),
        ("--batch-size", "train.batch_size"),
        ("--lr", "train.client.lr"),
        ("--clients", "clients.count"),
        ("--colour", None),
    ],
)
def test_an_option_may_mean_a_field(option, field):
    assert find_field(option) == field


def test_a_field_given_as_an_option_is_told_how_it_is_set():
    code, said = answer("run", "quickstart", "--rounds", "3")
    assert code == 2
    assert "--set schedule.rounds=" in said


def test_an_unknown_bench_is_no_matter_of_a_scenario():
    from simsplit.bench import _choose_benches
    from simsplit.plugins import NO_PLUGINS

    with pytest.raises(SimsplitError) as error:
        list(_choose_benches("nothing", NO_PLUGINS, None))
    assert not isinstance(error.value, ScenarioError)


def test_a_table_in_a_scenarios_place_is_told_where_it_goes(tmp_path):
    table = tmp_path / "people.csv"
    table.write_text("age,income\n" + "30,1\n" * 2000)
    with pytest.raises(ScenarioError) as error:
        load_scenario(table)
    assert str(table) in error.value.reason
    assert "data.source=" in error.value.reason
    assert "30,1" not in error.value.reason


def write_table(folder, change=lambda text: text):
    """Write a table of two features and two classes, and return its path."""
    rows = [f"{20 + i % 25},{i / 100},{'ab'[i % 2]}" for i in range(60)]
    table = folder / "people.csv"
    table.write_text(change("\n".join(["age,income,group", *rows]) + "\n"))
    return table


def load_table(table, **options):
    from simsplit.data.frames import TableSource

    return TableSource(path=table, **options).load()


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_another_separator_is_asked_about_and_read_as_advised(tmp_path, sign):
    table = write_table(tmp_path, lambda text: text.replace(",", sign))
    with pytest.raises(DataError, match=r"data\.source\.separator: ") as error:
        load_table(table)
    advised = yaml.safe_load(str(error.value).rpartition("set ")[2])
    assert advised == {"separator": sign}
    assert load_table(table, **advised).info.shape == (2,)


def test_empty_cells_of_whole_numbers_and_named_rows_are_no_fault(tmp_path):
    rows = pd.DataFrame(
        {"age": pd.array([*range(59), None], dtype="Int64"), "group": list("ab") * 30}
    )
    rows.index = [f"row {number}" for number in range(60)]
    rows.to_parquet(tmp_path / "people.parquet")
    assert load_table(tmp_path / "people.parquet").info.shape == (1,)
    rows["age"] = rows["age"].astype("float64").replace(7, float("inf"))
    rows.to_parquet(tmp_path / "infinite.parquet")
    with pytest.raises(DataError, match=r"'age'.* row 8 "):
        load_table(tmp_path / "infinite.parquet")


def test_an_infinite_cell_is_named_by_column_and_row(tmp_path):
    table = write_table(tmp_path, lambda text: text.replace("0.07,", "inf,"))
    with pytest.raises(DataError, match=r"data\.source\.path: .*'income'.* row 8 "):
        load_table(table)


def test_a_measured_target_is_refused(tmp_path):
    table = write_table(tmp_path)
    with pytest.raises(DataError, match=r"data\.source\.target: .*'income' has 60 "):
        load_table(table, target="income")
    assert load_table(table, target="age").info.classes == 25  # whole numbers may be classes


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({}, 0, ""),
        ({"data.partition": "natural"}, 2, "data.partition"),
        ({"clients.count": "2000"}, 2, "clients.count"),
        ({"data.source": "{kind: table, path: nothing.csv}", "model": "mlp"}, 0, "nothing.csv"),
        ({"data.source": "{kind: npz, path: nothing.npz}"}, 0, "nothing.npz"),
    ],
)
def test_validate_reads_small_data_and_misses_what_is_not_there(changes, code, named):
    words = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    done = CliRunner().invoke(app, ["validate", "quickstart", *words])
    said = done.output + str(done.exception or "")
    assert (done.exit_code or 0) == (code and 1)  # main makes it 2
    assert named in said
    document = CliRunner().invoke(app, ["validate", "quickstart", *words, "--json"])
    assert json.loads(document.stdout)["valid"] is (code == 0)


@pytest.mark.slow
def test_a_run_that_goes_on_from_nothing_says_so(tmp_path):
    code, said = answer(
        "run",
        "quickstart",
        "--set",
        "schedule.rounds=0",
        "--resume",
        "--out",
        str(tmp_path / "new"),
    )
    assert code == 0
    assert str(tmp_path / "new") in said.splitlines()[0]
    assert "could be reached" not in said
