"""What was passed from Python comes out again: in a later process, and without simsplit."""

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from gists import gist, says
from torch import nn

from simsplit import (
    Run,
    ScenarioError,
    SplitModel,
    load_scenario,
    load_trained,
    own,
    run,
    value_clients,
)
from simsplit.assembly.exporting import export
from simsplit.attacking.finished import attack
from simsplit.errors import RunError
from simsplit.objects_by_digest import _HELD

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4 * 64, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.middle(x)).flatten(1))
"""
exec(NET)  # the same text is run without simsplit below


def images(count=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    pixels = rng.integers(0, 90, (count, 1, 8, 8)) + 120 * labels[:, None, None, None]
    return torch.from_numpy(pixels.astype(np.uint8)), labels


def split(net):
    return SplitModel(net, cut=("norm", "last"))


def small(**changes):
    return {
        "clients": {"count": 2},
        "schedule": {"kind": "round_robin", "rounds": 2},
        "train": {"batch_size": 10},
        "threads": 1,
        "output": {"figures": False},
    } | changes


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run that was given a network and data; this process has forgotten both."""
    path = tmp_path_factory.mktemp("passed") / "run"
    made = run(small(), path, data=images(), model=split(Net()))  # noqa: F821
    outputs = load_trained(made).predict(images(9, 1)[0])
    _HELD.clear()
    return made, outputs


@pytest.fixture
def forgotten():
    """A process that was passed nothing yet."""
    before = dict(_HELD)
    _HELD.clear()
    yield
    _HELD.update(before)


def test_a_fresh_network_takes_the_trained_weights(done, forgotten):
    made, outputs = done
    with pytest.raises(ScenarioError, match=gist("model ... pass it again")):
        load_trained(made.path)
    again = load_trained(made.path, model=split(Net()))  # noqa: F821
    assert torch.equal(again.predict(images(9, 1)[0]), outputs)


def test_a_network_with_other_layers_is_refused(done, forgotten):
    net = Net()  # noqa: F821
    net.middle = nn.Conv2d(4, 4, 5, padding=2)
    with pytest.raises(ScenarioError, match=gist("model ... other layers")):
        load_trained(done[0].path, model=split(net))


def test_a_run_is_resumed_with_a_fresh_network(tmp_path, forgotten):
    """It comes to what it comes to in one go: the fresh network's weights count for nothing."""
    net = Net()  # noqa: F821
    whole = run(small(), tmp_path / "whole", data=images(), model=split(copy.deepcopy(net)))
    short = small(schedule={"kind": "round_robin", "rounds": 1})
    run(short, tmp_path / "run", data=images(), model=split(net))
    _HELD.clear()
    changes = own(images(), split(Net())) | {"schedule.rounds": 2}  # noqa: F821
    longer = load_scenario(tmp_path / "run" / "scenario.yaml", changes)
    resumed = run(longer, tmp_path / "run", resume=True)
    assert resumed.rounds.to_csv() == whole.rounds.to_csv()


def test_an_attack_takes_data_and_network(done, forgotten):
    made, _ = done
    changes = {"iterations": "2", "targets.count": "2", "name": "later"}
    with pytest.raises(ScenarioError, match=gist("data.source ... digest")):
        attack(made.path, "rmle", changes, data=images(seed=5), model=split(Net()))  # noqa: F821
    after = attack(made.path, "rmle", changes, data=images(), model=split(Net()))  # noqa: F821
    assert set(after.recovered["attack"]) >= {"later"}


def test_clients_are_valued_with_data_and_network(done, forgotten):
    made, _ = done
    net = Net()  # noqa: F821
    valued = value_clients(made.path, from_round=1, data=images(), model=split(net))
    assert len(valued) == 2


def test_export_needs_neither_and_its_file_needs_no_simsplit(done, forgotten, simsplit, tmp_path):
    made, outputs = done
    code, out, err = simsplit("export", made.path, "--out", "ours")
    assert (code, err) == (0, "")
    assert says(out, "model.safetensors")
    np.save(tmp_path / "images.npy", images(9, 1)[0].numpy())
    script = f"""
import sys
sys.modules["simsplit"] = None  # an import of it fails
{NET}
import json
import numpy as np
from safetensors.torch import load_file

net = Net()
net.load_state_dict(load_file("ours/model.safetensors"))
facts = json.load(open("ours/export.json"))
x = torch.from_numpy(np.load("images.npy")).float() / 255
mean, std = (torch.tensor(facts[name]).view(-1, 1, 1) for name in ("mean", "std"))
print(json.dumps(net.eval()((x - mean) / std).argmax(1).tolist()))
"""
    found = subprocess.run(
        [sys.executable, "-I", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == outputs.tolist()


def test_an_export_of_the_passed_network_equals_the_trained_ones(
    done, forgotten, simsplit, tmp_path
):
    from safetensors.torch import load_file

    made, _ = done
    simsplit("export", made.path, "--out", "ours")
    export(load_trained(made.path, model=split(Net())), tmp_path / "theirs", "safetensors")  # noqa: F821
    ours, theirs = (load_file(tmp_path / each / "model.safetensors") for each in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_layers_that_never_learned_are_not_in_a_checkpoint(tmp_path, forgotten):
    from simsplit.assembly.exporting import export_passed

    net = Net()  # noqa: F821
    net.middle.requires_grad_(False)
    run(small(), tmp_path / "run", data=images(), model=split(net))
    with pytest.raises(RunError, match=gist("never learned")):
        export_passed(Run.load(tmp_path / "run"), tmp_path / "out", None)
    _HELD.clear()
    with pytest.raises(RunError, match=gist("frozen weights differ")):
        load_trained(tmp_path / "run", model=split(_freeze(Net())))  # noqa: F821
    assert load_trained(tmp_path / "run", model=split(net)).classes == ["0", "1"]


def _freeze(net):
    net.middle.requires_grad_(False)
    return net


def test_a_network_that_simsplit_made_takes_none(tmp_path):
    made = run(small(data={"train_samples": 40, "test_samples": 10}), tmp_path / "run")
    with pytest.raises(ScenarioError, match=gist("model ... simplecnn")):
        load_trained(made, model=split(Net()))  # noqa: F821
