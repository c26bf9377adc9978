"""Pretrained models that are made once on a machine and kept in the user's cache."""

import hashlib
import os
import sys
from pathlib import Path

import torch

from simsplit.errors import RunError
from simsplit.pretrain.corpus import fingerprint
from simsplit.pretrain.tiers import TIERS, PretrainConfig, tier
from simsplit.pretrain.training import FACTS, pretrain
from simsplit.pretrain.watching import Say, Tenths

VARIABLE = "SIMSPLIT_CACHE"
"""The environment variable that names another cache."""


def pretrained(
    wanted: str | PretrainConfig,
    say: Say = lambda line: print(line, file=sys.stderr),  # noqa: T201 - minutes of silence else
    device: torch.device | None = None,
) -> Path:
    """The folder of a tier's or config's model, trained now if it never was.

    Of several processes that want it at once, one trains and the others wait.
    """
    from filelock import FileLock, Timeout

    config = tier(wanted) if isinstance(wanted, str) else wanted
    folder = cached_at(config)
    if (folder / FACTS).is_file():
        return folder
    lock = FileLock(_made(folder.parent) / f"{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{folder.name} is being pretrained by another process; waiting for it")
        lock.acquire()
    try:
        if not (folder / FACTS).is_file():
            say(f"{folder.name} is pretrained once, and then kept in {folder.parent}")
            pretrain(config, folder, Tenths(say), device)
    finally:
        lock.release()
    return folder


def cached_at(config: PretrainConfig) -> Path:
    """Where a config's model lies, or would: named by its tier and by all it is made from."""
    name = next((name for name, known in TIERS.items() if known == config), "own")
    made_from = config.model_dump_json(exclude={"text"}) + fingerprint(config.text)
    digest = hashlib.blake2b(made_from.encode(), digest_size=6).hexdigest()
    return cache() / "models" / f"{name}-{digest}"


def cache() -> Path:
    """The folder that `$SIMSPLIT_CACHE` names, or ~/.cache/simsplit."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "simsplit"


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot keep pretrained models in {folder} ({error.strerror}); let {VARIABLE} name a "
            "folder that can be written"
        ) from error
    return folder
