"""`socket.csv` against a relay between server and clients, which counts every byte that crosses."""

from pathlib import Path

import pandas as pd
import pytest
from benches.deploying import CASES, SIZES, Relay, measure_deployment
from builders import scenario
from deployed import Deployment

pytestmark = pytest.mark.deploy
GREETING = 2**14
"""Bytes each way of a client's TLS handshake, greeting and welcome, which are no frame's."""


def test_what_a_relay_counts(deployment: Deployment, tmp_path: Path) -> None:
    """Frames, and at most 2 % more: TLS, HTTP/2 and its acknowledgements."""
    relays: list[Relay] = []

    def through(address: str) -> str:
        relays.append(Relay(int(address.rpartition(":")[2])).__enter__())
        return relays[0].address

    given = scenario(clients={"count": 2})
    deployment.run(given, tmp_path, through=through)
    assert deployment.ends(2) == ["finished", "finished"]
    relays[0].__exit__()
    document = pd.read_csv(tmp_path / "run" / "socket.csv")
    for way, counted in (("up", relays[0].up), ("down", relays[0].down)):
        frames = document[f"{way}_bytes"].sum()
        assert frames > 10 * GREETING, "so that the handshake does not decide"
        assert frames < counted < 1.02 * frames + 2 * GREETING, way


def test_the_bench_measures_trips_bytes_and_rounds() -> None:
    """Its own check that both sides end with the same weights included."""
    trips, crossed, rounds = measure_deployment("cpu", True, lambda said: None, "simplecnn", 16)
    assert list(trips[1]) == list(crossed[1]) == list(SIZES)
    assert list(rounds[1]) == list(CASES)
    assert all(figure["ms"] > 0 for figure in trips[1].values())
    assert all(1 < figure["ratio"] < 1.1 for figure in crossed[1].values())
