"""Commands typed nearly right: what they answer leads to what was meant."""

import subprocess
import sys

import pytest

from simsplit.commands.fields import find_field
from simsplit.errors import ScenarioError, SimsplitError
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
