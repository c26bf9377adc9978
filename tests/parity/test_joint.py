"""Split training equals a plain loop over the joint network with one optimizer, bit for bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import image_folder, run_to_end, scenario
from pace import quick
from torch import nn

from simsplit.data import Prepared, prepare
from simsplit.data.batches import Batcher, draw_batches
from simsplit.parties.calls import OwnState, SharedState
from simsplit.scenario import Scenario

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
ADAM = {"kind": "adam", "lr": 2e-3, "amsgrad": True}
CASES: dict[str, dict[str, Any]] = {
    "one client, sgd": {"clients": {"count": 1}, "train": {"client": SGD, "server": SGD}},
    "one client, adam": {"clients": {"count": 1}, "train": {"client": ADAM, "server": ADAM}},
    "one client, l1h": {"clients": {"count": 1}, "model": {"cut": "l1h"}},
    "one client, vanilla": {"clients": {"count": 1}, "topology": "vanilla"},
    "shared head, three in turn": {"train": {"client": ADAM, "server": ADAM}},
    "shared head, two in a row": {"schedule": {"turn": 2}, "train": {"batch_size": 8}},
    "shared head, one after another": {"schedule": {"kind": "per_client", "rounds": 2}},
    "shared head, unequal parts": {"data": {"partition": {"kind": "dirichlet", "alpha": 0.3}}},
    "shared head, vanilla": {"topology": "vanilla"},
    "shared head, raw named": {"method": [{"kind": "raw"}]},
    "shared head, moments of one's own that plain sgd has none of": {
        "clients": {"handover": "weights"},
        "model": {"cut": "l2h"},  # whose BatchNorm an evaluation must leave in training mode
        "train": {"client": {"kind": "sgd", "lr": 0.05}, "server": {"kind": "sgd", "lr": 0.05}},
    },
    "shifted, mirrored in turn, smoothed": {
        "data": {"augment": ["shift", "alternate"]},
        "train": {"label_smoothing": 0.2},
    },
    "augmented": {"data": {"augment": ["crop", "flip"]}, "clients": {"count": 1}},
    "in parts, the last ones uneven": {
        "clients": {"count": 1},
        "train": {"batch_size": 16, "accumulate": 4, "client": ADAM, "server": ADAM},
    },
    "shared head, in parts": {"train": {"accumulate": 2}},
    "learning rate falls": {"train": {"lr_schedule": {"kind": "step", "every": 1, "gamma": 0.5}}},
}


QUICK = (
    "one client, vanilla",
    "shared head, three in turn",
    "shared head, one after another",
    "in parts, the last ones uneven",
    "shared head, moments of one's own that plain sgd has none of",
)


def turns(given: Scenario, data: Prepared) -> Iterator[tuple[int, int, int, torch.Tensor]]:
    """Yield (round, client, number of the client's batch, rows) as the schedules are defined."""
    taken = [0] * given.clients.count
    for round_number in range(1, 3):
        cut = [
            draw_batches(
                torch.as_tensor(part),
                given.train.batch_size,
                given.seed,
                client,
                round_number - 1,
                drop_last=False,
            )
            for client, part in enumerate(data.parts)
        ]
        if given.schedule.kind == "per_client":
            order = [(c, b) for c, batches in enumerate(cut) for b in range(len(batches))]
        else:
            laps, turn = max(len(batches) for batches in cut), given.schedule.turn
            order = sorted(
                ((c, b) for b in range(laps) for c in range(len(cut)) if b < len(cut[c])),
                key=lambda pair: (pair[1] // turn, pair[0], pair[1]),
            )
        for client, batch in order:
            yield round_number, client, taken[client], cut[client][batch]
            taken[client] += 1


def plain_loop(given: Scenario) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return the joint network's weights after training, and each round's mean loss."""
    from simsplit.seeds import rng_for

    data = prepare(given.data, given.clients.count, given.seed)
    model = given.model.build(data.info.shape, data.info.classes, given.seed)
    net = nn.Sequential(model.head, model.trunk, model.tail)
    optimizer = given.train.client.build(net.parameters())
    base = optimizer.param_groups[0]["lr"]
    batcher = Batcher(data.train, mean=data.mean, std=data.std, augment=given.data.augment)
    sums = {1: [0.0, 0], 2: [0.0, 0]}
    for round_number, client, number, rows in turns(given, data):
        optimizer.param_groups[0]["lr"] = base * given.train.lr_schedule.factor(round_number, 2)
        rng = rng_for(given.seed, "augment", client, number) if given.data.augment else None
        batch = batcher.batch(rows, rng, round_number - 1)
        optimizer.zero_grad()
        smoothing = given.train.label_smoothing
        size = given.train.batch_size // given.train.accumulate
        for x, y in zip(batch.inputs.split(size), batch.labels.split(size), strict=True):
            loss = nn.functional.cross_entropy(net(x), y, label_smoothing=smoothing)
            (loss * (len(y) / len(rows))).backward()
            sums[round_number][0] += loss.item() * len(y)
            sums[round_number][1] += len(y)
        optimizer.step()
    names = ("head", "trunk", "tail")
    weights = {
        f"{names[int(name[0])]}{name[1:]}": tensor for name, tensor in net.state_dict().items()
    }
    return weights, [total / count for total, count in sums.values()]


def split_weights(run: Any) -> dict[str, torch.Tensor]:
    """Return the same names from the two sides of a run."""
    pool = run.parts.pool
    own = {name.removeprefix("own.0."): t for name, t in pool.ask(0, OwnState()).items()}
    client = pool.ask(0, SharedState()) or own
    both = client | run.parts.server.learner.state()
    return {n: t for n, t in both.items() if n.split(".")[0] in {"head", "trunk", "tail"}}


def assert_same(given: Scenario, path: Path) -> None:
    torch.set_num_threads(1)
    expected, losses = plain_loop(given)
    run = run_to_end(given, path)
    actual = split_weights(run)
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(actual[name], expected[name])]
    assert not different
    from simsplit.results import Run

    rounds = Run.load(path).rounds
    assert rounds["train_loss"].tolist() == pytest.approx(losses, rel=1e-12)


@pytest.mark.always
@pytest.mark.parametrize("case", quick(CASES, *QUICK))
def test_split_training_equals_the_joint_network(case: str, tmp_path: Path) -> None:
    assert_same(scenario(**CASES[case]), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("l2h", ["moved", "added"])
def test_resnet18_with_batch_norm_on_both_sides(l2h: str, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", each=9)
    source = {"kind": "folder", "path": str(folder), "size": 32}
    given = scenario(
        data={"source": source, "train_samples": None, "test_samples": None},
        model={"kind": "resnet18", "l2h": l2h},
        clients={"count": 2},
    )
    assert_same(given, tmp_path / "run")


@pytest.mark.slow
def test_different_optimizers_on_the_two_sides_are_really_two(tmp_path: Path) -> None:
    """The oracle above could pass if the server's options were ignored: here they must matter."""
    same = scenario(clients={"count": 1}, train={"client": SGD, "server": SGD})
    other = scenario(clients={"count": 1}, train={"client": SGD, "server": SGD | {"lr": 0.01}})
    first = split_weights(run_to_end(same, tmp_path / "same"))
    second = split_weights(run_to_end(other, tmp_path / "other"))
    assert not torch.equal(first["trunk.4.weight"], second["trunk.4.weight"])
