"""Files that a scenario extends: their values are not shown, and their chain is short."""

import pytest
import yaml
from gists import says

from simsplit.config import MOST_PARTS
from simsplit.errors import ScenarioError
from simsplit.scenario import load_scenario, load_sweep
from simsplit.scenario.files import MOST_EXTENDED
from simsplit.scenario.hiding import is_own
from simsplit.scenario.shipped import find_folder

SECRET = "S3CR3T"


def write(folder, file, **values):
    (folder / file).write_text(yaml.safe_dump(values))
    return folder / file


def refuse(file, load=load_scenario, **overrides):
    with pytest.raises(ScenarioError) as caught:
        load(file, overrides)
    return caught.value


LEAKS = {
    "a number": {"seed": SECRET},
    "a part": {"method": SECRET},
    "a kind": {"data": {"source": {"kind": SECRET}}},
    "a field's name": {"data": {SECRET: 1}},
    "a name": {"s_secret": SECRET},
    "a list": {"detectors": [SECRET, {"kind": SECRET}]},
    "misfits": {"model": {"kind": "vit", "width": 31337, "heads": 4}},
    "a path": {"extends": SECRET},
    "a path that is none": {"extends": [SECRET]},
    "a sweep": {"sweep": {SECRET: [1]}},
    "a file": {"extends": f"{SECRET}.yaml"},
}


@pytest.mark.parametrize("values", LEAKS.values(), ids=LEAKS)
@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_an_extended_file_is_not_shown(values, suffix, tmp_path):
    write(tmp_path, f"own.{suffix}", **values)
    for below in (write(tmp_path, "a.yaml", extends=f"own.{suffix}"),
                  write(tmp_path, "b.yaml", extends="a.yaml")):  # fmt: skip
        for load, swept in ((load_scenario, {}), (load_sweep, {"sweep.threads": "[1, 2]"})):
            shown = str(refuse(below, load, **swept))
            assert not {word for word in (SECRET, "s_secret", "31337") if word in shown}, shown


@pytest.mark.parametrize("text", [f"seed: *{SECRET}", f"{SECRET}: 1\n{SECRET}: 2", f"- {SECRET}",
                                  f"seed: @{SECRET}", f"'{SECRET}"])  # fmt: skip
def test_yaml_that_is_none_is_not_shown(text, tmp_path):
    (tmp_path / "own.yaml").write_text(text)
    error = refuse(write(tmp_path, "a.yaml", extends="own.yaml"))
    assert (error.field, SECRET in str(error), "own.yaml" in str(error)) == ("extends", False, True)


def test_what_is_hidden_is_named_by_its_field_and_may_be_seen_by_validate(tmp_path, simsplit):
    write(tmp_path, "own.yaml", seed=SECRET, name="of-another")
    write(tmp_path, "a.yaml", extends="own.yaml")
    code, out, err = simsplit("validate", "a.yaml")
    assert (code, out) == (2, "")
    assert says(err, "scenario.seed: ... a.yaml ... simsplit validate")
    code, _, err = simsplit("validate", "own.yaml")
    assert (code, SECRET in err) == (2, True)


def test_own_values_and_shipped_ones_are_shown(tmp_path):
    write(tmp_path, "own.yaml", clients={"count": 4})
    mine = write(tmp_path, "a.yaml", extends="own.yaml", seed="mine", train={"batch_size": -5})
    error = refuse(mine)
    assert {each.field for each in error.problems} == {"seed", "train.batch_size"}
    assert ("mine" in str(error), "-5" in str(error)) == (True, True)
    swept = write(tmp_path, "s.yaml", extends="own.yaml", sweep={"seed": [0, "mine"]})
    assert "mine" in str(refuse(swept, load_sweep))
    shipped = write(tmp_path, "c.yaml", extends="quickstart")
    assert "7.5" in str(refuse(shipped, **{"clients.count": 7.5}))
    assert "7.5" in str(
        refuse(write(tmp_path, "d.yaml", extends="own.yaml"), **{"clients.count": 7.5})
    )


def test_a_link_into_the_shipped_folder_is_judged_by_where_it_ends(tmp_path):
    write(tmp_path, "own.yaml", seed=SECRET)
    outside = f"{find_folder()}/../{'../' * 20}{tmp_path}/own.yaml"
    assert SECRET not in str(refuse(write(tmp_path, "a.yaml", extends=outside)))


def test_what_lies_below_a_field_decides_whose_it_is():
    own, whole = {"a": {"b": 1}, "l": [{"c": 2}]}, {"a": {"b": 1, "x": 3}, "l": [{"c": 2}], "y": 1}
    assert [is_own(field, own=own, whole=whole) for field in ("a.b", "l.0.c", "l", "l.0")] == [
        True
    ] * 4
    assert not any(is_own(f, own=own, whole=whole) for f in ("", "a", "a.x", "y", "l.1", "z"))


def test_a_chain_is_bounded(tmp_path):
    for number in range(MOST_EXTENDED + 2):
        write(tmp_path, f"{number}.yaml", extends=f"{number + 1}.yaml")
    write(tmp_path, f"{MOST_EXTENDED + 2}.yaml", extends="quickstart")
    error = refuse(tmp_path / "0.yaml")
    assert (error.field, f"{MOST_EXTENDED}" in error.reason) == ("extends", True)
    assert load_scenario(tmp_path / "3.yaml").clients.count == 10


@pytest.mark.parametrize("text", ['extends: "a\\0b.yaml"', 'extends: "\\x00"', 'name: "a\\0b"',
                                  'data: {source: {kind: table, path: "a\\u0000"}}'])  # fmt: skip
def test_a_nul_is_a_sentence(text, tmp_path, simsplit):
    (tmp_path / "a.yaml").write_text(text)
    code, out, err = simsplit("validate", "a.yaml")
    assert (code, out, says(err, "a.yaml ... NUL")) == (2, "", True)
    (tmp_path / "b.yaml").write_text("extends: a.yaml")
    assert simsplit("validate", "b.yaml")[0] == 2


@pytest.mark.parametrize("field", ["method", "detectors", "attacks", "observers"])
def test_thousands_of_parts_are_refused_at_the_first_one_too_many(field, tmp_path):
    kinds = {"method": "noise", "detectors": "cosine_mad", "attacks": "ridge", "observers": "jsonl"}
    (tmp_path / "a.yaml").write_text(f"{field}: [{', '.join([kinds[field]] * 40_000)}]")
    (problem,) = refuse(tmp_path / "a.yaml").problems
    assert (problem.field, f"{MOST_PARTS}" in problem.reason) == (field, True)
