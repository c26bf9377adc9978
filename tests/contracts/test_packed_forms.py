"""What a method declares of the forms that it packs is what crosses, whatever the rows are."""

import math

import pytest
import torch
from contracts.method_cases import CUT, EVERY_CASE, FEATURES
from contracts.method_exchange import CPU, activation, exchange, pair
from contracts.method_probes import PROBES
from contracts.test_text_methods import CASES as TEXT_CASES
from pace import together

from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Step
from simsplit.methods.method import BACK
from simsplit.methods.packed_forms import PackedForms
from simsplit.methods.stack import Stack, build_stack, has_form
from simsplit.packets import TensorForm

ROWS = (1, 2, 3, 7, 16)
WIDTH = 24
"""Values of a token."""
MEASURED = (PROBES["top_half"],)
"""Methods that pack and declare no form, as a plugin may."""


@pytest.fixture
def declared(monkeypatch):
    """Hold each message that stacks pack against what its sender declares, and list its leg."""
    seen: list[Leg] = []
    pack = Stack.pack

    def pack_as_declared(self, leg, x, step):
        forms, message = self.pack_form(leg, TensorForm.of(x)), pack(self, leg, x, step)
        assert forms in (None, tuple(map(TensorForm.of, message))), leg
        assert (forms is None) == any(isinstance(each, MEASURED) for each in self.get_chain(leg))
        seen.append(leg)
        return message

    monkeypatch.setattr(Stack, "pack", pack_as_declared)
    return seen


@together(EVERY_CASE, ROWS)
def test_images_cross_as_declared(case, rows, declared):
    exchange(pair(case.configs), activation(rows))
    assert set(declared) == {leg for pairs in BACK.items() for leg in pairs}
    exchange(pair(case.configs), activation(rows), training=False)


@pytest.mark.parametrize("length", [1, 5, 32])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_texts_cross_as_declared(rows, length, dtype, declared):
    """Of any length, both ways, for all methods of texts with a wire format."""
    tried = set()
    for kind, several in TEXT_CASES.items():
        for fields in several:
            config, shapes = METHODS[kind](**fields), ((32, WIDTH), (32, WIDTH))
            if kind not in ("cast", "quantise", "sparsify"):
                continue
            client, server = (build_stack([config], side, shapes, 3, CPU) for side in SIDES)
            step, blind = Step(0, 1, 0, 0), Step(0, 1, 0, 1)
            sent = client.encode(torch.randn(rows, length, WIDTH).to(dtype), step)
            arrived = server.unpack(
                Leg.SMASHED, client.pack(Leg.SMASHED, sent.detach(), step), blind
            )
            server.pack(Leg.SMASHED_GRAD, torch.randn(arrived.shape).to(arrived.dtype), blind)
            tried.add(kind)
    assert tried == {kind for kind in TEXT_CASES if packs_texts(kind)}
    assert set(declared) == {Leg.SMASHED, Leg.SMASHED_GRAD}


SIDES = ("client", "server")


def packs_texts(kind: str) -> bool:
    config, shapes = METHODS[kind](), ((32, WIDTH), (32, WIDTH))
    if config.reads_tail or config.reads_tokens or kind == "snd":
        return False
    (method,) = build_stack([config], "client", shapes, 0, CPU).smashed
    return type(method).pack is not Method.pack


def test_every_method_that_ships_declares_its_forms():
    for case in EVERY_CASE:
        for stack in (pair(case.configs).client, pair(case.configs).server):
            methods = (*stack.smashed, *stack.features)
            assert all(has_form(each) or isinstance(each, MEASURED) for each in methods)


class Narrower(METHODS["cast"](to="int8").build(None).__class__):
    """A subclass that packs otherwise, and says nothing of it."""

    def pack(self, x, step):
        return super().pack(x[:, :1], step)


def test_a_form_that_is_declared_for_another_pack_does_not_count():
    assert not has_form(Narrower())


@pytest.mark.parametrize("leg", [Leg.SMASHED, Leg.SMASHED_GRAD])
@pytest.mark.parametrize("rows", ROWS)
def test_what_is_not_declared_is_measured(rows, leg):
    sides = pair(TOP_HALF)
    forms, before = PackedForms(TOP_HALF, (sides.client, sides.server)), (rows, *CUT)
    x = TensorForm(before, torch.float32)
    half = (rows, math.prod(CUT) // 2)
    wanted = (TensorForm(half, torch.float32), TensorForm(half, torch.int32))
    assert forms.compute(leg, x, x) == wanted


TOP_HALF = next(case.configs for case in EVERY_CASE if str(case).startswith("top_half"))


def test_rows_are_kept_unless_samples_are_superposed():
    blanks = [TensorForm((2, *shape), torch.float32) for shape in (CUT, FEATURES)]
    for case in EVERY_CASE:
        sides = pair(case.configs)
        kept = PackedForms(case.configs, (sides.client, sides.server)).keeps_rows(blanks)
        assert kept != case.superposed, case
