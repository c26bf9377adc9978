"""After a loss, everything that clients hand on to each other still fits."""

from pathlib import Path
from typing import Any

import pytest
from builders import TINY, StopAt
from direct import Sites
from finished import FinishedRuns
from pace import quick

from simsplit.deploy.client_session import ClientLost
from simsplit.scenario import parse
from simsplit.scenario.files import merge

GIVEN = parse(merge(TINY, {"schedule": {"rounds": 3}, "train": {"client": {"kind": "adam"}}}))


@pytest.fixture(scope="module")
def inline(finished: FinishedRuns) -> Path:
    return finished(GIVEN)


def assert_same(path: Path, inline: Path) -> None:
    for table in ("rounds", "clients", "wire"):
        assert (path / f"{table}.csv").read_text() == (inline / f"{table}.csv").read_text()


@pytest.mark.slow
def test_of_everybody(tmp_path, inline):
    with pytest.raises(KeyboardInterrupt):
        Sites(GIVEN, tmp_path).experiment(StopAt(9)).run(resume=False)
    Sites(GIVEN, tmp_path).experiment().run(resume=True)
    assert_same(tmp_path / "run", inline)


@pytest.mark.parametrize("calls", quick([2, 20, 35], 35))
def test_of_one_client(calls, tmp_path, inline):
    """In its first step, and in the middle of two later rounds."""
    sites = Sites(GIVEN, tmp_path)
    answer, left = sites.sites[1]._answer, calls

    def until(*asked: Any) -> bytes:
        nonlocal left
        left -= 1
        if not left:
            raise ClientLost(1, "its power failed")
        return answer(*asked)

    sites.sites[1]._answer = until
    sites.experiment().run(resume=False)
    assert left == 0
    assert_same(tmp_path / "run", inline)
