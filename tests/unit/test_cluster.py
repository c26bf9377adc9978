"""Test what is done about the processes of a Ray cluster, without one."""

import socket

import pytest

from simsplit.engine import cluster
from simsplit.errors import RunFailedError


def test_a_head_process_that_has_just_died_is_noticed_before_ray_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray would wait a minute for it, and then end this process."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: pytest.fail("Ray was asked"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setattr(cluster, "_heads", [("127.0.0.1", port)])
    with pytest.raises(RunFailedError, match="head process"):
        cluster.refuse_dead_node()
