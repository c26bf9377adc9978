import warnings

import numpy as np
import pytest
from gists import gist
from pace import quick
from pydantic import TypeAdapter

from simsplit.data.client_parts import count_rows
from simsplit.data.dealing import top_up
from simsplit.data.partitions import (
    PARTITIONS,
    Dirichlet,
    Drawn,
    Exponential,
    Iid,
    Linear,
    MainLabel,
    Natural,
    Partition,
    Pathological,
    Shards,
)
from simsplit.errors import ScenarioError
from simsplit.seeds import numpy_rng_for


def make_balanced(count, classes=10):
    """Make equally many labels of each class, in random order."""
    return numpy_rng_for(0, "test").permutation(np.arange(count) % classes)


def histograms(parts, labels):
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def sizes(parts):
    return [len(part) for part in parts]


DRAWN = [kind for kind in PARTITIONS if kind not in ("natural", "drawn", "columns", "parts")]
"""Those that divide by class, and not by owner; parties have portions of the same samples."""


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_any_number_of_clients_draw_rows_of_their_own(alpha):
    labels, partition = make_balanced(60), Drawn(samples=12, alpha=alpha)
    many, few = partition.deal(labels, 10**6, seed=3), partition.deal(labels, 5, seed=3)
    assert len(many) == 10**6
    assert count_rows(many).sum() == 12 * 10**6
    assert all(np.array_equal(many[n], few[n]) for n in range(5))
    assert all(np.array_equal(one, other) for one, other in zip(few, few[:], strict=True))
    assert not np.array_equal(many[10**6 - 1], few[0])
    assert not np.array_equal(partition.deal(labels, 5, seed=4)[0], few[0])
    if alpha is None:
        assert all(len(np.unique(part)) == 12 for part in few)
    with pytest.raises(IndexError):
        many[10**6]


def test_drawn_shares_of_classes_are_as_skewed_as_alpha_says():
    labels = make_balanced(600)
    largest = [
        histograms(Drawn(samples=40, alpha=alpha).deal(labels, 60, seed=0), labels).max(1).mean()
        for alpha in (0.1, 5, 1000)
    ]
    assert largest[0] > 30
    assert 20 > largest[1] > largest[2]


def test_a_client_holds_no_more_samples_than_there_are():
    with pytest.raises(ScenarioError) as caught:
        Drawn(samples=61).deal(make_balanced(60), 3, seed=0)
    assert caught.value.field == "data.partition.samples"


def test_natural_leaves_every_sample_with_its_owner():
    owners = np.array([2, 0, 1, 0, 2, 2])
    parts = PARTITIONS["natural"]().deal(owners, 3, seed=5)
    assert [part.tolist() for part in parts] == [[1, 3], [2], [0, 4, 5]]
    with pytest.raises(ScenarioError, match=r"use clients\.count: 3"):
        PARTITIONS["natural"]().deal(owners, 2, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
def test_every_sample_has_exactly_one_client(kind):
    labels = make_balanced(1437)
    parts = PARTITIONS[kind]().deal(labels, 20, seed=3)
    assert len(parts) == 20
    assert sorted(np.concatenate(parts).tolist()) == list(range(1437))
    assert all(len(part) and part.dtype == np.int64 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("kind", DRAWN)
def test_the_seed_alone_decides(kind):
    labels = make_balanced(600)
    partition = PARTITIONS[kind]()
    first = partition.deal(labels, 10, seed=3)
    np.random.default_rng().random()
    again = partition.deal(labels, 10, seed=3)
    other = partition.deal(labels, 10, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("kind", DRAWN)
def test_dealing_leaves_the_global_streams_alone(kind):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    PARTITIONS[kind]().deal(make_balanced(200), 10, seed=0)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("kind", ["iid", "linear", "exponential"])
def test_sorted_labels_are_dealt_alike(kind):
    # a partition that took rows in the source's order would give each client one class
    labels = np.sort(make_balanced(2000))
    largest = PARTITIONS[kind]().deal(labels, 4, seed=0)[-1]
    assert (np.bincount(labels[largest]) > 0.6 * len(largest) / 10).all()


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1, 100.0])
@pytest.mark.parametrize("clients", [1, 3, 40])
def test_dirichlet_draws_what_flower_draws_to_the_row(clients, alpha):
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner

    rng = np.random.default_rng(clients)
    labels = rng.choice([0, 1, 2, 5, 9], size=311, p=[0.5, 0.3, 0.15, 0.04, 0.01])
    flower = DirichletPartitioner(
        num_partitions=clients,
        partition_by="label",
        alpha=float(alpha),
        min_partition_size=0,
        self_balancing=False,
        seed=7,
    )
    flower.dataset = datasets.Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
    ours = Dirichlet(alpha=alpha).draw(labels, clients, seed=7)
    theirs = [flower.load_partition(client)["row"][:] for client in range(clients)]
    assert [part.tolist() for part in ours] == [list(part) for part in theirs]


def test_iid_sizes_are_those_of_flower():
    import datasets
    from flwr_datasets.partitioner import IidPartitioner

    flower = IidPartitioner(num_partitions=7)
    flower.dataset = datasets.Dataset.from_dict({"label": make_balanced(100)})
    expected = [len(flower.load_partition(client)) for client in range(7)]
    assert sizes(Iid().deal(make_balanced(100), 7, seed=0)) == expected


@pytest.mark.parametrize(("ours", "theirs"), [(Linear, "Linear"), (Exponential, "Exponential")])
def test_skewed_sizes_are_those_of_flower(ours, theirs):
    import datasets
    from flwr_datasets import partitioner

    flower = getattr(partitioner, f"{theirs}Partitioner")(num_partitions=5)
    flower.dataset = datasets.Dataset.from_dict({"label": make_balanced(1003)})
    expected = [len(flower.load_partition(client)) for client in range(5)]
    assert sizes(ours().deal(make_balanced(1003), 5, seed=0)) == expected


def test_linear_and_exponential_sizes_by_hand():
    assert sizes(Linear().deal(make_balanced(100), 4, seed=0)) == [10, 20, 30, 40]
    # shares e^-3 : e^-2 : e^-1 : 1 of 1000 are 32.06, 87.14, 236.88 and 643.91
    assert sizes(Exponential().deal(make_balanced(1000), 4, seed=0)) == [32, 87, 236, 645]


def test_exponential_shares_that_round_to_nothing_are_topped_up_to_one():
    got = sizes(Exponential().deal(make_balanced(1437), 1000, seed=0))
    assert min(got) == 1
    assert got[:900] == [1] * 900
    assert got == sorted(got)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", quick([0.1, 1.0, 10.0], 0.1))
def test_dirichlet_shares_vary_as_alpha_says(alpha):
    clients, per_class = 10, 200
    labels = make_balanced(10 * per_class)
    shares = np.concatenate(
        [
            histograms(Dirichlet(alpha=alpha).deal(labels, clients, seed), labels) / per_class
            for seed in range(20)
        ]
    )
    # a client's share of a class is Beta(alpha, (clients - 1) * alpha)
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * alpha + 1)
    assert shares.mean() == pytest.approx(mean)
    # 2,000 shares: for the most skewed the variance estimate has a deviation of about 6%
    assert shares.var() == pytest.approx(variance, rel=0.2)


def test_a_huge_alpha_and_infinity_give_each_class_evenly():
    labels = make_balanced(6000)
    for alpha, slack in ((1e7, 2), (float("inf"), 0)):
        counts = histograms(Dirichlet(alpha=alpha).deal(labels, 10, seed=0), labels)
        assert np.abs(counts - 60).max() <= slack


def test_infinite_alpha_keeps_sizes_even_where_classes_do_not_divide():
    got = sizes(Dirichlet(alpha=float("inf")).deal(make_balanced(1437), 100, seed=0))
    assert set(got) == {14, 15}


@pytest.mark.parametrize("minimum", [1, 10])
def test_an_extreme_dirichlet_draw_is_repaired(minimum):
    labels = make_balanced(1437)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Flower warns before it retries
        parts = Dirichlet(alpha=0.05, min_samples=minimum).deal(labels, 100, seed=0)
    assert min(sizes(parts)) == minimum


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "alpha"), [(100, 0.05), (1000, 0.5)])
def test_many_clients_on_sixty_thousand_labels(clients, alpha):
    parts = Dirichlet(alpha=alpha, min_samples=10).deal(make_balanced(60_000), clients, seed=1)
    assert len(parts) == clients
    assert min(sizes(parts)) >= 10


@pytest.mark.parametrize("kind", [kind for kind in DRAWN if kind != "dirichlet"])
def test_a_thousand_clients(kind):
    config = {"shards": {"shards_per_client": 1}}.get(kind, {})
    parts = PARTITIONS[kind](**config).deal(make_balanced(1437), 1000, seed=0)
    assert len(parts) == 1000
    assert min(sizes(parts)) >= 1


def test_topping_up_moves_as_few_as_possible_from_the_largest():
    parts = [np.arange(0, 1), np.arange(1, 1), np.arange(1, 9), np.arange(9, 15)]
    got = top_up(parts, 3)
    # 2 and 3 are missing: 5 moves, off the ends of 8 and 6, which meet at 5 and 4 or 4 and 5
    assert sizes(got)[:2] == [3, 3]
    assert sorted(sizes(got)[2:]) == [4, 5]
    assert got[0][0] == 0
    kept = sum(len(np.intersect1d(a, b)) for a, b in zip(parts, got, strict=True))
    assert kept == 15 - 5
    assert sorted(np.concatenate(got).tolist()) == list(range(15))


def test_pathological_clients_hold_their_number_of_classes():
    labels = make_balanced(5000)
    counts = histograms(Pathological(classes_per_client=3).deal(labels, 10, seed=0), labels)
    assert ((counts > 0).sum(axis=1) == 3).all()
    # every class is held by 3 of the 10 clients, and divided evenly
    assert ((counts > 0).sum(axis=0) == 3).all()
    assert set(counts[counts > 0]) <= {166, 167}


def test_pathological_with_fewer_clients_than_classes_loses_no_class():
    labels = make_balanced(1000)
    counts = histograms(Pathological(classes_per_client=2).deal(labels, 5, seed=0), labels)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert ((counts > 0).sum(axis=0) == 1).all()


def test_shards_hold_few_classes_and_lose_no_remainder():
    labels = make_balanced(1437)
    parts = Shards(shards_per_client=2).deal(labels, 10, seed=0)
    counts = histograms(parts, labels)
    # 20 shards of 71 or 72 over classes of 143 or 144: a shard spans at most two classes
    assert ((counts > 0).sum(axis=1) <= 4).all()
    assert (counts > 0).sum(axis=1).mean() < 4
    assert set(sizes(parts)) <= {142, 143, 144}


@pytest.mark.parametrize(("clients", "rate"), [(10, 0.8), (5, 0.5), (20, 0.8), (10, 1.0)])
def test_main_labels_have_their_rate(clients, rate):
    labels = make_balanced(6000)
    parts = MainLabel(rate=rate).deal(labels, clients, seed=0)
    counts = histograms(parts, labels)
    assert set(sizes(parts)) == {6000 // clients}
    mains = counts[np.arange(clients), np.arange(clients) % 10] / counts.sum(1)
    # and whatever of it is among the rest, which is drawn alike
    assert (mains >= rate).all()
    assert mains.mean() < rate + 1.5 * (1 - rate) / 10 + 0.02
    assert (counts[np.arange(clients), (np.arange(clients) + 1) % 10] < rate * 6000 / clients).all()


def test_main_labels_of_which_there_are_too_few_give_what_there_is():
    labels = np.array([0] * 20 + [1] * 380)
    counts = histograms(MainLabel(rate=0.9).deal(labels, 4, seed=0), labels)
    assert counts.sum(1).tolist() == [100] * 4
    assert counts[[0, 2], 0].tolist() == [10, 10]


@pytest.mark.parametrize(
    ("config", "clients", "field", "gist"),
    [
        ({"kind": "iid"}, 51, "clients.count", "must be 1 to the 50 training samples"),
        ({"kind": "iid"}, 0, "clients.count", "got 0"),
        ({"kind": "dirichlet", "min_samples": 6}, 10, "data.partition.min_samples", "at most 5"),
        (
            {"kind": "pathological", "classes_per_client": 11},
            10,
            "data.partition.classes_per_client",
            "must be 1 to 10",
        ),
        (
            {"kind": "pathological", "classes_per_client": 2},
            4,
            "data.partition.classes_per_client",
            "must be 3 to 10",
        ),
        ({"kind": "shards", "shards_per_client": 6}, 10, "data.partition.shards", "at most 5"),
    ],
)
def test_what_cannot_be_dealt_blames_the_field(config, clients, field, gist):
    partition = TypeAdapter(Partition).validate_python(config)
    with pytest.raises(ScenarioError, match=gist) as caught:
        partition.deal(make_balanced(50), clients, seed=0)
    assert caught.value.field.startswith(field)


def test_the_registry_names_every_kind_of_the_union():
    for kind, made in PARTITIONS.items():
        assert type(TypeAdapter(Partition).validate_python({"kind": kind})) is made
    mapping = TypeAdapter(Partition).json_schema()["discriminator"]["mapping"]
    assert set(mapping) == set(PARTITIONS)


def test_a_named_client_without_samples_gets_nobody_elses():
    with pytest.raises(ScenarioError, match=gist("client 1 ... has no ... sample")):
        Natural().check(np.array([0, 0, 2, 2, 2]), 3)
