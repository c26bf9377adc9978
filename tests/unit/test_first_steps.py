"""What somebody does first with parts and runs of their own."""

import json
import re
from pathlib import Path

import pytest
import torch
from builders import scenario
from gists import gist
from typer.testing import CliRunner

from simsplit import plan
from simsplit.__main__ import app
from simsplit.errors import SimsplitError
from simsplit.forecasting.planning import describe_network
from simsplit.methods.method import Step
from simsplit.network.profiles import NetworkConfig
from simsplit.scenario.shipped import start_plugin

ROOT = Path(__file__).parents[2]


def test_new_copies_an_example_of_a_plugin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(app, ["new", "--plugin", "sign"])
    assert outcome.exit_code == 0
    assert "--plugin sign.py" in outcome.output
    example = ROOT / "examples" / "plugins" / "sign.py"
    assert (tmp_path / "sign.py").read_bytes() == example.read_bytes()
    with pytest.raises(SimsplitError, match=r"sign\.py exists"):
        start_plugin("sign", Path())
    with pytest.raises(SimsplitError, match=gist("'signs' ... 'sign' ... stripes")):
        start_plugin("signs", tmp_path)


def test_new_without_a_name_asks_for_one():
    outcome = CliRunner().invoke(app, ["new"])
    assert isinstance(outcome.exception, SimsplitError)
    assert "--plugin" in str(outcome.exception)


def test_the_guides_codec_of_two_bits_counts_two_bits():
    guide = (ROOT / "docs" / "howto" / "own-method.md").read_text()
    (code,) = re.findall(r"```python\n(.*?pack_bits.*?)```", guide, re.DOTALL)
    names: dict[str, type] = {}
    exec(code, names)
    x = torch.tensor([-1.0, 0.0, 2.0, 5.0] * 6).view(2, 3, 4)
    step = Step(0, 1, 0, seed=0)
    method = names["Signs"]()
    packed = method.pack(x, step)
    assert packed[0].nbytes == 2 * 12 * 2 // 8
    assert torch.equal(method.unpack(packed, step), x.sign())
    # before it, another method may have made a sample smaller than the site's
    assert torch.equal(method.unpack(method.pack(x[:, :1], step), step), x[:, :1].sign())


def test_a_plan_names_ones_own_speeds_and_times_them_first():
    assert describe_network(NetworkConfig()) == "wifi, laptop"
    own = NetworkConfig(up_mbps=8, gflops=50)
    assert describe_network(own) == "wifi, laptop, with 8 Mbps up, 50 GFLOPS"
    slow, fast = (
        plan(scenario(network={"up_mbps": speed}, schedule={"rounds": 1})).times for speed in (1, 9)
    )
    assert slow["link"][0] == "as set"
    assert slow["simulated_s"][0] > fast["simulated_s"][0]
    assert slow["simulated_s"][1:].tolist() == fast["simulated_s"][1:].tolist()


def test_a_runs_citation_has_its_commit(finished, tmp_path):
    run = finished.copy(scenario(), tmp_path / "run")
    facts = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**facts, "commit": "abc123"}))
    outcome = CliRunner().invoke(app, ["cite", str(run)])
    assert " abc123}" in outcome.output
    assert "commit" not in CliRunner().invoke(app, ["cite", "quickstart"]).output
