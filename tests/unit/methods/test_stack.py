"""Several methods as one: their order, side tensors and seeds, and whom an error blames."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError, ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Share, Step
from simsplit.methods.stack import Stack, build_stack, compute_sent_shapes
from simsplit.methods.wcc import compute_within_class_scatter

CPU = torch.device("cpu")
SHAPES = ((8, 3, 2), (10,))
LABELS = torch.tensor([0, 1, 0, 1, 1])


@dataclass(eq=False)
class Diary(Method):
    """Writes down which hook was called."""

    name: str
    lines: list[str] = field(default_factory=list)

    def encode(self, z: Tensor, step: Step) -> Tensor:
        self.lines.append(f"{self.name}.encode")
        return z

    def lift(self, z: Tensor, step: Step) -> Tensor:
        self.lines.append(f"{self.name}.lift")
        return z

    def decode(self, u: Tensor, step: Step) -> Tensor:
        self.lines.append(f"{self.name}.decode")
        return u


class Times(Method):
    """On the wire multiplied, with the factor beside it."""

    num_side = 1

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        return x * self.factor, torch.tensor(self.factor)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        return tensors[0] / tensors[1]

    def split_gradient(self, grad: Tensor, step: Step) -> tuple[Share, ...]:
        return Share(grad, self.factor), Share(grad + 1, 1 - self.factor)

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        return torch.tensor(self.factor)


class EverySecond(Method):
    """Leaves out every second sample."""

    def transform(self, batch: Batch, step: Step) -> Batch:
        return Batch(batch.inputs[::2], batch.labels[::2], batch.indices[::2])


def step(**fields) -> Step:
    return Step(0, 0, 0, 0, **fields)


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def sides(*kinds: tuple[str, dict], seed: int = 0) -> tuple[Stack, Stack]:
    configs = [METHODS[kind](**fields) for kind, fields in kinds]
    client, server = (
        build_stack(configs, side, SHAPES, seed, CPU) for side in ("client", "server")
    )
    client.receive_announcements(server.announce())
    return client, server


def test_out_in_order_and_back_in_reverse():
    lines: list[str] = []
    smashed = [Diary(name, lines) for name in ("a", "b")]
    features = [Diary(name, lines) for name in ("p", "q")]
    client, server = (Stack(smashed, features, side) for side in ("client", "server"))
    x = values(1, 2)
    for stack, hook in ((client, "encode"), (server, "lift"), (server, "encode"), (client, "lift")):
        getattr(stack, hook)(x, step())
    assert " ".join(lines) == (
        "a.encode b.encode b.lift a.lift p.encode q.encode q.lift p.lift b.decode a.decode"
    )


def test_side_tensors_find_their_method():
    stack, x = Stack([Times(2.0), Method(), Times(5.0)], [Times(3.0)], "client"), values(2, 4)
    packed = stack.pack(Leg.SMASHED, x, step())
    assert [tensor.tolist() for tensor in packed[1:]] == [2.0, 5.0]
    torch.testing.assert_close(packed[0], 10 * x)
    torch.testing.assert_close(stack.unpack(Leg.SMASHED_GRAD, packed, step()), x)
    assert len(stack.pack(Leg.FEATURES_GRAD, x, step())) == 2
    messages = stack.split_messages(Leg.SMASHED, (*packed, *packed))
    assert [len(message) for message in messages] == [3, 3]
    assert all(a is b for a, b in zip((*packed, *packed), sum(messages, ()), strict=True))


def test_a_wrong_number_of_side_tensors_is_a_bug():
    method = Times(2.0)
    method.num_side = 2
    with pytest.raises(ProtocolError, match=r"Times\.pack: got 1 .* declares 2"):
        Stack([method], [], "client").pack(Leg.SMASHED, values(1, 2), step())


def test_shares_of_shares_multiply():
    grad = torch.zeros(1)
    shares = Stack([Times(3.0), Times(5.0)], [], "client").split_gradient(grad, step())
    got = sorted((share.grad.item(), share.weight) for share in shares)
    assert got == [(0, 3 * 5), (1, 3 * -4), (1, -2 * 5), (2, -2 * -4)]
    assert sum(weight for _, weight in got) == 1


def test_losses_add_and_none_is_none():
    assert (
        Stack([Times(3.0), Method(), Times(5.0)], [], "client").compute_encode_loss(step()).item()
        == 8
    )
    assert Stack([Method()], [], "client").compute_encode_loss(step()) is None
    assert Stack([Times(3.0)], [], "client").compute_tail_loss(step()) is None


@pytest.mark.parametrize("slices", [(slice(None), slice(0, 3)), (slice(0, 2),)])
def test_a_slice_travels_without_what_it_was_cut_from(slices):
    x = values(4, 10)[slices]
    (packed,) = Stack([], [], "client").pack(Leg.SMASHED, x, step())
    assert packed.untyped_storage().nbytes() == packed.nbytes == x.nbytes
    assert torch.equal(packed, x)


def test_what_is_dense_travels_unchanged():
    for x in (values(4, 10), values(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        assert Stack([], [], "client").pack(Leg.SMASHED, x, step())[0] is x


def test_labels_of_the_step_follow_the_batch():
    batch, training = Batch(values(5, 2), LABELS, torch.arange(5)), step(labels=LABELS)
    Stack([EverySecond()], [], "client").transform(batch, training)
    assert training.labels.tolist() == [0, 0, 1]
    evaluating = step(training=False)
    Stack([EverySecond()], [], "client").transform(batch, evaluating)
    assert evaluating.labels is None


def test_wcc_charges_for_what_the_methods_before_it_made():
    z, light, wcc = values(5, *SHAPES[0]), ("lightsplit", {"k": 6}), ("wcc", {"weight": 1})
    (client, _), (other, _) = sides(light, wcc), sides(wcc, light)
    now = step(labels=LABELS)
    sent = client.encode(z, now)
    torch.testing.assert_close(
        client.compute_encode_loss(now), compute_within_class_scatter(sent, LABELS)
    )
    now = replace(now, memo={})
    other.encode(z, now)
    torch.testing.assert_close(
        other.compute_encode_loss(now), compute_within_class_scatter(z, LABELS)
    )


def test_raw_is_an_empty_list():
    x = values(5, *SHAPES[0])
    for client, server in (sides(), sides(("raw", {}))):
        now = step()
        (packed,) = client.pack(Leg.SMASHED, client.encode(x, now), now)
        assert server.lift(server.unpack(Leg.SMASHED, (packed,), now), now) is x
        assert not list(client.modules.parameters())
        assert sum(len(tensors) for tensors in server.announce()) == 0


def test_each_place_in_the_stack_has_its_own_seed():
    light = ("lightsplit", {"ratio": 1})
    _, server = sides(light, light, ("lightsplit", {"k": 10, "legs": ["features"]}))
    seeds = [int(tensor) for tensors in server.announce() for tensor in tensors]
    assert len(set(seeds)) == 3
    _, other = sides(light, seed=1)
    assert int(other.announce()[0][0]) not in seeds


def test_modules_are_named_by_leg_and_place():
    narrow = ("learned1x1", {"ratio": 2, "legs": ["smashed", "features"]})
    client, server = sides(("raw", {}), narrow)
    assert set(client.modules) == set(server.modules) == {"smashed_1", "features_0"}
    assert client.modules["smashed_1"].weight.shape == (4, 8, 1, 1)
    assert server.modules["smashed_1"].weight.shape == (8, 4, 1, 1)
    assert client.modules["features_0"].weight.shape == (10, 5)


def test_an_error_names_the_method_and_the_size_that_reaches_it():
    configs = [METHODS["lightsplit"](k=6), METHODS["lightsplit"](k=7)]
    for check in (
        lambda: compute_sent_shapes(configs, SHAPES),
        lambda: build_stack(configs, "server", SHAPES, 0, CPU),
    ):
        with pytest.raises(ScenarioError, match=r"method\.1\.k:.*at most.*6 values"):
            check()
