import functools
from typing import Literal

import pytest
from jsonschema import Draft202012Validator
from schema import validator

from simsplit.data.data_config import DataConfig
from simsplit.errors import ScenarioError
from simsplit.methods.method import MethodConfig
from simsplit.scenario import Scenario, file_schema, parse


class Halve(MethodConfig):
    """Half of everything."""

    kind: Literal["halve"] = "halve"

    def build(self, site):
        raise NotImplementedError


HALVE = [{"METHODS": {"halve": Halve}}]


@functools.cache
def of_plugin():
    return file_schema(HALVE)


def accepts(values):
    return validator().is_valid(values)


def test_nothing_given_is_a_scenario():
    assert parse({}) == Scenario()
    assert parse({}).splits == ("test",)
    assert parse({}).figures == ["test_accuracy", "test_balanced_accuracy", "test_loss"]


def test_validation_data_are_evaluated_where_there_are_any():
    values = {"data": {"validation": 0.1}, "evaluate": {"metrics": ["top5"]}}
    assert parse(values).figures == ["validation_top5", "test_top5"]
    values["evaluate"]["on"] = ["test"]
    assert parse(values).figures == ["test_top5"]


def test_a_scenario_is_frozen_and_equal_to_its_like():
    with pytest.raises(ValueError, match="frozen"):
        parse({}).seed = 1
    assert parse({"seed": 1}) == parse({"seed": "1"}) != parse({})


@pytest.mark.parametrize(
    ("stop", "smaller"), [("test_loss", True), ("validation_loss", True), ("test_accuracy", False)]
)
def test_stopping_knows_which_way_is_better(stop, smaller):
    scenario = parse({"data": {"validation": 0.1}, "stop": {"metric": stop}})
    assert scenario.stop.smaller_is_better is smaller


def test_the_legs_of_a_vanilla_cut():
    method = {"kind": "lightsplit", "legs": ["smashed"]}
    parse({"topology": "vanilla", "method": [method]})
    with pytest.raises(ScenarioError, match=r"^scenario.method.0.legs: got smashed, features;"):
        parse({"topology": "vanilla", "method": [{**method, "legs": ["smashed", "features"]}]})


def test_options_of_optimizers_that_go_together_pass():
    nesterov = {"kind": "sgd", "nesterov": True, "momentum": 0.9, "foreach": True}
    assert parse({"train": {"client": nesterov}}).train.client.nesterov
    assert parse({"train": {"server": {"kind": "adamw", "amsgrad": True}}}).train.server.amsgrad


def test_data_not_known_beforehand_leave_shapes_unchecked():
    source = {"kind": "hub", "name": "someone/something"}
    assert parse({"data": {"source": source}}).data.source.describe() is None


@pytest.mark.slow
def test_the_schema_is_one():
    for schema in (validator().schema, of_plugin()):
        Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


def test_the_schema_describes_every_field():
    schema = of_plugin()
    parts = {"Scenario": schema, **schema["$defs"]}
    undescribed = [
        f"{part}.{name}"
        for part, result in parts.items()
        for name, field in result.get("properties", {}).items()
        if not field.get("description")
    ]
    assert undescribed == []
    assert "properties" in schema
    assert len(parts) > 20


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"extends": "other.yaml"},
        {"data": {"source": "cifar10", "partition": "dirichlet"}},
        {"data": {"source": {"kind": "cifar10", "root": "x"}, "partition": {"kind": "iid"}}},
        {"data": {"source": {"kind": "folder", "path": "x"}}},
        {"data": {"partition": {"kind": "dirichlet", "alpha": float("inf")}}},
        {"model": {"kind": "resnet18", "stem": "cifar"}},
        {"method": [{"kind": "raw"}, {"kind": "lightsplit", "ratio": 8}]},
        {"model": "simplecnn", "method": ["raw", "lightsplit"], "detectors": ["cosine_mad"]},
        {"stop": None, "threads": None},
        {"stop": {"metric": "test_loss"}},
    ],
)
def test_the_schema_accepts(values):
    assert accepts(values)


@pytest.mark.parametrize(
    "values",
    [
        {"nam": "x"},
        {"extends": 3},
        {"train": {"batchsize": 3}},
        {"data": {"source": "digist"}},
        {"data": {"source": "folder"}},
        {"data": {"source": {"kind": "folder"}}},
        {"data": {"source": {"root": "x"}}},
        {"data": {"partition": {}}},
        {"model": {"stem": "cifar"}},
        {"model": "simplecn"},
        {"method": ["lightsplt"]},
        {"method": [{"kind": "lightsplt"}]},
        {"method": [{"kind": "lightsplit", "rato": 8}]},
        {"method": [{"kind": "halve"}]},
        {"seed": "one"},
        {"seed": -1},
        {"clients": {"heads": "both"}},
    ],
)
def test_the_schema_refuses_what_loading_refuses(values):
    assert not accepts(values)


def test_plugins_join_the_schema_and_keep_the_scenarios_own_words():
    ours, theirs = validator().schema, of_plugin()
    both = {"method": [{"kind": "halve"}, {"kind": "raw"}]}
    assert Draft202012Validator(theirs).is_valid(both)
    assert theirs["description"] == ours["description"]
    assert (
        theirs["properties"]["method"]["description"]
        == (ours["properties"]["method"]["description"])
    )
    assert parse({}, HALVE).method == ()
    assert parse({"method": [{"kind": "halve"}]}, HALVE).yaml().count("halve") == 1


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"train": {"client": {"lr": 0.5}}}, "sgd"),
        ({"train": {"client": {"kind": "adam"}}}, "adam"),
    ],
)
def test_a_part_without_a_kind_is_of_the_defaults(values, kind):
    assert parse(values).train.client.kind == kind


def test_a_part_without_a_kind_starts_from_its_kinds_own_defaults():
    assert parse({"schedule": {"rounds": 3}}).schedule.rounds == 3
    with pytest.raises(ScenarioError, match=r"data\.partition\.kind: missing; alpha belongs to d"):
        parse({"data": {"partition": {"alpha": 0.5}}})


def test_a_scenario_made_in_python_is_refused_in_the_scenarios_own_words():
    with pytest.raises(ScenarioError, match=r"^scenario.method.0.kind: unknown 'lightsplt'"):
        Scenario(method=[{"kind": "lightsplt"}])
    with pytest.raises(ScenarioError, match=r"^scenario.seed:.*true"):
        Scenario(seed=True)
    with pytest.raises(ScenarioError, match=r"^scenario.sede: unknown"):
        Scenario(sede=1)
    with pytest.raises(ScenarioError, match=r"^scenario.clients.count:.*at least 1"):
        Scenario.model_validate({"clients": {"count": 0}})
    made = Scenario(train={"client": {"lr": 0.25}}, data=DataConfig(train_samples=90))
    assert made == parse({"train": {"client": {"lr": 0.25}}, "data": {"train_samples": 90}})


def test_a_copy_with_other_fields_is_checked_as_a_whole():
    given = parse({"clients": {"count": 3}})
    other = given.model_copy(update={"seed": 7})
    assert (other.seed, other.clients.count, given.seed) == (7, 3, 0)
    assert given.model_copy() == given
    with pytest.raises(ScenarioError, match=r"^scenario.seed:.*at least 0"):
        given.model_copy(update={"seed": -1})
    with pytest.raises(ScenarioError, match=r"^scenario.sead: unknown field"):
        given.model_copy(update={"sead": 1})
    with pytest.raises(ScenarioError, match=r"^scenario.aggregation: got none"):
        given.model_copy(update={"schedule": {"kind": "asynchronous"}})
