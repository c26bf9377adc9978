"""What every test shares: a flag to rewrite golden files, one torch thread, no wait for disks."""

import gc
import os
from collections.abc import Iterator

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden files anew")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tests share few cores; results must not depend on how many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def rarely_collected() -> Iterator[None]:
    """Torch and others hold a million objects; to go through all of them takes half a second."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, 20, 50)
    yield
    gc.set_threshold(*before)


@pytest.fixture(autouse=True, scope="session")
def no_wait_for_disks() -> Iterator[None]:
    """What a power cut would leave behind, no test looks at; a thousand runs would wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield
