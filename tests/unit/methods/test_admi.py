"""ADMI's terms by hand, and its two stages in whole steps: what crosses, and what learns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import enter_round, experiment, run_to_end
from texts import text_scenario
from torch import Tensor

from simsplit.data.samples import IGNORED
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.methods.admi import AdmiConfig, compute_ada, soft_cross_entropy
from simsplit.methods.method import Site, Step
from simsplit.results import Run
from simsplit.seeds import rng_for

WORDS = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3, "public": True}}
WORDS |= {"head": 1, "tail": 1}
BARE = {"warm_up": 0, "beta": 0.0, "bottleneck": False}
UP = (Leg.SMASHED, Leg.FEATURES, Leg.FEATURES_GRAD, Leg.SMASHED_GRAD)


def build_defended(path: Path, fields: dict[str, Any] | None, **changes: Any) -> Experiment:
    method = [] if fields is None else [{"kind": "admi", **fields}]
    common = {"data": {"source": {"length": 8}}, "model": WORDS, "method": method}
    return experiment(text_scenario(path, **{**common, **changes}), path / "run")


class Tap:
    def __init__(self, made: Experiment) -> None:
        self.seen: list[Any] = []
        made.parts.wire.taps.append(self)

    def observe(self, packet: Any) -> None:
        self.seen.append(packet)


def take_step(made: Experiment, rounds: int = 1) -> Tap:
    """Take a step of client 0 in the last of these rounds."""
    tap = Tap(made)
    made.parts.exchange.announce(made.clients, counted=True)
    for number in range(1, rounds + 1):
        enter_round(made, number)
        made.parts.exchange.step(0)
    return tap


def end_of(made: Experiment) -> Any:
    return made.parts.pool.clients[0].training.end


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in module.named_parameters()}


def list_moved(module: torch.nn.Module, before: dict[str, Tensor]) -> set[str]:
    now = weights(module)
    return {name for name, each in before.items() if not torch.equal(each, now[name])}


def test_ada_by_hand():
    """|dL_D/dE| = |2 E|, |dL_T/dE| = |(3, 4)|: the least of both, a tenth of the latter."""
    at = torch.tensor([6.0, 8.0], requires_grad=True)
    task = (at * torch.tensor([3.0, 4.0])).sum()
    far = at.square().sum()
    assert compute_ada(far, task, at).item() == pytest.approx(0.1 * 5 / 20)
    assert compute_ada(far, 1000 * task, at).item() == pytest.approx(1.0)
    assert compute_ada(far, torch.ones(1, requires_grad=True).sum(), at).item() == 0


def test_cross_entropy_by_hand():
    predicted, wanted = torch.tensor([[0.2, 0.8]]).log(), torch.tensor([[0.5, 0.5]]).log()
    expected = -(0.5 * torch.tensor(0.2).log() + 0.5 * torch.tensor(0.8).log())
    assert soft_cross_entropy(predicted, wanted).item() == pytest.approx(expected.item(), rel=1e-6)


class Known(torch.nn.Linear):
    """A tail, that counts what it is shown."""


def alone(**fields: Any) -> tuple[Any, Any]:
    known = Known(16, 9).requires_grad_(False)
    site = Site("client", Leg.SMASHED, (5, 16), 0, torch.device("cpu"), tail=known)
    return AdmiConfig(**fields).build(site), known


def test_the_term_is_of_places_that_are_learned_and_reaches_features_and_outputs():
    method, known = alone(adapter=False, adaptive=False, beta=3.0)
    labels = torch.full((2, 5), IGNORED)
    labels[:, 3:] = 1
    step = Step(0, 1, 0, 5, labels=labels)
    u = torch.randn(2, 5, 16, generator=rng_for(0, "u")).requires_grad_()
    step.outputs = torch.randn(2, 5, 9, generator=rng_for(0, "out")).requires_grad_()
    step.task = step.outputs.sum()
    assert method.decode(u, step) is u
    term = method.compute_tail_loss(step)
    expected = 3.0 / soft_cross_entropy(
        known(u)[:, 3:].flatten(0, 1), step.outputs[:, 3:].flatten(0, 1)
    )
    torch.testing.assert_close(term, expected)
    term.backward()
    for grad in (u.grad, step.outputs.grad):
        assert grad[:, :3].abs().max() == 0
        assert grad[:, 3:].abs().min(dim=-1).values.max() > 0


def test_the_bottlenecks_term_is_a_sum_over_the_width():
    method, _ = alone(alpha=0.5)
    step = Step(0, 1, 0, 5)
    z = torch.randn(2, 5, 16, generator=rng_for(0, "z"))
    method.encode(z, step)
    mean, sigma = method.bottleneck.encode(z)
    normal = torch.distributions.Normal
    every = torch.distributions.kl_divergence(normal(mean, sigma), normal(0.0, 1.0))
    torch.testing.assert_close(method.compute_encode_loss(step), 0.5 * every.sum(-1).mean())
    evaluated = Step(0, 1, 0, 5, training=False)
    torch.testing.assert_close(method.encode(z, evaluated), method.bottleneck.decoder(mean))
    assert method.compute_encode_loss(evaluated) is None


def test_without_terms_the_first_step_is_that_of_no_method_to_the_bit(tmp_path):
    changes = {"clients": {"count": 1}}
    plain, bare = (
        build_defended(tmp_path, None, **changes),
        build_defended(tmp_path, BARE, **changes),
    )
    one, other = take_step(plain), take_step(bare)
    for packet, same in zip(one.seen, other.seen, strict=True):
        assert packet.leg is same.leg
        assert all(map(torch.equal, packet.tensors, same.tensors))
    for name in ("head", "tail"):
        before = weights(getattr(end_of(plain), name))
        assert not list_moved(getattr(end_of(bare), name), before)


def test_in_the_warm_up_nothing_returns_and_the_head_learns_by_the_adapter_alone(tmp_path):
    """From the second step on: what a decoder reads matters once it adds something."""
    made = build_defended(tmp_path, {"warm_up": 2, "warm_up_lr": None})
    end, trunk = end_of(made), made.parts.server.end.trunk
    trunk_before, tail_before = weights(trunk), weights(end.tail)
    tap = Tap(made)
    made.parts.exchange.announce(made.clients, counted=True)
    enter_round(made, 1)
    for _ in range(2):
        head_before = weights(end.head)
        made.parts.exchange.step(0)
    assert [packet.leg for packet in tap.seen] == [Leg.SMASHED, Leg.FEATURES] * 2
    assert not list_moved(trunk, trunk_before)
    assert list_moved(end.tail, tail_before)
    assert list_moved(end.head, head_before) == set(head_before)


def test_without_an_adapter_the_head_learns_nothing_in_the_warm_up(tmp_path):
    made = build_defended(tmp_path, {"warm_up": 1, "adapter": False})
    before = weights(end_of(made).head)
    take_step(made)
    take_step(made)
    assert not list_moved(end_of(made).head, before)


def test_the_bottleneck_comes_after_the_warm_up(tmp_path):
    made = build_defended(tmp_path, {"warm_up": 1})
    plain = build_defended(tmp_path / "plain", None)
    assert torch.equal(take_step(made).seen[0].tensors[0], take_step(plain).seen[0].tensors[0])
    end = end_of(made)
    z = torch.ones(1, 2, 16)
    assert torch.equal(end.stack.encode(z, end.open_step(1, 0, "evaluate", training=False)), z)
    enter_round(made, 2)
    assert not torch.equal(end.stack.encode(z, end.open_step(1, 0, "evaluate", training=False)), z)


def test_each_part_has_its_rate(tmp_path):
    made = build_defended(tmp_path, {"warm_up": 1})
    enter_round(made, 1)
    (learner,) = made.parts.pool.clients[0].training.end.learners
    rates = [[group["lr"] for group in each.param_groups] for each in learner.optimizers]
    assert rates == [[2e-5], [2e-4, 4e-4]]
    enter_round(made, 2)
    rates = [[group["lr"] for group in each.param_groups] for each in learner.optimizers]
    assert rates == [[2e-3], [2e-4, 4e-4]]


def test_bytes_are_two_units_in_the_warm_up_and_four_in_training(tmp_path):
    whole = {"length": 8}
    given = text_scenario(
        tmp_path,
        data={"source": whole},
        model=WORDS,
        method=[{"kind": "admi", "warm_up": 1}],
        train={"drop_last": True},
        evaluate={"every": 0},
    )
    made = Run.load(run_to_end(given, tmp_path / "run").path)
    unit = 8 * 8 * 16 * 4
    wire = made.wire[made.wire["leg"].isin([str(leg) for leg in UP])]
    wire = wire[wire["phase"].isin(["warm_up", "train"])]
    legs = {phase: set(rows["leg"]) for phase, rows in wire[wire["packets"] > 0].groupby("phase")}
    assert legs["warm_up"] == {"smashed", "features"}
    assert legs["train"] == {str(leg) for leg in UP}
    assert (wire["bytes"] == wire["packets"] * unit).all()
    rounds = made.rounds.set_index("phase")["bytes_plain"]
    assert rounds["warm_up"] == 0
    assert (rounds["train"] > 0).all()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {**WORDS, "sizes": {"width": 16, "layers": 3}}}, "known_tail"),
        ({"topology": "vanilla"}, "features"),
        ({"model": {}}, "tokens"),
    ],
)
def test_what_it_cannot_do_without_is_refused(changes, field, tmp_path):
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: admi"):
        build_defended(tmp_path, {}, **changes)


def test_heads_must_divide_the_width():
    with pytest.raises(ScenarioError, match=r"method\.0\.heads: .*16, got 3"):
        AdmiConfig(heads=3).compute_sent_shape((6, 16), "method.0")


def segments(made: Experiment) -> dict[str, torch.nn.Module]:
    end = end_of(made)
    return {"head": end.head, "trunk": made.parts.server.end.trunk, "tail": end.tail}


def rounds_of(made: Experiment) -> list[tuple[float, list[Any]]]:
    """Return the loss and the returned features of client 0, round by round."""
    tap, measured = Tap(made), []
    for number in range(1, made.live.program.rounds + 1):
        tap.seen.clear()
        for _ in range(enter_round(made, number).steps[0]):
            made.parts.exchange.step(0)
        features = [packet for packet in tap.seen if packet.leg is Leg.FEATURES]
        measured.append((end_of(made).tally.read()["train_loss"], features))
    return measured


def read_by(tail: torch.nn.Module, made: Experiment, features: list[Any]) -> float:
    """Compute how often a tail predicts the response's next token from features that crossed."""
    right = count = 0
    feed = made.parts.pool.clients[0].training.feeds["private"]
    for packet in features:
        labels = feed.batch(packet.step).labels
        with torch.no_grad():
            tokens = tail(packet.tensors[0]).argmax(-1)
        right += int(((tokens == labels) & (labels != IGNORED)).sum())
        count += int((labels != IGNORED).sum())
    return right / count


@pytest.mark.slow
def test_the_pretrained_tail_reads_less_while_training_goes_on(tmp_path):
    """A model that knows the texts stands for a pretrained one, and is trained on; the adapter
    alone leaves features as readable as they were.
    """
    one = {"clients": {"count": 1}, "train": {"batch_size": 16}}
    plain = build_defended(tmp_path, None, **one, schedule={"rounds": 12})
    rounds_of(plain)
    known = {name: each.state_dict() for name, each in segments(plain).items()}
    read, losses = {}, {}
    for beta in (0.0, 10.0):
        rates = {"warm_up": 1, "warm_up_lr": 2e-3, "adapter_lr": 4e-3, "bottleneck": False}
        made = build_defended(
            tmp_path / f"{beta}", {**rates, "beta": beta}, **one, schedule={"rounds": 8}
        )
        for name, each in segments(made).items():
            each.load_state_dict(known[name])
        (method,) = end_of(made).stack.smashed
        method.public_tail.load_state_dict(known["tail"])
        facts = rounds_of(made)
        losses[beta] = [loss for loss, _ in facts]
        read[beta] = read_by(segments(plain)["tail"], made, facts[-1][1])
    assert read[10.0] < read[0.0] - 0.2
    assert losses[10.0][-1] < losses[10.0][0]
