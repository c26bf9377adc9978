"""What a plugin is, what is refused as one, and that its parts join a scenario like any other."""

import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
import yaml
from builders import TINY
from gists import says
from jsonschema import Draft202012Validator
from schema import validator

from simsplit import Method, MethodConfig
from simsplit.catalogue import tabulate_catalogue
from simsplit.data import Dealing
from simsplit.data.texts import TextParquet
from simsplit.errors import PluginError, RunError, ScenarioError, SimsplitError
from simsplit.models.tabular import Mlp
from simsplit.observers import ObserverConfig
from simsplit.plugins import EXPORTS, NO_PLUGINS, PARTS, gather_again, gather_plugins
from simsplit.plugins.plugin_modules import load_plugin
from simsplit.progress import Observer
from simsplit.scenario import Scenario, file_schema, load_scenario, parse, scenario_class
from simsplit.scenario.files import merge

METHOD = """
from typing import Literal
from simsplit import Method, MethodConfig

class HalveConfig(MethodConfig):
    kind: Literal["halve"] = "halve"
    def build(self, site):
        return Method()

METHODS = {"halve": HalveConfig}
"""


class Halve(MethodConfig):
    """Half of everything."""

    kind: Literal["halve"] = "halve"
    times: int = 1
    """How often."""

    def build(self, site):
        return Method()


class Prefixed(Mlp):
    """A network that names its weights as older models did."""

    kind: Literal["prefixed"] = "prefixed"

    @staticmethod
    def get_name_prefix(owner):
        return owner, "layers."


HALVE = [{"METHODS": {"halve": Halve}}]


def config_of(name, kind="mine"):
    """Build a complete config for one of the registries, with a field of its own."""
    part = PARTS[name]
    missing = getattr(part.bases[0], "__abstractmethods__", ())
    body = {
        "__module__": __name__,
        "__doc__": f"A {part.word} of one's own.",
        "__annotations__": {"kind": Literal[kind], "strength": int},
        "kind": kind,
        "strength": 3,
        **{method: lambda self, *_: None for method in missing},
    }
    return type(part.bases[0])("Mine", (part.bases[0],), body)


PLACES = {
    "METHODS": ("method.0", lambda part: {"method": [part]}),
    "MODELS": ("model", lambda part: {"model": part}),
    "SOURCES": ("data.source", lambda part: {"data": {"source": part}}),
    "PARTITIONS": ("data.partition", lambda part: {"data": {"partition": part}}),
    "ATTACKS": ("attacks.0", lambda part: {"attacks": [part], "data": {"auxiliary": 0.2}}),
    "DETECTORS": ("detectors.0", lambda part: {"detectors": [part]}),
    "POISONS": (
        "clients.malicious.poison.0",
        lambda part: {"clients": {"malicious": {"poison": [part]}}},
    ),
    "STRATEGIES": (
        "aggregation.strategy",
        lambda part: {"aggregation": {"kind": "splitfed_v2", "strategy": part}},
    ),
    "OBSERVERS": ("observers.0", lambda part: {"observers": [part]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_a_part_is_named_checked_listed_dumped_and_read_again(name):
    where, wrapped = PLACES[name]
    plugins = gather_plugins({name: {"mine": config_of(name)}})
    own = wrapped({"kind": "mine", "strength": 5})
    if name == "MODELS":
        own["data"] = {"source": {"kind": "folder", "path": "nowhere"}}  # no shapes to check
    given = parse(own, plugins)
    assert given.plugins is plugins
    assert parse(yaml.safe_load(given.yaml()), plugins) == given
    with pytest.raises(ScenarioError, match=rf"scenario\.{where}\.kind: unknown 'mine', "):
        parse(own)
    with pytest.raises(ScenarioError) as refused:
        parse(merge(own, wrapped({"kind": "min"})), plugins)
    assert says(str(refused.value), f"scenario.{where}.kind: ... 'min' ... 'mine'")
    with pytest.raises(ScenarioError) as refused:
        parse(wrapped({"kind": "mine", "strenth": 5}), plugins)
    message = f"scenario.{where}.strenth: ... 'strength'"
    assert says(str(refused.value), message)
    assert Draft202012Validator(file_schema(plugins)).is_valid(own)
    assert not validator().is_valid(own)
    listed = dict(tabulate_catalogue(None, plugins)[0].rows)
    del listed["threats"]  # lists attacks too
    assert sum(kinds.split(", ")[-1] == "mine" for kinds in listed.values()) == 1
    assert not any("mine" in kinds.split(", ") for _, kinds in tabulate_catalogue(None)[0].rows)


def test_every_registry_can_be_added_to():
    assert {*PLACES, "METRICS", "TOPOLOGIES"} == set(EXPORTS)


def test_a_metric_is_known_by_its_name():
    plugins = gather_plugins({"METRICS": {"wrongness": lambda outputs, labels: 0.5}})
    own = {"evaluate": {"metrics": ["accuracy", "wrongness"]}, "stop": {"metric": "test_wrongness"}}
    assert parse(own, plugins).figures == ["test_accuracy", "test_wrongness"]
    with pytest.raises(ScenarioError, match=r"evaluate\.metrics\.1: unknown 'wrongness', allowed"):
        parse(own)
    with pytest.raises(ScenarioError, match=r"'wrongnes'.*'wrongness'"):
        parse({"evaluate": {"metrics": ["wrongnes"]}}, plugins)
    assert Draft202012Validator(file_schema(plugins)).is_valid(own)
    assert "wrongness" in dict(tabulate_catalogue(None, plugins)[0].rows)["metrics"]
    assert [row[0] for row in tabulate_catalogue("metrics", plugins)[0].rows][-1] == "wrongness"
    writes = {"model": {"kind": "causal_lm", "sizes": {}, "head": 1, "tail": 1}}
    texts = {"data": {"source": {"kind": "text_parquet", "path": "nowhere", "task": "language"}}}
    with pytest.raises(ScenarioError, match="got wrongness, which causal_lm lacks"):
        parse({**writes, **texts, "evaluate": {"metrics": ["wrongness"]}}, plugins)


def test_texts_of_ones_own_may_be_public_and_images_may_not():
    class Mine(TextParquet):
        """A source of texts that a plugin brings."""

        kind: Literal["mine"] = "mine"

    texts = {"SOURCES": {"mine": Mine}}
    source = {"kind": "mine", "path": "nowhere", "task": "language"}
    model = {"kind": "causal_lm", "sizes": {}, "head": 1, "tail": 1}
    given = parse({"data": {"source": source, "public": source}, "model": model}, texts)
    assert type(given.data.public) is Mine
    images = {"SOURCES": {"mine": config_of("SOURCES")}}
    with pytest.raises(ScenarioError, match=r"data\.public\.kind: unknown 'mine'"):
        parse({"data": {"public": {"kind": "mine"}}}, images)


@pytest.mark.slow
def test_plugins_change_nothing_of_a_scenario_that_uses_none_of_them():
    everything = {name: {"mine": config_of(name)} for name in PLACES}
    extended = parse(TINY, everything)
    assert extended.yaml() == parse(TINY).yaml()
    assert extended.identity() == parse(TINY).identity()
    assert isinstance(extended, Scenario)
    ours, theirs = validator().schema, file_schema(everything)
    assert list(ours["properties"]) == list(theirs["properties"])
    assert {
        name: part["description"]
        for name, part in ours["properties"].items()
        if "description" in part
    } == {
        name: part["description"]
        for name, part in theirs["properties"].items()
        if "description" in part
    }


@pytest.mark.slow
def test_a_default_is_of_the_extended_kind():
    """Or a scenario would not be what its own file is read as."""
    everything = {name: {"mine": config_of(name)} for name in PLACES}
    given = parse({}, everything)
    assert parse(yaml.safe_load(given.yaml()), everything) == given


def test_one_class_is_made_for_the_same_plugins():
    assert scenario_class(HALVE) is scenario_class(gather_plugins(HALVE))
    assert scenario_class() is Scenario
    assert gather_plugins() is NO_PLUGINS


def test_an_extended_scenario_can_be_sent_to_another_process():
    given = parse({"method": [{"kind": "halve"}], "observers": [{"kind": "jsonl"}]}, HALVE)
    again = pickle.loads(pickle.dumps(given))
    assert again == given
    assert again.plugins == given.plugins


def test_observers_are_no_part_of_what_a_run_is():
    assert parse({"observers": [{"kind": "jsonl"}]}).identity() == parse({}).identity()


def test_the_one_observer_that_ships_is_known_by_its_kind():
    with pytest.raises(ScenarioError, match=r"observers\.0\.kind:.*'json'.*'js"):
        parse({"observers": [{"kind": "json"}]})
    with pytest.raises(ScenarioError, match=r"observers\.0\.file: got '\.\./x\.jsonl'; allowed: "):
        parse({"observers": [{"kind": "jsonl", "file": "../x.jsonl"}]})


def test_a_plugin_is_a_module_a_file_or_dicts(tmp_path, monkeypatch, plugin):
    monkeypatch.chdir(tmp_path)
    plugin(METHOD, "mine")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "mine.py").write_text(METHOD.replace("halve", "third"))
    module = ModuleType("made_here")
    module.METHODS = {"halve": Halve}
    for given in ("mine", ["mine"], "mine.py", Path("mine.py"), "./mine.py", module, HALVE):
        assert list(gather_plugins(given).of("METHODS")) == ["halve"], given
    both = gather_plugins(["mine", "below/mine.py"])
    assert list(both.of("METHODS")) == ["halve", "third"]
    assert [origin.name for origin in both.origins] == ["mine", "below/mine.py"]
    assert both.origins[1].file == str(tmp_path / "below" / "mine.py")
    assert gather_plugins(["mine", "mine"]).origins == gather_plugins("mine").origins
    assert str(tmp_path) not in sys.path


def test_a_file_that_is_changed_is_another_plugin_and_the_old_one_stays(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(METHOD)
    first = gather_plugins(file)
    file.write_text(METHOD.replace("halve", "third"))  # as long, within the same second
    second = gather_plugins(file)
    assert [list(each.of("METHODS")) for each in (first, second)] == [["halve"], ["third"]]
    assert pickle.loads(pickle.dumps(first)) == first


def test_a_file_imports_what_lies_beside_it(tmp_path, monkeypatch):
    (tmp_path / "beside_it.py").write_text("FACTOR = 2\n")
    (tmp_path / "mine.py").write_text("import beside_it\n" + METHOD)
    monkeypatch.delitem(sys.modules, "beside_it", raising=False)
    assert gather_plugins(tmp_path / "mine.py").of("METHODS")


def test_a_plugin_may_have_postponed_annotations_and_build_on_what_ships(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom simsplit.attacks import ATTACKS\n" + METHOD
    )
    plugins = gather_plugins(tmp_path / "mine.py")
    assert list(plugins.parts) == ["METHODS"]
    assert parse({"method": [{"kind": "halve"}]}, plugins)


@pytest.mark.parametrize(
    ("exported", "gist"),
    [
        ({}, "none of METHODS, MODELS, SOURCES, PARTITIONS, ATTACKS, DETECTORS, POISONS, "),
        ({"METHOD": {}}, "METHOD, ... 'METHODS'"),
        ({"METHODS": ["halve"]}, "METHODS ... names -> MethodConfig ... li"),
        ({"METHODS": {"halve": int}}, "METHODS['halve'] is no MethodConfig class"),
        ({"METHODS": {"halve": Halve()}}, "METHODS['halve'] is no MethodConfig class"),
        ({"ATTACKS": {"halve": Halve}}, "ATTACKS['halve'] is no AttackConfig class"),
        ({"SOURCES": {"x": Halve}}, "is no SourceConfig or TableConfig or TextTable class"),
        ({"METHODS": {"half": Halve}}, "METHODS['half'] needs `kind: Literal['half'] = 'half'`, g"),
        ({"METHODS": {"A b": Halve}}, "METHODS['A b'] ... lower case"),
        ({"METHODS": {3: Halve}}, "METHODS[3] ... lower case"),
        ({"METHODS": {"raw": type("R", (Halve,), {"__annotations__": {"kind": Literal["raw"]},
          "kind": "raw", "__module__": __name__})}}, "'raw' ... ships"),
        ({"METHODS": {"free": type("F", (Halve,), {"__annotations__": {"kind": str},
          "kind": "free", "__module__": __name__})}}, "needs `kind: Literal['free'] = 'free'`"),
        ({"MODELS": {"prefixed": Prefixed}}, "get_name_prefix ... name_prefixes"),
        ({"PARTITIONS": {"deal": Dealing}}, "Dealing ... draw"),
        ({"METRICS": {"mine": 3}}, "METRICS['mine'] ... function"),
        ({"METRICS": {"loss": len}}, "'loss' ... ships"),
        ({"METRICS": {"rouge_l": len}}, "'rouge_l' ... ships"),
    ],
)  # fmt: skip
def test_what_is_no_plugin_says_why(exported, gist):
    with pytest.raises(SimsplitError) as refused:
        gather_plugins(exported)
    assert str(refused.value).startswith("plugin (dicts): ")
    assert says(str(refused.value), gist)


@pytest.mark.parametrize(
    ("text", "gist"),
    [
        ("import nothing_of_the_kind", "ModuleNotFoundError:"),
        ("def", "SyntaxError:"),
        ("1 / 0", "ZeroDivisionError:"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path, text, gist):
    (tmp_path / "mine.py").write_text(text)
    for _ in range(2):  # nor is it taken for loaded the second time
        with pytest.raises(SimsplitError) as refused:
            gather_plugins(tmp_path / "mine.py")
        assert says(str(refused.value), f"plugin {tmp_path / 'mine.py'}: ... {gist}")


@pytest.mark.parametrize(
    ("name", "gist"),
    [
        ("gone.py", "plugin gone.py: ... No such file"),
        (".", "plugin .: ... imported"),
        ("./below", "plugin below: ... folder ... .py"),
        ("gone", "plugin gone: ... (ModuleNotFoundError: ... 'gone'"),
    ],
)
def test_a_file_that_is_none(tmp_path, monkeypatch, name, gist):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    with pytest.raises(SimsplitError) as refused:
        gather_plugins(name)
    assert says(str(refused.value), gist)


def test_two_plugins_with_the_same_kind_are_both_named():
    first, other = ModuleType("first"), ModuleType("other")
    first.METHODS = other.METHODS = {"halve": Halve}
    with pytest.raises(SimsplitError) as refused:
        gather_plugins([first, other])
    assert says(str(refused.value), "plugin other: METHODS['halve'] ... already ... first")


def test_another_process_imports_the_same_or_refuses(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(METHOD)
    plugins = gather_plugins(file)
    again = gather_again(plugins.require_portable())
    assert again == plugins
    gather_again.cache_clear()
    file.write_text(METHOD + "\n# changed\n")
    with pytest.raises(SimsplitError, match="has changed"):
        gather_again(plugins.require_portable())


def test_a_fault_in_another_process_names_the_file_as_the_user_did(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(METHOD.replace("return Method()", "raise ValueError('no')"))
    origins = gather_plugins(file).require_portable()
    gather_again.cache_clear()
    del sys.modules[origins[0].module]  # as it is where nothing was imported yet
    config = gather_again(origins).of("METHODS")["halve"]
    with pytest.raises(PluginError) as fault:
        config().build(None)
    assert says(str(fault.value), f"plugin {file}: method 'halve'")


def test_workers_cannot_import_what_is_in_no_file():
    with pytest.raises(RunError, match=r"workers.*\(dicts\)"):
        gather_plugins(HALVE).require_portable()


def test_a_plugin_is_imported_by_nobody_but_its_user(tmp_path, monkeypatch):
    """A run directory, or a scenario, that names one is no reason to."""
    (tmp_path / "evil.py").write_text("raise AssertionError('imported')\n" + METHOD)
    file = tmp_path / "scenario.yaml"
    facts = {"name": "evil", "module": "evil", "file": str(tmp_path / "evil.py"), "digest": "0"}
    (tmp_path / "environment.json").write_text(json.dumps({"plugins": [facts]}))
    file.write_text("method: [{kind: halve}]")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError) as refused:
        load_scenario(file)
    assert says(str(refused.value), f"{tmp_path} ... --plugin evil")
    file.write_text("plugins: [evil]")
    with pytest.raises(ScenarioError, match="plugins: unknown field"):
        load_scenario(file)


def test_a_file_is_not_blamed_on_the_runs_that_lie_in_folders_beside_it(tmp_path):
    (tmp_path / "run").mkdir()
    facts = {"name": "mine", "module": "mine", "file": None, "digest": None}
    (tmp_path / "run" / "environment.json").write_text(json.dumps({"plugins": [facts]}))
    (tmp_path / "small.yaml").write_text("method: [{kind: halve}]")
    with pytest.raises(ScenarioError, match="unknown 'halve'"):
        load_scenario(tmp_path / "small.yaml")


@pytest.mark.parametrize("text", ["", "[]", '{"plugins": 3}', '{"plugins": [{"name": "x"}]}'])
def test_a_damaged_record_of_plugins_is_none(tmp_path, text):
    (tmp_path / "environment.json").write_text(text)
    (tmp_path / "scenario.yaml").write_text("method: [{kind: halve}]")
    with pytest.raises(ScenarioError, match="unknown 'halve'"):
        load_scenario(tmp_path / "scenario.yaml")


def test_another_mistake_in_a_runs_own_file_is_refused_as_elsewhere(tmp_path):
    facts = {"name": "mine", "module": "mine", "file": None, "digest": None}
    (tmp_path / "environment.json").write_text(json.dumps({"plugins": [facts]}))
    (tmp_path / "scenario.yaml").write_text("seed: -1")
    with pytest.raises(ScenarioError, match=r"seed:.*at least 0"):
        load_scenario(tmp_path / "scenario.yaml")


def test_origins_are_described_with_digests(tmp_path):
    (tmp_path / "mine.py").write_text(METHOD)
    (facts,) = gather_plugins(tmp_path / "mine.py").describe_origins()
    assert facts["file"] == str(tmp_path / "mine.py")
    assert len(facts["digest"]) == 32
    assert json.loads(json.dumps(facts)) == facts
    assert load_plugin(tmp_path / "mine.py")[0].by_file


def test_an_observers_config_gives_an_observer(tmp_path):
    class Quiet(ObserverConfig):
        kind: Literal["quiet"] = "quiet"

        def build(self, path):
            return Observer()

    given = parse({"observers": [{"kind": "quiet"}]}, {"OBSERVERS": {"quiet": Quiet}})
    assert isinstance(given.observers[0].build(tmp_path), Observer)
