"""Gradients of single samples against a loop over samples, and DP-SGD against a plain loop."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import run_to_end, scenario
from texts import text_scenario
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from simsplit.assembly import Assembler
from simsplit.assembly.trained import load_trained
from simsplit.data.samples import IGNORED
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.methods.method import Step
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import SgdConfig
from simsplit.parties.private_learning import PrivateLearning, WeightNoise, compute_scales
from simsplit.parties.sample_gradients import SampleGradients, find_unfit
from simsplit.scenario import Scenario
from simsplit.seeds import rng_for


class Positions(nn.Module):
    """Adds learned positions, which all samples have in common."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1])[None])


class Tied(nn.Module):
    """Applies one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class TiedEnds(nn.Module):
    """Embeds tokens and predicts them with one table."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.reader = nn.Linear(width, vocabulary, bias=False)
        self.reader.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.reader(torch.tanh(self.tokens(ids)))


class RootMean(nn.Module):
    """Scales by the root mean square, as layers that are not in torch do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * self.weight


def images(*shape: int) -> Tensor:
    return torch.randn(6, *shape, generator=rng_for(0, "inputs"), dtype=torch.float64)


IDS = torch.randint(7, (6, 5), generator=rng_for(0, "ids"))
SEGMENTS: dict[str, tuple[Any, Tensor]] = {
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), nn.ReLU()), images(2, 9, 9)),
    "grouped conv": (lambda: nn.Conv2d(4, 4, 3, groups=2), images(4, 6, 6)),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), images(3, 4)),
    "linear on tokens": (lambda: nn.Linear(6, 40), images(5, 6)),
    "adapter": (lambda: nn.Linear(40, 2, bias=False), images(30, 40)),
    "texts": (
        lambda: nn.Sequential(nn.Embedding(7, 4), Positions(5, 4), nn.LayerNorm(4)),
        IDS,
    ),
    "norms": (lambda: nn.Sequential(nn.GroupNorm(2, 4), RootMean(6)), images(4, 5, 6)),
    "tied": (Tied, images(3, 5)),
    "tied ends": (lambda: TiedEnds(40, 6), IDS),
    "tied ends of few tokens": (lambda: TiedEnds(7, 4), IDS),
}


def differentiate_one_by_one(segment: nn.Module, x: Tensor, g: Tensor) -> list[list[Tensor]]:
    """Return each sample's gradient of each weight, by a backward pass for each sample."""
    weights = [each for each in segment.parameters() if each.requires_grad]
    return [
        list(torch.autograd.grad((segment(x[n : n + 1]) * g[n : n + 1]).sum(), weights))
        for n in range(len(x))
    ]


@pytest.mark.parametrize("name", SEGMENTS)
def test_clipped_sums_are_those_of_a_loop_over_samples(name):
    """In double precision, so that kernels that sum in other orders differ by less than 1e-10."""
    build, x = SEGMENTS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)  # noqa: TID251 - layers of a test
        segment = build().double()
    out = segment(x)
    g = torch.randn(out.shape, generator=rng_for(0, "cotangents"), dtype=torch.float64)
    slow = differentiate_one_by_one(segment, x, g)
    norms = torch.stack(
        [torch.stack([each.square().sum() for each in one]).sum().sqrt() for one in slow]
    )
    clip = norms.median().item()  # some are shortened, and some are not
    scales = torch.linspace(0.5, 2.0, len(x), dtype=torch.float64)
    expected = [
        sum(
            scale * one[place] * min(1.0, clip / (scale * norm).item())
            for one, norm, scale in zip(slow, norms, scales, strict=True)
        )
        for place in range(len(slow[0]))
    ]
    samples = SampleGradients(len(x))
    with samples.record(segment):
        out = segment(x)
    out.backward(g)
    sums = samples.clip(clip, scales)
    weights = [each for each in segment.parameters() if each.requires_grad]
    assert {*sums} == {*weights}
    for weight, wanted in zip(weights, expected, strict=True):
        torch.testing.assert_close(sums[weight], wanted, rtol=1e-10, atol=1e-12)


def test_no_sample_moves_a_sum_by_more_than_twice_the_norm():
    """The sensitivity for which epsilon is computed, with inputs and cotangents of any size."""
    segment = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5))
    x = torch.randn(8, 1, 8, 8, generator=rng_for(0, "x"))
    other = x.clone()
    other[3] = 1e4 * x[4]

    def add_up(given: Tensor) -> Tensor:
        samples = SampleGradients(8)
        with samples.record(segment):
            out = segment(given)
        out.backward(1e3 * torch.ones_like(out))
        sums = samples.clip(0.7, torch.full((8,), 8.0))
        return torch.cat([sums[each].flatten() for each in segment.parameters()])

    moved = (add_up(x) - add_up(other)).norm().item()
    assert 0 < moved <= 1.4 * (1 + 1e-5)


def test_frozen_weights_and_dropout_are_left_alone():
    segment = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    segment[0].requires_grad_(False)
    samples = SampleGradients(3)
    with samples.record(segment):
        out = segment(torch.ones(3, 4))
    out.sum().backward()
    assert {*samples.clip(1e9, torch.ones(3))} == {*segment[2].parameters()}
    assert not segment[2]._forward_hooks


def test_layers_that_mix_samples_are_named():
    given = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MultiheadAttention(4, 1))
    assert [name for name, _ in find_unfit(given)] == ["1", "2"]
    given[1].requires_grad_(False)
    given[2].requires_grad_(False)
    assert [*find_unfit(given)] == []
    samples = SampleGradients(6)
    with samples.record(given[0]), pytest.raises(ScenarioError, match="rows"):
        given[0](torch.ones(3, 1, 5, 5))


class Pair(nn.Module):
    """A layer whose weight learns, of several tensors, by position or by name, to several."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, y: Tensor | None = None, *, several: bool = False):
        x = self.weight * (x if y is None else x + y)
        return (x, x) if several else x


@pytest.mark.parametrize(
    ("given", "named"),
    [(2, {}), (1, {"several": True}), (1, {"y": torch.ones(3, 2)})],
    ids=["several in", "several out", "one by name"],
)
def test_a_layer_whose_gradient_would_be_lost_is_named(given, named):
    """Its weights would learn from noise alone."""
    segment, x = Pair(), torch.ones(3, 2)
    with SampleGradients(3).record(segment), pytest.raises(ScenarioError, match="Pair"):
        segment(*[x] * given, **named)
    with SampleGradients(3).record(segment):
        segment(x)


def test_a_sample_weighs_as_much_as_if_it_were_alone():
    labels = torch.tensor([[1, 2, IGNORED], [3, IGNORED, IGNORED]])
    logits = torch.randn(2, 3, 4, generator=rng_for(0, "logits")).requires_grad_()
    cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED).backward()
    rows = logits.grad * compute_scales(labels, 1.0)[:, None, None]
    for row in (0, 1):
        alone = logits.detach()[row].requires_grad_()
        cross_entropy(alone, labels[row], ignore_index=IGNORED).backward()
        torch.testing.assert_close(rows[row], alone.grad)
    assert compute_scales(torch.zeros(4), 0.5).tolist() == [8.0] * 4


def test_noise_has_the_size_that_was_asked_for_and_no_two_steps_share_it():
    layer = nn.Linear(200, 200, bias=False)
    learner = Learner({"head": layer}, SgdConfig())
    noise = PrivateLearning(WeightNoise(clip=0.5, multiplier=3.0, expected=10.0))

    def draw(number: int, phase: str = "train") -> Tensor:
        noise.release([learner], Step(0, 1, number, 7, phase=phase))
        assert layer.weight.grad is not None
        return layer.weight.grad.clone()

    first = draw(0)
    assert first.std().item() == pytest.approx(0.5 * 3.0 / 10, rel=0.02)
    assert first.mean().abs().item() < 1e-2
    assert torch.equal(first, draw(0))
    assert not torch.equal(first, draw(1))
    assert not torch.equal(first, draw(0, "calibration")), "numbers of phases are their own"


PRIVATE = {"clip": 0.8, "multiplier": 0.7}
ONE = {
    "clients": {"count": 1},
    "model": {"kind": "simplecnn", "cut": "l1h"},
    "data": {"train_samples": 50, "test_samples": 40},
    "schedule": {"rounds": 2},
    "evaluate": {"every": 0},
}


def train_plainly(made: Experiment, steps: int) -> nn.ModuleList:
    """Train the joint network by a plain DP-SGD loop: a backward pass for each sample."""
    given, training = made.scenario, made.parts.pool.clients[0].training
    dp, feed = given.train.dp, training.feeds["private"]
    net, _ = made.live._make_assembler().owners.joint()
    own = [*net.head.parameters(), *net.tail.parameters()]
    sides = [
        given.train.client.build(own),
        given.train.server.build([*net.trunk.parameters()]),
    ]
    for number in range(steps):
        batch = feed.batch(number)
        sums = [torch.zeros_like(each) for each in own]
        for row in range(len(batch.labels)):
            one = batch.take(slice(row, row + 1))
            loss = cross_entropy(net.tail(net.trunk(net.head(one.inputs))), one.labels)
            grads = torch.autograd.grad(loss, own)
            norm = torch.cat([each.flatten() for each in grads]).norm()
            for total, grad in zip(sums, grads, strict=True):
                total += grad * min(1.0, dp.clip / norm.item())
        for side in sides:
            side.zero_grad()
        if len(batch.labels):
            cross_entropy(net.tail(net.trunk(net.head(batch.inputs))), batch.labels).backward()
        rounds = number // feed.steps_per_epoch + 1
        step = training.end.open_step(rounds, number, "train", training=True)
        rng = step.make_rng("train.dp", "train")
        size = feed.batch_size if dp.sampling == "poisson" else len(batch.labels)
        for weight, total in zip(own, sums, strict=True):
            draws = torch.randn(weight.shape, generator=rng)
            weight.grad = (total + dp.multiplier * dp.clip * draws) / size
        sides[0].step()
        if len(batch.labels):
            sides[1].step()
    return nn.ModuleList([net.head, net.trunk, net.tail])


@pytest.mark.parametrize("sampling", ["passes", "poisson"])
def test_a_run_is_a_plain_loop_of_dp_sgd(sampling, tmp_path):
    """Batches of one sample, in which some draws are empty, and of several."""
    small = {"batch_size": 2, "dp": {**PRIVATE, "sampling": sampling}}
    given = scenario(**ONE, train={**small, "batch_size": 2 if sampling == "poisson" else 16})
    given_data = {**ONE["data"], "train_samples": 20}
    if sampling == "poisson":
        given = scenario(**{**ONE, "data": given_data}, train=small)
    made = run_to_end(given, tmp_path / "run")
    client = made.parts.pool.clients[0]
    steps = client.training.taken["private"]
    sizes = [len(client.training.feeds["private"].indices(n)) for n in range(steps)]
    assert (0 in sizes) == (sampling == "poisson")
    plain = train_plainly(made, steps)
    end = client.training.end
    ours = nn.ModuleList([end.head, made.parts.server.end.trunk, end.tail])
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        # Sums over a batch and over single samples round differently in single precision.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_parts_of_a_mini_batch_are_one_release(tmp_path):
    """A mini-batch in parts gets its noise once; dropout and batches are those of whole ones."""
    runs = [
        run_to_end(
            scenario(**ONE, train={"batch_size": 16, "accumulate": parts, "dp": PRIVATE}),
            tmp_path / str(parts),
        )
        for parts in (1, 2)
    ]
    whole, cut = (made.parts.pool.clients[0].training.end.tail for made in runs)
    start = copy.deepcopy(runs[0].live._make_assembler().owners.model.tail)
    moved = (whole.weight - start.weight).norm().item()
    apart = (whole.weight - cut.weight).norm().item()
    assert moved > 0
    assert apart > 0, "each part's step has a number of its own, and so has its noise"
    assert apart < 3 * moved


def test_drawn_batches_have_each_sample_at_one_rate_and_are_counted():
    given = scenario(**ONE, train={"batch_size": 4, "dp": {**PRIVATE, "sampling": "poisson"}})
    data = given.prepare_data()
    assembler = Assembler(given, data, torch.device("cpu"))
    feed = assembler.make_pool([0]).clients[0].training.feeds["private"]
    draws = [feed.indices(number) for number in range(600)]
    counts = torch.bincount(torch.cat(draws), minlength=50)
    assert [feed.count_most(taken) for taken in (0, 600)] == [0, int(counts.max())]
    assert feed.count_most(7) == int(torch.bincount(torch.cat(draws[:7])).max())
    assert counts.float().mean().item() == pytest.approx(600 * 4 / 50, rel=0.05)
    assert all(len(each) == len(each.unique()) for each in draws)
    assert max(map(len, draws)) <= given.train.count_most_rows()
    again = assembler.make_pool([0]).clients[0].training.feeds["private"]
    assert torch.equal(again.indices(3), draws[3])


DP = {"clip": 1e6, "multiplier": 1e-12}
"""A mechanism that changes next to nothing."""
STEP: dict[str, Any] = {
    "clients": {"count": 1},
    "schedule": {"rounds": 1, "local_steps": 1},
    "evaluate": {"every": 9},
}


def read_step(given: Scenario, path: Path) -> dict[str, Tensor]:
    """Return a client's weights after one step."""
    return dict(load_trained(run_to_end(given, path).path).state_dict())


def test_what_a_method_computes_for_itself_is_no_gradient_of_the_tail(tmp_path):
    """The tail learns from the true gradient, whatever is added to what leaves it."""
    made = []
    for method in ([], [{"kind": "grad_perturb", "epsilon": 0.1}]):
        given = scenario(**STEP, method=method, train={"dp": DP}, model={"kind": "mlp"})
        made.append(read_step(given, tmp_path / str(len(method))))
    plain, perturbed = made
    tail = [name for name in plain if name.startswith("tail")]
    assert tail
    for name in tail:
        torch.testing.assert_close(perturbed[name], plain[name])


def test_embeddings_learn_through_what_is_made_of_them(tmp_path):
    """Their gradient passes the clipping by which each sample's embeddings are shortened."""
    noise = {"kind": "dp_forward", "at": "embeddings", "epsilon": 100.0, "relative": False}
    method = [{**noise, "clip": 0.01}]
    sgd = {"kind": "sgd", "lr": 0.1}
    model = {"kind": "sequence_classifier", "sizes": {"family": "bert"}}
    made = []
    for dp in ({}, {"dp": DP}):
        fields = {**STEP, "train": {"client": sgd, **dp}, "method": method, "model": model}
        made.append(read_step(text_scenario(tmp_path, **fields), tmp_path / f"run{len(dp)}"))
    plain, private = made
    for name, weight in plain.items():
        torch.testing.assert_close(private[name], weight, rtol=1e-4, atol=1e-6)
