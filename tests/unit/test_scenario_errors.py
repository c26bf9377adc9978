"""Every wrong scenario is a ScenarioError that names the field in the user's own words."""

import functools
import itertools
import re
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gists import says
from pace import together
from pydantic import BaseModel

from simsplit.attacks import ATTACKS, AttackConfig, Knows
from simsplit.errors import DataError, ScenarioError
from simsplit.methods import METHODS
from simsplit.methods.method import TEXTS as TEXTS_ALONE
from simsplit.methods.method import MethodConfig
from simsplit.needs import Given
from simsplit.scenario import Scenario, parse

JARGON = re.compile(
    r"pydantic|validation error|https?:|Config\b|tagged-union|\[type=|input_|NoneType|<class|Errno"
    r"|Input should|valid (integer|number|string|boolean|tuple|dictionary)|instance of|Traceback"
)


def get_refusal(values, plugins=()):
    with pytest.raises(ScenarioError) as caught:
        parse(values, plugins)
    message = str(caught.value)
    assert not JARGON.search(message), message
    return message


@pytest.mark.parametrize(
    ("values", "gist"),
    [
        ({"nam": "x"}, "nam: unknown ... 'name' ... name, seed, data,"),
        (
            {"zzz": 1},
            "zzz: unknown field, allowed: name, seed, data, model, topology, vertical, servers, ",
        ),
        ({1: 2}, "1: unknown field, allowed: name,"),
        ({"train": {"batchsize": 3}}, "train.batchsize: unknown ... 'batch_size'"),
        ({"target": {}}, "target: unknown ... 'targets' or data.source.target"),
        ({"clients": {"head": "x"}}, "clients.head: unknown ... 'heads' or model."),
        (
            {"method": [{"kind": "raw"}, {"kind": "lightsplit", "rato": 8}]},
            "method.1.rato: unknown ... 'ratio' ... legs, kind, ratio, k,",
        ),
        (
            {"train": {"client": {"kind": "sgd", "mometum": 1}}},
            "train.client.mometum: unknown ... 'momentum'",
        ),
        ({"train": {"batch_size": 16, "accumulate": 5}}, "train.accumulate: ... 16, ... got 5"),
        (
            {"train": {"accumulate": 2}, "topology": "vanilla"},
            "train.accumulate: got 2; ... vanilla ... topology: u_shaped",
        ),
        (
            {
                "train": {"accumulate": 2},
                "aggregation": "fused",
                "schedule": {"kind": "parallel"},
            },
            "train.accumulate: got 2; under fused",
        ),
        # fields that are called as a kind is must not be taken for pydantic's tags
        ({"train": {"client": {"kind": "sgd", "sgd": 1}}}, "train.client.sgd: unknown field"),
        ({"data": {"source": {"kind": "folder"}}}, "data.source.path: missing"),
        ({"data": {"source": "folder"}}, "data.source.path: missing"),
    ],
)
def test_fields(values, gist):
    assert says(get_refusal(values), f"scenario.{gist}")


def test_a_list_with_a_wrong_entry_is_not_called_too_short():
    wrong = {"attacks": [{"kind": "spectral", "views": ["h"]}]}
    assert get_refusal(wrong).startswith("scenario.attacks.0.views.0: unknown 'h'")
    assert "must have" not in get_refusal(wrong)
    empty = {"attacks": [{"kind": "spectral", "views": []}]}
    assert says(get_refusal(empty), "attacks.0.views: ... at least 1 ... []")


WORDS = {
    "data": {"source": {"kind": "python_docs", "length": 16, "learns": "all"}},
    "model": {"kind": "causal_lm", "name": None, "sizes": {}},
}


@pytest.mark.parametrize(
    ("changes", "gist"),
    [
        ({"data": WORDS["data"] | {"augment": ["flip"]}}, "data.augment: ... images ... texts"),
        ({"evaluate": {"mirrored": True}}, "evaluate.mirrored: ... images ... texts"),
        ({"evaluate": {"shifted": True}}, "evaluate.shifted: ... images ... texts"),
        (
            {"train": {"label_smoothing": 0.1}},
            "train.label_smoothing: ... classes ... texts; ... 0",
        ),
    ],
)
def test_what_is_for_images_or_classes_is_refused_for_texts(changes, gist):
    parse(WORDS)
    assert says(get_refusal(WORDS | changes), f"scenario.{gist}")


@pytest.mark.parametrize(
    ("values", "gist"),
    [
        (
            {"method": [{"kind": "lightsplt"}]},
            "method.0.kind: ... 'lightsplt' ... 'lightsplit' ... raw",
        ),
        (
            {"model": {"kind": "resnet19"}},
            "model.kind: ... 'resnet19' ... 'resnet18' ... resnet18, simplecnn",
        ),
        (
            {"train": {"server": {"kind": "sdg"}}},
            "train.server.kind: ... 'sdg' ... 'sgd' ... sgd, adam, adamw",
        ),
        (
            {"train": {"lr_schedule": {"kind": "cosinus"}}},
            "train.lr_schedule.kind: ... 'cosinus' ... 'cosine' ... constant",
        ),
        (
            {"data": {"source": "digist"}},
            "data.source: ... 'digist' ... 'digits' ... digits, mnist",
        ),
        (
            {"data": {"source": {"kind": "digist"}}},
            "data.source.kind: ... 'digist' ... 'digits' ... digits, mnist",
        ),
        (
            {"data": {"partition": {"kind": "dirichlett"}}},
            "data.partition.kind: ... 'dirichlett' ... 'dirichlet' ... iid",
        ),
        (
            {"schedule": {"kind": "roundrobin"}},
            "schedule.kind: ... 'roundrobin' ... 'round_robin'",
        ),
        ({"model": {"kind": "zzz"}}, "model.kind: unknown 'zzz', allowed: resnet18, "),
        ({"model": {"kind": None}}, "model.kind: got null; allowed: resnet18, "),
        ({"model": {"kind": ["raw"]}}, 'model.kind: got ["raw"]; allowed: resnet18, '),
        (
            {"model": {"stem": "cifar"}},
            "model.kind: missing; stem belongs to resnet18; allowed: resnet18, simplecnn, ",
        ),
        (
            {"schedule": {"max_ahead": 2}},
            "schedule.kind: missing; max_ahead belongs to asynchronous; allowed: round_robin, ",
        ),
        (
            {"schedule": {"kind": "per_client", "max_ahead": 2}},
            "schedule.max_ahead: ... kind asynchronous; per_client ... rounds",
        ),
        (
            {"train": {"client": {"kind": "adam", "momentum": 0.9}}},
            "train.client.momentum: ... kind sgd; adam",
        ),
        ({"schedule": {"foo": 1}}, "schedule.foo: unknown field, allowed: rounds, epochs, "),
        ({"schedule": {"round": 1}}, "schedule.round: unknown ... 'rounds'"),
        ({"method": [{}]}, "method.0.kind: missing; allowed: raw, lightsplit, "),
        ({"data": {"source": {}}}, "data.source.kind: missing; allowed: digits, "),
        ({"model": "simplecn"}, "model: ... 'simplecn' ... 'simplecnn'"),
        ({"method": ["lightsplt"]}, "method.0: ... 'lightsplt' ... 'lightsplit'"),
        (
            {"aggregation": "fedavg"},
            "aggregation: unknown 'fedavg', allowed: none, splitfed_v1, splitfed_v2, fused; "
            "'fedavg' goes under aggregation.strategy",
        ),
        ({"lr": 1}, "lr: unknown ... train.client.lr or train.server.lr"),
        ({"ratio": 8}, "ratio: unknown ... method.0.ratio ... name, "),
        ({"dirichlet": 1}, "dirichlet: unknown ... data.partition"),
        ({"model": None}, "model: ... mapping ... null; ... resnet18, "),
        ({"data": {"source": 3}}, "data.source: ... mapping ... 3; "),
    ],
)
def test_kinds(values, gist):
    assert says(get_refusal(values), f"scenario.{gist}")


@pytest.mark.parametrize(
    ("values", "gist"),
    [
        ({"seed": "eight"}, "seed: ... 'eight'"),
        ({"seed": 3.5}, "seed: ... 3.5"),
        ({"seed": None}, "seed: ... null"),
        ({"seed": [1]}, "seed: ... [1]"),
        ({"seed": {"a": 1}}, 'seed: ... {"a": 1}'),
        ({"seed": float("inf")}, "seed: ... finite ... Infinity"),
        ({"seed": True}, "seed: ... true"),
        ({"data": {"validation": False}}, "data.validation: ... false"),
        (
            {"train": {"client": {"kind": "adam", "betas": [0.9, False]}}},
            "train.client.betas.1: must",
        ),
        ({"name": 3}, "name: must be text, got 3"),
        ({"name": None}, "name: must be text, got null"),
        ({"method": {"kind": "raw"}}, 'method: ... {"kind": "raw"}'),
        ({"method": "raw"}, "method: ... 'raw'"),
        ({"method": None}, "method: ... null"),
        ({"method": 3}, "method: ... 3"),
        ({"data": {"augment": "flip"}}, "data.augment: ... 'flip'"),
        (
            {"data": {"source": {"kind": "digits", "repeat": 2}, "validation": 0.1}},
            "data.source.repeat: got 2; ",
        ),
        ({"train": [1]}, "train: ... [1]"),
        ({"train": "fast"}, "train: ... 'fast'"),
        ({"train": {"drop_last": 3}}, "train.drop_last: ... 3"),
        ({"train": {"drop_last": 1}}, "train.drop_last: ... 1"),
        ({"output": {"root": 3}}, "output.root: ... path ... 3"),
        (
            {"train": {"client": {"kind": "adam", "betas": [0.9, 0.99, 1]}}},
            "train.client.betas: ... at most 2 ... [0.9, 0.99, 1]",
        ),
        ({"train": {"client": {"kind": "adam", "betas": [0.9]}}}, "train.client.betas.1: missing"),
        ({"seed": "x" * 100}, "seed: ... 'xxxxx"),
        (
            {"detectors": [{"kind": "within_class", "reference": "root"}]},
            "detectors.0.root: ... trusted client ... [0]",
        ),
        (
            {"detectors": [{"kind": "mislabelled", "rounds": "latest"}]},
            "detectors.0.rounds: got latest; it needs labels ... topology: vanilla",
        ),
        (
            {"detectors": [{"kind": "within_class", "root": [0]}]},
            "detectors.0.root: ... for reference: root",
        ),
    ],
)
def test_types(values, gist):
    message = get_refusal(values)
    assert says(message, f"scenario.{gist}")
    assert len(message) < 250


@pytest.mark.parametrize(
    ("values", "gist"),
    [
        ({"seed": -1}, "seed: ... at least 0 ... -1"),
        ({"data": {"validation": 1}}, "data.validation: ... below 1 ... 1"),
        (
            {"data": {"source": {"kind": "digits", "size": 999}}},
            "data.source.size: ... at most 256",
        ),
        (
            {"data": {"partition": {"kind": "dirichlet", "alpha": 0}}},
            "data.partition.alpha: ... above 0 ... 0",
        ),
        (
            {"train": {"client": {"kind": "sgd", "dampening": float("nan")}}},
            "train.client.dampening: ",
        ),
        (
            {"clients": {"heads": "perclient"}},
            "clients.heads: ... 'perclient' ... 'per_client' ... shared",
        ),
        ({"clients": {"heads": 3}}, "clients.heads: got 3; allowed: shared, per_client"),
        (
            {"evaluate": {"metrics": ["acuracy"]}},
            "evaluate.metrics.0: ... 'acuracy'",
        ),
        (
            {"topology": "ushaped"},
            "topology: ... 'ushaped' ... 'u_shaped'",
        ),
        (
            {"data": {"source": {"kind": "folder", "path": "x", "channels": 2}}},
            "data.source.channels: got 2; allowed: 1, 3",
        ),
        ({"name": "a b"}, "name: got 'a b'; allowed: Letters, digits, dots"),
        ({"device": "tpu"}, "device: ... 'tpu' ... cpu, cuda, cuda:N, or auto"),
    ],
)
def test_values(values, gist):
    assert says(get_refusal(values), f"scenario.{gist}")


def test_several_problems_are_a_line_each():
    values = {
        "nam": 1,
        "train": {"batch_size": 0, "precision": "fp64"},
        "method": [{"kind": "rw"}, {"kind": "wcc", "weight": -1}],
        "model": {},
    }
    assert sorted(line.split(": ")[0] for line in get_refusal(values).splitlines()) == [
        "scenario.method.0.kind",
        "scenario.method.1.weight",
        "scenario.model.kind",
        "scenario.nam",
        "scenario.train.batch_size",
        "scenario.train.precision",
    ]


@pytest.mark.parametrize(
    ("values", "gist"),
    [
        (
            {"method": [{"kind": "lightsplit", "ratio": 8, "k": 3}]},
            "method.0: ... ratio or k",
        ),
        ({"clients": {"tail": "own"}}, "clients: tail: own ... heads: per_client"),
        (
            {"schedule": {"kind": "per_client", "rounds": 1, "epochs": 1}},
            "schedule: ... rounds or epochs",
        ),
        (
            {"data": {"validation": 0.5, "auxiliary": 0.5}},
            "data.auxiliary: ... below 0.5",
        ),
        (
            {"method": [{"kind": "wcc"}, {"kind": "lightsplit", "ratio": 8192}]},
            "method.1.ratio: ... at most ... 2880 ... 8192",
        ),
        (
            {"data": {"source": {"kind": "digits", "size": 8}}},
            "model.kind: simplecnn takes 28x28 or 32x32 in 1 or 3 channels, got 1x8x8; set",
        ),
        (
            {"train": {"client": {"kind": "sgd", "nesterov": True}}},
            "train.client.nesterov: got true; torch's message: Nesterov",
        ),
        (
            {"train": {"server": {"kind": "adam", "betas": [2, 3]}}},
            "train.server.betas: got [2.0, 3.0]; torch's message: Invalid",
        ),
        (
            {"stop": {"metric": "test_acuracy"}},
            "stop.metric: ... 'test_acuracy' ... 'test_accuracy'",
        ),
        (
            {"stop": {}},
            "stop.metric: got 'validation_accuracy'; validation needs data.validation above",
        ),
        (
            {
                "topology": "vanilla",
                "method": [{"kind": "raw"}, {"kind": "cast", "legs": ["features"]}],
            },
            "method.1.legs: ... features; ... vanilla ... smashed, or topology: u_shaped",
        ),
        (
            {"method": [{"kind": "c3sl"}], "detectors": [{"kind": "within_class"}]},
            "detectors.0.signal: ... payload ... c3sl ... features, features_grad",
        ),
        (
            {
                "method": [{"kind": "quantise"}],
                "clients": {"malicious": {"ids": [1], "poison": [{"kind": "badnets", "clip": 1}]}},
            },
            "clients.malicious.poison.0.clip: ... 1.0; ... floats ... quantise",
        ),
        (
            {
                "clients": {"heads": "per_client"},
                "schedule": {"kind": "parallel"},
                "aggregation": {"kind": "splitfed_v1", "bits": 8},
            },
            "aggregation.bits: ... 8; ... share ... clients.heads: shared",
        ),
        (
            {"evaluate": {"on": ["validation"]}},
            'evaluate.on: got ["validation"]; validation needs data.',
        ),
        ({"evaluate": {"on": []}}, "evaluate.on: ... at least one ... []"),
        (
            {"evaluate": {"metrics": []}},
            "evaluate.metrics: ... at least one ... []",
        ),
        (
            {"evaluate": {"controls": ["without_trunk"]}},
            "evaluate.controls.0: without_trunk ... 20x12x12 ... 512",
        ),
        (
            {"evaluate": {"controls": ["mixed"]}},
            "evaluate.controls.0: unknown 'mixed', allowed: without_trunk",
        ),
        (
            {"evaluate": {"metrics": ["loss", "loss"]}},
            'evaluate.metrics: ... ["loss", "loss"]',
        ),
    ],
)
def test_parts_that_do_not_fit(values, gist):
    assert says(get_refusal(values), f"scenario.{gist}")


class Halve(MethodConfig):
    """Half of everything."""

    kind: Literal["halve"] = "halve"
    times: int = 1
    """How often."""

    def build(self, site):
        raise NotImplementedError


def test_a_plugins_fields_are_named_like_any_other():
    plugins = [{"METHODS": {"halve": Halve}}]
    assert parse({"method": [{"kind": "halve", "times": 2}]}, plugins).method[0].times == 2
    message = get_refusal({"method": [{"kind": "halve", "time": 2}]}, plugins)
    assert says(message, "scenario.method.0.time: ... 'times'")
    assert "grad_perturb, halve" in get_refusal({"method": [{"kind": "halv"}]}, plugins)
    assert "halve" not in get_refusal({"method": [{"kind": "halv"}]})


class Found(NamedTuple):
    """A config that a scenario may hold, where, and how to come by a scenario from its values."""

    config: type[BaseModel]
    path: tuple[str, ...]
    around: Callable

    def __str__(self):
        return ".".join((*self.path, self.config.__name__))


def options(annotation):
    """Return every config that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [config for inner in get_args(annotation) for config in options(inner)]


def is_list(annotation):
    return get_origin(annotation) is tuple or any(map(is_list, get_args(annotation)))


def reachable(config, path=(), around=lambda values: values):
    """Yield all configs that a scenario may hold."""
    yield Found(config, path, around)
    for name, field in config.model_fields.items():
        listed = is_list(field.annotation)
        for below in options(field.annotation):
            inside = functools.partial(nest, around, config, (name, below, listed))
            yield from reachable(below, (*path, name, "0") if listed else (*path, name), inside)


def nest(around, config, field, values):
    name, below, listed = field
    inner = make_least(below) | values
    return around(make_least(config) | fit_to(below) | {name: [inner] if listed else inner})


def needs_parties(attack):
    return Given.PARTIES in {need.what for each in attack.threat.sees for need in each.value.needs}


def fit_to(below):
    """Return what else a scenario needs for one of its parts."""
    if below.__name__ in {"ParallelConfig", "AsynchronousConfig"}:
        return {"clients": {"heads": "per_client"}, "network": {}}
    if below.__name__ == "SafeSplitConfig":
        return {"schedule": {"kind": "per_client"}}
    if below.__name__ == "AdaptiveOnlineConfig":
        return {"method": [{"kind": "mixguard"}]}
    if issubclass(below, AttackConfig) and Knows.PUBLIC in below.threat.knows:
        return {"data": {"auxiliary": 0.5}}
    return {"schedule": {"kind": "parallel"}} if below.__name__ == "Fused" else {}


TEXTS = {"kind": "text_parquet", "path": "nowhere", "task": "language"}
WRITES = {"kind": "causal_lm", "sizes": {}, "head": 1, "tail": 1}
LEAST = {"prompt": "{text}", "names": ["no", "yes"], "task": "language"}


PRETRAINED = {
    "model": {**WRITES, "sizes": {"public": True}},
    "data": {"source": TEXTS, "auxiliary": 0.2},
}
AROUND = {
    "optimizer_inversion": {
        "topology": "api",
        "model": {"kind": "adapted_classifier", "sizes": {}},
        "clients": {"count": 2, "heads": "per_client"},
        "data": {"source": {**TEXTS, "task": "sst2"}},
    },
    "private_backprop": {"model": {"kind": "simplecnn", "learns": ["head", "tail"]}},
    "handed_weights": {"model": "mlp"},
    "admi": PRETRAINED,
    "dualguard": PRETRAINED,
}
LANGUAGE = ("causal_lm", "sequence_classifier", "adapted_classifier")


def match_texts(values):
    """Give texts a model that reads them, and such a model texts."""
    data = values.get("data")
    source = data.get("source") if isinstance(data, dict) else None
    kind = source.get("kind") if isinstance(source, dict) else None
    if str(kind).startswith(("text_", "python_docs")):
        return {"model": WRITES, **values}
    parts = {**METHODS, **ATTACKS}
    of_texts = {kind for kind, each in parts.items() if each.modalities == TEXTS_ALONE}
    listed = [values[name] for name in ("method", "attacks") if isinstance(values.get(name), list)]
    named = [each.get("kind") for several in listed for each in several if isinstance(each, dict)]
    for kind, wanted in AROUND.items():
        if kind in named:
            return {**wanted, **values}
    if any(kind in of_texts for kind in named if isinstance(kind, str)):
        public = {"source": TEXTS, "auxiliary": 0.2}
        return {"model": WRITES, **values, "data": {**public, **(data or {})}}
    if any(kind in ("pslf", "marvell") for kind in named if isinstance(kind, str)):
        source = {"kind": "sklearn", "name": "breast_cancer"}
        return {"model": "mlp", **values, "data": {"source": source, **(data or {})}}
    model = values.get("model")
    if isinstance(model, dict) and model.get("kind") == "adapted_classifier":
        values = {"topology": "api", **values}
    if isinstance(model, dict) and model.get("kind") in LANGUAGE:
        return {"data": {"source": TEXTS}, **values}
    return values


def make_least(config):
    """Return the least values that a config needs."""
    needed = {"kind": "mnist"} if "kind" in config.model_fields else {}
    if "metric" in config.model_fields:
        needed["metric"] = "test_loss"  # the default figure needs validation data
    if "multiplier" in config.model_fields and "epsilon" in config.model_fields:
        needed["multiplier"] = 1.0  # one of both
    for name, field in config.model_fields.items():
        if field.is_required() and name != "kind":
            listed = is_list(field.annotation)  # of poisons
            needed[name] = LEAST.get(name, [{"kind": "badnets"}] if listed else "nowhere")
        elif name == "kind":
            needed[name] = get_args(field.annotation)[0]
    return needed


OF_PARTIES = {"JoinedSource", "ByColumns", "ByParts", "VillainConfig"}
"""Parts that are refused without parties, whose fields `tests/unit/data/test_portions.py` has."""
EVERYTHING = [
    found
    for found in reachable(Scenario)
    if found[0].__name__ not in OF_PARTIES
    and not (issubclass(found[0], AttackConfig) and needs_parties(found[0]))
]
ABSURD = [
    {"no": ["sense"]},
    [[[]]],
    "\N{SNOWMAN}",
    float("nan"),
    -1e400,
    b"\xff",
    object(),
    None,
    True,
]


def test_the_sweep_reaches_all_registries():
    names = {config.__name__ for config, _, _ in EVERYTHING}
    assert {
        "Scenario",
        "LightSplitConfig",
        "AdamWConfig",
        "CosineLr",
        "Shards",
        "HubSource",
    } <= names
    assert {"ResNet18", "PerClientConfig", "StopConfig", "EvaluateConfig"} <= names


def complaints(values):
    """Return the lines of the error; none where the values pass, as some absurd ones may."""
    try:
        parse(values)
    except ScenarioError as error:
        return str(error).splitlines()
    return []


TRIED = set()
"""The types of fields to which every absurd value has been given."""
IN_TURN = itertools.cycle(ABSURD)


def choose_absurd(field):
    """Return all absurd values for the first field of a type, and two in turn for the others."""
    kind = repr((field.annotation, field.metadata))
    if kind in TRIED:
        return next(IN_TURN), next(IN_TURN)
    TRIED.add(kind)
    return ABSURD


@pytest.mark.slow
@together(EVERYTHING)
def test_every_field_misspelt_or_absurd_is_blamed_by_its_path(case):
    config, path, around = case
    for name, field in config.model_fields.items():
        place = ".".join(("scenario", *path, name))
        misspelt = get_refusal(match_texts(around({f"{name}x": 1})))
        assert any(
            line.startswith(f"{place}x: unknown field, did") for line in misspelt.splitlines()
        )
        assert name in misspelt.split("did you mean")[1].split("?")[0]
        for value in (
            () if name == "weights" else choose_absurd(field)
        ):  # any text may be the path of a file
            message = complaints(match_texts(around({name: value})))
            # Two fields that do not fit together are named below their part, as width and heads.
            part = ".".join(("scenario", *path))
            named = [
                n for n in message if n.startswith(place) or (n.startswith(part) and name in n)
            ]
            assert not message or named, (value, message)
            assert not JARGON.search("\n".join(message)), message
        with pytest.raises(ScenarioError):
            parse(match_texts(around({name: {"no": ["sense"]}})))


SHORT = {"kind": "causal_lm", "sizes": {"context": 64}, "head": 1, "tail": 1}


def lengthy(source, tokens, **data):
    """Build texts of some length, with secret tokens."""
    own = {"kind": "text_parquet", "path": "nowhere", "task": "language", "length": source}
    method = [{"kind": "mixguard", "tokens": tokens}]
    return {"model": SHORT, "data": {"source": own, "auxiliary": 0.5, **data}, "method": method}


def other(length):
    return {**TEXTS, "length": length}


@pytest.mark.parametrize(
    ("values", "gist"),
    [
        (
            lengthy(50, 15),
            "method.0.tokens: ... at most 14: data.source.length ... 50",
        ),
        (
            lengthy(40, 20, auxiliary=0, public=other(60)),
            "method.0.tokens: ... at most 4: data.public.length ... 60 ... 64",
        ),
        (
            lengthy(40, 20, support=other(45)),
            "method.0.tokens: ... at most 19: data.support.length ... 45 ... 64",
        ),
        (
            lengthy(40, 0, auxiliary=0, public=other(65)),
            "data.public.length: ... at most ... 64 ... 65",
        ),
    ],
)
def test_texts_with_what_methods_add_must_have_positions(values, gist):
    assert says(get_refusal(values), f"scenario.{gist}")


def test_texts_that_fill_the_positions_are_fine():
    assert parse(lengthy(50, 14)).method[0].tokens == 14
    beside = lengthy(44, 20, public=other(64), support=other(44))  # of public ones none are secret
    assert parse(beside).data.public.length == 64


def test_a_missing_column_is_refused_before_anything_is_loaded(tmp_path):
    pq.write_table(pa.table({"sentence": ["a b"], "label": [0]}), tmp_path / "train.parquet")
    task = {"kind": "classification", "prompt": "{sentense}", "names": ["no", "yes"]}
    source = {"kind": "text_parquet", "path": str(tmp_path), "task": task}
    with pytest.raises(DataError, match=r"'sentense'.*'sentence'"):
        parse({"model": WRITES, "data": {"source": source}})
    task["prompt"] = "{sentence}"
    parse({"model": WRITES, "data": {"source": source}})
