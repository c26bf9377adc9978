"""Tests on the pretended accelerator run in one process of their own, where it is registered."""

from collections.abc import Iterator

import pytest
from apart import Apart
from pretend import prepare


@pytest.fixture(scope="session")
def apart() -> Iterator[Apart]:
    made = Apart(prepare)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def with_process(apart: Apart) -> None:
    """Have the process for `pytest_pyfunc_call`."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test there, with what its arguments name."""
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if failed := pyfuncitem.funcargs["apart"].call(
        str(pyfuncitem.path), pyfuncitem.originalname, given
    ):
        pytest.fail(failed, pytrace=False)
    return True
