"""What every method owes the two sides of the cut, whatever it does there."""

import random

import pytest
import torch
from contracts.method_cases import BATCH, CASES, COMPOSITIONS, CUT, EVERY_CASE, FEATURES
from contracts.method_exchange import (
    TRUNK,
    activation,
    exchange,
    half_square,
    joint_loss,
    labels_of,
    pair,
)
from contracts.method_probes import PROBES
from pace import together
from torch import Tensor, nn

from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Step
from simsplit.methods.method import IMAGES
from simsplit.methods.pslf import Pslf
from simsplit.methods.stack import compute_sent_shapes

pytestmark = pytest.mark.always
every_case = together(EVERY_CASE)
FORWARD = (Leg.SMASHED, Leg.FEATURES)
BACK = (Leg.SMASHED_GRAD, Leg.FEATURES_GRAD)


def read_bytes(seen) -> dict[Leg, list[bytes]]:
    return {
        leg: [t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]
        for leg, tensors in seen.packed.items()
    }


def tensors_in(thing: object) -> list[Tensor]:
    """Return the tensors that an object holds, in its attributes, containers and modules."""
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, dict):
        return [result for each in thing.values() for result in tensors_in(each)]
    if isinstance(thing, list | tuple):
        return [result for each in thing for result in tensors_in(each)]
    if type(thing).__module__.startswith(("simsplit", "contracts", "torch.nn")):
        return tensors_in(vars(thing)) if hasattr(thing, "__dict__") else []
    return []


def test_every_registered_method_has_cases():
    of_images = {kind for kind, each in METHODS.items() if each.modalities >= IMAGES}
    assert CASES.keys() == of_images, "write cases for the new method in method_cases.py"
    for kind, cases in CASES.items():
        assert any(type(config) is METHODS[kind] for case in cases for config in case.configs)


def test_the_probes_and_methods_exercise_every_hook():
    hooks = {name for name, hook in vars(Method).items() if callable(hook)}
    hooks.add("num_side")
    hooks -= {"get_own_tokens", "compute_task_loss", "make_optimizer", "stand_in"}  # of texts alone
    built = [pair(case.configs).client.smashed for case in EVERY_CASE]
    classes = {type(method) for methods in built for method in methods}
    assert set(PROBES.values()) <= classes
    assert hooks == {hook for hook in hooks for each in classes - {Method} if hook in vars(each)}


@every_case
def test_shapes_on_every_leg(case):
    seen = exchange(pair(case.configs), activation(BATCH))
    rows = case.rows(BATCH)
    assert compute_sent_shapes(case.configs, (CUT, FEATURES)) == (case.smashed, case.features)
    assert seen.sent.shape == seen.arrived.shape == (rows, *case.smashed)
    restored = BATCH if case.superposed else rows
    assert seen.lifted.shape == (restored, *CUT)
    assert seen.returned.shape == (restored, *case.features)
    assert seen.decoded.shape[1:] == FEATURES
    assert len(seen.replies) == case.num_messages
    assert all(reply.shape == seen.sent.shape for reply in seen.replies)


@together(EVERY_CASE, ["contiguous", "channels_last", "sliced"])
def test_bytes_are_the_values_own(case, layout):
    """As many as worked out by hand, and no storage behind them that holds more."""
    seen = exchange(pair(case.configs), laid_out(activation(BATCH), layout))
    for index, (forward, back) in enumerate(zip(FORWARD, BACK, strict=True)):
        for leg, messages in ((forward, 1), (back, case.num_messages)):
            tensors = seen.packed[leg]
            nbytes = case.nbytes if leg is forward or case.back is None else case.back
            assert sum(t.element_size() * t.numel() for t in tensors) == messages * nbytes[index]
            assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors)
            assert not any(t.requires_grad for t in tensors)


@every_case
def test_same_streams_same_bytes(case):
    z = activation(BATCH)
    first = read_bytes(exchange(pair(case.configs), z))
    assert read_bytes(exchange(pair(case.configs), z)) == first
    assert (read_bytes(exchange(pair(case.configs), z, number=1)) != first) == case.noisy
    if not case.noisy:
        assert (read_bytes(exchange(pair(case.configs, seed=5), z)) != first) == case.seeded


def laid_out(z: Tensor, layout: str) -> Tensor:
    """Return the same values in another memory format, or as a part of a larger tensor."""
    if layout == "channels_last":
        return z.to(memory_format=torch.channels_last)
    return torch.stack([z, z + 1], dim=-1)[..., 0] if layout == "sliced" else z


@together(EVERY_CASE, ["channels_last", "sliced"])
def test_memory_format_changes_no_value(case, layout):
    z = activation(BATCH)
    plain, other = (exchange(pair(case.configs), each) for each in (z, laid_out(z, layout)))
    for leg in FORWARD:
        for ours, theirs in zip(plain.packed[leg], other.packed[leg], strict=True):
            torch.testing.assert_close(
                ours, theirs, atol=1 if ours.dtype is torch.int8 else 1e-5, rtol=1e-4
            )


DEGENERATE = {
    "equal": torch.full((BATCH, *CUT), 3.0),
    "zero": torch.zeros(BATCH, *CUT),
    "single": activation(1),
    "single_zero": torch.zeros(1, *CUT),
    "tiny": torch.full((BATCH, *CUT), 1e-30),
}


@pytest.mark.slow
@together(EVERY_CASE, [True, False], DEGENERATE)
def test_degenerate_batches(case, training, batch):
    sides, z = pair(case.configs), DEGENERATE[batch].clone().requires_grad_(training)
    sides.train(training)
    seen = exchange(sides, z, training=training)
    everything = [seen.decoded, *(t for each in seen.packed.values() for t in each)]
    everything += [z.grad] if training else []
    assert all(tensor.isfinite().all() for tensor in everything)
    assert len(seen.sent) == case.rows(len(z))


@every_case
def test_unpack_restores_what_pack_took(case):
    seen = exchange(pair(case.configs), activation(BATCH))
    sent, arrived = seen.sent.flatten(1), seen.arrived.flatten(1)
    bound = case.error * sent.abs().amax(1, keepdim=True) * (1 + 1e-5)
    assert ((sent - arrived).abs() <= bound).all()


@every_case
def test_gradients_are_the_joint_graphs(case):
    """What comes back over four detached legs against one graph without a wire."""
    ours, theirs = pair(case.configs), pair(case.configs)
    z, joint = (activation(BATCH).requires_grad_() for _ in range(2))
    exchange(ours, z)
    joint_loss(theirs, joint).backward()
    pairs = [(z.grad, joint.grad)]
    pairs += [(o.grad, t.grad) for o, t in zip(ours.parameters, theirs.parameters, strict=True)]
    for mine, whole in pairs:
        assert mine.norm() > 0
        # a wire format changes what the other side computes from, so the gradient by about as much
        allowed = 1e-5 + 20 * case.error
        free = case.error == 1 or case.distorts
        assert (mine - whole).norm() <= allowed * whole.norm() or free


@every_case
def test_gradients_are_the_differences(case):
    if any(isinstance(method, Pslf) for method in pair(case.configs).client.smashed):
        return  # the tail's loss depends on features that its gradient never reaches
    sides, z = pair(case.configs), activation(BATCH).requires_grad_()
    joint_loss(sides, z).backward()
    along = activation(BATCH, seed=1)
    with torch.no_grad():
        far = (case.stride, -case.stride)
        ahead, behind = (joint_loss(sides, z + step * along).double() for step in far)
    slope = (z.grad * along).sum().double()
    # the learned lift's kinks within the step are worth a few percent
    torch.testing.assert_close((ahead - behind) / (2 * case.stride), slope, rtol=0.06, atol=0.02)


@every_case
def test_no_graph_spans_the_wire(case):
    """The server's way back stops at what arrived: the client's side waits for its own turn."""
    sides, z = pair(case.configs), activation(BATCH).requires_grad_()
    client, server = sides.client, sides.server
    step = Step(0, 0, 0, 0, labels=labels_of(BATCH))
    sent = client.encode(z, step)
    up = client.pack(Leg.SMASHED, sent.detach(), step)
    arrived = server.unpack(Leg.SMASHED, up, Step(0, 0, 0, 0)).detach().requires_grad_()
    lifted = server.lift(arrived, Step(0, 0, 0, 0))
    half_square(server.encode(lifted.flatten(1) @ TRUNK, Step(0, 0, 0, 0))).backward()
    assert arrived.grad is not None
    assert z.grad is None
    assert all(parameter.grad is None for parameter in client.modules.parameters())
    assert all(parameter.grad is not None for parameter in server.modules.parameters())


@every_case
def test_announcements_have_no_graph_and_fit_every_client(case):
    sides, other = pair(case.configs), pair(case.configs, seed=9)
    announced = sides.server.announce()
    assert not any(tensor.requires_grad for each in announced for tensor in each)
    other.client.receive_announcements(announced)
    with_modules = [m for m in other.client.smashed if m.module is not None]
    if not with_modules and not case.noisy:
        z, step = activation(BATCH), Step(0, 0, 0, 0)
        assert torch.equal(sides.client.encode(z, step), other.client.encode(z, step))


@every_case
def test_nothing_pins_a_graph(case):
    """After a step nothing holds on to its graph; evaluating leaves no tensor in the memo."""
    sides = pair(case.configs)
    trained = exchange(sides, activation(BATCH).requires_grad_())
    held = tensors_in([sides.client.smashed, sides.server.smashed, trained.step.memo])
    held += tensors_in([sides.client.features, sides.server.features])
    assert not [tensor for tensor in held if tensor.grad_fn is not None]
    sides.train(False)
    before = {name: t.clone() for name, t in sides.server.modules.state_dict().items()}
    evaluated = exchange(sides, activation(BATCH), training=False)
    assert not tensors_in(evaluated.step.memo)
    assert all(torch.equal(before[n], t) for n, t in sides.server.modules.state_dict().items())


def test_the_search_for_held_graphs_detects_one():
    layer = nn.Linear(2, 2)
    method = Method()
    method.kept = {"deep": [layer(torch.ones(1, 2))]}
    assert [tensor for tensor in tensors_in((method,)) if tensor.grad_fn is not None]


@every_case
def test_global_streams_stay_put(case):
    before = torch.get_rng_state(), random.getstate()
    sides = pair(case.configs)
    exchange(sides, activation(BATCH).requires_grad_())
    exchange(sides, activation(BATCH), training=False)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@every_case
def test_what_methods_remember_is_all_in_their_state_and_modules(case):
    """Another client's methods that load both send the same bytes at the next step."""
    ours, theirs, z = pair(case.configs), pair(case.configs), activation(BATCH)
    exchange(ours, z)
    for mine, other in ((ours.client, theirs.client), (ours.server, theirs.server)):
        other.modules.load_state_dict(mine.modules.state_dict())
        other.load(mine.state())
    kept = ours.client.state()
    before = {name: tensor.clone() for name, tensor in kept.items()}
    first = read_bytes(exchange(ours, z, number=1))
    assert read_bytes(exchange(theirs, z, number=1)) == first
    assert all(torch.equal(before[name], tensor) for name, tensor in kept.items())


def test_a_step_changes_what_a_probe_remembers_and_sends():
    (fading,) = [case for case in EVERY_CASE if [c.kind for c in case.configs] == ["fading"]]
    sides, z = pair(fading.configs), activation(BATCH)
    sent = [exchange(sides, z, number=number).sent for number in range(2)]
    torch.testing.assert_close(sent[1], sent[0] / 2)
    assert [tensor.item() for tensor in sides.client.state().values()] == [2, 1]


def test_phases_keep_the_order_of_the_methods():
    warm = [config for case in EVERY_CASE for config in case.configs if config.kind == "warm"]
    phases = pair([*warm, *COMPOSITIONS[0].configs]).client.plan_phases(50)
    assert [(phase.name, phase.rounds, phase.source) for phase in phases] == [("warm", 5, "public")]
