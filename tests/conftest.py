"""What every test shares: a flag to rewrite golden files, one torch thread, no wait for disks."""

import functools
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from simsplit import pretrain
from simsplit.pretrain import PretrainConfig, fetch_pretrained
from simsplit.results import environment

if TYPE_CHECKING:
    from hosted import SharedHosts

    from simsplit.engine.ray_pool import Hosts

# Torch and others hold a million objects; to go through all of them takes half a second. Here, for
# it is while tests are collected that most of them are made.
gc.set_threshold(20_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden files anew")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tests share few cores; results must not depend on how many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_hosts() -> "Iterator[SharedHosts]":
    from hosted import SharedHosts

    made = SharedHosts()
    yield made
    made.end()


@pytest.fixture
def hosts(shared_hosts: "SharedHosts") -> "Hosts":
    """Three Ray hosts, which all tests of this process share: they cost ten seconds to start."""
    return shared_hosts.start()


@pytest.fixture
def without_hosts(shared_hosts: "SharedHosts") -> None:
    """End the shared hosts, for a test that starts Ray in this process itself."""
    shared_hosts.end()


SELDOM = {"slow", "ray", "notebook", "deploy"}


@pytest.fixture(autouse=True)
def no_demo_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No quick test makes simsplit's own model, for minutes, as one that names no sizes would."""
    if SELDOM.isdisjoint(mark.name for mark in request.node.iter_markers()):
        monkeypatch.setattr(pretrain, "fetch_pretrained", _other_than_the_demo_model)


def _other_than_the_demo_model(wanted: str | PretrainConfig, *given: Any) -> Path:
    if wanted == "demo":
        pytest.fail("needs simsplit's own model; give sizes (texts.CAUSAL), or mark it slow")
    return fetch_pretrained(wanted, *given)


@pytest.fixture(autouse=True, scope="session")
def no_wait_for_disks() -> Iterator[None]:
    """Keep runs from waiting for disks: no test looks at what a power cut would leave behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def git_asked_once() -> Iterator[Callable[[], str | None]]:
    """Find the repository's commit once: every run records it, and git takes 10 ms each time.

    Return the true function, for the test of it.
    """
    true = environment._find_commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "_find_commit", functools.cache(true))
        yield true
