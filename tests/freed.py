"""What a finished run leaves in memory, for tests with pytest's fixtures of these names."""

import gc
import time
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import ref

import pytest
from builders import run_to_end, scenario

from simsplit.parties.learner import Learner

Learners = list[ref[Learner]]
PATIENCE_S = 10


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run once: modules of torch that are imported in a first run keep its frames for a while."""
    run_to_end(scenario(schedule={"rounds": 1}), tmp_path_factory.mktemp("first") / "run")


@pytest.fixture
def learners(imported: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Learners]:
    """Return what refers weakly to each learner that is made, while nothing is collected."""
    made: Learners = []
    begin = Learner.__init__

    def note(self: Learner, *words: Any) -> None:
        begin(self, *words)
        made.append(ref(self))

    monkeypatch.setattr(Learner, "__init__", note)
    gc.collect()
    gc.disable()
    yield made
    gc.enable()


def count_living(learners: Sequence[ref[Learner]]) -> int:
    """Count the learners that stay in memory; threads that are about to end may hold some."""
    end = time.monotonic() + PATIENCE_S
    while (count := sum(learner() is not None for learner in learners)) and time.monotonic() < end:
        time.sleep(0.05)
    return count
