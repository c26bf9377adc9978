"""Old names work for one version: each leads to a name that is there, and warns with it."""

import importlib
import sys

import pytest
from torch import Tensor

from simsplit.methods.method import Method, Step
from simsplit.renamed import ATTRIBUTES, MODULES, NAMES

OLD_MODULES = sorted(MODULES)
OLD_NAMES = [(module, old) for module, names in NAMES.items() for old in names]
OLD_ATTRIBUTES = [(path, old) for path, names in ATTRIBUTES.items() for old in names]


@pytest.mark.parametrize("old", OLD_MODULES)
def test_a_module_is_found_by_its_old_name(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(FutureWarning, match=MODULES[old]):
        module = importlib.import_module(old)
    new = importlib.import_module(MODULES[old])
    assert {k: v for k, v in vars(new).items() if k[:2] != "__"}.items() <= vars(module).items()


@pytest.mark.parametrize(("module", "old"), OLD_NAMES)
def test_a_name_is_found_by_its_old_one(module, old):
    home, new = importlib.import_module(module), NAMES[module][old]
    with pytest.warns(FutureWarning, match=new):
        assert getattr(home, old) is getattr(home, new)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = home.nothing_like_it


@pytest.mark.parametrize(("path", "old"), OLD_ATTRIBUTES)
def test_a_subclass_by_the_old_names_has_the_new_ones(path, old):
    module, _, name = path.rpartition(".")
    base, new = getattr(importlib.import_module(module), name), ATTRIBUTES[path][old]
    fields = getattr(base, "__annotations__", {})
    assert hasattr(base, new) or new in fields or path.endswith("Trained"), "the new name is there"
    if not path.endswith(("Step", "Trained", "SweepResult")):  # nobody derives classes from these
        with pytest.warns(FutureWarning, match=new):
            older = type("Older", (base,), {old: property(lambda self: 3)})
        assert vars(older)[new] is vars(older)[old]


def test_an_older_method_works_and_a_new_one_does_not_warn():
    class Halving(Method):
        def make_optimizer(self, parameters):
            raise NotImplementedError

    with pytest.warns(FutureWarning, match="compute_encode_loss"):

        class Older(Halving):
            def loss(self, step: Step) -> Tensor | None:
                return step.make_rng("x")

    assert Older.compute_encode_loss is Older.loss
    step = Step(0, 1, 0, 5)
    with pytest.warns(FutureWarning, match="figures"):
        assert step.told is step.figures
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = step.nothing_like_it
