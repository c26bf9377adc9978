"""A deployed server's weights are freed when its run is over: a process may serve many runs."""

import pytest
from builders import TINY
from freed import count_living, imported, learners
from hostile import Stage
from hostile_ways import COUNTS, FRAMES

from simsplit.scenario import parse
from simsplit.scenario.files import merge

__all__ = ["imported", "learners"]
pytestmark = pytest.mark.deploy
CHANGES = {"clients": {"count": 4}, "schedule": {"rounds": 1}, "data": {"train_samples": 60}}


@pytest.mark.parametrize("ways", [{}, {0: COUNTS[0], 1: FRAMES[0]}], ids=["honest", "hostile"])
def test_nothing_that_learned_outlives_a_deployment(ways, learners, tmp_path):
    """Its clients are in threads here: nothing of theirs remains either."""
    outcome = Stage(tmp_path, 4).run(parse(merge(TINY, CHANGES)), tmp_path, ways)
    assert learners
    for party in outcome.parties:
        party.thread.join(30)
    del outcome, party
    assert not count_living(learners)
