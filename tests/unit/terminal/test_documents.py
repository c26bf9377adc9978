"""--json: one document of plain values on stdout, whatever a command shows otherwise."""

import json

import pytest
from builders import scenario
from gists import says

from simsplit import Run, run


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    given = scenario(schedule={"rounds": 1}, attacks=["ridge"], data={"auxiliary": 0.4})
    return run(given, tmp_path_factory.mktemp("documents") / "run").path


def print_json(simsplit, *words, code=0):
    got, out, err = simsplit(*words, "--json")
    assert (got, err) == (code, "")
    return json.loads(out)


def test_show_prints_the_summary(simsplit, ended):
    document = print_json(simsplit, "show", ended)
    assert document == {**Run.load(ended).summary, "path": str(ended)}


def test_compare_prints_each_summary_and_what_a_sweep_set(simsplit, tmp_path, ended):
    text = scenario(schedule={"rounds": 1}).yaml() + "\nsweep: {seed: [0, 1]}\n"
    (tmp_path / "s.yaml").write_text(text)
    assert simsplit("sweep", "s.yaml", "--out", "all", "--jobs", 1, "-q")[0] == 0
    document = print_json(simsplit, "compare", "all", ended)
    assert [each["set"] for each in document["runs"]] == [{"seed": "0"}, {"seed": "1"}, {}]
    assert [each["sweep"] for each in document["runs"]] == ["all", "all", None]
    first = Run.load("all/seed=0").summary
    assert document["runs"][0]["last"]["test_accuracy"] == first["last"]["test_accuracy"]
    assert document["left_out"] == []


def test_attack_prints_means_over_targets(simsplit, ended):
    document = print_json(simsplit, "attack", ended, "--kind", "ridge", "--set", "name=again")
    assert document["attack"] == "again"
    of_attack = Run.load(ended).attacks.set_index("attack").loc["again"]
    assert document["figures"]["again"]["mse"] == of_attack["mse"]
    assert "mean_image" in document["figures"]


def test_validate_prints_shapes_warnings_or_what_is_wrong(simsplit, tmp_path):
    (tmp_path / "s.yaml").write_text("threads: 1")
    document = print_json(
        simsplit, "validate", "s.yaml", "--set", "method=[{kind: lightsplit, ratio: 8}]"
    )
    assert document["valid"] is True
    assert document["shapes"]["cut"] == {"shape": [20, 12, 12], "sent": [360]}
    assert document["warnings"] == []
    words = ("validate", "s.yaml", "--set", "seed=x", "--set", "foo=1")
    document = print_json(simsplit, *words, code=2)
    assert [each["field"] for each in document["problems"]] == ["seed", "foo"]
    document = print_json(simsplit, "validate", "s.yaml", "--set", "sweep.seed=[0, 1]")
    assert document["cells"] == ["seed=0", "seed=1"]


def test_list_prints_tables(simsplit):
    (document,) = print_json(simsplit, "list", "attacks", "tag")
    assert document["title"].startswith("tag: ")
    assert {"field", "type", "default", "meaning"} == set(document["rows"][0])


def test_a_part_is_listed_alone(simsplit):
    code, out, _ = simsplit("list", "attacks", "tag", "--format", "markdown")
    assert code == 0
    assert out.count("\n\n") == 2  # behind the title, and behind its only table
    code, out, _ = simsplit("list", "tasks", "sst2", "--format", "csv")
    assert (code, out.count("sst2")) == (0, 1)
    code, _, err = simsplit("list", "attacks", "tagg")
    assert code == 2
    assert says(err, "error: ... 'tagg' ... attacks ... 'tag'")


def test_several_mistakes_stand_under_one_error(simsplit, tmp_path):
    (tmp_path / "s.yaml").write_text("seed: x\nfoo: 1\n")
    code, _, err = simsplit("validate", "s.yaml")
    first, second, third = err.splitlines()
    assert (code, says(first, "error: 2 mistakes ... E-SCENARIO-")) == (2, True)
    assert says(second, "scenario.seed: ... 'x'")
    assert third.startswith("  scenario.foo: unknown field, ")


def test_a_strategy_is_not_an_aggregation_and_its_place_is_named(simsplit, tmp_path):
    (tmp_path / "s.yaml").write_text("aggregation: fedavg")
    code, _, err = simsplit("validate", "s.yaml")
    assert code == 2
    assert says(err, "error: scenario.aggregation ... 'fedavg' ... aggregation.strategy")


@pytest.mark.parametrize(
    ("words", "gist"),
    [
        ("threads=1000", "scenario.threads: got 1000, "),
        ("device=cuda:7", "this machine"),
    ],
)
def test_validate_warns_of_what_is_hardly_meant(simsplit, tmp_path, words, gist):
    (tmp_path / "s.yaml").write_text("threads: 1")
    code, out, err = simsplit("validate", "s.yaml", "--set", words)
    assert code == 0
    assert "valid scenario" in out
    assert gist in err


def test_validate_warns_of_more_clients_than_samples(simsplit, tmp_path):
    (tmp_path / "s.yaml").write_text("data: {source: cifar10, train_samples: 300}")
    _, _, err = simsplit("validate", "s.yaml", "--set", "clients.count=1000")
    assert says(err, "warning: scenario.clients.count: ... 1,000 ... 300")


def test_a_run_has_a_repr(ended, tmp_path):
    assert repr(Run.load(ended)) == f"<Run {ended}: finished, 1 of 1 round>"
    (tmp_path / "scenario.yaml").write_text("")
    assert says(repr(Run.load(tmp_path)), f"<Run {tmp_path}: ... without")
