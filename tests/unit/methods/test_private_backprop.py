"""Several messages sum up to the gradient, and none of them is it."""

from itertools import product

import pytest
import torch
from builders import experiment, run_to_end, scenario
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.method import Method, Share, Site, Step
from simsplit.methods.private_backprop import MOST, draw_blinding
from simsplit.packets import Packet
from simsplit.results import Run
from simsplit.seeds import rng_for

WIDTH = 16
EXACT = {torch.float32: 1e-6, torch.float64: 1e-12}
FROZEN = {"model": {"kind": "simplecnn", "learns": ["head", "tail"]}}


def build(**fields) -> Method:
    site = Site("client", Leg.SMASHED, (WIDTH,), 0, torch.device("cpu"))
    return METHODS["private_backprop"](**fields).build(site)


def values(*shape: int, seed: int = 0, dtype=torch.float32) -> Tensor:
    return torch.randn(shape, generator=rng_for(seed, "values"), dtype=torch.float64).to(dtype)


def trunk(x: Tensor) -> Tensor:
    """Build a frozen network of two layers that is not linear."""
    first, second = (values(WIDTH, WIDTH, seed=s, dtype=x.dtype) / WIDTH**0.5 for s in (1, 2))
    return torch.tanh(torch.nn.functional.gelu(x @ first) @ second) + x


def back(x: Tensor, grad: Tensor) -> Tensor:
    (reply,) = torch.autograd.grad(trunk(x), x, grad)
    return reply


def sum_replies(x: Tensor, shares: list[Share]) -> Tensor:
    """Sum replies as clients recombine them."""
    return torch.stack([share.weight * back(x, share.grad) for share in shares]).sum(0)


def off(got: Tensor, wanted: Tensor) -> float:
    return ((got - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("messages", [1, 2, 3, 5])
def test_the_sum_of_the_replies_is_the_reply(messages, dtype):
    method, errors = build(messages=messages), []
    for number in range(20):
        x = values(8, WIDTH, seed=10 + number, dtype=dtype).requires_grad_()
        grad = 1e-3 * values(8, WIDTH, seed=50 + number, dtype=dtype)
        shares = method.split_gradient(grad, Step(0, 1, number, 5))
        assert len(shares) == messages
        errors.append(off(sum_replies(x, shares), back(x, grad)))
    assert max(errors) < EXACT[dtype]
    assert messages == 1 or max(errors) > 0


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_a_learning_curve_is_the_plain_ones(dtype):
    """A client's layer learns, through a trunk that does not, with momentum that keeps errors."""

    def curve(method: Method | None) -> Tensor:
        layer, tail = nn.Linear(WIDTH, WIDTH, dtype=dtype), nn.Linear(WIDTH, 2, dtype=dtype)
        for index, weight in enumerate([*layer.parameters(), *tail.parameters()]):
            weight.data = values(*weight.shape, seed=90 + index, dtype=dtype) / 4
        learned = [*layer.parameters(), *tail.parameters()]
        optimizer = torch.optim.SGD(learned, lr=0.05, momentum=0.9)
        losses = []
        for number in range(30):
            optimizer.zero_grad()
            inputs, labels = values(8, WIDTH, seed=number, dtype=dtype), torch.arange(8) % 2
            made = layer(inputs)
            arrived = trunk(made.detach()).requires_grad_()
            loss = cross_entropy(tail(arrived), labels)
            loss.backward()
            step = Step(0, 1, number, 5)
            shares = [Share(arrived.grad)]
            if method is not None:
                shares = method.split_gradient(arrived.grad, step)
            made.backward(sum_replies(made.detach().requires_grad_(), shares))
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    plain = curve(None)
    assert plain[-1] != plain[0]
    assert off(curve(build(messages=3)), plain) < EXACT[dtype]


def test_noise_of_the_papers_variance_costs_digits_that_fp32_has_not():
    x, grad = values(8, WIDTH).requires_grad_(), 1e-3 * values(8, WIDTH, seed=1)
    shares = build(noise="gaussian").split_gradient(grad, Step(0, 1, 0, 5))
    assert 1e-5 < off(sum_replies(x, shares), back(x, grad)) < 0.1


def test_the_papers_1000_is_a_variance():
    grad = torch.zeros(400, WIDTH)
    for share in build(noise="gaussian", messages=3).split_gradient(grad, Step(0, 1, 0, 5)):
        assert 0.3 * 1000 < share.grad.var().item() < 1000


@pytest.mark.parametrize("fields", [{}, {"messages": 3}, {"noise": "gaussian", "variance": 1.0}])
def test_no_message_is_the_gradient(fields):
    grad = values(64, 2, 3, 4)
    for share in build(**fields).split_gradient(grad, Step(0, 1, 0, 5)):
        cosine = torch.cosine_similarity(share.grad.flatten(), grad.flatten(), dim=0)
        assert share.grad.shape == grad.shape
        assert share.grad.untyped_storage().nbytes() == share.grad.nbytes
        assert cosine.abs() < (0.5 if "noise" not in fields else 0.85)


def test_no_matrix_amplifies_or_shows_the_gradient():
    for number in range(50):
        for num in (2, 3, 5):
            matrix = draw_blinding(num, rng_for(number, "matrix"))
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(num).double())
            assert matrix[:, 0].abs().max() <= MOST
    signs = [draw_blinding(2, rng_for(n, "m"))[0, 0].sign().item() for n in range(200)]
    assert 70 < signs.count(1.0) < 130


def test_secrets_are_the_steps_own():
    grad = values(4, WIDTH)
    first, again, later, other = (
        build().split_gradient(grad, step)
        for step in (Step(0, 1, 0, 5), Step(0, 1, 0, 5), Step(0, 1, 1, 5), Step(0, 1, 0, 6))
    )
    for mine, same in zip(first, again, strict=True):
        assert torch.equal(mine.grad, same.grad)
        assert mine.weight == same.weight
    for apart in (later, other):
        assert not torch.equal(first[0].grad, apart[0].grad)
    step, method = Step(0, 1, 0, 5), build()
    one, two = (method.split_gradient(grad, step) for _ in range(2))
    assert not torch.equal(one[0].grad, two[0].grad), "another message of the step, other secrets"


BATCH, HALF = 5, 0.5
LABELLINGS = torch.tensor(list(product((0.0, 1.0), repeat=BATCH)), dtype=torch.float64)


def gradient(labels: Tensor, slopes: Tensor) -> Tensor:
    """Compute Appendix C's gradient of two classes before anything is learned (p = 1/2)."""
    return (HALF - labels)[:, None] * slopes


def within(span: list[Tensor], slopes: Tensor) -> Tensor:
    """List the labels whose gradients are in a span, as a server that knows the head does."""
    basis, _ = torch.linalg.qr(torch.stack([each.flatten() for each in span]).T)
    every = torch.stack([gradient(each, slopes).flatten() for each in LABELLINGS])
    beside = (every - every @ basis @ basis.T).norm(dim=1) / every.norm(dim=1)
    return LABELLINGS[beside < 1e-9]


def count_known(labels: Tensor) -> int:
    """Count in how many labels these agree, up to a flip of all: the largest such part."""
    alike = labels[:, :, None] == labels[:, None, :]
    same = alike.all(0) | (~alike).all(0)
    return int(same.sum(1).max())


@pytest.mark.parametrize("messages", [2, 3, 4, 5])
def test_a_server_with_m_messages_knows_all_but_m_minus_one_labels(messages):
    """The paper's Appendix C, with the best noise there is: other samples' own directions."""
    slopes, labels = values(BATCH, WIDTH, dtype=torch.float64), LABELLINGS[13]
    noise = [torch.eye(BATCH).double()[b][:, None] * slopes for b in range(messages - 1)]
    mixing = draw_blinding(messages, rng_for(0, "matrix"))
    stacked = torch.stack([gradient(labels, slopes), *noise])
    result = within(list(torch.tensordot(mixing, stacked, 1)), slopes)
    assert len(result) == 2**messages  # more than these no space of m dimensions has
    assert count_known(result) == BATCH - messages + 1
    assert len(result[:, : messages - 1].unique(dim=0)) == 2 ** (messages - 1)


@pytest.mark.parametrize("noise", ["mixed", "gaussian"])
@pytest.mark.parametrize("head", ["linear", "deep"])
def test_noise_drawn_at_random_leaves_such_a_server_the_flip_alone(noise, head):
    """So one server with all messages is no protection against who knows the head."""
    slopes, labels = values(BATCH, WIDTH, dtype=torch.float64), LABELLINGS[13]
    if head == "linear":  # a sample's gradient has the direction of every other
        slopes = slopes[:1].expand(BATCH, WIDTH)
    shares = build(messages=3, noise=noise).split_gradient(
        gradient(labels, slopes), Step(0, 1, 0, 5)
    )
    result = within([share.grad for share in shares], slopes)
    assert result.tolist() == [labels.tolist(), (1 - labels).tolist()]


class Tap:
    def __init__(self) -> None:
        self.sent: list[Packet] = []

    def observe(self, packet: Packet) -> None:
        if packet.leg is Leg.FEATURES_GRAD:
            self.sent.append(packet)


def test_a_run_learns_what_the_plain_one_does_and_sends_the_messages_alone(tmp_path):
    plain = Run.load(run_to_end(scenario(**FROZEN), tmp_path / "plain").path)
    methods = [{"kind": "private_backprop", "messages": 3}]
    made, tap = experiment(scenario(**FROZEN, method=methods), tmp_path / "private"), Tap()
    made.parts.wire.taps.append(tap)
    made.run(resume=False)
    private = Run.load(tmp_path / "private")
    for column in ("train_loss", "test_loss"):
        torch.testing.assert_close(
            torch.tensor(private.rounds[column]),
            torch.tensor(plain.rounds[column]),
            rtol=1e-5,
            atol=0,
        )
    assert tap.sent
    for packet in tap.sent:
        assert len(packet.tensors) == 3
        assert len({tensor.shape for tensor in packet.tensors}) == 1
    legs = {run: r.wire.groupby("leg")["bytes"].sum() for run, r in (("a", plain), ("b", private))}
    for leg in ("features_grad", "smashed_grad"):
        assert legs["b"][leg] == 3 * legs["a"][leg]


def test_a_server_that_learns_is_refused_by_path(tmp_path):
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: private_backprop.*trunk"):
        scenario(method=["private_backprop"])
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: private_backprop needs gradients"):
        scenario(**FROZEN, method=["private_backprop"], topology="vanilla")
    lifted = [{"kind": "private_backprop"}, {"kind": "lightsplit", "lift": "learned"}]
    with pytest.raises(
        ScenarioError, match=r"method\.0\.kind: private_backprop needs .* as a meth"
    ):
        run_to_end(scenario(**FROZEN, method=lifted), tmp_path / "run")
