"""A `sweep:` becomes cells: which ones, what they are called, and how mistakes are reported."""

import re

import pytest
import yaml
from builders import TINY
from gists import says
from schema import validator

from simsplit.errors import ScenarioError
from simsplit.scenario import has_sweep, load_scenario, load_sweep, parse
from simsplit.scenario.files import merge
from simsplit.scenario.loading import differences

SGD = {"kind": "sgd", "lr": 0.5}
BASE = merge(TINY, {"train": {"client": SGD, "server": SGD}})
LIGHT = {"kind": "lightsplit", "ratio": 8}


@pytest.fixture
def file(tmp_path):
    """Writes a tiny scenario with a sweep, and whatever else is merged over it."""

    def make(sweep, name="swept.yaml", **changes):
        path = tmp_path / name
        values = {**merge(BASE, changes), "sweep": sweep}
        path.write_text(yaml.safe_dump(values, sort_keys=False))
        return path

    return make


def names(path, overrides=None):
    return [cell.name for cell in load_sweep(path, overrides).cells]


def message(path, overrides=None):
    with pytest.raises(ScenarioError) as caught:
        load_sweep(path, overrides)
    return str(caught.value)


def test_draws_are_within_their_ranges_and_more_of_them_keep_the_first(file):
    search = {
        "train.client.lr": {"log": [1e-4, 1e-1]},
        "method.0.ratio": [8, 16, 32],
        "train.server.lr": {"uniform": [0.1, 0.5]},
    }
    few, many = (
        load_sweep(file({"grid": {"seed": [0, 1]}, "random": {"count": count, **search}},
                        method=[LIGHT])).cells
        for count in (4, 40)
    )  # fmt: skip
    assert len(few) == 8
    assert len(many) == 80
    assert {cell.name for cell in few} <= {cell.name for cell in many}
    rates = sorted(cell.scenario.train.client.lr for cell in many)
    assert 1e-4 <= rates[0] < 3e-4
    assert 3e-2 < rates[-1] <= 1e-1
    assert 1e-3 < rates[40] < 1e-2  # as many below the geometric mean as above it
    assert {cell.scenario.method[0].ratio for cell in many} == {8, 16, 32}
    assert 0.25 < sum(cell.scenario.train.server.lr for cell in many) / 80 < 0.35
    assert all(len(f"{rate:g}".replace("e-05", "")) < 10 for rate in rates)


def test_draws_from_lists_are_all_different(file):
    search = {"method.0.ratio": [8, 16], "seed": [0, 1]}
    path = file({"random": {"count": 4, **search}}, method=[LIGHT])
    assert len(set(names(path))) == 4
    assert says(message(path, {"sweep.random.count": "5"}), "sweep.random.count: ... 5 ... 4")
    assert len(load_sweep(path, {"sweep.random.seed": "[3]", "sweep.random.count": "2"}).cells) == 2


def test_the_short_form_is_a_grid_whose_first_field_goes_slowest(file):
    path = file({"method.0.ratio": [8, 16], "seed": [0, 1]}, method=[LIGHT])
    sweep = load_sweep(path)
    assert sweep.name == "tiny"
    assert [(c.name, c.scenario.method[0].ratio, c.scenario.seed) for c in sweep.cells] == [
        ("ratio=8,seed=0", 8, 0),
        ("ratio=8,seed=1", 8, 1),
        ("ratio=16,seed=0", 16, 0),
        ("ratio=16,seed=1", 16, 1),
    ]
    assert sweep.cells[1].settings == {"method.0.ratio": 8, "seed": 1}
    assert sweep.fields == {"method.0.ratio": "ratio", "seed": "seed"}
    assert [cell.scenario.name for cell in sweep.cells][:2] == [
        "tiny_ratio-8_seed-0", "tiny_ratio-8_seed-1"
    ]  # fmt: skip


def test_a_cell_is_what_the_file_with_those_fields_would_be(file):
    path = file({"train.batch_size": [8], "clients.count": [2]})
    (cell,) = load_sweep(path).cells
    by_hand = merge(BASE, {"train": {"batch_size": 8}, "clients": {"count": 2}})
    by_hand["name"] = "tiny_batch_size-8_count-2"
    assert cell.scenario == parse(by_hand)
    assert "sweep" not in cell.scenario.yaml()


def test_grid_zip_and_list_cross(file):
    sweep = {
        "grid": {"seed": [0, 1]},
        "zip": {"train.batch_size": [8, 16], "clients.count": [2, 3]},
        "list": [{"name": "plain"}, {"name": "long", "schedule.rounds": 5}],
    }
    results = {
        (c.scenario.seed, c.scenario.train.batch_size, c.scenario.clients.count,
         c.scenario.schedule.rounds): (c.name, c.label)
        for c in load_sweep(file(sweep)).cells
    }  # fmt: skip
    assert set(results) == {
        (seed, *pair, rounds) for seed in (0, 1) for pair in ((8, 2), (16, 3)) for rounds in (2, 5)
    }
    assert results[1, 16, 3, 5] == ("seed=1,batch_size=16,count=3,long", "long")


def test_a_list_without_names_is_named_by_what_it_sets(file):
    path = file({"list": [{}, {"seed": 8, "train.batch_size": 4}, {"name": "x", "seed": 9}]})
    assert names(path) == ["base", "seed=8,batch_size=4", "x"]


def test_a_name_uses_as_many_parts_of_a_field_as_tell_it_apart(file):
    path = file({"train.client.lr": [0.1], "train.server.lr": [0.2], "clients.count": [2]})
    assert names(path) == ["client.lr=0.1,server.lr=0.2,count=2"]
    path = file({"method.0": [LIGHT]})
    assert names(path) == ["method.0=lightsplit-8"]


def test_whole_parts_are_named_by_their_kinds_and_what_they_set(file):
    path = file(
        {
            "method": [[], [LIGHT], [LIGHT, {"kind": "wcc", "weight": 0.01}]],
            "data.partition": ["iid", {"kind": "dirichlet", "alpha": 0.5}],
            "stop": [None, {"metric": "test_loss"}],
        }
    )
    assert names(path)[-1] == (
        "method=lightsplit-8+wcc-0.01,partition=dirichlet-0.5,stop=test_loss"
    )
    assert names(path)[0] == "method=raw,partition=iid,stop=null"
    assert [len(c.scenario.method) for c in load_sweep(path).cells] == [0] * 4 + [1] * 4 + [2] * 4


def test_a_field_within_a_swept_part_is_set_after_it_and_shares_nothing(file):
    other = {**LIGHT, "lift": "learned"}
    path = file({"method.0.ratio": [4, 6], "method": [[LIGHT], [other]]})
    cells = load_sweep(path).cells
    assert [(c.scenario.method[0].ratio, c.scenario.method[0].lift) for c in cells] == [
        (4, "fixed"), (4, "learned"), (6, "fixed"), (6, "learned")
    ]  # fmt: skip


def test_names_are_safe_unique_and_never_too_long(file, tmp_path):
    folders = [{"kind": "folder", "path": path} for path in ("a b/c", "a/b c", "ä" * 90, "x" * 200)]
    result = names(file({"data.source": folders, "seed": list(range(3))}))
    assert len({name.casefold() for name in result}) == 12
    for name in result:
        assert re.fullmatch(r"[A-Za-z0-9.,=+~_-]+", name)
        assert len(name) <= 120
        (tmp_path / name).mkdir()
    many = [{"kind": "wcc", "weight": 0.125}] * 9
    wide = {"data.source": folders[3:], "output.root": ["y" * 200], "method": [many]}
    first, second = names(file({**wide, "seed": [0, 1]}))
    assert len(first) <= 120
    assert first != second


def test_a_longer_sweep_keeps_the_names_it_had(file):
    short = {"method": [[LIGHT]], "train.client.lr": [0.1]}
    long = {"method": [[], [LIGHT], [{**LIGHT, "ratio": 16}]], "train.client.lr": [0.1, 0.2]}
    assert set(names(file(short))) < set(names(file(long)))


def test_overrides_lie_below_the_sweep_and_may_change_it(file):
    path = file({"seed": [0, 1]}, method=[LIGHT])
    cells = load_sweep(path, {"seed": "7", "train.batch_size": "4"}).cells
    assert [(c.scenario.seed, c.scenario.train.batch_size) for c in cells] == [(0, 4), (1, 4)]
    assert load_sweep(path).hides("seed")
    assert not load_sweep(path).hides("train.batch_size")
    assert names(path, {"sweep.seed": "[5]"}) == ["seed=5"]
    assert names(path, {"sweep.method.0.ratio": "[4]"}) == ["seed=0,ratio=4", "seed=1,ratio=4"]
    assert names(path, {"sweep.seed": "null", "sweep.method.0.ratio": "[4]"}) == ["ratio=4"]
    assert names(path, {"sweep": "{train.batch_size: [3]}"}) == ["batch_size=3"]


def test_overrides_find_a_field_where_the_long_form_has_it(file):
    path = file({"grid": {"seed": [0]}, "zip": {"clients.count": [2], "train.batch_size": [8]}})
    assert names(path, {"sweep.seed": "[1]", "sweep.clients.count": "[3]"}) == [
        "seed=1,count=3,batch_size=8"
    ]
    assert names(path, {"sweep.grid.schedule.rounds": "[1]", "sweep.zip": "null"}) == [
        "seed=0,rounds=1"
    ]
    assert names(path, {"sweep.list": "[{name: a}]"}) == ["seed=0,count=2,batch_size=8,a"]
    assert "scenario.sweep.list: " in message(path, {"sweep.list.0.seed": "1"})


def test_extends_merges_sweeps_and_null_takes_one_out(file):
    file({"seed": [0, 1], "clients.count": [2]}, name="base.yaml")
    child = file({"seed": [4]}, name="child.yaml")
    child.write_text("extends: base.yaml\nsweep: {seed: [4], clients.count: null}")
    assert names(child) == ["seed=4"]
    child.write_text("extends: base.yaml\nsweep: null")
    assert not has_sweep(child)
    assert load_scenario(child).seed == TINY["seed"]


def test_a_file_with_a_sweep_is_no_single_scenario(file):
    path = file({"seed": [0, 1, 2]})
    assert has_sweep(path)
    with pytest.raises(ScenarioError, match=r"sweep:.*3 cells.*simsplit sweep "):
        load_scenario(path)
    assert load_scenario(path, {"sweep": "null"}) == parse(BASE)
    assert not has_sweep(path, {"sweep": "null"})
    assert "add one" in message(path, {"sweep": "null"})


@pytest.mark.parametrize(
    ("sweep", "gist"),
    [
        ({}, "sweep: is empty"),
        ([1], "sweep: ... [1]"),
        ({"seed": 3}, "sweep.seed: ... 3"),
        ({"seed": "0, 1"}, "sweep.seed: ... '0, 1'"),
        ({"train": {"batch_size": [1]}}, 'sweep.train: ... {"batch'),
        ({"seed": []}, "sweep.seed: ... at least one ... []"),
        ({"seed": [1, 0, 1]}, "sweep.seed: has 1 twice"),
        ({"method": [[LIGHT], [LIGHT]]}, 'sweep.method: has [{"kind": "lightsplit", "ratio": 8}] '),
        ({"name": ["a"]}, "sweep.name: ... swept"),
        ({"extends": ["a"]}, "sweep.extends: ... swept"),
        ({"sweep.seed": [1]}, "sweep.sweep.seed: ... swept"),
        ({"grid": {"seed": [0]}, "clients.count": [1]}, "sweep.clients.count: is beside grid,"),
        ({"grid": [0]}, "sweep.grid: ... [0]"),
        ({"grid": {"seed": []}}, "sweep.grid.seed: ... at least one"),
        ({"zip": {"seed": [0, 1], "clients.count": [2]}},
         "sweep.zip: ... seed has 2, clients.count"),
        ({"zip": {"seed": [0, 0], "clients.count": [2, 2]}}, "sweep.zip: has {"),
        ({"list": {"seed": 1}}, "sweep.list: ... list"),
        ({"list": [3]}, "sweep.list.0: ... map ... 3"),
        ({"list": [{"name": "a/b"}]}, "sweep.list.0.name: ... letters"),
        ({"list": [{"name": 3}]}, "sweep.list.0.name: ... letters"),
        ({"list": [{"name": "a", "seed": 0}, {"name": "a", "seed": 1}]},
         "sweep.list: ... 'a' twice"),
        ({"list": [{"seed": 0}, {"seed": 0}]}, 'sweep.list: has {"seed": 0} twice'),
        ({"grid": {"seed": [0]}, "list": [{"seed": 1}]},
         "sweep.list.seed: ... sweep.grid"),
        ({"random": {"seed": [1]}}, "sweep.random.count: ... from 1"),
        ({"random": {"count": 0, "seed": [1]}}, "sweep.random.count: ... from 1"),
        ({"random": {"count": 2}}, "sweep.random: ... draw"),
        ({"random": {"count": 2, "seed": 3}}, "sweep.random.seed: ... 3"),
        ({"random": {"count": 2, "train.client.lr": {"log": [0, 1]}}},
         "sweep.random.train.client.lr.log: ... 0 ... [0, 1]"),
        ({"random": {"count": 2, "train.client.lr": {"uniform": [1]}}},
         "sweep.random.train.client.lr.uniform: ... two numbers ... [1]"),
        ({"random": {"count": 2, "name": ["a"]}}, "sweep.random.name: ... swept"),
        ({"seed": list(range(200)), "clients.count": list(range(1, 200))},
         "sweep: ... 39,800 ... 10,000"),
        ({"train.client.lr": [1, 1.0]},
         "sweep: lr=1 and lr=1.0"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_sweep_names_the_field(file, sweep, gist):
    assert says(message(file(sweep)), f"scenario.{gist}")


def test_a_field_that_does_not_exist_gets_the_usual_message(file):
    reason = message(file({"sed": [1, 2]}))
    assert says(reason, "scenario.sed: ... 'seed' ... name, seed")
    assert "all 2 cells" in reason
    assert len(reason.splitlines()) == 1


def test_every_cell_is_checked_and_the_wrong_ones_are_named(file):
    path = file({"method.0.ratio": [8, -1, 10**9], "seed": [0, 1]}, method=[LIGHT])
    first, second = message(path).splitlines()
    assert says(first, "scenario.method.0.ratio: ... 1 ... -1")
    assert first.endswith("(in cell ratio=-1,seed=0 and 1 more)")
    assert says(second, "scenario.method.0.ratio: ... at most")
    assert second.endswith("(in cell ratio=1000000000,seed=0 and 1 more)")


def test_a_mistake_beside_the_sweep_is_reported_once(file):
    reason = message(file({"seed": [0, 1]}, train={"batchsize": 3}))
    assert reason.count("batch_size'") == 1
    assert "scenario.name: got '-x_seed-0'" in message(file({"seed": [0]}), {"name": "-x"})


@pytest.mark.parametrize(
    ("sweep", "valid"),
    [
        ({"seed": [0, 1]}, True),
        ({"grid": {"seed": [0]}, "zip": {"a": [1]}, "list": [{"name": "x", "seed": 3}]}, True),
        ({"random": {"count": 3, "a": {"log": [1, 2]}, "b": [1]}}, True),
        ({"random": {"count": 0}}, False),
        ({"random": {"count": 1, "a": {"normal": [1, 2]}}}, False),
        (None, True),
        ({"seed": None}, True),
        ({"seed": 3}, False),
        ({"list": {"seed": 3}}, False),
        ([1], False),
    ],
)
def test_the_schema_knows_the_field(sweep, valid):
    assert validator().is_valid({"sweep": sweep}) is valid


def test_differences_name_the_fields_that_a_checkpoint_depends_on():
    before = parse(merge(BASE, {"method": [LIGHT]}))
    now = parse(merge(BASE, {"method": [{**LIGHT, "ratio": 4}], "train": {"client": {"lr": 0.1}},
                             "threads": 3, "schedule": {"rounds": 9}}))  # fmt: skip
    assert differences(before, now) == [
        "method.0.ratio was 8.0, is 4.0",
        "train.client.lr was 0.5, is 0.1",
    ]
    other = parse(merge(BASE, {"method": []}))
    assert differences(before, other)[0].startswith("method was [{")
    assert differences(before, before) == []
