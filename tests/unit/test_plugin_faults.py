"""A plugin's part that fails is named with its file, hook and leg, and a good one is left alone."""

import copy
import math
import pickle
import sys
from pathlib import Path

import pytest
import torch
import yaml
from builders import TINY
from comparing import assert_equal

from simsplit.errors import PluginError, PluginFailedError, RunFailedError, ScenarioError
from simsplit.methods import Method
from simsplit.models.fresh import _lay_out
from simsplit.plugins import checks, gather_plugins, guard
from simsplit.plugins.expectations import describe
from simsplit.results import Run
from simsplit.running.rehearsing import rehearse
from simsplit.scenario import Scenario, load_scenario, parse
from simsplit.scenario.files import merge
from simsplit.whole_run import run

CALIBRATION = Path(__file__).parents[2] / "examples" / "plugins" / "calibration.py"
SPOILT, LEFT = "raise ValueError('spoilt')", "sys.exit()  # as a script does at its end"
PLUGIN = f"""
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from simsplit import CodecConfig, Method
from simsplit.attacks import Attack, AttackConfig, Threat, When
from simsplit.attacks.attack import payloads
from simsplit.data import Batch, DataInfo, DataSet, SourceConfig
from simsplit.data.samples import Samples
from simsplit.detectors.detector import Detector, DetectorConfig
from simsplit.detectors.detector import SignalDetector, SignalDetectorConfig
from simsplit.methods.method import Share
from simsplit.models.fresh import LaidOut, Segments
from simsplit.packets import Packet
from simsplit.poisons import Poison, PoisonConfig

HOOK, FAULT = "", ""


def spoil(hook, value):
    if hook != HOOK:
        return value
    if FAULT == "raises":
        {SPOILT}
    if FAULT == "exits":
        {LEFT}
    if FAULT == "nan":
        return fill(value)
    return None if FAULT == "none" else reshape(value)


def fill(value):
    match value:
        case float() | int():
            return math.nan
        case torch.Tensor():
            return torch.full_like(value, math.nan, dtype=torch.float32)
        case tuple() | list():
            return [fill(each) for each in value]
        case dict():
            return {{key: fill(each) for key, each in value.items()}}
        case Batch():
            return replace(value, inputs=fill(value.inputs))
        case Packet():
            return value.with_tensors(tuple(map(fill, value.tensors)))
        case Share():
            return Share(fill(value.grad), value.weight)
        case DataSet():
            return replace(value, train=replace(value.train, inputs=fill(value.train.inputs)))


def reshape(value):
    match value:
        case torch.Tensor():
            return torch.cat([value, value], -1) if value.ndim else torch.stack([value, value])
        case tuple() | list():
            return (*value, *value)
        case float() | int() | dict():
            return torch.zeros(3)
        case Batch():
            return replace(value, inputs=reshape(value.inputs))
        case Packet():
            return value.with_tensors(tuple(map(reshape, value.tensors)))
        case DataSet():
            return replace(value, test=value.train, class_names=value.class_names[:-1])
        case DataInfo():
            return value.shape


class MethodConfig(CodecConfig):
    kind: Literal["my_method"] = "my_method"

    def compute_sent_shape(self, shape, where):
        return spoil("compute_sent_shape", shape)

    def build(self, site):
        return spoil("build", Mine())


class Mine(Method):
    def announce(self):
        return spoil("announce", (torch.zeros(2),))

    def transform(self, batch, step):
        return spoil("transform", batch)

    def encode(self, z, step):
        step.memo[self] = z
        return spoil("encode", z)

    def lift(self, z, step):
        return spoil("lift", z)

    def decode(self, u, step):
        return spoil("decode", u)

    def compute_encode_loss(self, step):
        return spoil("compute_encode_loss", 0 * step.memo[self].sum())

    def compute_task_loss(self, outputs, labels, loss, step):
        return spoil("compute_task_loss", loss(outputs, labels))

    def compute_tail_loss(self, step):
        return spoil("compute_tail_loss", torch.zeros(()))

    def split_gradient(self, grad, step):
        return spoil("split_gradient", (Share(grad),))

    def pack(self, x, step):
        return spoil("pack", (x,))

    def pack_form(self, x, leg):
        return spoil("pack_form", (x,))

    def unpack(self, tensors, step):
        return spoil("unpack", tensors[0])

    def accept(self, head, step):
        return spoil("accept", True)

    def report(self):
        return spoil("report", {{}})

    def plan_phases(self, rounds):
        return spoil("plan_phases", ())


class MyAttackConfig(AttackConfig):
    kind: Literal["my_attack"] = "my_attack"
    threat = Threat(when=When.TRAINING)

    def build(self, known):
        return spoil("build", MyAttack(known))


class MyAttack(Attack):
    def observe(self, packet):
        spoil("observe", None)

    def work(self, targets):
        count = sum(len(packet.tensors[0]) for packet in payloads(targets))
        self.made = torch.zeros(count, *self.known.image)
        yield spoil("work", (1, 1))

    @property
    def recovered(self):
        return spoil("recovered", self.made)


class MyDetectorConfig(DetectorConfig):
    kind: Literal["my_detector"] = "my_detector"

    @property
    def signals(self):
        return spoil("signals", ("payload",))

    def build(self):
        return spoil("build", MyDetector(self))


class MyDetector(Detector):
    def score(self, view):
        clients = view.readings.compute_means("payload")
        return spoil("score", {{client: 1.0 * client for client in clients}})


class BySignalConfig(SignalDetectorConfig):
    kind: Literal["by_signal"] = "by_signal"

    def build(self):
        return BySignal(self)


class BySignal(SignalDetector):
    def compare(self, clients, means):
        return spoil("compare", means.norm(dim=1))


class MyPoisonConfig(PoisonConfig):
    kind: Literal["my_poison"] = "my_poison"

    def build(self, scene):
        return spoil("build", MyPoison())


class MyPoison(Poison):
    def for_client(self, number, part):
        return spoil("for_client", self)

    def on_batch(self, batch):
        return spoil("on_batch", batch)

    def on_packet(self, packet):
        return spoil("on_packet", packet)


def my_metric(outputs, labels):
    return spoil("my_metric", 0.5)


class Layer(nn.Linear):
    def __init__(self, hook, *sizes):
        super().__init__(*sizes)
        self.hook = hook

    def forward(self, x):
        return spoil(self.hook, super().forward(x.flatten(1)))


class MyModelConfig(LaidOut):
    kind: Literal["my_model"] = "my_model"

    def compute_shapes(self, input_shape):
        return spoil("compute_shapes", ((8,), (8,)))

    def make_segments(self, input_shape, num_classes):
        size = math.prod(input_shape)
        layers = Layer("head.forward", size, 8), Layer("trunk.forward", 8, 8)
        return spoil("make_segments", Segments(*layers, Layer("tail.forward", 8, num_classes)))


class MySourceConfig(SourceConfig):
    kind: Literal["my_source"] = "my_source"

    @property
    def modality(self):
        return "tables"

    def describe(self):
        return spoil("describe", DataInfo((6,), 4))

    def load(self):
        samples = Samples(torch.rand(80, 6), torch.arange(80) % 4)
        return spoil("load", DataSet("mine", samples, samples, ("a", "b", "c", "d")))


METHODS = {{"my_method": MethodConfig}}
ATTACKS = {{"my_attack": MyAttackConfig}}
DETECTORS = {{"my_detector": MyDetectorConfig, "by_signal": BySignalConfig}}
POISONS = {{"my_poison": MyPoisonConfig}}
METRICS = {{"my_metric": my_metric}}
MODELS = {{"my_model": MyModelConfig}}
SOURCES = {{"my_source": MySourceConfig}}
"""
PLACES = {
    "my_method": {"method": [{"kind": "my_method"}]},
    "my_attack": {"attacks": [{"kind": "my_attack"}], "data": {"auxiliary": 0.3}},
    "my_detector": {"detectors": [{"kind": "my_detector"}]},
    "by_signal": {"detectors": [{"kind": "by_signal"}]},
    "my_poison": {"clients": {"malicious": {"ids": [1], "poison": [{"kind": "my_poison"}]}}},
    "my_metric": {"evaluate": {"metrics": ["accuracy", "my_metric"]}},
    "my_model": {"model": {"kind": "my_model"}},
    "my_source": {"data": {"source": {"kind": "my_source"}}, "model": {"kind": "mlp"}},
}
"""By name of a part: the fields of a scenario that uses it."""
WORDS = {
    "my_method": "method",
    "my_attack": "attack",
    "my_detector": "detector",
    "by_signal": "detector",
    "my_poison": "poison",
    "my_metric": "metric",
    "my_model": "model",
    "my_source": "data source",
}
ALL = ("raises", "none", "nan", "shape")
CASES = {
    # (part, hook): faults, leg
    ("my_method", "compute_sent_shape"): (("raises", "none"), None),
    ("my_method", "build"): (("raises", "none"), None),
    ("my_method", "announce"): (("raises", "none", "nan"), "smashed"),
    ("my_method", "transform"): (ALL[:3], "smashed"),
    ("my_method", "encode"): (ALL, "smashed"),
    ("my_method", "lift"): (ALL, "smashed"),
    ("my_method", "decode"): (ALL, "features"),
    ("my_method", "compute_encode_loss"): (("raises", "nan", "shape"), "smashed_grad"),
    ("my_method", "compute_task_loss"): (("raises", "nan", "shape"), "features_grad"),
    ("my_method", "compute_tail_loss"): (("raises", "nan", "shape"), "features_grad"),
    ("my_method", "split_gradient"): (ALL, "features_grad"),
    ("my_method", "pack"): (ALL, "smashed"),
    ("my_method", "pack_form"): (("raises", "none"), "smashed"),
    ("my_method", "unpack"): (ALL, "smashed"),
    ("my_method", "accept"): (("raises", "none"), "smashed_grad"),
    ("my_method", "report"): (("raises", "none", "shape"), "smashed"),
    ("my_method", "plan_phases"): (("raises", "none"), "smashed"),
    ("my_attack", "build"): (("raises", "none"), None),
    ("my_attack", "observe"): (("raises",), "smashed"),
    ("my_attack", "work"): (("raises", "none", "shape"), None),
    ("my_attack", "recovered"): (ALL, None),
    ("my_detector", "signals"): (("raises", "none"), None),
    ("my_detector", "build"): (("raises", "none"), None),
    ("my_detector", "score"): (ALL, None),
    ("by_signal", "compare"): (ALL, None),
    ("my_poison", "build"): (("raises", "none"), None),
    ("my_poison", "for_client"): (("raises", "none"), None),
    ("my_poison", "on_batch"): (ALL, None),
    ("my_poison", "on_packet"): (ALL, "smashed"),
    ("my_metric", "my_metric"): (ALL, None),
    ("my_model", "compute_shapes"): (("raises", "none", "shape"), None),
    ("my_model", "make_segments"): (("raises", "none", "shape"), None),
    ("my_model", "head.forward"): (ALL, "smashed"),
    ("my_model", "trunk.forward"): (ALL, "features"),
    ("my_model", "tail.forward"): (ALL[:3], None),
    ("my_source", "describe"): (("raises", "shape"), None),
    ("my_source", "load"): (ALL, None),
}


def write_plugin(path: Path, hook: str = "", fault: str = "") -> Path:
    """Write the plugin's file, in which one hook has a fault."""
    file = path / "mine.py"
    file.write_text(PLUGIN.replace('HOOK, FAULT = "", ""', f"HOOK, FAULT = {hook!r}, {fault!r}"))
    return file


def scenario_with(name: str, file: Path, **changes: object) -> Scenario:
    return parse(merge(merge(TINY, PLACES[name]), changes), file)


def rehearse_run(given: Scenario) -> None:
    rehearse(given, None, torch.device("cpu"))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The plugin without a fault, loaded once: a scenario's class takes long to make."""
    return write_plugin(tmp_path_factory.mktemp("plugin"))


@pytest.mark.parametrize(
    ("case", "fault", "leg"),
    [(case, fault, leg) for case, (faults, leg) in CASES.items() for fault in ("exits", *faults)],
)
def test_a_fault_is_named(case, fault, leg, good, monkeypatch):
    (name, hook), file, (origin,) = case, good, gather_plugins(good).origins
    monkeypatch.setattr(sys.modules[origin.module], "HOOK", hook)
    monkeypatch.setattr(sys.modules[origin.module], "FAULT", fault)
    _lay_out.cache_clear()
    with pytest.raises(PluginError) as failure:
        rehearse_run(scenario_with(name, file))
    result = failure.value.fault
    assert (result.plugin, result.file) == (str(file), str(file))
    assert (result.part, result.name, result.hook) == (WORDS[name], name, hook)
    assert (result.leg, result.round, result.client) == (leg, None, None)
    line = file.read_text().splitlines()[result.line - 1]
    raised = "def forward" if hook.endswith("forward") else f"def {hook}"
    assert {"raises": SPOILT, "exits": LEFT}.get(fault, raised) in line or "@property" in line
    came = {"raises": "ValueError: spoilt", "exits": "SystemExit", "none": "None", "nan": "nan"}
    assert came.get(fault, "").lower() in result.came.lower()
    assert ("NaN" in result.expected) == (fault == "nan")
    assert result.expected not in ("", result.came)
    assert all(str(part) in str(failure.value) for part in (result.expected, result.came, file))


@pytest.mark.parametrize(
    ("place", "change", "came"),
    [
        ("my_detector score", lambda made: dict.fromkeys(made, math.inf), "inf"),
        ("my_detector score", lambda made: {str(client): 0.0 for client in made}, "'0': 0.0"),
        ("by_signal compare", lambda made: made / 0, "with infinity"),
        ("by_signal compare", lambda made: made > 1, "bool"),
    ],
)
def test_scores_that_no_rate_is_computed_of_are_named(place, change, came, good, monkeypatch):
    """Ranks need finite scores, and a score counts for the client whose number it has."""
    name, hook = place.split()
    (origin,) = gather_plugins(good).origins
    spoil = sys.modules[origin.module].spoil
    monkeypatch.setattr(
        sys.modules[origin.module],
        "spoil",
        lambda called, made: change(made) if called == hook else spoil(called, made),
    )
    with pytest.raises(PluginError) as failure:
        rehearse_run(scenario_with(name, good))
    assert (failure.value.fault.name, failure.value.fault.hook) == (name, hook)
    assert came in failure.value.fault.came


@pytest.mark.parametrize("name", PLACES)
def test_a_part_without_fault_is_left_alone(name, good):
    rehearse_run(scenario_with(name, good))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (torch.tensor([math.nan, math.inf]), "a Tensor of shape (2,) with NaN"),
        (torch.tensor([0.0, math.inf]), "a Tensor of shape (2,) with infinity"),
        (torch.zeros(2), "a Tensor of shape (2,)"),
    ],
)
def test_a_value_is_described_with_what_is_not_finite(value, words):
    assert describe(value) == words


def test_every_check_is_of_a_hook_that_there_is():
    assert [(cls, hook) for cls, hook in checks.CHECKS if not hasattr(cls, hook)] == []
    assert [hook for hook in guard._LEGS if not hasattr(Method, hook)] == []


def test_a_shape_is_compared_with_the_declared_one(tmp_path):
    with pytest.raises(PluginError) as failure:
        rehearse_run(scenario_with("my_model", write_plugin(tmp_path, "trunk.forward", "shape")))
    result = failure.value.fault
    assert ("(2, 8)" in result.expected, "(2, 16)" in result.came) == (True, True)


def test_a_form_that_is_declared_is_the_one_that_is_packed(tmp_path):
    file = write_plugin(tmp_path)
    narrow = "(x._replace(dtype=torch.float16),)"
    file.write_text(file.read_text().replace('spoil("pack_form", (x,))', narrow))
    with pytest.raises(PluginError) as failure:
        rehearse_run(scenario_with("my_method", file))
    result = failure.value.fault
    assert (result.hook, result.leg) == ("pack", "smashed")
    assert ("float16" in result.expected, "float32" in result.came) == (True, True)


LATE = """
from pathlib import Path
from typing import Literal

from simsplit import CodecConfig, Method


class LateConfig(CodecConfig):
    kind: Literal["late"] = "late"

    def build(self, site):
        return Late()


class Late(Method):
    def encode(self, z, step):
        return None if step.training and step.round == 2 else z


METHODS = {"late": LateConfig}
"""


@pytest.mark.slow
def test_a_fault_in_round_2_ends_the_run_which_resumes_once_it_is_mended(simsplit, tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(merge(TINY, {"method": [{"kind": "late"}]})))
    words = ("run", "tiny.yaml", "--plugin", "late.py", "--out", "run", "-q")
    code, out, err = simsplit(*words)
    assert (code, out) == (1, "")
    named = ("late.py", "'late'", "encode", "leg smashed", "round 2", "client 0", "None", "Tensor")
    assert [
        word for word in (*named, "after round 1", "run/traceback.txt") if word not in err
    ] == []
    failed = Run.load("run")
    assert (failed.summary["status"], failed.rounds["round"].tolist()) == ("failed", [1])
    assert "Traceback" in (tmp_path / "run" / "traceback.txt").read_text()
    (tmp_path / "late.py").write_text(
        LATE.replace("None if step.training and step.round == 2 else z", "z")
    )
    assert simsplit(*words, "--resume")[0] == 0
    assert simsplit(*words[:-2], "whole", "-q")[0] == 0
    given = load_scenario("tiny.yaml", plugins="late.py")
    assert_equal(tmp_path / "run", tmp_path / "whole", given)


def test_the_fault_of_a_run_has_its_fields(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    given = parse(merge(TINY, {"method": [{"kind": "late"}]}), tmp_path / "late.py")
    with pytest.raises(PluginFailedError) as failure:
        run(given, tmp_path / "run")
    result = failure.value.fault
    assert (result.round, result.client, result.leg, result.hook) == (2, 0, "smashed", "encode")
    assert isinstance(failure.value.__cause__, PluginError)


def test_validate_and_run_find_a_fault_before_training(simsplit, tmp_path):
    write_plugin(tmp_path, "encode", "shape")
    values = merge(TINY, PLACES["my_method"])
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values))
    swept = {**values, "sweep": {"method": [[], [{"kind": "my_method"}]]}}
    (tmp_path / "swept.yaml").write_text(yaml.safe_dump(swept))
    for words in (["validate", "tiny.yaml"], ["validate", "swept.yaml"], ["run", "tiny.yaml"]):
        code, out, err = simsplit(*words, "--plugin", "mine.py")
        assert (code, out) == (2, "")
        assert ("mine.py" in err, "hook encode" in err) == (True, True)
    assert not list((tmp_path / "runs").glob("*/rounds.csv"))
    write_plugin(tmp_path)
    assert simsplit("validate", "tiny.yaml", "--plugin", "mine.py")[0] == 0


def test_an_error_of_ours_passes(tmp_path):
    file = write_plugin(tmp_path, "build", "raises")
    ours = "raise __import__('simsplit.errors').errors.ScenarioError('seed', 'is odd')"
    file.write_text(file.read_text().replace(SPOILT, ours))
    with pytest.raises(ScenarioError, match="seed: is odd"):
        run(scenario_with("my_method", file), tmp_path / "run")


def test_nan_of_a_training_that_diverges_is_not_the_plugins(tmp_path):
    steep = {"client": {"lr": 1e30}, "server": {"lr": 1e30}}
    given = scenario_with("my_method", write_plugin(tmp_path), train=steep)
    with pytest.raises(RunFailedError, match="no longer finite") as failure:
        run(given, tmp_path / "run")
    assert not isinstance(failure.value, PluginFailedError)


def test_nan_of_blank_samples_is_no_fault(tmp_path):
    """Operations are counted on rows that are all alike, and there is nothing to divide by."""
    file = tmp_path / "late.py"
    late = "return None if step.training and step.round == 2 else z"
    file.write_text(LATE.replace(late, "return (z - z.mean(0)) / (z - z.mean(0)).norm()"))
    run(parse(merge(TINY, {"method": [{"kind": "late"}]}), file), tmp_path / "run")


def test_what_hooks_of_one_object_give_each_other_is_not_checked(tmp_path):
    file = write_plugin(tmp_path)
    inner = """
class Halved(Mine):
    def encode(self, z, step):
        return super().encode(z.flatten(1)[:, :4], step)

    def lift(self, z, step):
        return torch.zeros(len(z), 512) + z.sum()


class HalvedConfig(CodecConfig):
    kind: Literal["halved"] = "halved"

    def compute_sent_shape(self, shape, where):
        return (4,)

    def build(self, site):
        return Halved()


METHODS = {"halved": HalvedConfig}
"""
    text = file.read_text()
    file.write_text(text.replace('METHODS = {"my_method": MethodConfig}', inner))
    given = parse(merge(TINY, {"method": [{"kind": "halved"}]}), file)
    (shape,) = {given.shapes(given.data.describe())[0][0]}
    file.write_text(file.read_text().replace("len(z), 512", f"len(z), *{shape}"))
    rehearse_run(parse(merge(TINY, {"method": [{"kind": "halved"}]}), file))


def test_a_users_own_object_of_a_plugins_class_is_not_checked(tmp_path):
    given = scenario_with("my_method", write_plugin(tmp_path, "decode", "none"))
    cls = type(given.method[0]).build.__wrapped__.__globals__["Mine"]
    assert cls().decode(torch.zeros(2), None) is None


def test_a_plugins_classes_stay_unchanged_and_its_objects_pass_for_theirs(tmp_path):
    """What is guarded is what a config has built, and no other object of the class."""
    given = scenario_with("my_method", write_plugin(tmp_path, "lift", "none"))
    cls = type(given.method[0]).build.__wrapped__.__globals__["Mine"]
    before, mro = dict(vars(cls)), cls.__mro__
    with pytest.raises(PluginError):
        rehearse_run(given)
    assert (dict(vars(cls)), cls.__mro__) == (before, mro)
    made = given.method[0].build(None)
    assert (isinstance(made, cls), type(made).__name__, type(made).__module__) == (
        True,
        cls.__name__,
        cls.__module__,
    )
    assert copy.deepcopy(made).lift.__guarded__
    assert type(made)().lift(torch.zeros(2), None) is None


def test_metrics_cross_processes():
    metric = gather_plugins(CALIBRATION).of("METRICS")["calibration_error"]
    assert pickle.loads(pickle.dumps(metric)) == metric
    assert metric.__doc__ == metric.function.__doc__
