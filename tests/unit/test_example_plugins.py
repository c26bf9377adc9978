"""The example plugins, by the command line as their readers would use them."""

import json
from pathlib import Path

import pytest
import yaml
from builders import TINY
from comparing import assert_equal
from gists import says
from jsonschema import Draft202012Validator
from pace import quick

from simsplit import load_scenario, load_sweep, run, run_sweep
from simsplit.engine.cluster import run_with_cluster
from simsplit.plugins import guard
from simsplit.results import Run
from simsplit.scenario import parse
from simsplit.scenario.files import merge

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
SMALL = merge(
    TINY,
    {
        "data": {"source": "digits", "train_samples": 60, "test_samples": 20, "auxiliary": 0.3},
        "schedule": {"rounds": 1},
        "targets": {"count": 4, "every": 1},  # or a longer run is judged less often
    },
)
USES = {
    "sign": ("methods", {"method": [{"kind": "sign"}]}),
    "three_layers": ("models", {"model": {"kind": "three_layers", "width": 32}}),
    "stripes": ("data", {"data": {"source": {"kind": "stripes", "samples": 60}}}),
    "quantity": ("partitions", {"data": {"partition": "quantity"}}),
    "nearest": ("attacks", {"attacks": [{"kind": "nearest"}]}),
    "norms": ("detectors", {"detectors": [{"kind": "norms"}]}),
    "constant": (
        "poisons",
        {"clients": {"malicious": {"ids": [1], "poison": [{"kind": "constant", "label": 3}]}}},
    ),
    "calibration": ("metrics", {"evaluate": {"metrics": ["accuracy", "calibration_error"]}}),
    "geometric_median": (
        "strategies",
        {"aggregation": {"kind": "splitfed_v2", "strategy": "geometric_median"}},
    ),
    "heartbeat": ("observers", {"observers": [{"kind": "heartbeat"}]}),
    "echo": ("topologies", {"topology": "echo"}),
}
KINDS = {"calibration": "calibration_error"}
"""Where the file is not called as its part is."""


def combine_examples():
    """Combine all examples in one scenario."""
    values = SMALL
    for _, changes in USES.values():
        values = merge(values, changes)
    return values


def plugins():
    return [EXAMPLES / f"{name}.py" for name in USES]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "small.yaml"


def test_there_is_one_of_each_kind_and_each_is_short():
    files = sorted(EXAMPLES.glob("*.py"))
    assert [path.stem for path in files] == sorted(USES)
    assert all(len(path.read_text().splitlines()) <= 60 for path in files)
    document = (EXAMPLES / "README.md").read_text()
    assert all(f"`{path.name}`" in document for path in files)


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(USES, "sign", "quantity"))
def test_an_example_works_in_every_command(simsplit, file, name):
    what, changes = USES[name]
    kind, flags = KINDS.get(name, name), ("--plugin", EXAMPLES / f"{name}.py")
    values = merge(SMALL, changes)
    file.write_text(yaml.safe_dump(values))

    code, out, err = simsplit("validate", file, *flags)
    assert (code, err) == (0, "")
    code, _, err = simsplit("validate", file)
    assert (code, f"unknown '{kind}'" in err) == (2, True)
    assert kind in simsplit("list", what, *flags)[1]
    assert kind not in simsplit("list", what)[1].split()
    schema = json.loads(simsplit("schema", *flags)[1])
    assert Draft202012Validator(schema).is_valid(values)

    code, out, err = simsplit("run", file, "--out", "first", "-q", *flags)
    assert (code, out, err) == (0, "", "")
    for words in (("show", "first"), ("compare", "first")):
        code, out, err = simsplit(*words)
        assert (code, err) == (0, "")
        assert (code, out, err) == simsplit(*words, *flags)
    assert simsplit("validate", "first/scenario.yaml", *flags)[0] == 0

    longer = ("--resume", "--set", "schedule.rounds=2")
    asked = f"--plugin {EXAMPLES / name}.py;"
    code, _, err = simsplit("run", file, "--out", "first", *longer)
    assert (code, asked in err) == (2, True)
    code, _, err = simsplit("run", file, "--out", "first", *longer, *flags)
    assert (code, "after round 1" in err) == (0, True)
    assert simsplit("run", file, "--out", "whole", "-q", *longer[1:], *flags)[0] == 0
    given = load_scenario(file, {"schedule.rounds": "2"}, plugins=EXAMPLES / f"{name}.py")
    assert_equal(Path("first"), Path("whole"), given)


def without_guard(hook, owner, of, *args, **more):
    """Call a hook where nothing checks it."""
    return hook.function(*args, **more)


@pytest.mark.slow
@pytest.mark.parametrize("example", quick(USES, "sign", "norms"))
def test_an_example_gives_the_same_with_and_without(example, tmp_path, monkeypatch):
    values = merge(SMALL, USES[example][1])
    given = parse(values, EXAMPLES / f"{example}.py")
    run(given, tmp_path / "with")
    monkeypatch.setattr(guard, "_call", without_guard)
    monkeypatch.setattr("simsplit.whole_run.rehearse", lambda *_: [])
    run(parse(values, EXAMPLES / f"{example}.py"), tmp_path / "without")
    assert_equal(tmp_path / "with", tmp_path / "without", given)


@pytest.mark.slow
def test_what_the_examples_promise(simsplit, file):
    file.write_text(yaml.safe_dump(combine_examples()))
    made = run(load_scenario(file, plugins=plugins()), "all")
    assert made.rounds["test_calibration_error"].between(0, 1).all()
    assert made.attacks["attack"].tolist()[0] == "nearest"
    assert made.recovered["mse"].notna().all()
    assert (made.path / "alive").read_text() == "after round 1\n"
    assert "norms_payload" in set(made.detections["detector"])
    sizes = made.clients["samples"]
    assert sizes.nunique() > 1  # by quantity
    assert sizes.sum() == 42
    document = json.loads((made.path / "environment.json").read_text())["plugins"]
    assert [Path(one["file"]) for one in document] == plugins()
    smashed = made.wire.query("leg == 'smashed' and phase == 'train'")["bytes"].sum()
    assert smashed == 42 * (32 + 4)  # a byte a sign, and a float a sample


def test_an_attack_of_ones_own_on_a_run_made_without_plugins(simsplit, file):
    file.write_text(yaml.safe_dump(SMALL))
    assert simsplit("run", file, "-q", "--out", "plain")[0] == 0
    code, _, err = simsplit("attack", "plain", "--kind", "nearest")
    assert (code, "unknown 'nearest'" in err) == (2, True)
    flags = ("--plugin", EXAMPLES / "nearest.py")
    code, out, _ = simsplit("attack", "plain", "--kind", "nearest", *flags)
    assert (code, "nearest" in out) == (0, True)
    assert set(Run.load("plain").attacks["attack"]) >= {"nearest"}


def test_an_attack_on_a_run_made_with_plugins(simsplit, file):
    file.write_text(yaml.safe_dump(merge(SMALL, USES["sign"][1])))
    sign = ("--plugin", EXAMPLES / "sign.py")
    assert simsplit("run", file, "-q", "--out", "signs", *sign)[0] == 0
    unsplit = ("attack", "signs", "--kind", "unsplit", "-q", "--set", "outer=1", "--set", "inner=1")
    code, _, err = simsplit(*unsplit)
    assert (code, "with --plugin " in err) == (2, True)
    nearest = ("attack", "signs", "--kind", "nearest", "-q", "--plugin", EXAMPLES / "nearest.py")
    assert simsplit(*nearest)[0] == 2
    assert simsplit(*nearest, *sign)[0] == 0


@pytest.mark.slow
def test_who_changes_a_plugin_between_two_parts_of_a_run_is_warned(simsplit, file):
    file.write_text(yaml.safe_dump(merge(SMALL, USES["sign"][1])))
    mine = file.parent / "mine.py"
    mine.write_text((EXAMPLES / "sign.py").read_text())
    words = ("run", file, "--out", "signs", "--plugin", "mine.py")
    assert simsplit(*words)[0] == 0
    assert "has changed" not in simsplit(*words, "--resume")[2]
    mine.write_text(mine.read_text() + "# another\n")
    code, _, err = simsplit(*words, "--resume", "--set", "schedule.rounds=2")
    assert code == 0
    assert says(err, "warning: ... mine.py has changed")


def test_a_sweep_over_a_part_of_ones_own_is_gone_on_with(simsplit, file):
    swept = {"sweep": {"method": [[], [{"kind": "sign"}]]}}
    file.write_text(yaml.safe_dump(merge(SMALL, swept)))
    flags = ("--plugin", EXAMPLES / "sign.py")
    words = ("sweep", file, "--out", "swept", "--jobs", "1")
    code, out, _ = simsplit("validate", file, *flags)
    assert (code, "sweep of 2 cells" in out) == (0, True)
    code, out, _ = simsplit(*words, *flags)
    assert (code, "sign" in out) == (0, True)
    code, _, err = simsplit(*words, "--resume")
    assert (code, "with --plugin" in err) == (2, True)
    assert simsplit(*words, "--resume", *flags)[0] == 0
    assert simsplit("compare", "swept")[0] == 0


@pytest.mark.slow
def test_bench_measures_methods_and_models(simsplit):
    named = [
        word for name in ("sign", "three_layers") for word in ("--plugin", EXAMPLES / f"{name}.py")
    ]
    code, out, _ = simsplit("bench", "overhead", "--quick", *named)
    assert code == 0
    assert "against raw" in out
    assert "three_layers, raw" in out


@pytest.mark.ray
@pytest.mark.usefixtures("without_hosts")
def test_hosts_and_workers_import_the_same_files(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = combine_examples()
    file.write_text(yaml.safe_dump(values))
    hosts = {"engine": "{kind: ray, hosts: 2}"}
    inline = run(load_scenario(file, plugins=plugins()), "inline")
    given, over_hosts = (load_scenario(file, more, plugins=plugins()) for more in ({}, hosts))
    file.write_text(yaml.safe_dump({**values, "sweep": {"seed": [3, 4]}}))
    with run_with_cluster(None, processors=2):  # started once for both
        remote = run(over_hosts, "remote")
        swept = run_sweep(load_sweep(file, plugins=plugins()), "swept", jobs=2)
    assert_equal(inline.path, remote.path, given)
    assert not swept.failed
    cell = swept.runs["seed=3"]
    assert (cell.path / "rounds.csv").read_text() == (inline.path / "rounds.csv").read_text()
    document = [one["name"] for one in cell.environment["plugins"]]
    assert document == [str(path) for path in plugins()]
