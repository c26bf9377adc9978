"""A topology of its own, one list and two ends: it runs wherever the shipped ones do.

The example's server echoes what it got before it goes on, which changes nothing that is learned: so
its runs equal a U shape's to the bit, but for what crosses.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import TINY, StopAt
from hosted import on_hosts
from pace import quick
from texts import TINY as TEXTS
from texts import reviews

from simsplit import Run, run
from simsplit.engine.ray_pool import Hosts
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

PLUGIN = Path(__file__).parents[2] / "examples" / "plugins" / "echo.py"
OWN = {"heads": "per_client"}
NETWORK = {"device": "phone", "link": "lte"}
CASES: dict[str, dict[str, Any]] = {
    "shared head, in turn": {},
    "own heads, client by client": {"clients": OWN, "schedule": {"kind": "per_client"}},
    "parallel": {"clients": OWN, "schedule": {"kind": "parallel"}},
    "fused": {"aggregation": "fused", "schedule": {"kind": "parallel"}},
    "splitfed_v1": {"aggregation": "splitfed_v1", "cohort": {"fraction": 0.7}},
    "splitfed_v2, late gradients": {
        "aggregation": "splitfed_v2",
        "schedule": {"kind": "asynchronous", "max_ahead": None},
        "network": NETWORK,
    },
    "methods, detector, poison": {
        "method": [{"kind": "lightsplit", "ratio": 8}, {"kind": "cast", "to": "int8"}],
        "detectors": [{"kind": "cosine_mad", "signal": "features_grad"}],
        "clients": {
            "count": 4,
            "malicious": {"ids": [1], "poison": [{"kind": "tamper", "leg": "features_grad"}]},
        },
    },
    "attacked": {
        "data": {"auxiliary": 0.4},
        "model": {"kind": "mnistnet"},
        "attacks": [{"kind": "naive_sda"}, {"kind": "whitebox", "iterations": 2}],
        "targets": {"count": 4},
    },
}


def make_scenario(topology: str, **changes: Any) -> Scenario:
    values = merge(merge(TINY, {"data": {"train_samples": 60}, "topology": topology}), changes)
    values["schedule"] = {"kind": "round_robin", **values["schedule"], "rounds": 2}
    return parse(values, [PLUGIN])


def same_but_for_the_echo(echo: Run, plain: Run) -> None:
    own = ["echo", "confirmed"]
    assert set(echo.wire["leg"]) == set(plain.wire["leg"]) | set(own)
    training = echo.wire[echo.wire["phase"] == "train"]
    echoed, sent = (training[training["leg"] == leg] for leg in ("echo", "smashed"))
    assert (echoed.groupby("round")["packets"].sum() > 0).all()
    assert (
        echoed.groupby("round")["packets"].sum() == sent.groupby("round")["packets"].sum()
    ).all()
    rest = echo.wire[~echo.wire["leg"].isin(own)].reset_index(drop=True)
    columns = [name for name in rest if name != "transfer_s"]
    assert rest[columns].equals(plain.wire[columns])
    timed = ("bytes", "simulated", "server_busy", "waiting", "compute_s", "transfer_s")
    for table in ("rounds", "clients", "recovered"):
        one, other = getattr(echo, table), getattr(plain, table)
        figures = [name for name in other if not str(name).startswith(timed)]
        assert one[figures].equals(other[figures]), table
    ours, theirs = weights(echo), weights(plain)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def weights(made: Run) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    newest = sorted((made.path / "checkpoints").iterdir())[-1]
    return load_file(newest / "state.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(CASES, "fused", "splitfed_v2, late gradients"))
def test_an_echo_changes_nothing_but_what_crosses(case: str, tmp_path: Path) -> None:
    made = {
        topology: run(make_scenario(topology, **CASES[case]), tmp_path / topology)
        for topology in ("echo", "u_shaped")
    }
    same_but_for_the_echo(made["echo"], made["u_shaped"])


@pytest.mark.slow
def test_texts_are_exposed_as_far_as_an_attack_needs(tmp_path: Path) -> None:
    """`tag` reads the gradient of features, which the echo's client sends in its third turn."""
    source = {"path": str(reviews(tmp_path / "reviews")), "length": 16}
    model = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}}
    changes = {
        "data": {"source": source, "auxiliary": 0.3},
        "model": {**model, "head": 1, "tail": 1},
        "attacks": [{"kind": "tag", "iterations": 2}],
        "targets": {"count": 4},
        "schedule": {"rounds": 1},
    }
    made = {}
    for topology in ("echo", "u_shaped"):
        values = merge(merge(TEXTS, changes), {"topology": topology})
        made[topology] = run(parse(values, [PLUGIN]), tmp_path / topology)
    same_but_for_the_echo(made["echo"], made["u_shaped"])
    assert len(made["echo"].recovered) == 3 * 4


def test_who_drops_out_has_sent_nothing_after_the_first_packet(tmp_path: Path) -> None:
    made = run(make_scenario("echo", cohort={"dropout": 0.7}), tmp_path / "run")
    assert made.rounds["dropped"].sum() > 0
    packets = made.wire[made.wire["phase"] == "train"].groupby("leg")["packets"].sum()
    assert (
        packets["smashed"] == packets["echo"] == packets["confirmed"] + made.rounds["dropped"].sum()
    )
    assert packets["confirmed"] == packets["features"] == packets["smashed_grad"]


@pytest.mark.slow
def test_stopped_and_resumed(tmp_path: Path) -> None:
    case = make_scenario("echo", aggregation="splitfed_v2")
    whole = run(case, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(case, tmp_path / "again", observers=[StopAt(8)])
    again = run(case, tmp_path / "again", resume=True)
    for table in ("rounds", "clients", "wire"):
        assert getattr(whole, table).equals(getattr(again, table))
    ours, theirs = weights(whole), weights(again)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.ray
@pytest.mark.parametrize("case", ["own heads, client by client", "splitfed_v1", "fused"])
def test_on_hosts(case: str, tmp_path: Path, hosts: Hosts) -> None:
    there = on_hosts(make_scenario("echo", **CASES[case]), tmp_path / "there", hosts)
    there.run(resume=False)
    here = run(make_scenario("u_shaped", **CASES[case]), tmp_path / "here")
    same_but_for_the_echo(Run.load(there.path), here)
