"""What a party reads of labels and of other parties' columns, on tensors and in a run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import experiment, run_to_end, scenario
from contracts.leaks import build_setting
from gists import says
from torch import Tensor, nn

from simsplit import Run
from simsplit.attacks import ATTACKS
from simsplit.attacks.label_attack import Clue, KnownLabels
from simsplit.attacks.semi_supervised import Completion, MixMatch
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.calls import Expose
from simsplit.parties.feed import TARGETS
from simsplit.parties.optimizers import ScaledSgd, ScaledSgdConfig, SgdConfig
from simsplit.seeds import isolate, rng_for

PARTIES: dict[str, Any] = {
    "data": {
        "train_samples": 240,
        "test_samples": 40,
        "auxiliary": 0.3,
        "partition": {"kind": "parts", "parts": 2},
    },
    "model": {"kind": "mlp", "widths": [32, 10, 16], "head": 2, "tail": 1},
    "topology": "vertical",
    "clients": {"count": 2, "heads": "per_client"},
    "targets": {"count": 100},
    "train": {"batch_size": 16, "client": {"lr": 0.1, "momentum": 0.9}},
}


def read_gradients(logits: Tensor, labels: Tensor) -> Clue:
    """Return what a party reads in the gradients of summed scores."""
    sent = logits.clone().requires_grad_()
    other = torch.randn(logits.shape, generator=rng_for(0, "other"))
    nn.functional.cross_entropy(sent + other, labels).backward()
    packets = [
        Packet(0, Leg.SMASHED, 1, 0, (logits,)),
        Packet(0, Leg.SMASHED_GRAD, 1, 0, (sent.grad,)),
    ]
    attack = ATTACKS["direct_labels"]().build(build_setting().known.move_to(0))
    for _ in attack.work(packets):
        pass
    (clue,) = attack.clues
    return clue


def test_a_sum_of_scores_tells_every_label_by_the_sign_of_its_gradient() -> None:
    labels = torch.randint(10, (64,), generator=rng_for(0, "labels"))
    logits = 3 * torch.randn(64, 10, generator=rng_for(0, "logits"))
    assert torch.equal(read_gradients(logits, labels).values, labels)


def test_gradients_that_are_noise_tell_nothing() -> None:
    labels = torch.randint(10, (400,), generator=rng_for(0, "labels"))
    noise = torch.randn(400, 10, generator=rng_for(0, "noise"))
    attack = ATTACKS["direct_labels"]().build(build_setting().known.move_to(0))
    packets = [Packet(0, leg, 1, 0, (noise,)) for leg in (Leg.SMASHED, Leg.SMASHED_GRAD)]
    for _ in attack.work(packets):
        pass
    (clue,) = attack.clues
    assert (clue.values == labels).float().mean() < 0.2


def complete(labels: Tensor, inputs: Tensor, steps: int = 150) -> float:
    """Return the share of unknown labels that a completed head names, four known of each class."""
    with isolate(0, "head"):
        head = nn.Sequential(nn.Flatten(), nn.Linear(12, 8))
    rows = torch.cat([(labels == each).nonzero()[:4, 0] for each in range(3)])
    made = Completion(head, inputs, 3, MixMatch(steps=steps, lr=0.01, decay=0.95), seed=1)
    done = [*made.learn(rows, labels[rows])]
    assert done == [*range(1, steps + 1)]
    left = torch.ones(len(labels), dtype=torch.bool)
    left[rows] = False
    return float((made.predict() == labels)[left].float().mean())


def test_a_few_labels_complete_a_head_where_columns_tell_the_class() -> None:
    labels = torch.randint(3, (200,), generator=rng_for(0, "labels"))
    inputs = torch.randn(200, 12, generator=rng_for(0, "inputs"))
    inputs[:, :3] += 3 * nn.functional.one_hot(labels, 3)
    assert complete(labels, inputs) > 0.85
    shuffled = labels[torch.randperm(200, generator=rng_for(0, "shuffled"))]
    assert complete(shuffled, inputs) < 0.5


def test_completion_starts_again_alike_and_leaves_the_partys_head_alone() -> None:
    inputs = torch.randn(40, 12, generator=rng_for(0, "inputs"))
    labels = torch.arange(40) % 3
    head = nn.Linear(12, 4)
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    guesses = []
    for _ in range(2):
        made = Completion(head, inputs, 3, MixMatch(steps=5), seed=1)
        for _ in made.learn(torch.arange(12), labels[:12]):
            pass
        guesses.append(made.model(inputs))
    assert torch.equal(*guesses)
    assert all(torch.equal(head.state_dict()[name], tensor) for name, tensor in before.items())


def step(optimizer: torch.optim.Optimizer, weight: nn.Parameter, *grads: float) -> list[float]:
    """Return the weight after each step."""
    seen = []
    for grad in grads:
        weight.grad = torch.tensor([grad])
        optimizer.step()
        seen.append(float(weight.detach()))
    return seen


def test_a_scaled_step_grows_where_it_goes_on_and_never_shrinks() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = ScaledSgdConfig(lr=0.1, scale=1.0).build([weight])
    # -0.1; then twice it, since the ratio is 1; back, factor 1; the same way, 4 times as far: 5
    expected = [-0.1, -0.3, -0.2, -0.2 + 0.4 * 5]
    assert step(optimizer, weight, 1.0, 1.0, -1.0, -4.0) == pytest.approx(expected, abs=1e-6)
    plain = nn.Parameter(torch.zeros(1))
    assert step(SgdConfig(lr=0.1).build([plain]), plain, 1.0, 1.0)[1] == pytest.approx(-0.2)


def test_a_scaled_optimizer_is_resumed_with_its_last_step() -> None:
    given = scenario(**PARTIES, attacks=[{"kind": "active_completion", "by": "party 0"}])
    assert isinstance(given.choose_optimizer(0), ScaledSgdConfig)
    assert given.choose_optimizer(1) == given.train.client
    weight = nn.Parameter(torch.zeros(1))
    optimizer = given.choose_optimizer(0).build([weight])
    step(optimizer, weight, 1.0)
    assert ScaledSgd.LAST in optimizer.state[weight]


def test_what_is_exposed_with_replies_leaves_no_trace(tmp_path: Path) -> None:
    for labels in ("party", "server"):
        attacks = [{"kind": "kmeans", "by": "party 0"}]
        given = scenario(**PARTIES, vertical={"labels": labels}, attacks=attacks)
        parts = experiment(given, tmp_path / labels).parts
        trunk = parts.server.learner
        before = {name: tensor.clone() for name, tensor in trunk.state().items()}
        expose = Expose(TARGETS, 1, 0, as_in_training=True)
        seen = parts.exchange.expose(0, expose, Leg.SMASHED_GRAD)
        assert [packet.leg for packet in seen] == [Leg.SMASHED, Leg.SMASHED_GRAD]
        assert {packet.client for packet in seen} == {0}
        assert seen[1].tensors[0].abs().sum() > 0
        assert all(weight.grad is None for weight in trunk.parameters)
        assert all(torch.equal(trunk.state()[name], tensor) for name, tensor in before.items())
        assert not parts.server.report(1).get("samples")


def test_in_a_run_parties_read_labels_and_columns(tmp_path: Path) -> None:
    attacks = [
        {"kind": "passive_completion", "steps": 200, "known": 2},
        {"kind": "kmeans", "by": "party 0"},
        {"kind": "ridge"},
        {"kind": "ridge", "by": "party 1", "name": "ridge_of_features"},
    ]
    given = scenario(**PARTIES, schedule={"rounds": 3}, attacks=attacks)
    leaks = Run.load(run_to_end(given, tmp_path / "run").path).leaks
    labels = leaks[(leaks["kind"] == "labels") & (leaks["metric"] == "accuracy")]
    best = labels.groupby("attack")["value"].max()
    assert best["passive_completion"] > 0.2
    assert best["kmeans"] > 0.3
    mse = leaks[leaks["metric"] == "mse"].groupby("attack")["value"].mean()
    for attack in ("ridge", "ridge_of_features"):
        assert mse[attack] < mse["mean_image"]
    assert mse["ridge"] < mse["ridge_of_features"]


@pytest.mark.slow
def test_a_defence_of_gradients_lowers_what_a_party_reads_of_labels(tmp_path: Path) -> None:
    attacks = [
        {"kind": "kmeans", "by": "party 0"},
        {"kind": "direct_labels"},
        {"kind": "passive_completion", "steps": 200},
    ]
    read = {}
    for name, method in {"none": [], "noise": [{"kind": "grad_perturb", "epsilon": 2.0}]}.items():
        given = scenario(**PARTIES, method=method, schedule={"rounds": 2}, attacks=attacks)
        leaks = Run.load(run_to_end(given, tmp_path / name).path).leaks
        named = leaks[(leaks["kind"] == "labels") & (leaks["metric"] == "accuracy")]
        read[name] = named.groupby("attack")["value"].max()
    assert read["none"]["kmeans"] > read["noise"]["kmeans"] + 0.15, read
    assert read["none"]["direct_labels"] > read["noise"]["direct_labels"], read
    # A head that has learned from noise alone is worth no more than its columns.
    assert read["none"]["passive_completion"] > read["noise"]["passive_completion"] + 0.1, read


def test_an_attack_knows_the_methods_of_the_party_that_it_reads(tmp_path: Path) -> None:
    own = [{"kind": "cast", "by": "party 0"}, {"kind": "quantise", "by": "party 1"}]
    attacks = [
        {"kind": "unsplit"},
        {"kind": "kmeans", "by": "party 0"},
        {"kind": "norm"},  # reads gradients of features, which the party with the labels sends
    ]
    for target, chain in enumerate(["cast", "quantise"]):
        targets = {**PARTIES["targets"], "client": target}
        given = scenario(**{**PARTIES, "targets": targets}, method=own, attacks=attacks)
        made = experiment(given, tmp_path / chain).live.attacking.attacks
        known = {title: [m.kind_name for m in each.known.methods] for title, each in made.items()}
        assert known == {"unsplit": [chain], "kmeans": ["cast"], "norm": ["quantise"]}


def test_another_partys_method_forbids_no_attack() -> None:
    mixed = {"kind": "c3sl", "ratio": 2}
    attack = {"kind": "unsplit", "objective": "adaptive"}
    with pytest.raises(ScenarioError) as error:
        scenario(**PARTIES, method=[{**mixed, "by": "party 0"}], attacks=[attack])
    assert error.value.field.startswith("attacks.0")
    scenario(**PARTIES, method=[{**mixed, "by": "party 1"}], attacks=[attack])


OF_IMAGES: dict[str, dict[str, Any]] = {
    "unsplit": {"outer": 2, "inner": 2},
    "rmle": {"iterations": 3},
    "whitebox": {"iterations": 3, "pairs": 20},
}


def test_attacks_on_images_by_the_server_give_a_partys_part(tmp_path: Path) -> None:
    attacks = [{"kind": kind, **OF_IMAGES[kind]} for kind in ("unsplit", "rmle")]
    few = {"targets": {"count": 8}, "schedule": {"rounds": 1}}
    run = run_to_end(scenario(**{**PARTIES, **few}, attacks=attacks), tmp_path / "run")
    leaks = Run.load(run.path).leaks
    mse = leaks[leaks["metric"] == "mse"].groupby("attack")["value"].mean()
    assert mse[["unsplit", "rmle"]].between(0, 1).all()


@pytest.mark.parametrize("kind", OF_IMAGES)
def test_the_party_with_labels_has_no_head_to_follow(kind: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(**PARTIES, attacks=[{"kind": kind, "by": "party 1", **OF_IMAGES[kind]}])
    assert error.value.field == "attacks.0.by"
    assert says(error.value.reason, "smashed data ... party with labels ... server ... ridge")


def test_a_decoder_of_images_without_channels_at_the_cut_is_refused(tmp_path: Path) -> None:
    attacks = [{"kind": "whitebox", **OF_IMAGES["whitebox"]}]
    with pytest.raises(ScenarioError) as error:
        run_to_end(scenario(**PARTIES, attacks=attacks), tmp_path / "run")
    assert error.value.field == "attacks"
    assert says(error.value.reason, "channels ... 10 ... unsplit")


@pytest.mark.parametrize(
    ("changes", "field", "gist"),
    [
        ({"attacks": [{"kind": "kmeans", "by": "party 1"}]}, "attacks.0.by", "party with labels"),
        ({"attacks": [{"kind": "kmeans", "by": "client 0"}]}, "attacks.0.by", "party 0"),
        ({"attacks": [{"kind": "kmeans", "by": "party 2"}]}, "attacks.0.by", "between 0 and 1"),
        ({"attacks": [{"kind": "ridge", "by": "party 0"}]}, "attacks.0.by", "smashed data"),
        (
            {"attacks": [{"kind": "ridge", "by": "party 1"}], "targets": {"client": 1}},
            "attacks.0.by",
            "targets.client",
        ),
        (
            {"attacks": [{"kind": "active_completion"}], "train": {"client": {"kind": "adam"}}},
            "train.client.kind",
            "adam ... sgd",
        ),
        ({"attacks": [{"kind": "sdar"}]}, "attacks.0.kind", "one head ... vertical"),
    ],
)
def test_a_seat_from_which_nothing_can_be_read_is_refused(
    changes: dict[str, Any], field: str, gist: str
) -> None:
    base = {**PARTIES, "train": {"batch_size": 16}}
    with pytest.raises(ScenarioError) as error:
        scenario(**{**base, **changes})
    assert error.value.field == field
    assert says(error.value.reason, gist), error.value.reason


def test_a_party_is_refused_where_clients_have_whole_samples() -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(attacks=[{"kind": "passive_completion"}])
    assert error.value.field == "attacks.0.kind"
    assert says(error.value.reason, "passive_completion ... party ... vertical")


def test_more_known_labels_than_targets_are_refused(tmp_path: Path) -> None:
    attacks = [{"kind": "passive_completion", "known": 50}]
    with pytest.raises(ScenarioError) as error:
        run_to_end(scenario(**PARTIES, attacks=attacks, schedule={"rounds": 1}), tmp_path / "run")
    assert error.value.field == "targets.count"


def test_one_class_known_alone_names_nothing() -> None:
    attack = ATTACKS["passive_completion"]().build(build_setting().known.move_to(0))
    attack.known_labels = KnownLabels(2, torch.arange(1), torch.zeros(1, dtype=torch.int64))
    assert not [*attack.work([])]
    assert not attack.clues
