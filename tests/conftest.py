"""What every test shares: a flag to rewrite golden files, and one torch thread."""

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
