"""Hosts cost seconds to start; the tests of a file share them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import Command

if TYPE_CHECKING:
    from simsplit.engine.ray_pool import Hosts


@pytest.fixture(scope="module")
def hosts() -> "Iterator[Hosts]":
    from simsplit.engine.engine_config import HostsConfig
    from simsplit.engine.ray_pool import hosts_for

    with hosts_for(HostsConfig(), 3, 2**28) as three:
        yield three


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    made.kill()
