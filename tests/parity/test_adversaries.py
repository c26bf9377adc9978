"""Malicious clients and detectors in whole runs: scored, resumed, and acted upon."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import experiment, run_to_end, scenario
from by_hand import Recorder
from comparing import assert_equal, weights
from pace import quick, quick_rows

from simsplit.errors import RunFailedError, ScenarioError
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.parties.calls import SharedState
from simsplit.results import Run
from simsplit.schedules.responses import DOWNWEIGHT

BADNETS = {"kind": "badnets", "rate": 0.5, "target": 1}
LOUD = {"kind": "tamper", "how": "noise", "strength": 30.0}
"""What any detector hears."""
COSINE = {"kind": "cosine_mad", "threshold": {"kind": "three_sigma", "sigmas": 8}}


def make_attacked(*poisons: dict[str, Any], detectors: Any = (), count: int = 5, **changes: Any):
    clients = {"count": count, "malicious": {"ids": [2], "poison": list(poisons or [BADNETS])}}
    clients |= changes.pop("clients", {})
    data = {"train_samples": 150, "test_samples": 60}
    return scenario(clients=clients, data=data, detectors=list(detectors), **changes)


def test_attack_success_is_that_of_the_triggered_samples(tmp_path: Path):
    """Counted again by hand: stamped test images of other classes, through head, trunk and tail."""
    made = run_to_end(make_attacked(), tmp_path)
    data, parts = made.data, made.parts
    rows = (data.test.labels != 1).nonzero().flatten()
    pixels = data.test.inputs[rows].float() / 255
    pixels[..., -3:, -3:] = 1.0
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (data.mean, data.std))
    client = parts.pool.clients[parts.exchange.holder].training.end
    with torch.no_grad():
        for module in (client.head, parts.server.end.trunk, client.tail):
            module.eval()
        inputs = (pixels - mean) / std
        outputs = client.tail(parts.server.end.trunk(client.head(inputs)))
    expected = (outputs.argmax(1) == 1).double().mean().item()
    assert Run.load(tmp_path).rounds["attack_success"].iloc[-1] == pytest.approx(expected)


@pytest.mark.slow
def test_own_heads_have_a_success_each(tmp_path: Path):
    run_to_end(make_attacked(clients={"heads": "per_client"}), tmp_path)
    run = Run.load(tmp_path)
    last = run.clients[run.clients["round"] == 2]
    assert last["attack_success"].notna().all()
    assert last["malicious"].tolist() == [0, 0, 1, 0, 0]
    own, honest = last["attack_success"], last.loc[last["malicious"] == 0, "attack_success"]
    assert own.mean() != pytest.approx(honest.mean()), "else this tells nothing"
    ended = run.rounds.iloc[-1]
    assert ended["attack_success"] == pytest.approx(honest.mean()), "the figure that counts"
    assert ended["attack_success_all"] == pytest.approx(own.mean())
    assert run.summary["last"]["attack_success_all"] == pytest.approx(own.mean())
    assert run.summary["attack_samples"] > 0


@pytest.mark.slow
def test_an_attack_is_judged_by_honest_heads_even_if_few_are_scored(tmp_path: Path):
    for seed in range(3):
        clients = {"heads": "per_client", "malicious": {"ids": [0, 1, 3, 4], "poison": [BADNETS]}}
        given = make_attacked(clients=clients, evaluate={"clients": 1}, seed=seed)
        run_to_end(given, tmp_path / f"{seed}")
        run = Run.load(tmp_path / f"{seed}")
        (row,) = run.clients.dropna(subset=["attack_success"])["client"].unique()
        assert row == 2


@pytest.mark.slow
def test_an_attack_by_nobody_changes_nothing_and_is_scored(tmp_path: Path):
    nobody = {"malicious": {"fraction": 0, "poison": [BADNETS]}}
    run_to_end(make_attacked(clients=nobody), tmp_path / "nobody")
    run_to_end(make_attacked(clients={"malicious": None}), tmp_path / "clean")
    ours, theirs = weights(tmp_path / "nobody"), weights(tmp_path / "clean")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "attack_success" in Run.load(tmp_path / "nobody").rounds
    assert "attack_success" not in Run.load(tmp_path / "clean").rounds


@pytest.mark.slow
def test_detectors_that_only_look_change_nothing(tmp_path: Path):
    everything = [
        {"kind": kind} for kind in ("cosine_mad", "foolsgold", "contra", "krum", "root_cosine")
    ]
    run_to_end(make_attacked(), tmp_path / "unwatched")
    run_to_end(make_attacked(detectors=everything), tmp_path / "watched")
    ours, theirs = weights(tmp_path / "watched"), weights(tmp_path / "unwatched")
    assert all(torch.equal(ours[n], t) for n, t in theirs.items() if "detection" not in n)
    for table in ("rounds", "wire"):
        one, other = ((tmp_path / run / f"{table}.csv") for run in ("watched", "unwatched"))
        assert one.read_text() == other.read_text()
    run = Run.load(tmp_path / "watched")
    assert len(run.detections) == 2 * len(everything)
    assert {"cosine_payload", "cosine_payload_z", "payload_norm"} <= set(run.clients.columns)


def test_the_signal_is_that_of_the_packets(tmp_path: Path):
    """The columns, from a recording of what crossed while training."""
    made, tap = experiment(make_attacked(detectors=[COSINE]), tmp_path), Recorder()
    made.parts.wire.taps.append(tap)
    made.run(resume=False)
    table = Run.load(tmp_path).clients
    first = [p for p in tap.on(Leg.SMASHED) if p.round == 1]
    trained = first[: int(table.loc[table["round"] == 1, "steps"].sum())]
    means = []
    for client in range(5):
        sent = torch.cat([p.tensors[0].flatten(1) for p in trained if p.client == client])
        means.append(sent.double().mean(0).numpy())
        row = table[(table["round"] == 1) & (table["client"] == client)].iloc[0]
        assert row["payload_norm"] == pytest.approx(sent.norm(dim=1).mean().item(), rel=1e-5)
    centre = np.mean(means, 0)
    for client, mean in enumerate(means):
        cosine = mean @ centre / np.linalg.norm(mean) / np.linalg.norm(centre)
        row = table[(table["round"] == 1) & (table["client"] == client)].iloc[0]
        assert row["cosine_payload"] == pytest.approx(cosine, abs=1e-6)


def loud(response: str, rounds: int = 3, **changes: Any):
    watched = [{**COSINE, "response": response}]
    schedule = {"kind": changes.pop("schedule", "round_robin"), "rounds": rounds}
    return make_attacked(LOUD, detectors=watched, schedule=schedule, **changes)


def test_a_quorum_stops_a_run_of_which_too_few_clients_remain(tmp_path: Path):
    given = loud("skip")
    for quorum in (4, 5):
        clients = given.clients.model_copy(update={"quorum": quorum})
        given = given.model_copy(update={"clients": clients})
        if quorum == 4:
            run_to_end(given, tmp_path / "enough")
            continue
        with pytest.raises(RunFailedError, match="4 of 5 clients"):
            run_to_end(given, tmp_path / "too few")
        assert len(Run.load(tmp_path / "too few").rounds) == 1


def test_a_quorum_of_more_clients_than_there_are_is_refused():
    with pytest.raises(ScenarioError) as refused:
        scenario(clients={"count": 3, "quorum": 4})
    assert refused.value.field == "clients"


def test_skip(tmp_path: Path):
    run_to_end(loud("skip"), tmp_path)
    table = Run.load(tmp_path).clients
    bad = table[table["client"] == 2].set_index("round")
    assert bad["cosine_payload_flagged"].loc[1] == 1
    assert bad["steps"].tolist() == [2, 0, 0]
    assert bad["barred"].tolist() == [1, 1, 1]
    assert table[table["client"] != 2]["barred"].sum() == 0


@pytest.mark.slow
def test_rollback_undoes_the_round(tmp_path: Path):
    """All are where they were before it, and the round after it is theirs without the client."""
    momentum = {"client": {"kind": "adam"}, "server": {"kind": "sgd", "momentum": 0.9}}
    made = experiment(loud("rollback", rounds=2, train=momentum), tmp_path / "rolled")
    before = {name: t.clone() for name, t in made.live.mark(1).state.items()}
    made.run(resume=False)
    once = experiment(loud("rollback", rounds=1, train=momentum), tmp_path / "once")
    once.run(resume=False)
    after = once.live.mark(2).state
    assert before.keys() == after.keys(), "moments of the undone steps are gone too"
    assert all(torch.equal(before[name], after[name]) for name in before)
    run = Run.load(tmp_path / "rolled")
    assert run.clients[run.clients["client"] == 2]["steps"].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("topology", "aggregation"),
    quick_rows(
        itertools.product(["u_shaped", "vanilla"], ["none", "fused"]),
        *[("u_shaped", "none"), ("vanilla", "fused")],
    ),
)
def test_downweight_counts_a_tenth(topology: str, aggregation: str, tmp_path: Path):
    """The trunk's next update, against one computed with the client's gradient by hand."""
    schedule = "parallel" if aggregation == "fused" else "round_robin"
    given = loud(
        "none",
        rounds=1,
        topology=topology,
        aggregation=aggregation,
        schedule=schedule,
        count=3,
        clients={"heads": "per_client", "malicious": None},
        train={"server": {"kind": "sgd", "lr": 0.1, "momentum": 0.0}, "batch_size": 128},
    )
    moved = []
    for trust in (1.0, DOWNWEIGHT):
        made = experiment(given, tmp_path / str(trust))
        made.live.detection.guard.trust.update(dict.fromkeys(range(3), trust))
        before = {n: t.detach().clone() for n, t in made.parts.server.learner.weights().items()}
        if aggregation == "none":
            made.parts.exchange.step(0)
        else:
            made.parts.exchange.step_together([0, 1, 2])
        after = made.parts.server.learner.weights()
        moved.append({n: after[n].detach() - before[n] for n in before if after[n].requires_grad})
    full, tenth = moved
    assert max(change.abs().max() for change in full.values()) > 1e-4
    for name in full:
        if not (topology == "vanilla" and "tail" in name):
            assert torch.allclose(tenth[name], DOWNWEIGHT * full[name], atol=1e-7)


def test_averages_count_a_tenth_of_the_samples(tmp_path: Path):
    made = experiment(
        make_attacked(aggregation="splitfed_v2", schedule={"kind": "parallel", "rounds": 1}),
        tmp_path,
    )
    seen: dict[int, int] = {}
    averager = made.parts.federation.shared
    averager.average = lambda number, updates: seen.update({c: n for c, (_, n) in updates.items()})
    made.live.detection.guard.trust[2] = DOWNWEIGHT
    made.parts.federation.collect(dict.fromkeys(range(5), 30), 1, {})
    assert seen == {0: 30, 1: 30, 2: 3, 3: 30, 4: 30}


def test_when_all_are_flagged_the_run_says_so(tmp_path: Path):
    all_bad = {"kind": "cosine_mad", "threshold": {"kind": "fixed", "above": -2}}
    with pytest.raises(RunFailedError, match="flagged"):
        run_to_end(make_attacked(detectors=[{**all_bad, "response": "skip"}]), tmp_path)


SAFE = {"kind": "safesplit"}


def watch_turns(path: Path) -> Experiment:
    """Build seven clients in whole turns, one of them loud, under SafeSplit."""
    loud = {"kind": "tamper", "leg": "features_grad", "strength": 50.0}
    turns = {"kind": "per_client", "rounds": 2}
    given = make_attacked(loud, detectors=[SAFE], schedule=turns, clients={"count": 7})
    return experiment(given, path)


@pytest.mark.slow
def test_safesplit_goes_back_to_the_newest_turn_of_the_majority(tmp_path: Path):
    """Its trunk is as some client's turn left it, and never as the loud one's did."""
    made = watch_turns(tmp_path)
    ended: list[tuple[int, dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    turns = made.live.detection.turns
    end = turns.end

    def watch(client: int) -> None:
        after = turns._weights()
        end(client)
        ended.append((client, after, turns._weights()))

    turns.end = watch
    made.run(resume=False)
    assert 2 in turns.undone
    states = {client: after for client, after, _ in ended[:7]}
    for client, after, left in ended[3:7]:
        undone = any(not torch.equal(after[name], left[name]) for name in after)
        if undone:
            same = [c for c, s in states.items() if all(torch.equal(s[n], left[n]) for n in s)]
            assert same, f"client {client}'s turn was undone, but to nobody's"
            assert 2 not in same


@pytest.mark.slow
def test_safesplit_hands_on_the_head_that_belongs_to_the_trunk(tmp_path: Path):
    made = watch_turns(tmp_path)
    turns = made.live.detection.turns
    went: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    back = turns._go_back

    def watch(client: int, bad: Any) -> None:
        benign = [kept for number, kept in turns._kept.items() if number not in bad]
        back(client, bad)
        if benign:
            held = made.parts.pool.ask(client, SharedState())
            went.append((dict(benign[-1].shared), {n: t.clone() for n, t in held.items()}))

    turns._go_back = watch
    made.run(resume=False)
    assert went
    assert all(torch.equal(kept[name], held[name]) for kept, held in went for name in kept)


CASES: dict[str, dict[str, Any]] = {
    "watched": {"detectors": [{**COSINE, "window": "running"}, {"kind": "contra"}]},
    "sequential": {"detectors": [{"kind": "krum", "threshold": {"kind": "sequential"}}]},
    "replaced hand-over": {"poisons": [{"kind": "replace", "how": "boost"}], "detectors": [COSINE]},
    "replaced late": {
        "poisons": [{"kind": "replace", "how": "stale", "from_round": 2, "until_round": 2}],
        "detectors": [COSINE],
    },
    "skipped": {"poisons": [LOUD], "detectors": [{**COSINE, "response": "skip"}]},
    "downweighted": {"poisons": [LOUD], "detectors": [{**COSINE, "response": "downweight"}]},
    "rolled back": {"poisons": [LOUD], "detectors": [{**COSINE, "response": "rollback"}]},
    "safesplit": {
        "poisons": [{"kind": "tamper", "leg": "features_grad", "strength": 50.0}],
        "detectors": [SAFE],
        "schedule": {"kind": "per_client", "rounds": 3},
    },
    "splitfed_v1": {
        "detectors": [{**COSINE, "response": "downweight"}],
        "poisons": [LOUD],
        "aggregation": "splitfed_v1",
        "schedule": {"kind": "parallel", "rounds": 3},
    },
    "own heads": {"clients": {"heads": "per_client"}, "detectors": [COSINE]},
    "vanilla": {"topology": "vanilla", "detectors": [COSINE]},
}


def of_case(case: str):
    changes = dict(CASES[case])
    changes.setdefault("schedule", {"kind": "round_robin", "rounds": 3})
    return make_attacked(*changes.pop("poisons", [BADNETS]), **changes)


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(CASES, "rolled back"))
def test_resumed_is_as_never_stopped(case: str, tmp_path: Path):
    run_to_end(of_case(case), tmp_path / "whole")
    made = experiment(of_case(case), tmp_path / "stopped")
    look = made.live.detection.judge_round

    def stop_at_third(number: int):
        if number == 3:
            raise KeyboardInterrupt
        return look(number)

    made.live.detection.judge_round = stop_at_third
    with pytest.raises(KeyboardInterrupt):
        made.run(resume=False)
    Experiment(of_case(case), tmp_path / "stopped").run(resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("clients.malicious.fraction", {"clients": {"malicious": {"fraction": 0.99}}}),
        ("clients.malicious.ids", {"clients": {"malicious": {"ids": [9]}}}),
        ("clients.malicious.ids", {"clients": {"malicious": {"ids": [0, 1, 2, 3, 4]}}}),
        ("clients.malicious.poison.0.kind", {"poisons": [{"kind": "replace"}], "own": True}),
        ("clients.malicious.poison.1", {"poisons": [BADNETS, {"kind": "label_flip"}]}),
        ("clients.malicious.ids", {"detectors": [{"kind": "root_cosine", "root": [2]}]}),
        ("detectors.0.root", {"detectors": [{"kind": "root_cosine", "root": [7]}]}),
        ("detectors.1.name", {"detectors": [COSINE, COSINE]}),
        ("detectors.0.name", {"detectors": [{**COSINE, "name": "malicious"}]}),
        ("detectors.0.name", {"detectors": [{**COSINE, "name": "test_accuracy"}]}),
        ("detectors.0.name", {"detectors": [{**COSINE, "name": "payload_norm"}]}),
        (
            "detectors.1.name",
            {"detectors": [{**COSINE, "name": "mine_z"}, {**COSINE, "name": "mine"}]},
        ),
        ("detectors.0.kind", {"detectors": [SAFE]}),
        (
            "detectors.0.signal",
            {"topology": "vanilla", "detectors": [{**COSINE, "signal": "features"}]},
        ),
    ],
)
def test_what_could_not_work_is_refused(field: str, changes: dict[str, Any]):
    changes = dict(changes)
    poisons = changes.pop("poisons", [BADNETS])
    clients = changes.pop("clients", {})
    if "malicious" in clients:
        clients = {"malicious": {**clients["malicious"], "poison": poisons}}
    if changes.pop("own", False):
        clients = {"heads": "per_client"}
    with pytest.raises(ScenarioError) as refused:
        make_attacked(*poisons, clients=clients, **changes)
    assert refused.value.problems[0].field == field


def test_a_poison_that_would_never_act_is_refused(tmp_path: Path):
    with pytest.raises(ScenarioError, match=r"got 99") as refused:
        experiment(make_attacked({**BADNETS, "from_round": 99}), tmp_path / "late").run(
            resume=False
        )
    assert refused.value.field == "clients.malicious.poison.0.from_round"


@pytest.mark.slow
def test_a_backdoor_takes_hold_and_a_clean_run_knows_nothing_of_it(tmp_path: Path):
    for fraction in (0.0, 0.2):
        malicious = {"fraction": fraction, "poison": [{**BADNETS, "target": 0}]}
        given = scenario(
            data={"train_samples": 1200, "test_samples": 300},
            clients={"count": 10, "malicious": malicious},
            schedule={"rounds": 8},
            train={"client": {"kind": "adam", "lr": 2e-3}, "server": {"kind": "adam", "lr": 2e-3}},
        )
        run_to_end(given, tmp_path / f"{fraction}")
        last = Run.load(tmp_path / f"{fraction}").rounds.iloc[-1]
        assert last["test_accuracy"] > 0.9
        assert last["attack_success"] > 0.7 if fraction else last["attack_success"] < 0.15
