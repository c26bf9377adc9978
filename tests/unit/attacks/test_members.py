"""Attacks on members: what they make of planted signals, and of candidates that are all alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import run_to_end, scenario
from contracts.leaks import build_setting
from gists import says
from torch.nn.functional import cross_entropy

from simsplit.attacking.finished import attack
from simsplit.attacking.member_judge import DELTA
from simsplit.attacks import ATTACKS
from simsplit.attacks.lira import compare
from simsplit.attacks.member_attack import CandidateReading, Losses, measure_losses
from simsplit.data import planting
from simsplit.data.candidates import choose_candidates
from simsplit.errors import RunError, ScenarioError
from simsplit.legs import Leg
from simsplit.metrics.audit_bounds import audit
from simsplit.metrics.leaks import measure_members, trace_rates
from simsplit.packets import Packet
from simsplit.report.grouping import Entry
from simsplit.report.leak_tables import _list_means, compare_leaks
from simsplit.results import Run
from simsplit.results.leak_table import keep_kinds
from simsplit.results.member_leaks import COIN, EPSILON
from simsplit.results.recovered_files import load_rates
from simsplit.results.recovered_kinds import KINDS
from simsplit.seeds import numpy_rng_for

MEMBERS = np.arange(400) % 2 == 0


def draw(gap, seed=0):
    """Draw scores of which those of members are larger by a gap."""
    noise = torch.randn(len(MEMBERS), generator=torch.Generator().manual_seed(seed)).double()
    return noise + gap * torch.from_numpy(MEMBERS).double()


def tell(kind, losses=None, shadows=(), packets=(), **options):
    """Return the scores of an attack that is told this reading."""
    made = ATTACKS[kind](**options).build(build_setting().known)
    made.reading = CandidateReading({"weights": losses} if losses else {}, packets, shadows)
    for _ in made.work([]):
        pass
    return made.scores


def measure(scores, figure="auc", members=MEMBERS):
    return measure_members(np.asarray(scores), members, numpy_rng_for(0, "test"))[figure]


def test_losses_are_torchs_and_sureness_is_the_logit_of_the_labels_probability():
    outputs = 3 * torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 5
    made = measure_losses(outputs, labels)
    torch.testing.assert_close(made.loss, cross_entropy(outputs, labels, reduction="none"))
    p = outputs.softmax(-1)[torch.arange(20), labels]
    torch.testing.assert_close(made.sureness, (p / (1 - p)).log())
    sure = measure_losses(torch.tensor([[200.0, 0.0]]), torch.tensor([0]))
    assert sure.sureness.item() == 200  # and not infinite


def test_the_loss_of_a_text_is_the_mean_over_its_labelled_tokens():
    outputs = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, -100, 2], [-100, -100, 3]])
    each = cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none").view(2, 3)
    expected = torch.stack([(each[0, 0] + each[0, 2]) / 2, each[1, 2]])
    torch.testing.assert_close(measure_losses(outputs, labels).loss, expected)


def test_members_found_are_counted_above_the_threshold_that_few_others_pass():
    members = np.array([True] * 10 + [False] * 1000)
    scores = np.concatenate([np.arange(10.0), np.full(1000, -1.0)])
    scores[[10, 11]] = 6.5, 20  # two others of a thousand
    found = measure(scores, "tpr_at_1pct", members)
    assert (found.value, found.low < 1) == (1.0, True)
    assert measure(scores, "tpr_at_01pct", members).value == 0.3  # those above 6.5
    assert measure(-scores, "tpr_at_1pct", members).value == 0
    assert measure(np.zeros(1010), "tpr_at_1pct", members).value == 0  # ties are no find


def test_an_auc_of_members_keeps_its_sign():
    assert measure(draw(-3.0)).value < 0.1
    fpr, tpr = trace_rates(draw(3.0).numpy(), MEMBERS)
    assert np.trapezoid(tpr, fpr) == pytest.approx(measure(draw(3.0)).value, abs=1e-6)


def test_smaller_losses_and_shorter_gradients_are_of_members():
    score = draw(3.0)
    assert tell("loss_threshold", Losses(-score, score))["weights"].tolist() == score.tolist()
    rows = torch.from_numpy(np.exp(-score.numpy()))[:, None] * torch.ones(1, 8)
    features = torch.zeros(len(rows), 8)
    sent = [
        Packet(0, Leg.FEATURES, 1, 0, (features,)),
        Packet(0, Leg.FEATURES_GRAD, 1, 0, (rows.float() / len(rows),)),
    ]
    assert measure(tell("gradient_norm", packets=[sent])["wire"]).value > 0.95
    assert tell("gradient_norm") == {}  # where no gradients cross


@pytest.mark.parametrize("seed", range(3))
def test_what_does_not_depend_on_membership_stays_at_a_coin(seed):
    score = draw(0.0, seed)
    read = tell("loss_threshold", Losses(-score, score))["weights"]
    auc = measure(read)
    assert auc.low < 0.5 < auc.high
    assert measure(read, "tpr_at_1pct").value < 0.06


@pytest.mark.parametrize("count", [4, 40])
def test_shadows_tell_a_hard_member_from_an_easy_other(count):
    rng = torch.Generator().manual_seed(0)
    ease = 5 * torch.randn(len(MEMBERS), generator=rng)
    noise = torch.randn(count + 1, len(MEMBERS), generator=rng) / 2
    shadows = [Losses(-(ease + each), ease + each) for each in noise[1:]]
    sure = ease + noise[0] + 2 * torch.from_numpy(MEMBERS)
    own = Losses(-sure, sure)
    lira = tell("lira", own, shadows)["weights"]
    assert measure(lira, "tpr_at_1pct").low > measure(-own.loss, "tpr_at_1pct").high
    assert measure(lira).value > 0.95
    alike = tell("lira", Losses(-ease, ease + noise[0]), shadows)["weights"]
    assert measure(alike).low < 0.5 < measure(alike).high


def test_few_shadows_share_a_variance_and_many_have_one_for_each_candidate():
    few = [torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])]
    # means 2 and 0, variances 2 and 0, in common 1
    torch.testing.assert_close(compare(torch.tensor([4.0, 1.0]), few), torch.tensor([2.0, 1.0]))
    many = [torch.tensor([1.0, 5.0]), torch.tensor([3.0, 5.5])] * 16
    spread = torch.stack(many).std(0)
    expected = (torch.tensor([4.0, 6.0]) - torch.tensor([2.0, 5.25])) / spread
    torch.testing.assert_close(compare(torch.tensor([4.0, 6.0]), many), expected)


# planting and candidates


def plant(differing="sample", seed=3, count=7, **changes):
    audit = {"kind": "canaries", "count": count, "differing": differing}
    whole = scenario(seed=seed, attacks=[audit], **changes)
    return whole, scenario(seed=seed, **changes).prepare_data(), whole.prepare_data()


@pytest.mark.parametrize("differing", ["sample", "input", "label"])
def test_a_pair_has_one_place_in_its_client_and_differs_as_asked(differing):
    _, before, data = plant(differing)
    assert data.canaries is not None
    first, count = data.canaries.first, len(data.canaries.first)
    one, other = (data.canaries.samples.take(rows) for rows in torch.arange(2 * count).split(count))
    equal = (one.inputs == other.inputs).flatten(1).all(1)
    assert (equal == (differing == "label")).all()
    if differing != "sample":
        assert ((one.labels == other.labels) == (differing == "input")).all()
    assert 0 < first.sum() < count
    # What is trained on is the sample that the coin chose, with its label.
    trained = data.train.take(data.parts[0])
    for index in range(count):
        for side, there in ((one, first[index]), (other, not first[index])):
            same = (trained.inputs == side.inputs[index]).flatten(1).all(1)
            assert bool((same & (trained.labels == side.labels[index])).any()) == there
    assert len(data.parts[0]) == len(before.parts[0]) - (0 if differing == "label" else count)
    for client in (1, 2):
        assert data.parts[client].tolist() == before.parts[client].tolist()


class Flipped:
    """A generator whose first coin falls the other way."""

    def __init__(self, rng):
        self.rng = rng

    def __getattr__(self, name):
        return getattr(self.rng, name)

    def random(self, count):
        coins = self.rng.random(count)
        coins[0] = 1 - coins[0]
        return coins


@pytest.mark.parametrize("differing", ["sample", "input", "label"])
def test_neighbours_by_one_coin_differ_in_one_sample_in_one_place(differing, monkeypatch):
    _, _, one = plant(differing)
    monkeypatch.setattr(planting, "numpy_rng_for", lambda *scope: Flipped(numpy_rng_for(*scope)))
    _, _, other = plant(differing)
    sides = [each.train.take(each.parts[0]) for each in (one, other)]
    images = (sides[0].inputs != sides[1].inputs).flatten(1).any(1)
    labels = sides[0].labels != sides[1].labels
    changed = images if differing != "label" else labels
    assert changed.sum() == 1
    assert (labels & ~changed).sum() == 0


def test_labels_of_canaries_are_drawn_anew_and_the_data_stay_as_they_were():
    _, before, data = plant(count=7)
    assert (data.train.labels != before.train.labels).sum() <= 7
    assert (data.train.labels != before.train.labels).any()
    assert (data.train.inputs == before.train.inputs).all()
    again = plant(count=7)[2]
    assert again.canaries.first.tolist() == data.canaries.first.tolist()
    assert again.train.labels.equal(data.train.labels)


@pytest.mark.parametrize(("differing", "most"), [("sample", 7), ("label", 15)])
def test_too_many_canaries_are_refused(differing, most):
    plant(differing, count=most)
    with pytest.raises(ScenarioError) as error:
        plant(differing, count=most + 1)
    assert says(str(error.value), f"attacks.0.count: ... {most} ... {most + 1}")


def test_a_second_audit_is_refused():
    two = [{"kind": "canaries", "count": 2}, {"kind": "canaries", "name": "more", "count": 2}]
    with pytest.raises(ScenarioError, match=r"attacks\.1\.count"):
        scenario(attacks=two).prepare_data()


def test_candidates_are_balanced_in_each_class_and_others_were_not_trained_on():
    data = scenario(data={"train_samples": 200, "test_samples": 90}).prepare_data()
    made = choose_candidates(data, 1, 25)
    assert made.members.sum() == 25 == (~made.members).sum()
    labels = made.samples.labels.numpy()
    assert np.array_equal(
        np.bincount(labels[made.members], minlength=10),
        np.bincount(labels[~made.members], minlength=10),
    )
    own = {bytes(each.numpy()) for each in data.train.inputs[data.parts[1]]}
    there = [bytes(each.numpy()) in own for each in made.samples.inputs]
    assert there == made.members.tolist()


def test_a_client_without_a_class_of_the_test_samples_has_no_candidates():
    data = scenario().prepare_data()
    none = replace(data, parts=[np.empty(0, dtype=np.int64), *data.parts[1:]])
    with pytest.raises(ScenarioError, match=r"targets\.client"):
        choose_candidates(none, 0, 5)


# the audit


def compare_messages(sent, encoded, **options):
    made = ATTACKS["canaries"](**options).build(build_setting().known)
    for step, rows in enumerate(sent.split(8)):
        made.observe(Packet(0, Leg.SMASHED, 5, step, (rows,)))
    made.reading = CandidateReading(packets=[[Packet(0, Leg.SMASHED, 6, 0, (encoded,))]])
    for _ in made.work([]):
        pass
    return made.scores["messages"]


def test_a_sample_whose_message_crossed_scores_more_than_its_twin():
    rng = torch.Generator().manual_seed(0)
    both = torch.randn(2, 30, 1, 8, 8, generator=rng) + 5
    first = torch.arange(30) % 3 == 0
    sent = torch.where(first[:, None, None, None], both[0], both[1])
    noise = torch.randn(sent.shape, generator=rng) / 2
    scores = compare_messages(sent + noise, both.flatten(0, 1)).view(2, -1)
    assert ((scores[0] > scores[1]) == first).all()


def multiply_gradients(sent, encoded, rows, own):
    """Return the scores by gradients, of rows that crossed in steps of 8 and of both samples."""
    made = ATTACKS["canaries"]().build(build_setting().known)
    for step, (values, grads) in enumerate(zip(sent.split(8), rows.split(8), strict=True)):
        made.observe(Packet(0, Leg.SMASHED, 5, step, (values,)))
        made.observe(Packet(0, Leg.FEATURES_GRAD, 5, step, (grads / len(grads),)))
    answer = [
        Packet(0, Leg.SMASHED, 6, 0, (encoded,)),
        Packet(0, Leg.FEATURES, 6, 0, (torch.zeros_like(own),)),
        Packet(0, Leg.FEATURES_GRAD, 6, 0, (own / len(own),)),
    ]
    made.reading = CandidateReading(packets=[answer])
    list(made.work([]))
    return made.scores["gradients"]


def test_a_product_of_gradients_tells_which_label_was_trained_on():
    """Both samples of a pair have one input, so no message and no norm tells them apart."""
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 1, 8, 8, generator=rng)
    directions = torch.nn.functional.normalize(torch.randn(2, 30, 64, generator=rng), dim=-1)
    first = torch.arange(30) % 3 == 0
    crossed = torch.where(first[:, None], *directions) + torch.randn(30, 64, generator=rng) / 20
    # The lengths of the samples' own gradients say nothing of which one crossed.
    own = directions * torch.rand(2, 30, 1, generator=rng).add(0.1)
    scores = multiply_gradients(inputs, inputs.repeat(2, 1, 1, 1), crossed, own.flatten(0, 1))
    one, other = scores.view(2, -1)
    assert ((one > other) == first).all()
    # The product is with the row beside the sample's own message, and of its size.
    beside = torch.where(first, one, other)
    expected = (torch.where(first[:, None], *directions) * crossed).sum(1)
    torch.testing.assert_close(beside, expected)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_that_do_not_depend_on_the_coins_show_nothing(seed):
    rng = torch.Generator().manual_seed(seed)
    inputs, own = torch.randn(60, 1, 8, 8, generator=rng), torch.randn(120, 64, generator=rng)
    crossed = torch.randn(60, 64, generator=rng)
    scores = multiply_gradients(inputs, inputs.repeat(2, 1, 1, 1), crossed, own).view(2, -1)
    first = numpy_rng_for(seed, "coins").random(60) < 0.5
    assert audit({"gradients": (scores[0] - scores[1]).numpy()}, first, delta=0).epsilon < 0.2


def test_messages_of_earlier_rounds_are_dropped():
    made = ATTACKS["canaries"]().build(build_setting().known)
    for number in (1, 1, 2):
        made.observe(Packet(0, Leg.SMASHED, number, 0, (torch.zeros(3, 1, 8, 8),)))
    assert [len(each) for each in made._sent[Leg.SMASHED].values()] == [3]


ATTACKED = {
    "data": {"train_samples": 100, "test_samples": 100},
    "clients": {"count": 2},
    "schedule": {"kind": "round_robin", "rounds": 12},
    "train": {
        "batch_size": 8,
        "client": {"kind": "adam", "lr": 0.002},
        "server": {"kind": "adam", "lr": 0.002},
    },
    "evaluate": {"every": 0},
    "targets": {"count": 40},
    "attacks": [
        {"kind": "loss_threshold"},
        {"kind": "gradient_norm"},
        {"kind": "loss_threshold", "by": "client 1", "name": "next_client"},
        {"kind": "canaries", "count": 12},
    ],
}


@pytest.fixture(scope="module")
def attacked(finished):
    return finished(scenario(**ATTACKED))


def test_a_run_that_remembers_its_canaries_is_audited(attacked):
    run = Run.load(attacked)
    rows = keep_kinds(run.leaks, "members").set_index(["attack", "view", "metric"])
    assert rows.loc[("canaries", "messages", "auc"), "value"].item() > 0.9
    bound = rows.xs(EPSILON, level="metric")
    assert len(bound) == 1
    assert bound["known"].item() == DELTA
    assert run.summary["audit"]["value"] == pytest.approx(bound["value"].item())
    # All of 12 right at a share of the failure probability, from one of four scores.
    assert 0.3 < bound["value"].item() < 1.5
    assert "canaries" not in {each["attack"] for each in run.summary["members"].values()}


def test_each_seat_has_its_rows_and_curves(attacked):
    rates = load_rates(attacked)
    seats = {tuple(each) for each in rates[["attack", "view"]].drop_duplicates().to_numpy()}
    assert seats >= {
        ("loss_threshold", "weights"),
        ("next_client", "handover"),
        ("gradient_norm", "wire"),
        ("canaries", "messages"),
    }
    for _, own in rates.groupby(["attack", "view"]):
        assert (own["fpr"].iloc[0], own["tpr"].iloc[-1]) == (0, 1)
        assert own["fpr"].is_monotonic_increasing
        assert own["tpr"].is_monotonic_increasing


def test_a_finished_run_is_attacked_on_the_data_that_it_was_trained_on(
    attacked, finished, tmp_path
):
    """Without its canaries, a client's samples would be others."""
    kept = load_rates(attacked).query("attack == 'loss_threshold' and view == 'weights'")
    copied = finished.copy(scenario(**ATTACKED), tmp_path / "run")
    attack(copied, "loss_threshold", {"name": "again"})
    again = load_rates(copied).query("attack == 'again' and view == 'weights'")
    assert again[["fpr", "tpr"]].to_numpy().tolist() == kept[["fpr", "tpr"]].to_numpy().tolist()


def test_an_audit_of_a_finished_run_comes_too_late(attacked):
    with pytest.raises(RunError, match="canaries follows training"):
        attack(attacked, "canaries")


def test_vanilla_has_no_gradients_of_features_to_read():
    with pytest.raises(ScenarioError, match=r"attacks\.0"):
        scenario(topology="vanilla", attacks=[{"kind": "gradient_norm"}])


def test_heads_and_tails_of_their_own_are_handed_to_nobody():
    with pytest.raises(ScenarioError, match=r"attacks\.0.*shared"):
        scenario(
            clients={"count": 2, "heads": "per_client"},
            attacks=[{"kind": "loss_threshold", "by": "client 1"}],
        )


def test_a_client_does_not_see_what_others_send():
    with pytest.raises(ScenarioError, match=r"attacks\.0\.by"):
        scenario(attacks=[{"kind": "gradient_norm", "by": "client 1"}])


def test_a_comparison_of_runs_has_the_figures_of_each_view(tmp_path):
    given = scenario(attacks=[{"kind": "loss_threshold"}], targets={"count": 15})
    run = Run.load(run_to_end(given, tmp_path / "run").path)
    found = list(_list_means(run, "members"))
    attack = [each for each in found if each[0].startswith("loss_threshold")]
    assert attack
    assert all(column.startswith("tpr_at_1pct_") for _, column, _ in attack)
    (coin,) = (each for each in found if each not in attack)
    assert coin[0] == KINDS["members"].guesses[COIN]
    (table,) = compare_leaks("members", [Entry(run)])
    assert table.rows[0][table.columns.index(coin[0])] == f"{100 * coin[2]:.2f}"
    assert "%" in table.title
