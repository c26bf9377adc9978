"""Processes cost seconds to start; tests share them."""

from collections.abc import Iterator

import pytest
from deployed import Deployment


@pytest.fixture(scope="session")
def shared_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment.of(tmp_path_factory.mktemp("deployed"), 3)
    yield made
    made.stop()


@pytest.fixture
def deployment(shared_deployment: Deployment) -> Iterator[Deployment]:
    yield shared_deployment
    shared_deployment.restart_busy()
