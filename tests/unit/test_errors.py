"""Every error of `simsplit.errors` arrives whole from another process."""

import pickle

import pytest

from simsplit.errors import (
    Fault,
    PluginError,
    PluginFailedError,
    ScenarioError,
    SimsplitError,
)

FAULT = Fault("mine.py", "method", "mine", "encode", "a tensor", "None", file="mine.py", line=3)
TWO = [ScenarioError("model.head", "is missing"), ScenarioError("seed", "is no number")]
ERRORS = [
    ScenarioError("model.head", "is missing"),
    ScenarioError("", "is no mapping"),
    ScenarioError.of_many(TWO),
    PluginError(FAULT),
    PluginFailedError(FAULT, "mend it, then resume"),
]


def list_kinds(kind):
    """Yield a class of errors and all that derive from it."""
    yield kind
    for each in kind.__subclasses__():
        yield from list_kinds(each)


def build_plain():
    """Build one error of each kind that has a message alone."""
    built = {type(error) for error in ERRORS}
    kinds = [kind for kind in list_kinds(SimsplitError) if kind.__module__ == "simsplit.errors"]
    return [kind("it broke") for kind in kinds if kind not in built]


@pytest.mark.parametrize("error", [*ERRORS, *build_plain()], ids=lambda error: str(error)[:40])
def test_an_error_is_pickled_whole(error):
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "fault", None) == getattr(error, "fault", None)
    if isinstance(error, ScenarioError):
        assert [str(each) for each in again.problems] == [str(each) for each in error.problems]
        assert (again.field, again.reason) == (error.field, error.reason)
