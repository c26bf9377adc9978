"""Commands typed nearly right: what they answer leads to what was meant."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from builders import scenario
from gists import gist, says
from typer.testing import CliRunner

from simsplit import run
from simsplit.__main__ import app
from simsplit.commands.field_options import find_field
from simsplit.errors import DataError, RunError, ScenarioError, SimsplitError
from simsplit.experiment import Experiment
from simsplit.progress import Observer
from simsplit.results import Run
from simsplit.running.directories import refuse_misspelt
from simsplit.scenario import load_scenario
from simsplit.scenario.refusals import list_data_warnings


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


@pytest.mark.parametrize(
    ("option", "field"),
    [("--rouns", "schedule.rounds"), ("--sed", "seed"), ("--quit", None), ("--xyzzy", None)],
)
def test_a_misspelt_option_means_the_field_or_option_that_is_nearest(option, field):
    assert find_field(option, ["--out", "--quiet", "--resume"]) == field


def test_new_takes_no_table_for_a_scenarios_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(app, ["new", "good.csv"])
    assert isinstance(outcome.exception, SimsplitError)
    assert "data.source" in str(outcome.exception)
    assert not list(tmp_path.iterdir())


def test_a_field_given_as_an_option_is_told_how_it_is_set():
    code, said = answer("run", "quickstart", "--rounds", "3")
    assert code == 2
    assert "--set schedule.rounds=" in said


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
    from simsplit.data.table_frames import TableSource

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


@pytest.mark.parametrize("cell", ["inf", "-1e300"])
def test_an_infinite_cell_is_named_by_column_and_row(tmp_path, cell):
    """The deviation of 1e300 is infinite, and every value of its column would be no number."""
    table = write_table(tmp_path, lambda text: text.replace("0.07,", f"{cell},"))
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


def test_filled_cells_are_warned_of_by_column(tmp_path):
    table = write_table(tmp_path, lambda text: text.replace("0.07,", ",").replace("0.08,", "?,"))
    (warning,) = load_table(table).warnings
    assert says(warning, "'income' ... 2 of 60 ... median")
    rows = pd.read_csv(table).assign(town=["Ulm", None] * 30)
    rows[["age", "town", "group"]].to_csv(table, index=False)
    (warning,) = load_table(table).warnings
    assert says(warning, "'town' ... 30 of 60 ... (missing)")


def test_a_table_in_latin_1_is_told_how_it_is_converted(tmp_path):
    table = tmp_path / "people.csv"
    table.write_bytes("town,group\nKöln,a\nUlm,b\n".encode("latin-1"))
    with pytest.raises(
        DataError, match=gist("data.source.path: ... people.csv ... UTF-8 ... iconv")
    ):
        load_table(table)


def test_own_speeds_in_place_of_a_link_are_told_where_they_go():
    with pytest.raises(ScenarioError) as error:
        load_scenario("quickstart", {"network.link": "{up_mbps: 8}"})
    assert error.value.field == "network.link"
    assert "network.up_mbps: 8" in error.value.reason
    assert load_scenario("quickstart", {"network.up_mbps": "8"}).network.up_mbps == 8


@pytest.mark.parametrize(
    ("name", "meant"), [("Grüße", "Grusse"), ("my run", "my-run"), ("_x", "x"), ("日本", None)]
)
def test_a_name_with_other_signs_is_answered_with_one_that_would_do(name, meant):
    with pytest.raises(ScenarioError) as error:
        load_scenario("quickstart", {"name": name})
    assert error.value.field == "name"
    assert (f"such as '{meant}'" in error.value.reason) is (meant is not None)
    assert meant is None or load_scenario("quickstart", {"name": meant}).name == meant


def test_an_unknown_part_may_be_a_plugins():
    with pytest.raises(ScenarioError, match=gist("unknown 'sign' ... --plugin")):
        load_scenario("quickstart", {"method": "[{kind: sign}]"})
    with pytest.raises(ScenarioError) as error:
        load_scenario("quickstart", {"method": "[{kind: lightsplt}]"})
    assert "--plugin" not in error.value.reason


def test_a_folder_that_is_not_there_is_answered_with_the_nearest_run(finished, tmp_path):
    run = finished.copy(scenario(), tmp_path / "first")
    assert run == tmp_path / "first"
    with pytest.raises(RunError, match=gist("frist ... no such folder ... first")):
        Run.load(tmp_path / "frist")
    with pytest.raises(RunError) as error:
        Run.load(tmp_path / "quite-another")
    assert "first" not in str(error.value)


def test_resuming_in_a_folder_misspelt_starts_no_other_run(finished, tmp_path):
    finished.copy(scenario(), tmp_path / "first")
    with pytest.raises(RunError, match=gist("frist ... first")):
        refuse_misspelt(tmp_path / "frist")
    refuse_misspelt(tmp_path / "first")
    refuse_misspelt(tmp_path / "tiny-2")


def test_resuming_a_sweep_that_is_not_there_says_so_or_names_the_one_meant(
    simsplit, tmp_path, monkeypatch
):
    from simsplit import sweep as sweeping
    from simsplit.results import SweepDirectory

    def pretend(loaded, path, **_):
        return SimpleNamespace(runs={}, path=path, failed={})

    monkeypatch.setattr(sweeping, "run_sweep", pretend)
    (tmp_path / "s.yaml").write_text("extends: quickstart\nsweep: {seed: [0, 1]}\n")
    words = ("sweep", "s.yaml", "--resume", "--out")
    code, _, err = simsplit(*words, "fresh")
    assert code == 0
    assert says(err, "no sweep ... fresh ... first cell")
    assert simsplit(*words, "fresh", "--quiet")[2] == ""
    SweepDirectory(tmp_path / "first", "quickstart", {}, []).save()
    assert "first cell" not in simsplit(*words, "first")[2]
    code, _, err = simsplit(*words, "frist")
    assert code == 2
    assert says(err, "frist ... sweep ... 'first'")


def test_a_run_of_another_version_is_named_as_one(finished, tmp_path):
    run = finished.copy(scenario(), tmp_path / "first")
    facts = json.loads((run / "environment.json").read_text())
    facts["packages"]["simsplit"] = "0.0.3"
    (run / "environment.json").write_text(json.dumps(facts))
    assert load_scenario(run / "scenario.yaml").name == "tiny"
    with (run / "scenario.yaml").open("a") as file:
        file.write("old_field: 3\n")
    with pytest.raises(ScenarioError, match=gist("old_field ... 0.0.3")):
        load_scenario(run / "scenario.yaml")


def test_a_batch_larger_than_all_data_is_warned_of():
    data = scenario().prepare_data()
    (warning,) = list_data_warnings(scenario(train={"batch_size": 91}), data)
    assert says(warning, "train.batch_size ... 91 ... 90")
    assert list_data_warnings(scenario(train={"batch_size": 90}), data) == []


def test_validate_prints_the_warnings_of_data_that_it_reads():
    code, said = answer("validate", "quickstart", "--set", "train.batch_size=5000")
    assert (code, says(said, "warning: ... train.batch_size")) == (0, True)


def test_a_loss_that_is_far_too_large_is_warned_of_once(tmp_path):
    heard = Heard()
    rates = {side: {"kind": "adam", "lr": 30.0} for side in ("client", "server")}
    given = scenario(train=rates, schedule={"rounds": 2, "local_steps": 1})
    Experiment(given, tmp_path / "run", [heard]).run(resume=False)
    (warning,) = [each for each in heard.warnings if "diverges" in each]
    assert says(warning, "round ... client ... train.client.lr")


class Heard(Observer):
    """Keeps the warnings of a run."""

    def __init__(self):
        self.warnings = []

    def warn(self, message):
        self.warnings.append(message)


def test_json_of_a_comparison_takes_no_options_of_tables(tmp_path):
    done = CliRunner().invoke(app, ["compare", str(tmp_path), "--plot", "a,b", "--json"])
    assert done.exit_code
    assert says(str(done.exception), "--json ... --plot ... leave")


def test_an_unknown_word_beside_no_data_is_refused():
    with pytest.raises(ScenarioError, match=gist("resum ... passed")):
        run({"name": "x"}, "nowhere", resum=True)
