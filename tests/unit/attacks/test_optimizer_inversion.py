"""Two consecutive sets of adapters tell the gradient between them, whatever messages it was in."""

import pytest
import torch
from builders import StopAt, experiment, run_to_end
from pace import quick
from texts import api_scenario

from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.results import Run

TWO = [{"kind": "private_backprop", "messages": 2}]
NOISY = [{"kind": "private_backprop", "messages": 2, "noise": "gaussian", "variance": 1.0}]
OPTIMIZERS = {
    "sgd": {"kind": "sgd", "lr": 0.2, "momentum": 0.9},
    "adamw": {"kind": "adamw", "lr": 0.002},
}
INVERSION = "optimizer_inversion"


def make_scenario(path, method=(), kind="adamw", **changes):
    fields = {
        "method": list(method),
        "clients": {"count": 2},
        "schedule": {"rounds": 2},
        "train": {"client": OPTIMIZERS[kind], "lr_schedule": {"kind": "linear"}},
        "targets": {"count": 24, "client": 1},
        "attacks": [{"kind": INVERSION}, {"kind": "spectral", "views": ["direction"]}],
        "evaluate": {"every": 0},
        "checkpoint": {"every": 0},
        **changes,
    }
    return api_scenario(path, "bert", **fields)


class Tap:
    """The gradients that a client sends, by step."""

    def __init__(self, run):
        self.sent, self.moment = {}, run.parts.wire.moment
        run.parts.wire.taps.append(self)

    def observe(self, packet: Packet) -> None:
        if packet.leg is Leg.FEATURES_GRAD and packet.client == 1 and self.moment.is_training:
            self.sent[packet.step] = packet.tensors[0].clone() * len(packet.tensors[0])


def list_gradients(run):
    return dict(run.live.attacking.attacks[INVERSION].gradients)


def off(got, wanted):
    """Compute the error as a share of the wanted value, up to a common factor."""
    got, wanted = torch.cat(list(got)), torch.cat(list(wanted))
    size = (got * wanted).sum() / wanted.square().sum()
    assert 0.9 < size < 1.1
    return ((got / size - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("kind", quick(OPTIMIZERS, "adamw"))
@pytest.mark.parametrize(
    "method",
    [pytest.param(TWO, id="mixed"), pytest.param(NOISY, id="gaussian", marks=pytest.mark.slow)],
)
def test_one_servers_messages_are_summed_up_to_the_true_gradient(tmp_path, method, kind):
    plain = experiment(make_scenario(tmp_path, kind=kind), tmp_path / "plain")
    tap = Tap(plain)
    plain.run(resume=False)
    private = run_to_end(make_scenario(tmp_path, method, kind), tmp_path / "private")
    inverted = list_gradients(private)
    assert list(inverted) == list(tap.sent)[:-1]  # what follows the last step nobody saw
    assert off(inverted.values(), [tap.sent[step] for step in inverted]) < 1e-3
    tables = [Run.load(run.path).labels for run in (plain, private)]
    of_targets, of_training = (table.set_index(["attack", "view", "metric"]) for table in tables)
    best = of_targets.loc[("spectral", "direction", "auc"), "value"]
    assert of_training.loc[(INVERSION, "direction", "auc"), "value"] > best - 0.02
    assert best > 0.95


@pytest.mark.slow
def test_what_was_followed_goes_on_in_a_resumed_run(tmp_path):
    checkpoint = {"checkpoint": {"every": 1}}
    whole = run_to_end(make_scenario(tmp_path, TWO, **checkpoint), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        Experiment(make_scenario(tmp_path, TWO, **checkpoint), tmp_path / "half", [StopAt(10)]).run(
            resume=False
        )
    again = experiment(make_scenario(tmp_path, TWO, **checkpoint), tmp_path / "half")
    again.run(resume=True)
    for step, rows in list_gradients(whole).items():
        assert torch.equal(rows, list_gradients(again)[step])


@pytest.mark.parametrize(
    "method",
    [pytest.param(TWO, id="mixed"), pytest.param(NOISY, id="gaussian", marks=pytest.mark.slow)],
)
def test_one_message_of_two_is_enough_where_noise_lies_along_the_gradient(tmp_path, method):
    attacks = [{"kind": INVERSION, "directions": 2}]
    run = run_to_end(make_scenario(tmp_path, method, servers=2, attacks=attacks), tmp_path / "run")
    assert {len(rows) for rows in list_gradients(run).values()} <= {6, 7, 8}
    table = Run.load(run.path).labels.set_index(["attack", "view", "metric"])
    row, floor = (
        table.loc[(kind, *at)]
        for kind, *at in ((INVERSION, "direction", "auc"), ("chance", "", "auc"))
    )
    if method is TWO:
        assert row["value"] > 0.98
    else:
        assert row["value"] < floor["high"] + 0.05


@pytest.mark.parametrize(("servers", "method"), [(2, ()), (4, TWO), (5, TWO)])
def test_servers_without_two_steps_in_a_row_are_refused(tmp_path, servers, method):
    with pytest.raises(
        ScenarioError,
        match=rf"attacks\.0\.kind: {INVERSION}.*two steps",
    ):
        make_scenario(tmp_path, method, servers=servers)


@pytest.mark.slow
def test_a_server_that_missed_a_step_of_momentum_says_nothing_of_later_ones(tmp_path):
    run = run_to_end(make_scenario(tmp_path, TWO, servers=3), tmp_path / "run")
    assert list(list_gradients(run)) == [0]  # it is asked in steps 0, 1, 3, 4, 6, ...
    sgd = {"client": {"kind": "sgd", "lr": 0.2}}
    run = run_to_end(make_scenario(tmp_path, TWO, servers=3, train=sgd), tmp_path / "sgd")
    assert list(list_gradients(run))[:3] == [0, 3, 6]


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": {"heads": "shared"}},
        {"model": {"learns": ["tail"]}, "method": []},
        {"train": {"client": {"kind": "adam", "lookahead": {}}}},
    ],
    ids=["shared", "none", "lookahead"],
)
def test_adapters_that_others_change_are_refused(tmp_path, changes):
    with pytest.raises(ScenarioError, match="adapters"):
        make_scenario(tmp_path, **{"method": TWO, **changes})


def test_the_last_samples_count_in_whole_batches(tmp_path):
    small = {"kind": INVERSION, "samples": 12}
    run = run_to_end(make_scenario(tmp_path, TWO, attacks=[small]), tmp_path / "run")
    assert [len(rows) for rows in list_gradients(run).values()] == [8, 8]


def test_fewer_samples_than_classes_tell_nothing(tmp_path):
    given = make_scenario(
        tmp_path, train={"batch_size": 1}, schedule={"rounds": 1, "local_steps": 2}
    )
    run = run_to_end(given, tmp_path / "run")
    leaks = Run.load(run.path).leaks
    assert INVERSION not in set(leaks["attack"])
    assert "spectral" in set(leaks["attack"])
