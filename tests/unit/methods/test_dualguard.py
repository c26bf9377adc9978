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
from simsplit.legs import Leg
from simsplit.methods.dualguard import INVERTER, Dualguard, DualguardConfig
from simsplit.methods.method import Site, Step
from simsplit.methods.tokens import Tokens
from simsplit.phases import WARM_UP
from simsplit.results import Run
from simsplit.seeds import rng_for

WIDTH, VOCABULARY = 16, 9
WORDS = {"kind": "causal_lm", "sizes": {"width": WIDTH, "layers": 3, "public": True}}
WORDS |= {"head": 1, "tail": 1}
PUBLIC = {"source": {"length": 8}, "auxiliary": 0.3}
ONE_EACH = {"inverter_rounds": 1, "warm_up": 1}
LEGS = ["smashed", "features", "features_grad", "smashed_grad"]


def build_defended(path: Path, *methods: dict[str, Any], **changes: Any) -> Experiment:
    given = [{"kind": "dualguard", **ONE_EACH}, *methods]
    common = {"data": PUBLIC, "model": WORDS, "method": given}
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
    method, step, u = alone(distance=7.0), Step(0, 1, 0, 5, labels=draw_labels()), values("u")
    assert method.decode(u, step) is u
    error = torch.nn.functional.cross_entropy(
        method.public_tail(u)[:, 2:].flatten(0, 1), draw_labels()[:, 2:].flatten()
    )
    step.task = torch.ones(1, requires_grad=True).sum()
    term = method.compute_tail_loss(step)
    torch.testing.assert_close(term, 7.0 / error)
    term.backward()
    assert u.grad[:, :2].abs().max() == 0
    assert u.grad[:, 2:].abs().min(dim=-1).values.max() > 0


def take(method, phase, z):
    """Take a step in which nothing crosses, and return its batch and its loss term."""
    step = Step(0, 1, 0, 5, labels=draw_labels(), phase=phase)
    ids = torch.randint(VOCABULARY, (2, 5), generator=rng_for(0, "ids"))
    batch = Batch(ids, draw_labels(), torch.arange(2), lengths=torch.tensor([5, 3]))
    method.transform(batch, step)
    assert method.encode(z, step) is z
    method.decode(method.stand_in(z, step), step)
    step.task = torch.ones(1, requires_grad=phase == WARM_UP).sum()
    return batch, method.compute_tail_loss(step)


def compute_inverter_error(method, batch, z):
    return torch.nn.functional.cross_entropy(
        method.inverter(z)[batch.real], batch.inputs[batch.real]
    )


def test_the_inverter_learns_first_and_alone():
    method, z = alone(), values("z")
    method.module.eval()  # without dropout
    batch, term = take(method, INVERTER, z)
    torch.testing.assert_close(term, compute_inverter_error(method, batch, z))
    learned = [each for each in method.module.parameters() if each.requires_grad]
    grads = torch.autograd.grad(term, [*learned, z], allow_unused=True)
    assert grads[-1] is None  # the head stays as it is
    moved = {id(each) for each, grad in zip(learned, grads, strict=False) if grad is not None}
    assert moved == {id(each) for each in method.inverter.parameters()}


def test_in_the_warm_up_the_head_evades_an_inverter_that_stays_as_it_is():
    method, z = alone(start=0.0, inversion=30.0), values("z")
    method.module.eval()
    batch, term = take(method, WARM_UP, z)
    error = compute_inverter_error(method, batch, z)
    torch.testing.assert_close(term, 30 / error)
    (got,) = torch.autograd.grad(term, z, retain_graph=True)
    (wanted,) = torch.autograd.grad(30 / error, z)
    torch.testing.assert_close(got, wanted)
    kept = torch.autograd.grad(term, [*method.inverter.parameters()], allow_unused=True)
    assert all(each is None for each in kept)


def test_in_the_trunks_place_stand_three_layers_without_a_way_past():
    method, z = alone(), values("z")
    step = Step(0, 1, 0, 5, phase=WARM_UP)
    sizes = [tuple(each.weight.shape) for each in method.trunk if hasattr(each, "weight")]
    assert sizes == [(2 * WIDTH, WIDTH), (2 * WIDTH, 2 * WIDTH), (WIDTH, 2 * WIDTH)]
    x = z
    for layer in (0, 2):
        x = torch.relu(method.trunk[layer](x))
    torch.testing.assert_close(method.stand_in(z, step), method.trunk[4](x))


def test_in_the_warm_up_nothing_crosses_and_then_three_legs_do(tmp_path):
    given = text_scenario(
        tmp_path,
        data=PUBLIC,
        model=WORDS,
        method=[{"kind": "dualguard", "inverter_rounds": 2, "warm_up": 2}],
        train={"drop_last": True},
        network={"device": "phone", "link": "lte"},
    )
    made = Run.load(run_to_end(given, tmp_path / "run").path)
    wire = made.wire[made.wire["leg"].isin(LEGS)]
    training = wire[wire["phase"] == "train"]
    assert wire[wire["phase"].isin([INVERTER, WARM_UP])]["packets"].sum() == 0
    sent = training.groupby("leg")["bytes"].sum()
    assert set(sent[sent > 0].index) == set(LEGS[:3])
    assert sent[sent > 0].nunique() == 1
    rounds = made.rounds.set_index("phase")
    assert len(rounds.loc[INVERTER]) == len(rounds.loc["warm_up"]) == 2
    assert (rounds.drop(index="train")["bytes_plain"] == 0).all()
    assert rounds.loc["train", "bytes_plain"].sum() * 3 == training["bytes"].sum() * 4
    assert (rounds["simulated_s"] > 0).all()
    assert (rounds.loc["warm_up", "server_busy"] == 0).all()
    three_layers = 2 * (2 + 4 + 2) * WIDTH**2  # of a token, in place of the trunk
    assert made.summary["flops"]["stand_in"] == 8 * three_layers
    assert rounds["train_loss"].notna().all()


def test_each_part_learns_in_its_own_phase(tmp_path):
    made = build_defended(tmp_path)
    client = made.parts.pool.clients[0].training.end
    (method,) = client.stack.smashed
    parts = {"inverter": method.inverter, "mlp": method.trunk, "head": client.head}
    parts |= {"tail": client.tail, "trunk": made.parts.server.end.trunk}
    made.parts.exchange.announce(made.clients, counted=True)
    for number, learns in ((1, {"inverter"}), (2, {"mlp", "head", "tail"}), (3, {"tail", "trunk"})):
        enter_round(made, number)
        before = {name: weights(part) for name, part in parts.items()}
        made.parts.exchange.step(0)
        assert {name for name, part in parts.items() if not same(before[name], part)} == learns


def test_head_and_tail_warm_up_at_a_rate_of_their_own():
    method = alone(warm_up_lr=3e-5, lr=0.02, inverter_lr=0.03)
    assert [(each.name, each.lr) for each in method.plan_phases(1)] == [
        (INVERTER, None),
        (WARM_UP, 3e-5),
    ]
    optimizer = method.make_optimizer([*method.module.parameters()])
    rates = {id(w): group["lr"] for group in optimizer.param_groups for w in group["params"]}
    assert {rates[id(w)] for w in method.trunk.parameters()} == {0.02}
    assert {rates[id(w)] for w in method.inverter.parameters()} == {0.03}


def test_what_learns_before_the_cut_still_gets_its_gradient(tmp_path):
    made = build_defended(tmp_path, {"kind": "mid"})
    seen = []
    made.parts.wire.taps.append(type("Tap", (), {"observe": lambda self, p: seen.append(p.leg)})())
    made.parts.exchange.announce(made.clients, counted=True)
    enter_round(made, 3)
    made.parts.exchange.step(0)
    assert [str(leg) for leg in seen] == LEGS


def test_a_client_that_drops_out_of_the_warm_up_has_sent_nothing(tmp_path):
    made = build_defended(
        tmp_path, cohort={"dropout": 1.0}, schedule={"rounds": 1, "local_steps": 1}
    )
    made.run(resume=False)
    wire = Run.load(made.path).wire
    assert (
        wire[wire["phase"].isin([INVERTER, WARM_UP]) & wire["leg"].isin(LEGS)]["packets"].sum() == 0
    )
    assert wire[(wire["phase"] == "train") & wire["leg"].isin(LEGS)]["packets"].sum() > 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {**WORDS, "sizes": {"width": 16, "layers": 3}}}, "random weights"),
        ({"topology": "vanilla"}, "cross"),
        ({"model": {}}, "predicts tokens"),
        ({"data": {"source": {"length": 8}, "auxiliary": 0.0}}, "public data"),
    ],
)
def test_what_it_cannot_do_without_is_refused(changes, why, tmp_path):
    with pytest.raises(ScenarioError, match=rf"method\.0\.kind: dualguard.*{why}"):
        build_defended(tmp_path, **changes)


def test_who_looks_at_gradients_that_do_not_return_is_refused(tmp_path):
    detector = {"kind": "cosine_mad", "signal": "smashed_grad"}
    with pytest.raises(ScenarioError, match=r"detectors\.0.*dualguard"):
        build_defended(tmp_path, clients={"count": 4}, detectors=[detector])
