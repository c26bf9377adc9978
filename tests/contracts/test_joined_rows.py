"""Methods that treat each row alone do for several clients' rows at once what they do for each."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.method import Method, Step
from simsplit.methods.stack import Stack, build_stack

SHAPES = ((4, 2, 3), (12,))
SIZES = (3, 5, 2)
SAMPLES: dict[str, dict[str, Any]] = {
    "cast": {"to": "int8"},
    "noise": {"distribution": "laplace"},
    "lightsplit": {"ratio": 2, "legs": ["smashed", "features"]},
    "topk": {"ratio": 2},
    "quantise": {"bits": 3},
}
ROWWISE = [kind for kind, config in METHODS.items() if config(kind=kind).is_rowwise()]


def stacks(kind: str) -> tuple[Stack, Stack]:
    given = METHODS[kind](kind=kind, **SAMPLES.get(kind, {}))
    client, server = (
        build_stack([given], side, SHAPES, 7, torch.device("cpu"))  # type: ignore[arg-type]
        for side in ("client", "server")
    )
    client.receive_announcements(server.announce())
    return client, server


def cross(sender: Stack, receiver: Stack, rows: list[Tensor], legs: tuple[Leg, Leg]) -> Any:
    """Return what each client's rows become alone, and what all of them become as one."""
    alone: list[list[Tensor]] = [[], [], []]
    one: list[list[Tensor]] = [[], [], []]
    steps = [Step(client, 2, 5 + client, seed=client) for client in range(len(rows))]
    for step, x in zip(steps, rows, strict=True):
        there, back = step, replace(step, seed=9, memo={})
        sent = sender.pack(legs[0], sender.encode(x, there), there)
        lifted = receiver.lift(receiver.unpack(legs[0], sent, back), back)
        grad = receiver.pack(legs[1], receiver.unpack(legs[0], sent, back), back)
        returned = sender.unpack(legs[1], grad, there)
        for kept, made in zip(alone, ([*sent, *grad], [lifted], [returned]), strict=True):
            kept.extend(made)
    sizes = [len(x) for x in rows]
    parts = [replace(step, memo={}) for step in steps]
    there = replace(steps[0], memo={}, parts=list(zip(parts, sizes, strict=True)))
    parts = [replace(step, seed=9, memo={}) for step in steps]
    back = replace(steps[0], seed=9, memo={}, parts=list(zip(parts, sizes, strict=True)))
    packed = sender.pack_rows(legs[0], sender.encode(torch.cat(rows), there), sizes, there)
    whole = receiver.unpack_rows(legs[0], packed, back)
    grads = receiver.pack_rows(legs[1], whole, sizes, back)
    returned = sender.unpack_rows(legs[1], grads, there)
    for sent, grad in zip(packed, grads, strict=True):
        one[0] += [*sent, *grad]
    one[1] += receiver.lift(whole, back).split(sizes)
    one[2] += returned.split(sizes)
    return alone, one


@pytest.mark.parametrize("kind", ROWWISE)
def test_rows_of_several_clients_go_through_as_one(kind: str) -> None:
    client, server = stacks(kind)
    assert client.joins_rows
    assert server.joins_rows
    rng = torch.Generator().manual_seed(3)
    rows = [torch.randn(size, *SHAPES[0], generator=rng) for size in SIZES]
    legs = (Leg.SMASHED, Leg.SMASHED_GRAD)
    for alone, one in zip(*cross(client, server, rows, legs), strict=True):
        assert [t.shape for t in one] == [t.shape for t in alone]
        for ours, theirs in zip(one, alone, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_rows_are_joined_by_methods_that_say_so_alone() -> None:
    assert {"cast", "noise", "lightsplit", "quantise", "topk"} == {*ROWWISE}
    assert not METHODS["noise"](kind="noise", unit="batch_std").is_rowwise()
    assert not METHODS["lightsplit"](kind="lightsplit", lift="learned").is_rowwise()


def test_rows_of_a_method_that_does_not_say_what_it_packs_are_not_joined() -> None:
    class Undeclared(Method):
        def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
            return (x.half(),)

    made = Undeclared()
    made.joins_rows = True
    assert not Stack([made], [], "client").joins_rows
    assert Stack([Method()], [], "client").joins_rows
