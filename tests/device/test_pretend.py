"""The pretended accelerator: it computes the CPU's bits, refuses what CUDA refuses, and counts."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pretend
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICE = pretend.NAME


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def twice_transposed(x: Tensor, w: Tensor) -> Tensor:
    return (x.t().t() @ w.t().t()).t().t().relu()


def written_in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x * 1
    y[1:, 2].mul_(3)
    y.t()[0].add_(w[:, 1])
    y[y > 1] = 0.5
    y.unfold(1, 2, 1)[..., 0].sub_(0.25)
    return y[:, 2:].exp_() @ w[:2]


def of_other_strides(x: Tensor, w: Tensor) -> Tensor:
    y = x.expand(2, *x.shape).permute(2, 0, 1).contiguous().as_strided((3, 4), (1, 5), 2)
    return functional.conv2d(
        y.view(1, 1, 3, 4).to(memory_format=torch.channels_last), w[None, None, :2, :2]
    ) + x.mean(0).select(0, 1)


def attention(x: Tensor, w: Tensor) -> Tensor:
    q = (x @ w).view(1, 4, 2, 2).transpose(1, 2)
    mask = torch.ones(4, 4, dtype=torch.bool, device=x.device).tril()
    attend = functional.scaled_dot_product_attention
    return attend(q, q, q) + attend(q, q, q, attn_mask=mask) + attend(q, q, q, is_causal=True)


def chosen(x: Tensor, w: Tensor) -> Tensor:
    places = torch.tensor([2, 0, 0], device=x.device)
    values, order = x[places].sort(1)
    kept = torch.topk(values, 2, 1).values
    return torch.cat([kept, order.float(), torch.where(kept > 0, kept, 0.0)], 1).cumsum(1) @ (
        functional.layer_norm(functional.pad(w, (0, 0, 4, 0)), (4,))
    )


COMPUTATIONS = {
    each.__name__: each
    for each in (twice_transposed, written_in_place, of_other_strides, attention, chosen)
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_values_and_gradients_are_the_cpus(name: str) -> None:
    found, compute = [], COMPUTATIONS[name]
    for device in ("cpu", DEVICE):
        x, w = (draw(4, 4, seed=seed).to(device).requires_grad_() for seed in (0, 1))
        made = compute(x, w)
        assert made.device.type == torch.device(device).type
        (made**2).sum().backward()
        found.append([each.detach().cpu() for each in (made, x.grad, w.grad)])
    assert [each.stride() for each in found[0]] == [each.stride() for each in found[1]]
    assert all(map(torch.equal, *found))


def build() -> nn.Module:
    torch.default_generator.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 8),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(128, 5),
    )


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "foreach": lambda learned: torch.optim.Adam(learned, foreach=True),
    "single": lambda learned: torch.optim.Adam(learned, foreach=False),
    "fused": lambda learned: torch.optim.AdamW(learned, fused=True),
    "sgd": lambda learned: torch.optim.SGD(learned, 0.1, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_the_cpus(optimizer: str, cast: bool) -> None:
    states = []
    for device in ("cpu", DEVICE):
        model = build().to(device)
        steps = OPTIMIZERS[optimizer](model.parameters())
        for seed in range(3):
            for each in (torch.default_generator, pretend.generator):
                each.manual_seed(seed)
            with torch.autocast(device, torch.bfloat16, enabled=cast):
                scores = model(draw(6, 3, 8, 8, seed=seed).to(device))
                loss = functional.cross_entropy(scores, torch.arange(6, device=device) % 5)
            steps.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
        moments = [value for each in steps.state.values() for value in each.values()]
        states.append([*model.state_dict().values(), *moments])
    assert {each.device.type for each in states[1] if each.dim()} == {DEVICE}
    pairs = zip(*states, strict=True)
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in pairs)


def test_weights_are_set_copied_and_kept() -> None:
    layer = nn.Linear(3, 2).to(DEVICE)
    layer.register_buffer("seen", torch.ones(2, device=DEVICE))
    other = copy.deepcopy(layer)
    other.seen.zero_()
    assert layer.seen.tolist() == [1, 1]
    layer.weight.data = layer.weight.data.double().half()
    assert layer.weight.dtype == torch.float16
    assert other.weight.dtype == torch.float32
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight.cpu(), layer.weight.cpu().float())
    assert type(other.weight) is nn.Parameter
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    read = torch.load(file)
    assert read["weight"].device.type == DEVICE
    assert torch.equal(read["weight"].cpu(), layer.weight.cpu())
    assert layer.weight.detach().untyped_storage().data_ptr() == layer.weight.data_ptr()


MIXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "matrices": lambda ours, cpus: ours @ cpus,
    "in place": lambda ours, cpus: cpus.add_(ours),
    "a list": lambda ours, cpus: torch.stack([ours, cpus]),
    "index": lambda ours, cpus: cpus[torch.zeros(1, dtype=torch.int64, device=ours.device)],
    "loss": functional.mse_loss,
    "where": lambda ours, cpus: torch.where(cpus > 0, ours, 0.0),
    "generator": lambda ours, cpus: ours.normal_(generator=torch.Generator()),
    "drawn": lambda ours, cpus: torch.rand(2, device=ours.device, generator=torch.Generator()),
    "numpy": lambda ours, cpus: ours.numpy(),
}


@pytest.mark.parametrize("mixed", MIXED)
def test_mixing_is_refused(mixed: str) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        MIXED[mixed](draw(2, 2).to(DEVICE), draw(2, 2))


def test_what_cuda_allows_is_allowed() -> None:
    ours = draw(2, 2).to(DEVICE)
    assert (ours * torch.tensor(2.0)).device.type == DEVICE
    assert torch.equal(ours[torch.tensor([1])].cpu(), draw(2, 2)[1:])
    own = pretend.make_generator().manual_seed(3)
    drawn = torch.rand(3, device=DEVICE, generator=own)
    assert torch.equal(drawn.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(3)))


def test_the_devices_draws_are_its_own() -> None:
    torch.default_generator.manual_seed(0)
    before = torch.default_generator.get_state()
    pretend.generator.manual_seed(5)
    one = torch.rand(3, device=DEVICE)
    assert torch.equal(torch.default_generator.get_state(), before)
    assert not torch.equal(torch.rand(3, device=DEVICE).cpu(), one.cpu())


COUNTED: dict[str, tuple[Callable[[Tensor], object], dict[str, int]]] = {
    "item": (lambda x: x.sum().item(), {"waits": 1}),
    "cpu": (lambda x: x.cpu(), {"to host": 1}),
    "made there": (lambda x: torch.tensor([1.0], device=x.device), {"to device": 1}),
    "truth": (lambda x: bool((x > 0).any()), {"waits": 1}),
    "nonzero": (lambda x: x.nonzero(), {"waits": 1}),
    "mask": (lambda x: x[x > 0], {"waits": 1}),
    "list": (lambda x: x.tolist(), {"to host": 1}),
    "nothing": (lambda x: (x @ x).relu().sum(), {}),
}


@pytest.mark.parametrize("name", COUNTED)
def test_copies_and_waits_are_counted(name: str) -> None:
    (act, counted), x = COUNTED[name], draw(3, 3).to(DEVICE)
    with pretend.counting() as made:
        act(x)
    assert {what: number for (what, _), number in made.items()} == counted


def test_they_are_counted_for_the_projects_function() -> None:
    from simsplit.packets import Packet  # any function of simsplit that copies
    from simsplit.topologies import TOPOLOGIES

    leg = TOPOLOGIES["u_shaped"].legs[0]
    packet = Packet(0, leg, 0, 0, (draw(2),))
    with pretend.counting() as made:
        packet.to_device(torch.device(DEVICE))
    assert list(made) == [("to device", "packets.py::Packet.to_device")]
