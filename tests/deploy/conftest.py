"""Processes cost seconds to start; tests share them."""

from collections.abc import Iterator

import pytest
from deployed import Deployment


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment.of(tmp_path_factory.mktemp("deployed"), 3)
    yield made
    made.stop()
