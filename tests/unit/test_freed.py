"""A finished run's weights are freed with its last reference, not at some later collection."""

from typing import Any

import pytest
from builders import run_to_end, scenario
from freed import count_living, imported, learners

__all__ = ["imported", "learners"]

PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own": {"clients": {"heads": "per_client"}},
    "averaged": {"aggregation": "splitfed_v2", "schedule": {"kind": "parallel", "rounds": 1}},
    "copied trunks": {"aggregation": "splitfed_v1"},
    "as they come": {
        "clients": {"heads": "per_client"},
        "schedule": {"kind": "asynchronous", "rounds": 1},
        "network": {"device": "phone", "link": "lte"},
    },
    "watched": {
        "data": {"auxiliary": 0.2},
        "detectors": ["cosine_mad"],
        "attacks": [{"kind": "ridge"}, {"kind": "fora"}],
        "method": [{"kind": "lightsplit", "ratio": 4}],
    },
}


@pytest.mark.parametrize("parts", PARTS)
def test_nothing_that_learned_outlives_its_run(parts, learners, tmp_path):
    given = scenario(**{"schedule": {"rounds": 1}, **PARTS[parts]})
    run = run_to_end(given, tmp_path / "run")
    assert learners
    del run
    assert not count_living(learners)
