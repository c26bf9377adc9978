"""A text that repeats itself, and a model small enough to be pretrained in no time."""

import pytest

from simsplit.pretrain import PretrainConfig, pretrain


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    lines = [
        f"The {n % 7}th of the clients sends {n % 5} packets to the server." for n in range(900)
    ]
    path = tmp_path_factory.mktemp("text") / "clients.txt"
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny(text):
    return PretrainConfig(
        width=16, layers=1, heads=2, vocabulary=300, context=64, steps=20, batch_size=4, length=16,
        text=text,
    )  # fmt: skip


@pytest.fixture(scope="session")
def folder(tiny, tmp_path_factory):
    return pretrain(tiny, tmp_path_factory.mktemp("models") / "tiny")
