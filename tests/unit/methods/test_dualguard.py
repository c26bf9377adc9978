"""DualGuard's terms by hand, its warm-up without a server, and the head that is frozen after it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import enter_round, experiment, run_to_end
from texts import text_scenario

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.methods.dualguard import Dualguard, DualguardConfig
from simsplit.methods.method import Site, Step
from simsplit.methods.tokens import Tokens
from simsplit.packets import Leg
from simsplit.phases import WARM_UP
from simsplit.results import Run
from simsplit.seeds import rng_for

WIDTH, VOCABULARY = 16, 9
WORDS = {"kind": "causal_lm", "sizes": {"width": WIDTH, "layers": 3, "public": True}}
WORDS |= {"head": 1, "tail": 1}
LEGS = ["smashed", "features", "features_grad", "smashed_grad"]


def build_defended(path: Path, *methods: dict[str, Any], **changes: Any) -> Experiment:
    given = [{"kind": "dualguard", "warm_up": 1}, *methods]
    common = {"data": {"source": {"length": 8}}, "model": WORDS, "method": given}
    return experiment(text_scenario(path, **{**common, **changes}), path / "run")


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in module.parameters()]


def same(before: list[torch.Tensor], module: torch.nn.Module) -> bool:
    return all(map(torch.equal, before, module.parameters()))


def alone(**fields: Any) -> Dualguard:
    table = torch.randn(VOCABULARY, WIDTH, generator=rng_for(0, "table"))
    tokens = Tokens(table, torch.ones(VOCABULARY).long(), frozenset())
    tail = torch.nn.Linear(WIDTH, VOCABULARY).requires_grad_(False)
    beside = {"tokens": tokens, "tail": tail}
    site = Site("client", Leg.SMASHED, (5, WIDTH), 0, torch.device("cpu"), **beside)
    made = DualguardConfig(**fields).build(site)
    assert isinstance(made, Dualguard)
    return made


def values(name: str) -> torch.Tensor:
    return torch.randn(2, 5, WIDTH, generator=rng_for(0, name)).requires_grad_()


def draw_labels() -> torch.Tensor:
    labels = torch.full((2, 5), IGNORED)
    labels[:, 2:] = torch.tensor([3, 1, 4])
    return labels


def test_in_training_the_term_is_one_over_the_pretrained_tails_error():
    method, step, u = (
        alone(distance=7.0, floor=0.5),
        Step(0, 1, 0, 5, labels=draw_labels()),
        values("u"),
    )
    assert method.decode(u, step) is u
    error = torch.nn.functional.cross_entropy(
        method.public_tail(u)[:, 2:].flatten(0, 1), draw_labels()[:, 2:].flatten()
    )
    step.task = torch.ones(1, requires_grad=True).sum()
    term = method.compute_tail_loss(step)
    torch.testing.assert_close(term, 7.0 / (error + 0.5))
    term.backward()
    assert u.grad[:, :2].abs().max() == 0
    assert u.grad[:, 2:].abs().min(dim=-1).values.max() > 0


def test_in_the_warm_up_the_inverter_learns_and_the_head_evades_it():
    """What moves the inverter is its own error alone; what moves H is the inverse of the same."""
    method = alone(start=0.0, inversion=30.0, floor=0.0)
    step = Step(0, 1, 0, 5, labels=draw_labels(), phase=WARM_UP)
    ids = torch.randint(VOCABULARY, (2, 5), generator=rng_for(0, "ids"))
    batch = Batch(ids, draw_labels(), torch.arange(2), lengths=torch.tensor([5, 3]))
    method.transform(batch, step)
    z = values("z")
    assert method.encode(z, step) is z
    method.decode(method.stand_in(z, step), step)
    step.task = torch.ones(1, requires_grad=True).sum()
    term = method.compute_tail_loss(step)
    inverter = method.module["inverter"]
    real = batch.real

    def error(given):
        logits = inverter(given[real]) @ method.tokens.embeddings.T
        return torch.nn.functional.cross_entropy(logits, ids[real])

    torch.testing.assert_close(term, error(z) + 30 / error(z))
    (got,) = torch.autograd.grad(term, z, retain_graph=True)
    (wanted,) = torch.autograd.grad(30 / error(z), z)
    torch.testing.assert_close(got, wanted)
    assert got[1, 3:].abs().max() == 0
    learned = torch.autograd.grad(term, [*inverter.parameters()])
    expected = torch.autograd.grad(error(z.detach()), [*inverter.parameters()])
    for one, other in zip(learned, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_sure_pretrained_tail_does_not_explode():
    method, step = alone(), Step(0, 1, 0, 5, labels=draw_labels())
    with torch.no_grad():
        method.public_tail.weight.zero_()
        method.public_tail.bias.fill_(-50.0)
    step.labels = torch.where(draw_labels() == IGNORED, IGNORED, 2)
    with torch.no_grad():
        method.public_tail.bias[2] = 50.0
    method.decode(values("u"), step)
    step.task = torch.ones(1, requires_grad=True).sum()
    assert method.compute_tail_loss(step).item() == pytest.approx(10 / 0.1)


def test_in_the_warm_up_nothing_crosses_and_then_three_legs_do(tmp_path):
    given = text_scenario(
        tmp_path,
        data={"source": {"length": 8}},
        model=WORDS,
        method=[{"kind": "dualguard", "warm_up": 2}],
        train={"drop_last": True},
        network={"device": "phone", "link": "lte"},
    )
    made = Run.load(run_to_end(given, tmp_path / "run").path)
    wire = made.wire[made.wire["leg"].isin(LEGS)]
    training = wire[wire["phase"] == "train"]
    assert wire[wire["phase"] == "warm_up"]["packets"].sum() == 0
    sent = training.groupby("leg")["bytes"].sum()
    assert set(sent[sent > 0].index) == set(LEGS[:3])
    assert sent[sent > 0].nunique() == 1
    rounds = made.rounds.set_index("phase")
    assert (rounds.loc["warm_up", "bytes_plain"] == 0).all()
    assert rounds.loc["train", "bytes_plain"].sum() * 3 == training["bytes"].sum() * 4
    assert (rounds["simulated_s"] > 0).all()
    assert (rounds.loc["warm_up", "server_busy"] == 0).all()
    two_layers = 2 * 2 * WIDTH**2  # of a token, in place of the trunk
    assert made.summary["flops"]["stand_in"] == 8 * two_layers
    assert rounds["train_loss"].notna().all()


def test_the_head_learns_in_the_warm_up_and_not_after_it(tmp_path):
    made = build_defended(tmp_path)
    client = made.parts.pool.clients[0].training.end
    trunk = made.parts.server.end.trunk
    made.parts.exchange.announce(made.clients, counted=True)
    for number, learns in ((1, True), (2, False)):
        enter_round(made, number)
        head, tail, served = weights(client.head), weights(client.tail), weights(trunk)
        made.parts.exchange.step(0)
        assert same(head, client.head) is not learns
        assert not same(tail, client.tail)
        assert same(served, trunk) is learns


def test_what_learns_before_the_cut_still_gets_its_gradient(tmp_path):
    made = build_defended(tmp_path, {"kind": "mid"})
    seen = []
    made.parts.wire.taps.append(type("Tap", (), {"observe": lambda self, p: seen.append(p.leg)})())
    made.parts.exchange.announce(made.clients, counted=True)
    enter_round(made, 2)
    made.parts.exchange.step(0)
    assert [str(leg) for leg in seen] == LEGS


def test_a_client_that_drops_out_of_the_warm_up_has_sent_nothing(tmp_path):
    made = build_defended(
        tmp_path, cohort={"dropout": 1.0}, schedule={"rounds": 1, "local_steps": 1}
    )
    made.run(resume=False)
    wire = Run.load(made.path).wire
    assert wire[(wire["phase"] == "warm_up") & wire["leg"].isin(LEGS)]["packets"].sum() == 0
    assert wire[(wire["phase"] == "train") & wire["leg"].isin(LEGS)]["packets"].sum() > 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {**WORDS, "sizes": {"width": 16, "layers": 3}}}, "random weights"),
        ({"topology": "vanilla"}, "cross"),
        ({"model": {}}, "predicts tokens"),
    ],
)
def test_what_it_cannot_do_without_is_refused(changes, why, tmp_path):
    with pytest.raises(ScenarioError, match=rf"method\.0\.kind: dualguard.*{why}"):
        build_defended(tmp_path, **changes)


def test_who_looks_at_gradients_that_do_not_return_is_refused(tmp_path):
    detector = {"kind": "cosine_mad", "signal": "smashed_grad"}
    with pytest.raises(ScenarioError, match=r"detectors\.0.*dualguard"):
        build_defended(tmp_path, clients={"count": 4}, detectors=[detector])
