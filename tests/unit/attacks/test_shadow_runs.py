"""Shadow runs are cells of a sweep on an attacker's own data, none of which is a candidate."""

import pytest
from builders import TINY, scenario
from gists import says

from simsplit import Run, run
from simsplit.attacking.finished import attack
from simsplit.data.candidates import choose_candidates
from simsplit.errors import RunError, ScenarioError
from simsplit.results.leak_table import keep_kinds
from simsplit.scenario import load_sweep, parse
from simsplit.scenario.files import dump, merge
from simsplit.sweep import run_sweep

VICTIM = {
    "data": {"auxiliary": 0.5, "train_samples": 160},
    "clients": {"count": 1},
    "schedule": {"rounds": 1},
    "evaluate": {"every": 0},
}


def collect(samples):
    return {each.numpy().tobytes() for each in samples.inputs}


def test_shadows_divide_the_victims_auxiliary_data_each_in_its_own_way():
    victim = scenario(seed=3, **VICTIM).prepare_data()
    candidates = collect(choose_candidates(victim, 0, 40).samples)
    shadows = []
    for seed in (4, 5):
        data = scenario(seed=seed, **merge(VICTIM, {"data": {"shadow": 3}})).prepare_data()
        shadows.append(collect(data.train))
        assert shadows[-1] < collect(victim.auxiliary)
        assert not shadows[-1] & candidates
        assert sum(map(len, data.parts)) == len(data.train)
    assert shadows[0] != shadows[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 3, "data": {"shadow": 3}}, "data.shadow: ... differ ... 3"),
        ({"data": {"shadow": 1, "auxiliary": 0.0}}, "data: ... shadow ... auxiliary"),
        ({"data": {"shadow": -1}}, "data.shadow: ... -1"),
    ],
)
def test_a_shadow_of_nobody_is_refused(changes, words):
    with pytest.raises(ScenarioError) as error:
        parse(merge(merge(TINY, VICTIM), changes)).prepare_data()
    assert says(str(error.value), words)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a victim, and of a sweep of two shadows of seed 3 and one of seed 8."""
    folder = tmp_path_factory.mktemp("shadows")
    run(parse(merge(TINY, VICTIM)), folder / "victim")
    for name, of in (("shadows", 3), ("others", 8)):
        whole = merge(merge(TINY, VICTIM), {"data": {"shadow": of}})
        whole |= {"sweep": {"seed": [4, 5]}}
        whole.pop("seed")
        (folder / f"{name}.yaml").write_text(dump(whole))
        run_sweep(load_sweep(folder / f"{name}.yaml"), folder / name)
    return folder


@pytest.mark.slow
def test_lira_reads_the_cells_of_a_sweep(swept):
    attack(swept / "victim", "lira", {"shadows": str(swept / "shadows")})
    rows = keep_kinds(Run.load(swept / "victim").leaks, "members")
    assert {"tpr_at_1pct", "tpr_at_01pct", "auc"} == {*rows[rows["attack"] == "lira"]["metric"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("others", "others ... data.shadow ... 8"),
        ("victim", "victim ... no sweep"),
        ("nowhere", "nowhere ... no sweep"),
    ],
)
def test_what_is_no_shadow_of_the_run_is_refused(swept, folder, words):
    with pytest.raises(RunError) as error:
        attack(swept / "victim", "lira", {"name": folder, "shadows": str(swept / folder)})
    assert says(str(error.value), words)
