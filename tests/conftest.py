"""What every test shares: a flag to rewrite golden files, one torch thread, no wait for disks."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import suites
import torch

from simsplit.evidence import code_sources
from simsplit.results import environment

if TYPE_CHECKING:
    from finished import FinishedRuns
    from hosted import SharedHosts
    from pages import Page

    from simsplit.engine.ray_pool import Hosts

# Torch and others hold a million objects; to go through all of them takes half a second. Most of
# them are made while tests are collected, and none of these goes before the end.
gc.disable()
gc.set_threshold(20_000, 20, 50)
# Of a suite in the background of a shell, what tests start would ignore Ctrl-C, as the suite does.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden files anew")
    suites.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    suites.settle(config)
    if config.option.costs:
        config.pluginmanager.register(suites.Meter())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most of the dear tests, after `-m` and `-k` have left out theirs."""
    option = config.option
    taken, others = suites.select(items, option.suite, option.turn, suites.read_costs())
    items[:] = taken
    if others:
        config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return f"tests: --suite {config.option.suite} --turn {config.option.turn}"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tests share few cores; results must not depend on how many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def every_page() -> "dict[str, Page]":
    """Every page by its name, written or made: it takes seconds to make them."""
    from pages import pages

    return pages()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[FinishedRuns]":
    """Directories of finished runs by their scenarios, to be read: all workers share them."""
    from finished import FinishedRuns

    own = tmp_path_factory.getbasetemp()
    made = FinishedRuns((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "finished")
    yield made
    made.check()


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


@pytest.fixture(autouse=True, scope="session")
def no_wait_for_disks() -> Iterator[None]:
    """Keep runs from waiting for disks: no test looks at what a power cut would leave behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def clean_checkout() -> Iterator[Callable[[], str]]:
    """Let rows be written while the code is worked on, and return the function that refuses it."""
    true = code_sources.find_commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_sources, "find_commit", lambda: "c" * 40)
        yield true


@pytest.fixture(autouse=True, scope="session")
def git_asked_once() -> Iterator[Callable[[], str | None]]:
    """Find the repository's commit once: every run records it, and git takes 10 ms each time.

    Runs of tests lie outside it, and count as made at its commit while the code is worked on.
    Return the true function, for the test of it.
    """
    true = environment._find_commit
    commit = (true() or "").removesuffix("-dirty") or None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "_find_commit", lambda: commit)
        yield true
