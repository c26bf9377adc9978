"""What Flower makes of several clients' weights is what it says, and nothing is lost on the way."""

import gc
import inspect
import logging
import math
import subprocess
import sys
from collections.abc import Mapping
from logging.handlers import BufferingHandler
from typing import Any

import numpy as np
import pytest
import torch
from pace import quick, together
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load, save
from torch import Tensor, nn

from simsplit.errors import ProtocolError, RunFailedError
from simsplit.schedules.averaging import Averager, Update
from simsplit.schedules.strategies import STRATEGIES, Strategy
from simsplit.seeds import rng_for

STEPPING = {"fedavgm", "fedadam", "fedyogi", "fedadagrad"}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavgm": {"server_learning_rate": 0.5, "server_momentum": 0.75},
    "fedadam": {"eta": 0.2, "eta_l": 0.3, "beta_1": 0.5, "beta_2": 0.75, "tau": 0.01},
    "fedyogi": {"eta": 0.2, "eta_l": 0.3, "beta_1": 0.5, "beta_2": 0.75, "tau": 0.01},
    "fedadagrad": {"eta": 0.2, "eta_l": 0.3, "tau": 0.01},
    "fedmedian": {},
    "fedtrimmedavg": {"beta": 0.25},
    "krum": {"num_malicious_nodes": 1},
    "multikrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "bulyan": {"num_malicious_nodes": 1},
}
every_kind = together(STRATEGIES)
BUFFERS = frozenset({"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"})


def averager(kind: str, start: Mapping[str, Tensor], **options: Any) -> Averager:
    return Averager(STRATEGIES[kind](**options), start, "heads", BUFFERS & start.keys())


def one(*values: float) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32)}


def module(*scope: int) -> dict[str, Tensor]:
    """Build weights of every kind: convolution, batch norm with buffers, a number, bf16."""
    rng = rng_for(0, "module", *scope)
    return {
        "conv.weight": torch.randn(4, 3, 2, 2, generator=rng),
        "norm.weight": torch.randn(4, generator=rng),
        "norm.running_mean": torch.randn(4, generator=rng),
        "norm.running_var": torch.rand(4, generator=rng) + 0.5,
        "norm.num_batches_tracked": torch.tensor(10 + sum(scope)),
        "scale": torch.randn((), generator=rng),
        "half": torch.randn(5, generator=rng).to(torch.bfloat16),
        "double": torch.randn(2, 3, generator=rng, dtype=torch.float64),
    }


def updates(count: int, round_number: int = 1) -> dict[int, Update]:
    return {client: (module(round_number, client), 5 + client) for client in range(count)}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether names, types, shapes and bits are equal."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and torch.equal(
            one[name].contiguous().view(-1).view(torch.uint8),
            other[name].contiguous().view(-1).view(torch.uint8),
        )
        for name in one
    )


@pytest.mark.slow
@every_kind
def test_what_all_have_alike_may_be_left_out(kind: str) -> None:
    """Frozen weights do not travel: the average of the others is what it is beside them."""
    rng = rng_for(0, "base")
    base = {"base.0": torch.randn(30, 20, generator=rng), "base.1": torch.randn(9, generator=rng)}
    beside = averager(kind, {**base, **module(0)}, **OPTIONS[kind])
    alone = averager(kind, module(0), **OPTIONS[kind])
    for number in (1, 2):
        heard = updates(7, number)
        alone.average(number, heard)
        beside.average(number, {c: ({**base, **w}, count) for c, (w, count) in heard.items()})
        assert same(alone.weights, {name: beside.weights[name] for name in alone.weights})


# every strategy


def test_options_and_defaults_are_flowers() -> None:
    from flwr.serverapp import strategy

    assert set(OPTIONS) == set(STRATEGIES)
    for kind, config in STRATEGIES.items():
        fields = {name: field for name, field in config.model_fields.items() if name != "kind"}
        theirs = inspect.signature(getattr(strategy, config.flower)).parameters
        assert config.flower.lower() == kind == config.model_fields["kind"].default
        assert {name: field.default for name, field in fields.items()} == {
            name: theirs[name].default for name in OPTIONS[kind]
        }
        made = config(**OPTIONS[kind]).make_strategy()
        assert type(made) is getattr(strategy, config.flower)
        assert {name: getattr(made, name) for name in OPTIONS[kind]} == OPTIONS[kind]


@every_kind
def test_a_scenario_names_it_by_its_kind(kind: str) -> None:
    given = {"kind": kind, **OPTIONS[kind]}
    assert type(TypeAdapter(Strategy).validate_python(given)) is STRATEGIES[kind]


@pytest.mark.slow
@every_kind
def test_equal_clients_are_their_own_average(kind: str) -> None:
    """Where the server takes steps, they have stopped: from the equal weights, it stays there."""
    equal = module(7)
    made = averager(kind, equal if kind in STEPPING else module(1), **OPTIONS[kind])
    made.average(1, {client: (module(7), 4) for client in range(8)})
    assert made.weights.keys() == equal.keys()
    for name, tensor in made.weights.items():
        torch.testing.assert_close(tensor, equal[name])


@every_kind
def test_names_shapes_and_types_stay_and_nothing_is_shared_or_changed(kind: str) -> None:
    start, given = module(0), updates(8)
    made = averager(kind, start, **OPTIONS[kind])
    assert same(made.weights, start)
    assert not {t.data_ptr() for t in made.weights.values()} & {
        t.data_ptr() for t in start.values()
    }
    made.average(1, given)
    assert list(made.weights) == list(start)
    for name, tensor in made.weights.items():
        assert (tensor.dtype, tensor.shape) == (start[name].dtype, start[name].shape)
        assert tensor.is_contiguous()
        assert not torch.equal(tensor, start[name])
    assert same(start, module(0))
    assert all(same(weights, module(1, client)) for client, (weights, _) in given.items())
    reached = {name: tensor.clone() for name, tensor in made.weights.items()}
    for weights in (start, *(weights for weights, _ in given.values())):
        for tensor in weights.values():
            tensor.zero_()
    assert same(made.weights, reached)


@pytest.mark.slow
@every_kind
def test_the_order_of_clients_does_not_matter(kind: str) -> None:
    given = updates(9)
    forth, back = (averager(kind, module(0), **OPTIONS[kind]) for _ in range(2))
    for number in (1, 2):
        forth.average(number, given)
        back.average(number, dict(reversed(given.items())))
    assert same(forth.weights, back.weights)


@pytest.mark.slow
@every_kind
def test_a_state_that_was_written_and_read_goes_on_alike(kind: str) -> None:
    through, restored = (averager(kind, module(0), **OPTIONS[kind]) for _ in range(2))
    for number in (1, 2):
        through.average(number, updates(8, number))
    written = load(save(through.state()))
    restored.load(dict(sorted(written.items(), reverse=True)))
    assert list(restored.weights) == list(module(0))
    assert same(restored.state(), through.state())
    for number in (3, 4):
        through.average(number, updates(8, number))
        restored.average(number, updates(8, number))
    assert same(restored.state(), through.state())


@every_kind
def test_a_state_is_a_copy(kind: str) -> None:
    made = averager(kind, module(0), **OPTIONS[kind])
    made.average(1, updates(8))
    state = made.state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    fresh = averager(kind, module(0), **OPTIONS[kind])
    fresh.load(state)
    for tensor in state.values():
        tensor.zero_()
    assert same(made.state(), kept)
    assert same(fresh.state(), kept)


@every_kind
def test_a_state_from_before_the_first_round_forgets(kind: str) -> None:
    made = averager(kind, module(0), **OPTIONS[kind])
    first = made.state()
    made.average(1, updates(8))
    after = made.state()
    made.load(first)
    assert same(made.state(), first)
    made.average(1, updates(8))
    assert same(made.state(), after)


@together(STRATEGIES, [0, 2])
def test_with_no_samples_nothing_changes(kind: str, clients: int) -> None:
    nobody: dict[int, Update] = {client: (module(1, client), 0) for client in range(clients)}
    made = averager(kind, module(0), **OPTIONS[kind])
    made.average(1, nobody)
    assert same(made.state(), averager(kind, module(0)).state())
    made.average(1, updates(8))
    before = made.state()
    made.average(2, nobody)
    assert same(made.state(), before)


@every_kind
def test_a_client_of_no_samples_has_no_say(kind: str) -> None:
    with_it, without = (averager(kind, module(0), **OPTIONS[kind]) for _ in range(2))
    with_it.average(1, {**updates(8), 8: (module(99), 0)})
    without.average(1, updates(8))
    assert same(with_it.state(), without.state())


@pytest.mark.parametrize("kind", STRATEGIES)
def test_flower_is_not_heard(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import flwr

    logger, heard = logging.getLogger(flwr.__name__), BufferingHandler(100)
    monkeypatch.setattr(logger, "handlers", [heard])
    averager(kind, module(0), **OPTIONS[kind]).average(1, updates(8))
    assert not heard.buffer
    logger.info("heard again")
    assert [record.getMessage() for record in heard.buffer] == ["heard again"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(STRATEGIES, "fedavg"))
def test_the_clients_weights_do_not_pile_up(kind: str) -> None:
    """Flower's records refer to each other in circles, and so outlive the call."""
    from flwr.app import Array, ArrayRecord

    def records() -> list[object]:
        return [kept for kept in gc.get_objects() if type(kept) in (Array, ArrayRecord)]

    made = averager(kind, module(0), **OPTIONS[kind])
    gc.disable()
    try:
        before = records()  # of earlier tests; held here, so that no new one gets its identity
        made.average(1, updates(8))
        left = {id(kept) for kept in records()} - {id(kept) for kept in before}
    finally:
        gc.enable()
    assert not left
    assert gc.get_freeze_count() == 0


@every_kind
def test_weights_without_floats_and_without_any_names(kind: str) -> None:
    made = averager(kind, {"steps": torch.tensor([0])}, **OPTIONS[kind])
    made.average(1, {client: ({"steps": torch.tensor([client])}, 1) for client in range(7)})
    assert same(made.weights, {"steps": torch.tensor([3])})
    empty = averager(kind, {}, **OPTIONS[kind])
    empty.average(1, {client: ({}, 1) for client in range(7)})
    assert empty.state() == {}


@every_kind
def test_diverged_weights_make_no_noise(kind: str) -> None:
    given = updates(8)
    given[3][0]["conv.weight"][0] = math.inf
    given[4][0]["conv.weight"][0] = -math.inf
    given[5][0]["conv.weight"][1] = math.nan
    made = averager(kind, module(0), **OPTIONS[kind])
    made.average(1, given)  # a warning would be an error
    assert made.weights.keys() == module(0).keys()


@pytest.mark.parametrize(
    "wrong",
    [{"v": torch.ones(2)}, {"w": torch.ones(1)}, {}, {"w": torch.ones(2), "v": one(1)["w"]}],
)
def test_updates_of_other_weights_are_refused(wrong: dict[str, Tensor]) -> None:
    made = averager("fedavg", one(1, 2))
    with pytest.raises(ProtocolError, match=r"heads:.*shapes"):
        made.average(1, {0: (one(1, 2), 1), 1: (wrong, 1)})


def test_a_state_that_lacks_a_weight_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"heads: .*lacks weights\.w"):
        averager("fedavg", one(1)).load({"weights.v": torch.ones(1)})


@pytest.mark.slow
def test_flower_is_imported_only_to_average() -> None:
    code = """if True:
        import sys, torch
        from simsplit.schedules.averaging import Averager
        from simsplit.schedules.strategies import FedAvg
        made = Averager(FedAvg(), {"w": torch.ones(1)}, "heads")
        made.load(made.state())
        made.average(1, {})
        assert "flwr" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)


# fedavg, and what is averaged plainly beside a strategy


def test_fedavg_of_one_client_is_that_client() -> None:
    made = averager("fedavg", module(0))
    made.average(1, {4: (module(3), 7)})
    assert same(made.weights, module(3))


def test_fedavg_weighs_by_samples() -> None:
    made = averager("fedavg", one(9, 9))
    made.average(1, {0: (one(1, -4), 1), 1: (one(5, 8), 3)})
    assert same(made.weights, one(4, 5))


def test_fedavg_adds_up_by_the_clients_numbers() -> None:
    """In whatever order they come: in single precision, 1e8 takes a 1 up that comes after it."""
    given = {0: (one(1e8), 1), 1: (one(1), 1), 2: (one(-1e8), 1)}
    forth, back = averager("fedavg", one(0)), averager("fedavg", one(0))
    forth.average(1, given)
    back.average(1, {client: given[client] for client in (0, 2, 1)})
    assert same(forth.weights, back.weights)


def test_fedavg_takes_buffers_along() -> None:
    made = averager("fedavg", {"norm.running_var": torch.zeros(1)})
    made.average(1, {n: ({"norm.running_var": torch.tensor([n + 1.0])}, 2) for n in range(3)})
    assert made.weights["norm.running_var"].tolist() == [2.0]


@every_kind
def test_integers_take_the_weighted_mean_rounded(kind: str) -> None:
    def make_counted(count: int) -> dict[str, Tensor]:
        return {"norm.num_batches_tracked": torch.tensor(count), **one(count)}

    made = averager(kind, make_counted(0), **OPTIONS[kind])
    made.average(1, {0: (make_counted(100), 9), **{n: (make_counted(n), 1) for n in range(1, 7)}})
    exact = (900 + 21) / 15  # 61.4
    assert same({"n": made.weights["norm.num_batches_tracked"]}, {"n": torch.tensor(round(exact))})


@pytest.mark.parametrize("kind", sorted(STEPPING))
def test_a_step_leaves_buffers_at_their_weighted_mean(kind: str) -> None:
    """A step from 4 towards 1, with momentum, would make a variance negative."""
    start = {"norm.running_var": torch.tensor([4.0]), **one(4)}
    made = averager(kind, start, **OPTIONS[kind])
    for number in (1, 2, 3):
        made.average(
            number,
            {
                0: ({"norm.running_var": torch.tensor([0.5]), **one(0)}, 1),
                1: ({"norm.running_var": torch.tensor([2.5]), **one(0)}, 3),
            },
        )
        assert made.weights["norm.running_var"].tolist() == [2.0]
    assert made.weights["w"].item() != 0
    assert not any("running_var" in name for name in made.state() if name[:7] != "weights")


def test_batch_norm_averages_into_a_module_that_still_works() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    buffers = frozenset(name for name, _ in net.named_buffers())
    made = Averager(STRATEGIES["fedadam"](), net.state_dict(), "heads", buffers)
    made.average(1, {n: (nn.Sequential(*net).state_dict(), 3) for n in range(2)})
    net.load_state_dict(made.weights)
    assert net(torch.zeros(2, 1, 5, 5)).isfinite().all()


# strategies whose server takes steps: recursions in double precision, by hand

START = np.array([1.0, -2.0, 0.5])
CLIENTS = [  # two clients in each of three rounds, the second of three times the samples
    (np.array([2.0, -1.0, 0.5]), np.array([0.0, -3.0, 1.5])),
    (np.array([1.5, 0.0, -0.5]), np.array([1.0, -1.0, 0.0])),
    (np.array([0.5, 1.0, 2.0]), np.array([-1.0, 0.5, 0.25])),
]
MEANS = [(first + 3 * second) / 4 for first, second in CLIENTS]


def after_three_rounds(kind: str, **options: Any) -> np.ndarray:
    made = averager(kind, {"w": torch.tensor(START, dtype=torch.float32)}, **options)
    for number, pair in enumerate(CLIENTS, start=1):
        first, second = (torch.tensor(weights, dtype=torch.float32) for weights in pair)
        made.average(number, {0: ({"w": first}, 2), 1: ({"w": second}, 6)})
    assert made.weights["w"].dtype == torch.float32
    return made.weights["w"].double().numpy()


def test_fedavgm_without_momentum_is_fedavg() -> None:
    kinds = (STRATEGIES["fedavg"](), STRATEGIES["fedavgm"]())
    plain, momentum = (Averager(kind, module(0), "heads") for kind in kinds)
    for number in (1, 2):
        plain.average(number, updates(3, number))
        momentum.average(number, updates(3, number))
        assert same(plain.state(), momentum.state())


def test_fedavgm_by_hand() -> None:
    weights, velocity = START, np.zeros(3)
    for mean in MEANS:
        velocity = 0.75 * velocity + (weights - mean)
        weights = weights - 0.5 * velocity
    np.testing.assert_allclose(after_three_rounds("fedavgm", **OPTIONS["fedavgm"]), weights, 1e-6)


def test_fedavgm_with_a_learning_rate_alone_goes_part_of_the_way() -> None:
    weights = START
    for mean in MEANS:
        weights = weights + 0.5 * (mean - weights)
    np.testing.assert_allclose(after_three_rounds("fedavgm", server_learning_rate=0.5), weights)


@pytest.mark.parametrize("kind", ["fedadam", "fedyogi", "fedadagrad"])
def test_adaptive_strategies_by_hand(kind: str) -> None:
    weights, m, v = START, np.zeros(3), np.zeros(3)
    for number, mean in enumerate(MEANS, start=1):
        delta = mean - weights
        rate = 0.2
        if kind == "fedadagrad":
            m, v = delta, v + delta**2
        else:
            m = 0.5 * m + 0.5 * delta
        if kind == "fedadam":
            v = 0.75 * v + 0.25 * delta**2
            rate *= math.sqrt(1 - 0.75 ** (number + 1)) / (1 - 0.5 ** (number + 1))
        if kind == "fedyogi":
            v = v - 0.25 * delta**2 * np.sign(v - delta**2)
        weights = weights + rate * m / (np.sqrt(v) + 0.01)
    np.testing.assert_allclose(after_three_rounds(kind, **OPTIONS[kind]), weights, 1e-5)


@pytest.mark.parametrize("kind", sorted(STEPPING))
def test_a_round_in_which_nobody_trained_keeps_the_memory(kind: str) -> None:
    through, pausing = (averager(kind, module(0), **OPTIONS[kind]) for _ in range(2))
    for number in (1, 3):
        through.average(number, updates(3, number))
    for number, given in ((1, updates(3, 1)), (2, {}), (3, updates(3, 3))):
        pausing.average(number, given)
    assert same(through.state(), pausing.state())


# robust strategies

HONEST = [one(1.0, 10), one(1.1, 11), one(0.9, 9), one(1.05, 10.5), one(0.95, 9.5), one(1.0, 10.2)]
LIAR = one(-1000, 5000)


def average_with_liar(kind: str, liar: dict[str, Tensor], **options: Any) -> Tensor:
    """Average six honest clients and one that falsely claims most samples."""
    given: dict[int, Update] = {n: (w, 1) for n, w in enumerate(HONEST)}
    made = averager(kind, one(0, 0), **options)
    made.average(
        1, {number + (number > 2): update for number, update in given.items()} | {3: (liar, 1000)}
    )
    return made.weights["w"]


@pytest.mark.parametrize("kind", ["fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan"])
def test_one_liar_is_not_heard(kind: str) -> None:
    result = average_with_liar(kind, LIAR, **OPTIONS[kind])
    honest = torch.stack([weights["w"] for weights in HONEST])
    assert (result >= honest.min(0).values).all()
    assert (result <= honest.max(0).values).all()
    assert average_with_liar("fedavg", LIAR)[0] < -900


def test_fedmedian_of_three_is_the_middle_one_value_by_value() -> None:
    made = averager("fedmedian", one(0, 0, 0))
    made.average(1, {0: (one(5, 1, -7), 100), 1: (one(2, 8, 3), 1), 2: (one(9, -4, 0.5), 1)})
    assert same(made.weights, one(5, 1, 0.5))


def test_the_trimmed_mean_drops_extremes_value_by_value() -> None:
    made = averager("fedtrimmedavg", one(0, 0))
    rows = [(1, -90), (2, 10), (3, 20), (4, 60), (500, 6)]  # a fifth goes at either end
    made.average(1, {client: (one(*row), 1 + client) for client, row in enumerate(rows)})
    assert same(made.weights, one(3, 12))


def test_krum_is_the_one_nearest_to_its_neighbours_with_its_buffers() -> None:
    places = [0.0, 1.0, 3.0, 4.5, 100.0]  # n - f - 2 = 2 neighbours each
    sums = [1 + 9, 1 + 4, 1.5**2 + 2**2, 1.5**2 + 3.5**2, 95.5**2 + 97**2]
    nearest = sums.index(min(sums))
    given: dict[int, Update] = {
        client: ({**one(place), "norm.running_var": torch.tensor([1 + client / 10])}, 1)
        for client, place in enumerate(places)
    }
    made = averager("krum", given[0][0], num_malicious_nodes=1)
    made.average(1, given)
    assert nearest == 1
    assert same(made.weights, given[nearest][0])


def test_krum_judges_by_buffers_too() -> None:
    given: dict[int, Update] = {
        client: ({**one(place), "norm.running_var": torch.tensor([variance])}, 1)
        for client, (place, variance) in enumerate(
            [(0.0, 1.0), (1.0, 1.0), (1.1, 900.0), (1.3, 1.0), (2.0, 1.0)]
        )
    }
    made = averager("krum", given[0][0], num_malicious_nodes=1)
    made.average(1, given)
    assert made.weights["norm.running_var"].item() == 1


def test_multikrum_averages_those_it_picks_by_samples() -> None:
    made = averager("multikrum", one(0), num_malicious_nodes=1, num_nodes_to_select=2)
    places = [0.0, 1.0, 3.0, 4.5, 100.0]
    # of the sums above 5 and 6.25 are the smallest: clients 1 and 2, of 1 and 3 samples
    made.average(1, {client: (one(p), 3 if client == 2 else 1) for client, p in enumerate(places)})
    assert same(made.weights, one(2.5))


def test_bulyan_by_hand() -> None:
    """Seven clients, one liar: five are picked, and of each value the three nearest the median."""
    made = averager("bulyan", one(0), num_malicious_nodes=1)
    made.average(1, {n: (one(v), 1) for n, v in enumerate([0, 1, 2, 4.5, 7, 11, 99])})
    # four neighbours each: squared distances of 74.25, 50.25, 36.25, 45, 83.25 and 239.25; so the
    # first five are picked, and about their median 2 lie 0, 1 and 2
    assert made.weights["w"].item() == 1


def test_distances_hold_between_large_weights_that_lie_close() -> None:
    """In single precision the distances here are noise: the squares have 24 bits, not 40."""
    base = torch.full((1000,), 1000.0)
    spread = [0.0, 1.0, 3.0, 4.5, 20.0]
    given: dict[int, Update] = {n: ({"w": base + s / 1024}, 1) for n, s in enumerate(spread)}
    made = averager("krum", {"w": base}, num_malicious_nodes=1)
    made.average(1, given)
    assert same(made.weights, given[1][0])


@pytest.mark.parametrize(
    ("kind", "options", "needed"),
    [
        ("fedtrimmedavg", {"beta": 0.2}, 5),
        ("fedtrimmedavg", {"beta": 0.3}, 4),
        ("fedtrimmedavg", {"beta": 1 / 49}, 50),  # 49 of it fall short of 1 in floats
        ("fedtrimmedavg", {"beta": 0.3 - 0.1}, 6),  # as do 5 of 0.19999999999999998
        ("krum", {}, 3),
        ("krum", {"num_malicious_nodes": 2}, 7),
        ("multikrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 4}, 5),
        ("multikrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 6}, 7),
        ("bulyan", {}, 3),
        ("bulyan", {"num_malicious_nodes": 2}, 11),
    ],
)
def test_too_few_updates_are_refused(kind: str, options: dict[str, Any], needed: int) -> None:
    made = averager(kind, one(0), **options)
    given: dict[int, Update] = {client: (one(client + 1), 1) for client in range(needed)}
    few = {client: update for client, update in given.items() if client > 0}
    message = rf"round 6: heads: {needed - 1} updates .*{kind}.* at least {needed}"
    for too_few in (few, few | {0: (one(1), 0)}):
        with pytest.raises(RunFailedError, match=message):
            made.average(6, too_few)
    assert same(made.weights, one(0))
    made.average(6, given)
    assert not same(made.weights, one(0))


def test_with_the_updates_it_needs_a_trimmed_mean_trims() -> None:
    for beta in (0.1, 0.2, 0.3, 0.49, 1 / 49):
        made = averager("fedtrimmedavg", one(0), beta=beta)
        count = made.config.needed
        made.average(1, {n: (one(1e9 if n == 0 else 1), 1) for n in range(count)})
        assert made.weights["w"].item() == 1
    untrimmed = averager("fedtrimmedavg", one(0), beta=0)
    untrimmed.average(1, {0: (one(3), 1)})
    assert untrimmed.weights["w"].item() == 3


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("fedavgm", "server_learning_rate", 0),
        ("fedavgm", "server_momentum", 1),
        ("fedavgm", "server_momentum", -0.1),
        ("fedadam", "beta_1", 1),
        ("fedadam", "tau", 0),
        ("fedtrimmedavg", "beta", 0.5),
        ("krum", "num_malicious_nodes", -1),
        ("multikrum", "num_nodes_to_select", 0),
    ],
)
def test_options_out_of_range(kind: str, option: str, value: float) -> None:
    with pytest.raises(ValidationError, match=option):
        STRATEGIES[kind](**{option: value})
