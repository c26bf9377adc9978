"""Attacks on labels: what they make of planted clouds, of noise, and of what is seen."""

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from builders import run_to_end, scenario
from contracts.leaks import build_setting
from pace import quick
from sklearn.cluster import KMeans
from sklearn.metrics import roc_auc_score
from texts import api_scenario, text_scenario

from simsplit.attacks import ATTACKS
from simsplit.attacks.kmeans import find_clusters
from simsplit.attacks.knowledge import SeenView
from simsplit.attacks.label_attack import KnownLabels
from simsplit.attacks.spectral import principal_components
from simsplit.attacks.views import by_batch, state_at_gradient, views_of
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.results import Run
from simsplit.results.recovered_files import load_components

KINDS = ("spectral", "norm", "kmeans", "probe")
ALL = [{"kind": kind, **({"trees": 5} if kind == "probe" else {})} for kind in KINDS]


def clue(kind, rows, labels, **fields):
    """Return an attack's only clue about rows that serve as features; None where it has none."""
    attack = ATTACKS[kind](**fields).build(build_setting().known)
    rows_known = torch.arange(len(labels) // 2)
    attack.known_labels = KnownLabels(int(labels.max()) + 1, rows_known, labels[rows_known])
    clues = attack.read(SeenView("features", 0, rows))
    assert len(clues) < 2
    return clues[0] if clues else None


def cloud(gap=6.0, count=60, width=20, classes=2):
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    rows = torch.randn(count, width, generator=rng)
    rows[torch.arange(count), labels] += gap
    return rows, labels


def test_spectral_is_the_first_right_singular_vector_of_the_centred_rows():
    rows, labels = cloud(gap=1.0)
    centred = rows.numpy() - rows.numpy().mean(0)
    expected = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
    result = clue("spectral", rows, labels).values.numpy()
    assert min(abs(result - expected).max(), abs(result + expected).max()) < 1e-4


def test_norm_is_the_length_of_rows():
    rows, labels = cloud()
    expected = np.linalg.norm(rows.numpy(), axis=1)
    np.testing.assert_allclose(clue("norm", rows, labels).values.numpy(), expected, rtol=1e-5)


def test_kmeans_is_scikit_learns():
    rows, labels = cloud(gap=2.0, classes=3)
    expected = KMeans(3, n_init=10, random_state=7).fit_predict(rows.numpy())
    assert clue("kmeans", rows, labels).values.tolist() == expected.tolist()
    assert find_clusters(rows, 3, 10, 2**40 + 1).shape == labels.shape  # seeds have 63 bits


def test_a_probe_is_scored_on_held_out_samples():
    rows, labels = cloud()
    result = clue("probe", rows, labels)
    assert result.rows.tolist() == list(range(30, 60))
    assert (result.values == labels[result.rows]).all()


@pytest.mark.parametrize("kind", ["spectral", "norm"])
def test_what_is_for_two_classes_says_nothing_of_three(kind):
    assert clue(kind, *cloud(classes=3)) is None


def test_rows_that_are_all_alike_tell_nothing_and_break_nothing():
    labels = torch.arange(12) % 2
    for kind in KINDS:
        result = clue(kind, torch.zeros(12, 5), labels)
        assert torch.isfinite(result.values.float()).all()


def test_components_of_a_single_column_have_a_second_of_zeros():
    assert principal_components(torch.tensor([[1.0], [3.0]]), 2)[:, 1].tolist() == [0, 0]


def packets(*, step, **legs):
    return [Packet(0, Leg(name, up=True), 1, step, (x,)) for name, x in legs.items()]


def test_views_are_rows_in_the_order_of_targets_and_gradients_of_sums():
    known = build_setting().known
    first, second = torch.rand(3, 64), torch.rand(2, 64)
    seen = [
        *packets(step=0, smashed=torch.rand(3, 1, 8, 8), features=first, features_grad=first / 3),
        *packets(step=1, smashed=torch.rand(2, 1, 8, 8), features=second, features_grad=second / 2),
    ]
    views = {view.name: view.rows for view in views_of(known, seen)}
    whole = torch.cat([first, second])
    assert list(views) == ["features", "gradient", "direction"]
    torch.testing.assert_close(views["features"], whole)
    torch.testing.assert_close(views["gradient"], whole)  # not a third and a half
    torch.testing.assert_close(views["direction"].norm(dim=1), torch.ones(5))


def test_a_view_is_made_if_it_is_asked_for_and_then_once():
    asked = []

    class Dear:
        def base(self, batch):
            asked.append("base")
            return torch.zeros(3, 4)

        def adapter_gradients(self, known, batch):
            raise AssertionError("nobody asked for it")

    known = dataclasses.replace(build_setting().known, served=Dear())
    seen = packets(step=0, adapters=torch.rand(1, 2), features=torch.rand(3, 1, 4))
    for _ in range(2):  # two attacks
        assert [view.name for view in views_of(known, seen, ("shift", "features"))] == [
            "features",
            "shift",
        ]
    assert asked == ["base"]


@pytest.fixture(scope="module")
def over_an_api(tmp_path_factory):
    """Two sets of adapters, and what the server sees of each."""
    given = api_scenario(
        tmp_path_factory.mktemp("api"),
        "bert",  # whose labels stand at the first token
        model={"adapters": 2},
        method=[{"kind": "p3eft"}],
        clients={"count": 1},
        schedule={"rounds": 1},
        targets={"count": 12},
        attacks=ALL[:1],
        output={"figures": False},
    )
    return run_to_end(given, tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.slow
def test_each_adapter_has_views_of_its_own(over_an_api):
    result = Run.load(over_an_api.path).labels.query("attack == 'spectral'")
    views = set(zip(result["view"], result["adapter"], strict=True))
    names = ("features", "shift", "gradient", "direction", "adapter_gradient")
    together = {("difference", 0), ("sum", 0)}  # of both sets
    assert views == {(name, adapter) for name in names for adapter in (0, 1)} | together


def test_the_shift_is_against_adapters_that_are_nothing(over_an_api):
    attack = over_an_api.live.attacking.attacks["spectral"]
    views = {(view.name, view.adapter): view.rows for view in attack.views}
    base = [views["features", adapter] - views["shift", adapter] for adapter in (0, 1)]
    torch.testing.assert_close(base[0], base[1])
    assert views["shift", 0].norm() > 0
    assert not torch.equal(views["shift", 0], views["shift", 1])


def test_several_epochs_and_several_messages_are_seen_once():
    one, other = (
        packets(step=0, features=torch.rand(2, 64)),
        packets(step=0, features=torch.rand(2, 64)),
    )
    later = [Packet(0, Leg.FEATURES, 2, 0, (torch.rand(2, 64),))]
    (batch,) = by_batch([*one, *other, *later])
    assert batch["features"] is one[0]


def test_a_texts_state_is_taken_where_its_gradient_is_largest():
    states, grads = torch.rand(2, 3, 4), torch.zeros(2, 3, 4)
    grads[0, 2, 1], grads[1, 0, 3] = 1.0, -2.0
    result = state_at_gradient(states, grads)
    assert torch.equal(result, torch.stack([states[0, 2], states[1, 0]]))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run in which gradients give labels away, beside an attack on inputs."""
    given = scenario(
        data={"auxiliary": 0.3},
        targets={"count": 30, "every": 1},
        attacks=[*ALL, {"kind": "ridge", "pairs": 20}],
    )
    return Run.load(run_to_end(given, tmp_path_factory.mktemp("labels") / "run").path)


@pytest.mark.slow
def test_gradients_of_a_u_shape_give_labels_away(made):
    table = made.labels.set_index(["round", "attack", "view", "metric"])
    assert table.loc[(2, "kmeans", "direction", "purity"), "value"] > 0.95


def test_a_row_for_each_attack_view_and_evaluation_and_the_floors(made):
    table = made.labels
    assert set(table["round"]) == {1, 2}
    assert set(table["attack"]) == {"kmeans", "probe", "majority", "chance"}  # of ten classes
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()
    assert set(table[table["attack"] == "kmeans"]["view"]) == {"features", "gradient", "direction"}
    assert table[table["attack"] == "kmeans"]["samples"].tolist() == [21] * 12
    assert (table[table["attack"] == "chance"].groupby("round").size() == 3).all()
    assert set(made.recovered["attack"]) == {"ridge", "black", "mean_image"}


def test_the_summary_has_the_worst_beside_its_floor(made):
    worst = made.summary["labels"]
    rows = made.labels.query("attack == 'kmeans' and metric == 'accuracy'")
    assert worst["leak"] == rows["value"].max()
    assert worst["attack"] == "kmeans"
    chance = made.labels.query("attack == 'chance' and metric == 'accuracy' and known == 0")
    assert worst["chance"] in set(chance["value"])
    assert 0 < worst["majority"] < worst["leak"]
    assert made.summary["labels_known"]["known"] == 0.5


def test_targets_of_one_class_are_refused_by_path(tmp_path):
    with pytest.raises(ScenarioError, match=r"targets.count: 1"):
        run_to_end(scenario(targets={"count": 1}, attacks=ALL), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("padding", quick(["right", "left"], "left"))
def test_texts_leak_whatever_their_padding(tmp_path, padding):
    """Seen one at a time, without any padding, they look the same."""
    tables = []
    for size in (6, 1):
        given = text_scenario(
            tmp_path,
            data={"source": {"padding": padding}},
            targets={"count": 12, "batch_size": size},
            attacks=ALL,
            output={"figures": False},
        )
        path = run_to_end(given, tmp_path / f"{padding}-{size}").path
        tables.append(Run.load(path).labels)
    one, other = (table[table["attack"] != "norm"] for table in tables)
    assert one["value"].tolist() == pytest.approx(other["value"].tolist(), abs=1e-3)
    best = one[one["view"] == "direction"].groupby("attack")["value"].min()
    assert best["spectral"] == best["kmeans"] == 1.0


def test_generated_texts_have_no_labels_to_find(tmp_path):
    task = {"kind": "language", "text": "sentence"}
    model = {"kind": "causal_lm", "sizes": {"width": 16}, "head": 1, "tail": 1}
    with pytest.raises(ScenarioError, match=r"spectral .*texts"):
        text_scenario(tmp_path, data={"source": {"task": task}}, model=model, attacks=ALL)


@pytest.mark.slow
def test_an_auc_in_the_table_is_scikit_learns_of_the_first_component(tmp_path):
    given = scenario(
        data={"train_samples": 600},
        schedule={"rounds": 1},
        targets={"per_class": 12, "count": 24},
        attacks=[{"kind": "spectral"}],
    )
    run = Run.load(run_to_end(given, tmp_path / "run").path)
    row = run.labels.set_index(["attack", "view"]).loc[("spectral", "features")]
    seen = load_components(run.path)
    features = seen[seen["view"] == "features"]
    plain = roc_auc_score(features["label"] == features["label"].max(), features["x"])
    assert row["value"] == pytest.approx(max(plain, 1 - plain), abs=1e-9)


def measure_gradient_leaks(path, *methods):
    """Return the leaks of gradients of states and of adapters, and the largest of chance."""
    given = api_scenario(
        path,
        "bert",
        clients={"count": 1},
        servers=4,
        method=list(methods),
        schedule={"rounds": 1},
        targets={"count": 48},
        attacks=[
            {"kind": kind, "views": ["gradient", "adapter_gradient"]}
            for kind in ("spectral", "norm", "kmeans", "probe")
        ],
    )
    table = Run.load(run_to_end(given, path / "run").path).labels.query("metric != 'purity'")
    chance = table[table["attack"] == "chance"].set_index(["metric", "known"])["high"]
    rows = table[table["role"] == "attack"]
    assert set(rows["attack"]) == {"spectral", "norm", "kmeans", "probe"}
    by_chance = [chance.loc[figure, known] for figure, known in rows[["metric", "known"]].values]
    return rows["value"].to_numpy(), by_chance


def test_gradients_tell_labels(tmp_path):
    plain, _ = measure_gradient_leaks(tmp_path / "plain")
    assert (plain > 0.9).all()


@pytest.mark.slow
@pytest.mark.parametrize("noise", quick(["gaussian", "mixed"], "mixed"))
def test_one_servers_messages_are_at_chance(tmp_path, noise):
    method = {"kind": "private_backprop", "noise": noise}
    hidden, by_chance = measure_gradient_leaks(tmp_path / "hidden", method)
    assert (hidden <= by_chance).all()


def test_of_data_sorted_by_class_batches_of_targets_are_mixed_as_in_training(tmp_path):
    """Else what a method draws once per batch would tell the class of a batch of one class."""
    made = {}
    for order in ("data", None):
        targets = {"count": 48, "order": order}
        given = api_scenario(tmp_path / str(order), targets=targets, attacks=[{"kind": "norm"}])
        file = tmp_path / str(order) / "reviews" / "train.parquet"
        pq.write_table(pq.read_table(file).sort_by("label"), file)
        made[order] = given.aims.labels(given.prepare_data())
    assert (made["data"].diff() >= 0).all()
    assert torch.equal(made[None].sort().values, made["data"])
    assert all(len(batch.unique()) == 2 for batch in made[None].split(8))
    assert text_scenario(tmp_path, attacks=["sip"], data={"auxiliary": 0.2}).aims.order == "data"
