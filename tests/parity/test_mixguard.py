"""MixGuard in whole runs: bytes as the paper counts them, secrets that stay home, resuming."""

import itertools
from pathlib import Path

import pytest
import torch
from builders import StopAt, experiment, run_to_end
from comparing import assert_equal
from hosted import on_hosts
from pace import quick
from texts import text_scenario

from simsplit import run
from simsplit.data.samples import IGNORED
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.client import Client
from simsplit.progress import Observer, RoundEnded
from simsplit.results import Run
from simsplit.rows import RoundRow
from simsplit.scenario import Scenario
from simsplit.showing.run_output import describe_round

APART = {"auxiliary": 0.3, "source": {"length": 32}}
"""Long enough for texts to differ."""
LEGS = ["smashed", "features", "features_grad", "smashed_grad"]


def make_mixed(path: Path, **changes) -> Scenario:
    """Make texts of the greatest length, so that all batches are equally wide."""
    fields = {"kind": "mixguard", "tokens": 0, "warm_up": 1, **changes.pop("mixguard", {})}
    data = {"auxiliary": 0.3, "source": {"length": 8}}
    return text_scenario(path, method=[fields], **{"data": data, **changes})


def count_trained_bytes(made: Run, phases: list[str]) -> dict[str, int]:
    wire = made.wire[made.wire["phase"].isin(phases)]
    return wire[wire["leg"].isin(LEGS)].groupby("leg")["bytes"].sum().to_dict()


@pytest.mark.slow
def test_three_messages_and_a_public_step_are_five_times_the_plain_bytes(tmp_path):
    # public batches are whole where private ones may be short, so of these all must be whole
    given = make_mixed(tmp_path, train={"drop_last": True})
    whole = text_scenario(
        tmp_path, data={"auxiliary": 0.3, "source": {"length": 8}}, train={"drop_last": True}
    )
    unit = count_trained_bytes(Run.load(run_to_end(whole, tmp_path / "whole").path), ["train"])
    (one,) = set(unit.values())
    made = Run.load(run_to_end(given, tmp_path / "mixed").path)
    assert count_trained_bytes(made, ["train"]) == dict.fromkeys(LEGS, 3 * one)
    assert count_trained_bytes(made, ["refine"]) == {"smashed": 4 * one, "features": 4 * one}
    assert sum(count_trained_bytes(made, ["train", "refine"]).values()) == 5.0 * 4 * one


@pytest.mark.slow
@pytest.mark.parametrize("fields", quick([{}, {"tokens": 5}], {"tokens": 5}))
def test_what_a_plain_cut_would_have_sent_is_what_it_sends(fields, tmp_path):
    """Texts of several lengths, whose batches differ in width; secret tokens do not count."""
    plain = text_scenario(tmp_path, data={"auxiliary": 0.3})
    sent = sum(
        count_trained_bytes(
            Run.load(run_to_end(plain, tmp_path / "plain").path), ["train"]
        ).values()
    )
    given = make_mixed(tmp_path, mixguard=fields, data={"auxiliary": 0.3})
    rounds = Run.load(run_to_end(given, tmp_path / "mixed").path).rounds
    assert rounds["bytes_plain"].sum() == sent
    assert (rounds.loc[rounds["phase"] != "train", "bytes_plain"] == 0).all()


@pytest.mark.parametrize("sizes", quick([(5, 3), (3, 7)], (5, 3)))
def test_messages_cost_bytes_and_inputs_do_not(sizes, tmp_path):
    messages, inputs = sizes
    sizes = {"messages": messages, "inputs": inputs}
    given = make_mixed(tmp_path, mixguard=sizes, train={"drop_last": True})
    made = Run.load(run_to_end(given, tmp_path / "run").path)
    wire = made.wire[(made.wire["phase"] == "train") & (made.wire["leg"] == "smashed")]
    unit = 8 * 8 * 16 * 4
    assert (wire["bytes"] == wire["packets"] * messages * unit).all()


@pytest.mark.slow
@pytest.mark.parametrize("inference", ["mixed", "plain"])
def test_the_server_sees_texts_as_they_are_only_where_it_may(inference, tmp_path):
    """Public ones in public steps, evaluated ones in plain inference, private ones never."""
    seen: list[tuple[str, Packet]] = []

    class Tap:
        def observe(self, packet: Packet) -> None:
            seen.append((made.parts.wire.moment.counted_phase, packet))

    how = {"inference": inference}
    given = make_mixed(tmp_path, clients={"count": 1}, data=APART, mixguard=how)
    made = experiment(given, tmp_path / "run")
    made.parts.wire.taps.append(Tap())
    end = made.parts.pool.clients[0].training.end
    plain: list[torch.Tensor] = []
    make = end.make

    def watch(leg, pending):
        if leg is Leg.SMASHED:
            with torch.no_grad():
                plain.append(end.head(pending.given.inputs))
        return make(leg, pending)

    end.make = watch
    made.run(resume=False)
    sent = [(phase, packet) for phase, packet in seen if packet.leg is Leg.SMASHED]
    assert len(sent) == len(plain)
    for (phase, packet), hidden in zip(sent, plain, strict=True):
        rows = packet.tensors[0][:, : hidden.shape[1]].flatten(1)
        near = torch.nn.functional.cosine_similarity(rows[:, None], hidden.flatten(1)[None], dim=-1)
        shown = phase in ("calibrate", "refine") or (phase, inference) == ("evaluate", "plain")
        if not shown:  # a text that is mixed with its like alone is what it was
            first, other, *_ = rows.unflatten(0, (-1, len(hidden)))
            near = near[:, torch.nn.functional.cosine_similarity(first, other) < 0.9999]
        assert (near.max() > 0.9999) == shown, phase
        assert len(packet.tensors) == 1
    assert {phase for phase, _ in sent} == {"calibrate", "train", "refine", "evaluate"}


def test_secrets_are_of_a_stream_that_the_server_has_not(tmp_path):
    made = experiment(make_mixed(tmp_path), tmp_path / "run")
    client, server = made.parts.pool.clients[0], made.parts.server
    assert client.training.end.seed != server.end.seed
    assert server.stack.modules.state_dict() == {}
    assert [type(method).__name__ for method in server.stack.smashed] == ["Method"]


class Weights(Observer):
    """What a client's parts are after each round."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.after: list[dict[str, torch.Tensor]] = []

    def round(self, ended: RoundEnded) -> None:
        client = self.client.training.end
        parts = {"calibration": client.stack.modules, "head": client.head, "tail": client.tail}
        self.after.append(
            {n: torch.cat([w.flatten() for w in m.parameters()]).detach() for n, m in parts.items()}
        )


@pytest.mark.slow
def test_calibration_learns_in_public_phases_alone(tmp_path):
    given = make_mixed(tmp_path, mixguard={"refine_every": 0, "warm_up": 2}, clients={"count": 1})
    watch = Weights()
    made = Experiment(given, tmp_path / "run", [watch])
    watch.client = made.parts.pool.clients[0]
    made.run(resume=False)
    changed = [
        {name: not torch.equal(before[name], after[name]) for name in before}
        for before, after in itertools.pairwise(watch.after)
    ]
    public = {"calibration": True, "head": False, "tail": False}
    private = {"calibration": False, "head": True, "tail": True}
    assert changed == [public, private, private]


@pytest.mark.slow
@pytest.mark.parametrize("heads", quick(["shared", "per_client"], "shared"))
def test_a_run_that_is_stopped_and_resumed_is_the_same(heads, tmp_path):
    given = make_mixed(tmp_path, clients={"heads": heads}, mixguard={"tokens": 3})
    run_to_end(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path / "again", observers=[StopAt(9)])
    run(given, tmp_path / "again", resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "again")


@pytest.mark.ray
def test_hosts_change_nothing(tmp_path, hosts):
    changes = {"clients": {"count": 3, "heads": "per_client"}, "mixguard": {"tokens": 3}}
    run(make_mixed(tmp_path, **changes), tmp_path / "here")
    on_hosts(make_mixed(tmp_path, **changes), tmp_path / "there", hosts).run(resume=False)
    assert_equal(tmp_path / "here", tmp_path / "there")


def test_simulated_time_counts_every_input_and_every_message(tmp_path):
    sizes = {"messages": 5, "inputs": 4, "calibrate": False}
    plain = experiment(text_scenario(tmp_path, data={"source": {"length": 8}}), tmp_path / "plain")
    made = experiment(make_mixed(tmp_path, mixguard=sizes), tmp_path / "mixed")
    values, a_multiply_and_an_add = 8 * 16, 2
    mixing, unmixing = 5 * 4 * values * a_multiply_and_an_add, 5 * values * a_multiply_and_an_add
    assert made.live.flops.head == 4 * plain.live.flops.head + mixing
    assert made.live.flops.trunk == 5 * plain.live.flops.trunk
    assert made.live.flops.tail == plain.live.flops.tail + unmixing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "aggregation", "heads"),
    [
        ("per_client", "none", "shared"),
        ("parallel", "splitfed_v1", "shared"),
        ("parallel", "splitfed_v2", "shared"),
        ("parallel", "none", "per_client"),
        ("asynchronous", "none", "per_client"),
    ],
)
def test_clients_of_uneven_topics_mix_and_refine_under_every_scheme(
    schedule, aggregation, heads, tmp_path
):
    """One trunk or one each, in every turn: a public step to every private one."""
    given = make_mixed(
        tmp_path,
        data={"auxiliary": 0.3, "partition": {"kind": "dirichlet", "alpha": 1.0}},
        clients={"count": 3, "heads": heads},
        schedule={"kind": schedule, "rounds": 2},
        aggregation=aggregation,
        network={"device": "phone", "link": "lte"},
    )
    made = Run.load(run_to_end(given, tmp_path / "run").path)
    sent = made.wire[made.wire["leg"] == "smashed"].groupby("phase")["packets"].sum()
    assert sent["refine"] == sent["train"] == made.rounds.loc[1:, "steps"].sum()
    assert made.rounds["train_loss"].notna().all()


@pytest.mark.slow
def test_attackers_that_learn_online_go_on_where_a_run_was_stopped(tmp_path):
    """Two of them, each with a batch in hand that may yet turn out to be a public one."""
    learns = {"kind": "adaptive_online", "iterations": 4, "hidden": 8, "unmixer": 8}
    attacks = [{**learns, "name": "joint"}, {**learns, "name": "cancel", "reading": "cancel"}]
    writes = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
    given = make_mixed(tmp_path, model=writes, attacks=attacks, targets={"count": 4})
    run(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path / "again", observers=[StopAt(9)])
    run(given, tmp_path / "again", resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("task", quick(["language", "sst2"], "sst2"))
def test_public_texts_need_no_classes(tmp_path, task):
    """Not even where they have some, which could be others than the classifier's."""
    task = {"kind": "language", "text": "sentence"} if task == "language" else task
    public = {"kind": "text_parquet", "path": str(tmp_path / "reviews"), "task": task, "length": 16}
    given = make_mixed(tmp_path, data={"public": public, "source": {"length": 16}})
    made = run_to_end(given, tmp_path / "run")
    assert made.data.auxiliary is not None
    assert (made.data.auxiliary.labels == IGNORED).all()
    reader = given.text_reader()
    texts = [reader.decode(ids.tolist()) for ids in made.data.auxiliary.inputs]
    assert all(text.startswith("a ") for text in texts), "and they are texts, nevertheless"
    rounds = Run.load(made.path).rounds
    by_phase = dict(list(rounds.groupby("phase")))
    assert by_phase["calibrate"]["train_loss"].isna().all()
    assert (by_phase["calibrate"]["method_loss"] > 0).all()
    assert by_phase["train"]["train_loss"].notna().all()


def test_a_round_in_which_methods_alone_learn_is_reported_as_one():
    row = RoundRow(1, steps=3, bytes_total=2048, method_loss=0.5)
    assert describe_round(row) == "methods alone learned  2.0 KiB sent"
