"""Attacks on a run: they change nothing, resume exactly, run on hosts, reach nothing private."""

import types

import pandas as pd
import pytest
import torch
from builders import experiment, run_to_end, scenario
from comparing import assert_equal
from hosted import on_hosts
from pace import quick
from torch import Tensor, nn

from simsplit import Run
from simsplit.attacks import fora, fsha
from simsplit.experiment import Experiment

BASE = {
    "data": {"auxiliary": 0.4, "normalise": "unit"},
    "model": {"kind": "resnet20", "width": 2},
    "schedule": {"rounds": 3},
    "train": {"batch_size": 10},
    "targets": {"count": 3, "every": 2},
}
ONLINE = [{"kind": "naive_sda"}]
OFFLINE = [{"kind": "unsplit", "outer": 2, "inner": 2}, {"kind": "whitebox", "iterations": 3}]
OTHERS = [*ONLINE, *OFFLINE]


def make_attacked(**changes):
    return scenario(**{**BASE, "attacks": OTHERS, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run under all of them, which nothing stops."""
    return run_to_end(make_attacked(), tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture(autouse=True)
def small_critic(monkeypatch):
    """The published one has eight million weights."""

    def small(cut, image, **_):
        size = cut[0] * cut[1] * cut[2]
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    for module in (fora, fsha):
        monkeypatch.setattr(module, "critic", small)


def select_trained(table: pd.DataFrame) -> pd.DataFrame:
    if "phase" not in table:
        return table
    return table[table["phase"] != "evaluate"].reset_index(drop=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    quick(
        [
            {},
            {"topology": "vanilla"},
            {
                "clients": {"count": 3, "heads": "per_client"},
                "schedule": {"kind": "parallel", "rounds": 3},
            },
            {"method": [{"kind": "learned1x1", "ratio": 2}, {"kind": "noise"}]},
        ],
        {},
    ),
    ids=["u_shaped", "vanilla", "own heads", "methods"],
)
def test_passive_attacks_change_nothing(tmp_path, changes, whole):
    made = run_to_end(make_attacked(**changes), tmp_path / "attacked") if changes else whole
    run_to_end(make_attacked(**changes, attacks=[]), tmp_path / "plain")
    here, plain = (Run.load(path) for path in (made.path, tmp_path / "plain"))
    for table in ("rounds", "clients", "wire"):
        pd.testing.assert_frame_equal(
            select_trained(getattr(here, table)),
            select_trained(getattr(plain, table)),
            check_exact=True,
        )
    assert plain.recovered.empty
    assert set(here.recovered["round"]) == {2, 3}
    names = ["naive_sda", "unsplit", "whitebox", "black", "mean_image"]
    assert list(here.attacks["attack"].unique()) == names
    assert (here.recovered.groupby(["round", "attack"]).size() == 3).all()


@pytest.mark.slow
@pytest.mark.parametrize("stop", quick([1, 2], 2))
@pytest.mark.parametrize(
    "attacks",
    quick([OTHERS, [{"kind": "fora"}, {"kind": "fsha"}]], OTHERS),
)
def test_a_resumed_run_recovers_the_same(tmp_path, monkeypatch, stop, attacks, whole):
    given = make_attacked(attacks=attacks)
    if attacks != OTHERS:
        whole = run_to_end(given, tmp_path / "whole")
    broken = experiment(given, tmp_path / "broken")
    original = Experiment.round

    def break_off(self, number):
        if number > stop:
            raise KeyboardInterrupt
        original(self, number)

    with monkeypatch.context() as here:
        here.setattr(Experiment, "round", break_off)
        with pytest.raises(KeyboardInterrupt):
            broken.run(resume=False)
    experiment(given, tmp_path / "broken").run(resume=True)
    assert_equal(whole.path, tmp_path / "broken")


@pytest.mark.slow
def test_a_forged_gradient_takes_the_place_of_the_servers(tmp_path):
    """As many bytes, another head; and until it starts nothing is forged."""
    plain = run_to_end(make_attacked(attacks=[]), tmp_path / "plain")
    late = run_to_end(make_attacked(attacks=[{"kind": "fsha", "start": 10**6}]), tmp_path / "late")
    forged = run_to_end(make_attacked(attacks=[{"kind": "fsha"}]), tmp_path / "forged")
    tables = [select_trained(Run.load(made.path).wire) for made in (plain, late, forged)]
    pd.testing.assert_frame_equal(tables[0], tables[1])
    pd.testing.assert_frame_equal(tables[0], tables[2])
    heads = [
        made.parts.pool.clients[0].training.end.head.state_dict() for made in (plain, late, forged)
    ]
    assert all(torch.equal(heads[0][name], tensor) for name, tensor in heads[1].items())
    assert not all(torch.equal(heads[0][name], tensor) for name, tensor in heads[2].items())


@pytest.mark.ray
def test_hosts_make_no_difference(tmp_path, whole, hosts):
    there = on_hosts(make_attacked(), tmp_path / "there", hosts)
    there.run(resume=False)
    ours, theirs = (made.path / "leaks.csv" for made in (whole, there))
    assert ours.read_bytes() == theirs.read_bytes()


def list_reached(start: object) -> dict[int, Tensor]:
    """List every tensor that an object leads to, by its storage; not through modules or classes."""
    results: dict[int, Tensor] = {}
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | types.ModuleType | str | bytes):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            results[thing.untyped_storage().data_ptr()] = thing
            continue
        if isinstance(thing, dict):
            waiting += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset):
            waiting += list(thing)
        elif isinstance(thing, types.FunctionType):
            waiting += [cell.cell_contents for cell in thing.__closure__ or ()]
        elif isinstance(thing, types.MethodType):
            waiting += [thing.__self__, thing.__func__]
        else:
            waiting += [getattr(thing, "__dict__", {})]
            names = [s for kind in type(thing).__mro__ for s in getattr(kind, "__slots__", ())]
            waiting += [getattr(thing, name) for name in names if hasattr(thing, name)]
    return results


@pytest.mark.slow
@pytest.mark.parametrize("topology", quick(["u_shaped", "vanilla"], "u_shaped"))
def test_attacks_reach_neither_data_nor_weights_of_clients(tmp_path, topology):
    made = experiment(
        make_attacked(topology=topology, method=[{"kind": "learned1x1"}]), tmp_path / "run"
    )
    made.run(resume=False)
    reach = list_reached(list(made.live.attacking.attacks.values()))
    clients = [made.parts.pool.clients[number] for number in range(3)]
    private: list[Tensor] = [made.data.train.inputs, made.data.train.labels]
    for client in clients:
        private += [t for learner in client.training.end.learners for t in learner.state().values()]
        private += [client.training.feeds["private"].batcher._inputs]
    hidden = {tensor.untyped_storage().data_ptr() for tensor in private}
    assert not hidden & reach.keys()
    # the search is not blind: it finds what attacks may see, and from elsewhere what they may not
    assert made.parts.server.end.trunk[0].conv1.weight.untyped_storage().data_ptr() in reach
    assert hidden <= list_reached(made).keys()


def test_auxiliary_images_are_nobodys(tmp_path):
    made = experiment(make_attacked(), tmp_path / "run")
    assert made.data.auxiliary is not None
    rows = {image.numpy().tobytes() for image in made.data.auxiliary.inputs}
    assert len(rows) == 36
    private = {image.numpy().tobytes() for image in made.data.train.inputs}
    assert not rows & private


@pytest.mark.slow
def test_images_lie_beside_the_originals(whole):
    from simsplit.results.recovered_files import load_images

    made = whole
    images = load_images(made.path)
    assert set(images) == {"originals", "naive_sda", "unsplit", "whitebox", "black", "mean_image"}
    assert all(each.shape == (3, 1, 28, 28) for each in images.values())
    part = made.data.parts[0][:3]
    assert (images["originals"] == made.data.train.inputs[part].numpy()).all()
    assert torch.tensor(images["black"]).sum() == 0
