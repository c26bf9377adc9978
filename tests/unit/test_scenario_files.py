from pathlib import Path

import pytest
import yaml
from builders import load_shipped
from gists import says
from pace import together
from schema import validator

from simsplit.errors import ScenarioError
from simsplit.scenario import load_scenario, parse
from simsplit.scenario.files import assign, dump, merge, read

SHIPPED = sorted(
    file
    for file in Path(__file__).parents[2].glob("scenarios/**/*.yaml")
    if file.parent.name != "boards"  # tracks, which tests/unit/boards has
    if file.name != "claims.yaml"
)


def write_file(folder, name="scenario.yaml", text=""):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def get_refusal(path, overrides=None):
    with pytest.raises(ScenarioError) as caught:
        read(path, overrides or {})
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on: [test]", {"on": ["test"]}),
        ("lr: 1e-3", {"lr": 0.001}),
        ("lr: 1E+3", {"lr": 1000.0}),
        ("alpha: .inf", {"alpha": float("inf")}),
        ("n: 1_000", {"n": 1000}),
        ("n: 010", {"n": "010"}),
        ("day: 2024-01-01", {"day": "2024-01-01"}),
        ("time: 1:30", {"time": "1:30"}),
        ("word: no", {"word": "no"}),
        ("flag: True", {"flag": True}),
        ("nothing:", {"nothing": None}),
        ("1: one", {"1": "one"}),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}", {"a": {"b": 1}, "c": {"b": 2}}),
    ],
)
def test_plain_words_mean_what_yaml_1_2_says(tmp_path, text, value):
    assert read(write_file(tmp_path, text=text), {}) == value


def test_overrides_are_yaml_or_plain_values(tmp_path):
    path = write_file(tmp_path, text="clients: {count: 2}\nname: x")
    given = {"clients.count": 20, "seed": "7", "method": [{"kind": "wcc"}], "data.alpha": 0.5}
    assert read(path, given) == {
        "clients": {"count": 20},
        "name": "x",
        "seed": 7,
        "method": [{"kind": "wcc"}],
        "data": {"alpha": 0.5},
    }


@pytest.mark.parametrize(
    "values",
    [
        {"on": ["on", "yes", "no", "y", "1e-3", "010", "2024-01-01", "null", "~", "", "=", "<<"]},
        {"numbers": [1, -1, 1e-8, 0.1, 1e300, float("inf"), True, None]},
        {"nested": {"deep": [{"kind": "ä b: c"}]}},
    ],
)
def test_what_is_dumped_reads_back_the_same_here_and_elsewhere(tmp_path, values):
    text = dump(values)
    assert read(write_file(tmp_path, text=text), {}) == values
    assert yaml.safe_load(text) == values


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_is_a_scenario_of_defaults(tmp_path, text):
    assert load_scenario(write_file(tmp_path, text=text)) == parse({})


@pytest.mark.parametrize(
    ("text", "gist"),
    [
        ("- 1", "mapping ... a list"),
        ("word", "mapping ... text"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1 ... YAML: ... 'a'"),
        ("t: {on: 1, on: 2}", "line 1, column 12 ... YAML: ... 'on'"),
        ("a: [", "line 1, column 5 ... YAML"),
        (
            "a:\n\tb: 1",
            "line 2, column 1 ... YAML: ... token",
        ),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor for the tag"),
        ("a: !!python/name:os.getcwd", "could not determine a constructor for the tag"),
        ("? [a]\n: 1", "plain text"),
        ("a: *x", "found undefined alias"),
        ("a: b: c", "mapping values"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("a: \x01", "special characters"),
    ],
)
def test_a_file_that_is_no_scenario_says_where_and_why(tmp_path, text, gist):
    path = write_file(tmp_path, text=text)
    message = get_refusal(path)
    assert message.startswith(f"scenario: {path}")
    assert says(message, gist)


def test_a_file_that_cannot_be_read_says_why_and_what_is_near(tmp_path):
    path = write_file(tmp_path, "quickstart.yaml")
    missing = tmp_path / "quikstart.yaml"
    assert says(get_refusal(missing), f"scenario: ... {missing}: No such file ... '{path.name}'")
    assert get_refusal(tmp_path) == f"scenario: cannot read {tmp_path}: Is a directory"
    assert "No such file" in get_refusal(tmp_path / "no" / "such.yaml")
    path.write_bytes(b"name: caf\xe9")
    assert says(get_refusal(path), f"scenario: {path} ... UTF-8 ... byte 9")


def test_extends_is_relative_to_the_file_and_may_go_on(tmp_path):
    (tmp_path / "below").mkdir()
    write_file(tmp_path, "base.yaml", "seed: 1\nname: base\nclients: {count: 3, heads: per_client}")
    middle = "extends: ../base.yaml\nname: middle\nclients: {count: 4}"
    write_file(tmp_path / "below", "middle.yaml", middle)
    last = write_file(tmp_path, "last.yaml", "extends: below/middle.yaml\nclients: {start: own}")
    assert read(last, {"clients.count": "5"}) == {
        "seed": 1,
        "name": "middle",
        "clients": {"count": 5, "heads": "per_client", "start": "own"},
    }


def test_extends_in_a_circle_shows_the_circle(tmp_path):
    write_file(tmp_path, "a.yaml", "extends: b.yaml")
    path = write_file(tmp_path, "b.yaml", "extends: ./a.yaml")
    assert says(get_refusal(path), "scenario.extends: ... b.yaml -> a.yaml -> b.yaml")


@pytest.mark.parametrize(
    ("text", "gist"),
    [
        ("extends: bsae.yaml", "No such file ... 'base.yaml'"),
        ("extends: 3", "YAML file ... 3 in "),
        ("extends: [base.yaml]", "YAML file ... ['base.yaml'] in "),
        ("extends: broken.yaml", "broken.yaml, line 1, column 5 ... YAML"),
        ("extends: list.yaml", "mapping ... a list"),
    ],
)
def test_a_parent_that_is_no_scenario_blames_extends(tmp_path, text, gist):
    write_file(tmp_path, "base.yaml")
    write_file(tmp_path, "broken.yaml", "a: b: c")
    write_file(tmp_path, "list.yaml", "[1]")
    message = get_refusal(write_file(tmp_path, "child.yaml", text))
    assert message.startswith("scenario.extends: ")
    assert says(message, gist)


@pytest.mark.parametrize(
    ("base", "changes", "merged"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"a": None}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        # another kind has other fields
        ({"m": {"kind": "a", "x": 1}}, {"m": {"kind": "b"}}, {"m": {"kind": "b"}}),
        (
            {"m": {"kind": "a", "x": 1}},
            {"m": {"kind": "a", "y": 2}},
            {"m": {"kind": "a", "x": 1, "y": 2}},
        ),
        ({"m": {"kind": "a", "x": 1}}, {"m": {"y": 2}}, {"m": {"kind": "a", "x": 1, "y": 2}}),
        # a bare word is a kind
        ({"m": "a"}, {"m": {"y": 2}}, {"m": {"kind": "a", "y": 2}}),
        ({"m": "a"}, {"m": {"kind": "b"}}, {"m": {"kind": "b"}}),
        ({"m": {"kind": "a", "x": 1}}, {"m": "a"}, {"m": {"kind": "a", "x": 1}}),
        ({"m": {"kind": "a", "x": 1}}, {"m": "b"}, {"m": {"kind": "b"}}),
        ({"m": "a"}, {"m": "b"}, {"m": "b"}),
    ],
)
def test_merging(base, changes, merged):
    before = repr((base, changes))
    assert merge(base, changes) == merged
    assert repr((base, changes)) == before


@pytest.mark.parametrize(
    ("values", "field", "value", "expected"),
    [
        ({}, "seed", 3, {"seed": 3}),
        ({}, "train.client.lr", 1, {"train": {"client": {"lr": 1}}}),
        ({"train": None}, "train.batch_size", 1, {"train": {"batch_size": 1}}),
        ({"method": [{"k": 1}, {}]}, "method.0.k", 2, {"method": [{"k": 2}, {}]}),
        ({"method": [{}]}, "method.0", {"k": 2}, {"method": [{"k": 2}]}),
        ({"method": [{}]}, "method.1.kind", "wcc", {"method": [{}, {"kind": "wcc"}]}),
        ({}, "method.0.kind", "raw", {"method": [{"kind": "raw"}]}),
        ({"m": ["a", "b"]}, "m.2", "c", {"m": ["a", "b", "c"]}),
        ({"m": ["a"]}, "m.0.x", 1, {"m": [{"kind": "a", "x": 1}]}),
        (
            {"data": {"source": "hub"}},
            "data.source.name",
            "x",
            {"data": {"source": {"kind": "hub", "name": "x"}}},
        ),
        ({"seed": 1}, "seed.a", 1, {"seed": {"a": 1}}),
    ],
)
def test_assigning(values, field, value, expected):
    assign(values, field, value)
    assert values == expected


@pytest.mark.parametrize("key", ["2", "-1", "first", "²", ""])
def test_a_position_that_is_none(key):
    with pytest.raises(ScenarioError, match=r"list of 1;.*0 to 1") as caught:
        assign({"method": [{}]}, f"method.{key}", {})
    assert caught.value.field == f"method.{key}"
    with pytest.raises(ScenarioError) as caught:
        assign({"method": [{}]}, f"method.{key}.ratio.x", 3)
    assert caught.value.field == f"method.{key}"


def test_overrides_are_yaml(tmp_path):
    path = write_file(tmp_path, text="data: {partition: dirichlet}")
    overrides = {
        "data.partition.alpha": ".inf",
        "train.client": "{kind: adam, lr: 1e-3}",
        "method": "[{kind: raw}]",
        "threads": "null",
        "train.drop_last": "true",
        "name": "2024-01-01",
    }
    scenario = load_scenario(path, overrides)
    assert scenario.data.partition.alpha == float("inf")
    assert scenario.train.client.lr == 0.001
    assert [method.kind for method in scenario.method] == ["raw"]
    assert scenario.threads is None
    assert scenario.train.drop_last is True
    assert scenario.name == "2024-01-01"
    message = get_refusal(path, {"method.0": "["})
    assert says(message, "scenario.method.0: '[', line 1, column 2 ... YAML")


@pytest.mark.slow
def test_every_shipped_scenario_replays_from_what_is_saved_and_is_of_the_schema(tmp_path):
    schema = validator()

    @together(SHIPPED)
    def replays(path):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert [error.message for error in schema.iter_errors(values)] == []
        every = load_shipped(path)
        # all are read; of a table's hundreds of cells three say what there is to say of replaying
        for scenario in every[:: max(1, len(every) // 3)]:
            text = scenario.yaml()
            values = yaml.safe_load(text)
            assert parse(values) == scenario
            assert read(write_file(tmp_path, text=text), {}) == values
            assert [error.message for error in schema.iter_errors(values)] == []

    replays()


@pytest.mark.parametrize("text", ["seed: &x [*x]", "seed: &x {a: *x}", "method: &x [*x]"])
def test_values_that_hold_themselves_are_refused_like_any_other(tmp_path, text):
    with pytest.raises(ScenarioError, match=rf"^scenario\.{text[:4]}"):
        load_scenario(write_file(tmp_path, text=text))


def test_infinity_replays(tmp_path):
    values = {"data": {"partition": {"kind": "dirichlet", "alpha": float("inf")}}}
    scenario = parse(values)
    assert parse(yaml.safe_load(scenario.yaml())) == scenario
    assert load_scenario(write_file(tmp_path, text=scenario.yaml())) == scenario


def test_scenarios_are_shipped():
    assert SHIPPED


def test_a_field_that_another_kind_left_behind_is_named_as_that(tmp_path):
    (tmp_path / "s.yaml").write_text("model: {kind: resnet20, cut: 4}")
    message = "^scenario.model.cut: got 4; .* left over .* --set model=simplecnn "
    with pytest.raises(ScenarioError, match=message):
        load_scenario(tmp_path / "s.yaml", {"model.kind": "simplecnn"})
    with pytest.raises(ScenarioError, match=r"got 4; allowed: l1h, l2h$"):
        load_scenario(tmp_path / "s.yaml", {"model.kind": "simplecnn", "model.cut": 4})
    assert load_scenario(tmp_path / "s.yaml", {"model": "simplecnn"}).model.kind_name == "simplecnn"


def test_an_override_of_an_alias_leaves_what_it_was_taken_from(tmp_path):
    path = tmp_path / "aliased.yaml"
    path.write_text(
        "data: {source: digits}\nmodel: simplecnn\n"
        "train: {client: &same {kind: sgd, lr: 0.5}, server: *same}\n"
    )
    train = load_scenario(path, {"train.client.lr": "0.1"}).train
    assert (train.client.lr, train.server.lr) == (0.1, 0.5)
