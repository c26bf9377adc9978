"""Epsilon by hand: what is counted, what is composed, and what has no guarantee."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from builders import run_to_end, scenario
from gists import says
from pace import quick
from scipy.stats import norm
from texts import text_scenario

from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.methods.dp_forward import compute_gaussian_sigma
from simsplit.packets import Packet
from simsplit.parties.calls import Call
from simsplit.parties.client import Client
from simsplit.privacy import accounting, composition
from simsplit.privacy.accounting import (
    Guarantee,
    account,
    compute_epsilon,
    count_releases,
    list_guarantees,
    void_repeated,
)
from simsplit.report.comparison import compare
from simsplit.report.run_tables import show
from simsplit.results import Run
from simsplit.rows import WireRow
from simsplit.running.notes import Notes
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.whole_run import run


@dataclass(frozen=True)
class Whole(Call[Client]):
    """The client itself, which only a test may ask for."""

    def on(self, client: Client) -> Client:
        return client


FROZEN = {"model": {"kind": "simplecnn", "learns": ["trunk", "tail"]}}
TRUNK_ALONE = {"model": {"kind": "simplecnn", "learns": ["trunk"]}}
FORWARD = {"kind": "dp_forward", "epsilon": 2.0, "relative": False}
BACK = {"kind": "dp_sgd", "multiplier": 3.0, "relative": False}


def lacks(*methods: dict[str, Any], **changes: Any) -> list[str]:
    given = scenario(**{**FROZEN, **changes}, method=list(methods))
    return [each.lacks for each in list_guarantees(given)]


def delta_of(multiplier: float, epsilon: float) -> float:
    """Compute Balle and Wang's equation, as it is printed."""
    half, shift = 1 / (2 * multiplier), epsilon * multiplier
    return float(norm.cdf(half - shift) - math.exp(epsilon) * norm.cdf(-half - shift))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (1.0, 1e-5), (9.0, 1e-2)])
def test_one_sending_has_the_budget_that_its_noise_was_made_for(epsilon, delta):
    multiplier = compute_gaussian_sigma(epsilon, delta)
    assert compute_epsilon(multiplier, 1, delta) == pytest.approx(epsilon, rel=1e-4)
    assert delta_of(multiplier, epsilon) == pytest.approx(delta, rel=1e-3)


def test_k_sendings_are_one_at_a_root_of_k_and_renyi_accounting_is_near_above():
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    assert compute_epsilon(6.0, 9, 1e-5) == pytest.approx(compute_epsilon(2.0, 1, 1e-5), rel=1e-9)
    for multiplier, times in ((5.0, 1), (5.0, 30), (2.0, 100)):
        exact = compute_epsilon(multiplier, times, 1e-5)
        accountant = RdpAccountant()
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), times))
        bound = accountant.get_epsilon(1e-5)
        assert exact < bound < 1.15 * exact
        assert delta_of(multiplier / math.sqrt(times), exact) == pytest.approx(1e-5, rel=1e-6)
    assert compute_epsilon(1.0, 0, 1e-5) == 0


def test_a_sample_is_sent_once_an_epoch_whatever_the_steps():
    wire = [
        WireRow(1, 0, "train", Leg.SMASHED, 5),  # two epochs of two batches, and a fifth batch
        WireRow(2, 0, "train", Leg.SMASHED, 0),
        WireRow(1, 1, "train", Leg.SMASHED, 4),  # of four batches
        WireRow(1, 1, "train", Leg.FEATURES_GRAD, 9),
        WireRow(1, 1, "evaluate", Leg.SMASHED, 7),  # held-out samples, and what attacks look at
    ]
    assert count_releases(wire, {0: 2, 1: 4, 2: 3, 3: 0}) == {0: 3, 1: 1, 2: 0}


def test_a_party_that_misses_batches_has_sent_a_sample_in_each_epoch_that_it_was_in():
    wire = [WireRow(number, 0, "train", Leg.SMASHED, 1) for number in (1, 3, 5)]
    assert count_releases(wire, {0: 2}, {0: 1}) == {0: 3}, "batches 0, 2 and 4 of epochs of two"
    late = [WireRow(9, 0, "train", Leg.SMASHED, 1)]
    assert count_releases(late, {0: 2}, {0: 1}) == {0: 1}, "what it missed was not sent"
    whole = [WireRow(number, 0, "train", Leg.SMASHED, 2) for number in (1, 2)]
    assert count_releases(whole, {0: 4}, {0: 2}) == {0: 1}


def test_delta_is_one_in_the_clients_samples_by_default():
    given = Guarantee("dp_forward", "a sample's input", multiplier=4.0)
    losses = {each.client: each for each in account(given, {0: 2, 1: 2}, [1000, 5])}
    assert losses[0].delta == 1e-3
    assert losses[1].delta == 1e-2, "one in five says nothing"
    assert losses[0].epsilon == compute_epsilon(4.0, 2, 1e-3)
    (fixed,) = account(replace(given, delta=1e-7), {0: 2}, [1000])
    assert fixed.delta == 1e-7
    assert fixed.epsilon > losses[0].epsilon


def test_what_lies_before_the_noise_must_not_learn():
    assert lacks(FORWARD) == [""]
    (why,) = lacks(FORWARD, model={"kind": "simplecnn"})
    assert "the head learns from samples" in why
    (why,) = lacks(BACK)
    assert "tail learns" in why
    assert lacks(BACK, model={"kind": "simplecnn", "learns": ["head", "trunk"]}) == [""]


def test_noise_that_depends_on_the_data_has_none():
    for method in ({**FORWARD, "relative": True}, {"kind": "dp_forward", "relative": False}):
        assert "depends" in lacks(method)[0]
    assert "depends" in lacks({**BACK, "noise": "laplace"}, **TRUNK_ALONE)[0]
    assert "not clipped" in lacks({"kind": "noise"})[0]
    assert lacks({"kind": "cast"}) == []


def test_other_methods_may_encode_what_is_noised_and_nothing_else():
    assert lacks(FORWARD, {"kind": "lightsplit"}, {"kind": "cast", "to": "int8"}) == [""]
    (why,) = lacks({"kind": "lightsplit"}, FORWARD)
    assert says(why, "lightsplit ... before the noise")
    for kind in ("wcc", "nopeek", "shredder"):
        why, *_ = lacks(FORWARD, {"kind": kind})
        assert says(why, f"{kind} ... more than encode")


def test_a_lift_that_learns_at_the_client_is_no_fixed_code():
    """Its batch norm mixes rows, and it learns from true labels."""
    lift = {"kind": "lightsplit", "legs": ["smashed", "features"]}
    trunk_alone = {"model": {"kind": "simplecnn", "learns": ["head", "trunk"]}}
    assert lacks(BACK, lift, **trunk_alone) == [""]
    (why,) = lacks(BACK, {**lift, "lift": "learned"}, **trunk_alone)
    assert says(why, "lightsplit ... encode")
    assert lacks(FORWARD, {"kind": "lightsplit", "lift": "learned"}) == [""]


def test_copies_of_a_digit_spend_apart():
    twice = {"source": {"kind": "digits", "repeat": 2}}
    for methods in ([FORWARD], [BACK]):
        fields = TRUNK_ALONE if methods == [BACK] else FROZEN
        assert lacks(*methods, **fields) == [""]
        (why,) = lacks(*methods, **fields, data={**twice, "partition": "iid"})
        assert says(why, "copies ... data.source.repeat: 1")


def test_noise_on_both_legs_protects_the_whole_sample():
    given = scenario(**TRUNK_ALONE, method=[FORWARD, BACK])
    first, second, both = list_guarantees(given)
    assert [first.lacks, second.lacks, both.lacks] == ["", "", ""]
    assert both.multiplier**-2 == pytest.approx(first.multiplier**-2 + second.multiplier**-2)
    assert both.multiplier < min(first.multiplier, second.multiplier)
    assert says(both.protects, "input and label")


def test_a_deployed_run_that_went_back_has_sent_gradients_under_the_same_noise():
    given = scenario(**TRUNK_ALONE, method=[FORWARD, BACK])
    once, back, both = void_repeated(list_guarantees(given))
    assert once.lacks == "", "smashed data is the same again"
    assert says(back.lacks, "checkpoint")
    assert says(both.lacks, "checkpoint")
    drawn = list_guarantees(scenario(method=[RESPONSE]))
    assert void_repeated(drawn) == drawn, "labels are drawn once"


def test_a_simulation_that_went_back_keeps_its_guarantee_and_a_deployed_run_does_not(
    tmp_path, monkeypatch
):
    """A simulation repeats the same packets to the bit."""
    given = scenario(**TRUNK_ALONE, method=[BACK], schedule={"rounds": 1})
    made = run_to_end(given, tmp_path)
    live, notes = made.live, Notes(made.live, made.path, made.ledger.writer)

    def has_epsilon() -> bool:
        notes.end("finished")
        (entry,) = Run.load(made.path).summary["privacy"]
        return entry["epsilon"] is not None

    monkeypatch.setattr(type(live.parts.pool), "remote", True)
    assert has_epsilon()
    live.load(live.state(), live.progress)
    assert not has_epsilon()
    monkeypatch.setattr(type(live.parts.pool), "remote", False)
    assert has_epsilon()


def test_batches_of_undone_rounds_are_sent_again_and_not_counted():
    undoing = {"kind": "krum", "response": "rollback"}
    (why,) = lacks(FORWARD, detectors=[undoing])
    assert says(why, "undone ... response: rollback")
    assert lacks(FORWARD, detectors=[{**undoing, "response": "skip"}]) == [""]


def texts(path: Path, *methods: dict[str, Any], **model: Any) -> Scenario:
    own = {"sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1, **model}
    return text_scenario(path, model=own, method=list(methods))


def test_the_labels_of_a_causal_model_are_its_texts(tmp_path):
    causal = {"kind": "causal_lm", "learns": ["trunk"]}
    for method, other in ((FORWARD, "dp_sgd"), (BACK, "dp_forward")):
        (alone,) = list_guarantees(texts(tmp_path, method, **causal))
        assert says(alone.lacks, "labels ... tokens")
        assert other in alone.lacks
    (both,) = list_guarantees(texts(tmp_path, FORWARD, BACK, **causal))
    assert both.lacks == ""
    (alone,) = list_guarantees(
        texts(tmp_path, FORWARD, kind="sequence_classifier", learns=["trunk"])
    )
    assert alone.lacks == ""


def test_a_token_goes_on_into_others_unless_the_head_only_embeds(tmp_path):
    token = {**FORWARD, "per": "token"}
    model = {"kind": "sequence_classifier", "learns": ["trunk", "tail"]}
    (through,) = list_guarantees(texts(tmp_path, token, **model))
    assert "mix" in through.lacks
    (embedded,) = list_guarantees(texts(tmp_path, token, **model, head=0))
    assert (embedded.lacks, says(embedded.protects, "token ... text")) == ("", True)


def few(**changes: Any) -> Scenario:
    """Build clients of unequal size: 45 to 15 samples, in batches of 8."""
    return scenario(
        **FROZEN,
        method=[FORWARD],
        data={"partition": {"kind": "linear"}},
        train={"batch_size": 8},
        **changes,
    )


def count_sendings(made: Experiment) -> list[int]:
    """Count how often each client has sent one of its samples at most, sample by sample."""
    most = []
    for client in made.clients:
        training = made.parts.pool.ask(client, Whole()).training
        feed, counts = training.feeds["private"], Counter[int]()
        for number in range(training.taken["private"]):
            counts.update(feed.indices(number).tolist())
        most.append(max(counts.values()))
    return most


def test_a_run_tells_what_it_spent_by_client_in_its_summary_and_in_its_tables(tmp_path):
    given = few()
    made = run_to_end(given, tmp_path / "run")
    done = Run.load(made.path)
    (entry,) = done.summary["privacy"]
    parts = made.data.parts
    rows = pd.read_csv(made.path / "privacy.csv")
    assert rows["samples"].tolist() == [len(part) for part in parts]
    assert rows["times_sent"].tolist() == count_sendings(made)
    multiplier = compute_gaussian_sigma(2.0, 1e-5)
    for row in rows.itertuples():
        assert row.epsilon == compute_epsilon(multiplier, row.times_sent, row.delta)
    assert entry["epsilon"] == rows["epsilon"].max()
    assert entry["client"] == int(rows["epsilon"].idxmax())
    (shown,) = [table for table in show(done) if table.title.startswith("differential")]
    assert shown.rows[0][:2] == ("dp_forward", "a sample's input")
    assert shown.rows[0][-1] == f"{entry['epsilon']:.3g}"
    compared = compare([done])
    assert compared.rows[0][compared.columns.index("epsilon")].endswith("(a sample's input)")


def test_without_a_guarantee_the_tables_say_why(tmp_path):
    done = Run.load(run_to_end(scenario(method=["dp_sgd"], schedule={"rounds": 1}), tmp_path).path)
    (shown,) = [table for table in show(done) if table.title.startswith("differential")]
    assert shown.rows[0][0] == "dp_sgd"
    assert "none: clipping" in shown.rows[0][-1]
    assert not (done.path / "privacy.csv").exists()
    compared = compare([done])
    assert compared.rows[0][compared.columns.index("epsilon")] == "none"


@pytest.mark.slow
def test_a_resumed_run_has_spent_what_one_that_was_never_stopped_has(tmp_path):
    whole = run(few(schedule={"rounds": 3}), tmp_path / "whole")
    run(few(schedule={"rounds": 1}), tmp_path / "parts")
    parts = run(few(schedule={"rounds": 3}), tmp_path / "parts", resume=True)
    assert parts.summary["privacy"] == whole.summary["privacy"]
    assert whole.summary["privacy"][0]["times_sent"] >= 3


def test_clients_that_drop_out_have_sent_their_samples(tmp_path):
    made = run_to_end(few(cohort={"dropout": 1.0}, schedule={"rounds": 3}), tmp_path / "run")
    done = Run.load(made.path)
    assert done.rounds["dropped"].sum() > 0
    packets = done.wire.query("leg == 'smashed' and phase == 'train'")["packets"].sum()
    assert packets > done.rounds["steps"].sum(), "what was sent and not learned from"
    rows = pd.read_csv(made.path / "privacy.csv")
    assert rows["times_sent"].tolist() == count_sendings(made)


def test_without_the_accountant_a_run_warns_at_its_start_and_says_so_at_its_end(
    tmp_path, monkeypatch
):
    from simsplit.progress import Observer

    class Warned(Observer):
        messages: ClassVar[list[str]] = []

        def warn(self, message):
            self.messages.append(message)

    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    monkeypatch.setattr(accounting, "find_spec", lambda name: None)
    composition.compose.cache_clear()
    done = run(few(schedule={"rounds": 1}), tmp_path / "run", observers=[Warned()])
    assert Warned.messages == [accounting.MISSING]
    assert done.summary["privacy"][0]["none"] == accounting.MISSING
    assert "pip install '.[dp]'" in accounting.MISSING


def collect_rows(given: Scenario, path: Path, *, other: bool) -> list[torch.Tensor]:
    """Return all rows that cross in training, with `other` after one image was made black."""
    data = given.prepare_data()
    if other:
        inputs = data.train.inputs.clone()
        inputs[int(data.parts[0][0])] = 0
        data = replace(data, train=replace(data.train, inputs=inputs))
    made, rows = Experiment(given, path, data=data), []

    class Tap:
        def observe(self, packet: Packet) -> None:
            if packet.leg is Leg.SMASHED and made.parts.wire.moment.is_training:
                rows.extend(packet.tensors[0].clone())

    made.parts.wire.taps.append(Tap())
    made.run(resume=False)
    return rows


@pytest.mark.parametrize(
    "learns", quick([["trunk", "tail"], ["head", "trunk", "tail"]], ["trunk", "tail"])
)
def test_a_neighbours_packets_differ_in_that_samples_rows_alone_by_twice_the_norm(learns, tmp_path):
    """Which is what epsilon was computed for; and is not so where the head learns."""
    given = few(schedule={"rounds": 2})
    given = parse(merge(given.model_dump(mode="json"), {"model": {"learns": learns}}))
    ours, theirs = (collect_rows(given, tmp_path / str(n), other=bool(n)) for n in (0, 1))
    moved = [
        (one.float() - two.float()).norm().item() for one, two in zip(ours, theirs, strict=True)
    ]
    some = [distance for distance in moved if distance > 0]
    if "head" in learns:
        assert len(some) > 2
    else:
        assert len(some) == 2, "once in each of two epochs"
        assert max(some) <= 2.0 * (1 + 1e-3)


TWO_CLASSES = {
    "data": {"source": {"kind": "sklearn", "name": "breast_cancer"}, "train_samples": 60},
    "model": {"kind": "mlp", "widths": [8, 8, 8], "head": 1, "tail": 1},
}
RESPONSE = {"kind": "randomised_response", "epsilon": 1.5}


def test_labels_that_are_drawn_once_have_their_epsilon_however_often_they_are_used(tmp_path):
    given = scenario(**TWO_CLASSES, method=[RESPONSE])
    (known,) = list_guarantees(given)
    assert (known.protects, known.epsilon, known.lacks) == ("a sample's label", 1.5, "")
    assert not accounting.lacks_accountant(given), "nothing that an accountant would have to tell"
    losses = {each.client: each for each in account(known, {0: 3, 1: 9}, [1000, 5])}
    assert [(each.delta, each.epsilon) for each in losses.values()] == [(0.0, 1.5)] * 2
    run = Run.load(run_to_end(given, tmp_path / "run").path)
    (entry,) = run.summary["privacy"]
    assert (entry["epsilon"], entry["delta"], entry["times_sent"]) == (1.5, 0.0, 2)
    assert "multiplier" not in entry


def test_what_stands_before_the_draw_may_have_seen_the_labels():
    wcc = {"kind": "wcc"}
    assert lacks(RESPONSE, wcc) == [""]
    assert lacks({"kind": "cast"}, RESPONSE) == [""]
    assert says(lacks(wcc, RESPONSE)[0], "wcc ... listed before")


def test_a_tail_of_true_labels_must_stay_at_home():
    def of(*methods, **clients):
        given = scenario(**TWO_CLASSES, method=list(methods), clients=clients)
        return [each.lacks for each in list_guarantees(given)]

    pslf = {"kind": "pslf"}
    assert of(pslf, count=1) == [""]
    assert "is shared" in of(pslf, heads="shared")[0]
    assert "is shared" in of(pslf, heads="per_client", tail="shared")[0]
    assert of(pslf, heads="per_client", tail="own") == [""]
    assert says(of(pslf, {"kind": "wcc"}, heads="per_client")[0], "wcc ... more than encode")
    assert of(RESPONSE, pslf, heads="shared")[0] == "", "whose tail knows drawn labels alone"


def test_one_draw_of_labels_alone_has_its_epsilon():
    """Two draws from true labels add up, and figures of drawn labels pass no other noise."""

    def of(*methods):
        model = {**TWO_CLASSES["model"], "learns": ["head", "trunk"]}
        clients = {"heads": "per_client", "tail": "own"}
        given = scenario(**{**TWO_CLASSES, "model": model}, method=[*methods], clients=clients)
        return [each.lacks for each in list_guarantees(given)]

    pslf = {"kind": "pslf"}
    assert all(says(why, "draws labels too") for why in of(pslf, RESPONSE))
    first, second = of(RESPONSE, pslf)
    assert (first, says(second, "randomised_response draws labels too")) == ("", True)
    for drawing in (RESPONSE, pslf):
        for methods in ((drawing, BACK), (BACK, drawing)):
            whys = dict(zip([each["kind"] for each in methods], of(*methods), strict=True))
            assert whys[drawing["kind"]] == ""
            assert says(whys["dp_sgd"], f"{drawing['kind']} draws labels")


def test_a_norm_of_head_and_tail_together_tells_the_tails_labels():
    pslf = {"kind": "pslf"}
    fields = {**TWO_CLASSES, "clients": {"heads": "per_client"}}
    assert lacks(pslf, **fields) == [""]
    (why,) = lacks(pslf, **fields, train={"clip_norm": 0.1})
    assert says(why, "train.clip_norm ... head and tail")


def test_noise_without_a_guarantee_is_not_part_of_a_budget():
    from simsplit.forecasting.planning import plan

    given = scenario(**FROZEN, method=[FORWARD, BACK])
    assert says(lacks(FORWARD, BACK)[1], "the tail learns")
    lines = plan(given, timing=False, epsilon=3.0).facts.noise
    assert [line["field"] for line in lines] == ["method.0.epsilon"]


def test_a_plan_says_the_epsilon_that_the_run_then_has(tmp_path):
    from simsplit.forecasting.planning import plan

    for given in (few(), scenario(method=[{"kind": "dp_sgd"}])):
        forecast = plan(given, timing=False)
        made = run_to_end(given, tmp_path / str(len(forecast.facts.privacy[0])))
        assert [*forecast.facts.privacy] == Run.load(made.path).summary["privacy"]
