"""This module keeps models that do not ship in the user's cache; a machine trains each once."""

import hashlib
import sys
from pathlib import Path

import torch

from simsplit.caching import VARIABLE, get_cache_folder
from simsplit.errors import RunError
from simsplit.foreign import refuse_link
from simsplit.machine import ALL_THREADS, pin_threads
from simsplit.pretrain.corpus import compute_fingerprint
from simsplit.pretrain.pretraining import FACTS, Say, Tenths, pretrain
from simsplit.pretrain.shipped_models import find_shipped
from simsplit.pretrain.tiers import TIERS, PretrainConfig, find_named


def fetch_pretrained(
    wanted: str | PretrainConfig,
    say: Say = lambda line: print(line, file=sys.stderr),  # noqa: T201 - training takes minutes
    device: torch.device | None = None,
) -> Path:
    """Return the folder of a named model, which may ship, or of a config's.

    One that neither ships nor is in the cache is pretrained. If several processes want it at once,
    one trains and the others wait.
    """
    from filelock import FileLock, Timeout

    if isinstance(wanted, str) and (shipped := find_shipped(wanted)) is not None:
        return shipped
    config = find_named(wanted) if isinstance(wanted, str) else wanted
    folder = find_cached(config)
    if (folder / FACTS).is_file():
        return folder
    place = _make(folder.parent) / f"{folder.name}.lock"
    refuse_link(place)
    lock = FileLock(place)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{folder.name} is being pretrained by another process; waiting for it")
        lock.acquire()
    try:
        # another process may have finished it while this one waited for the lock
        if not (folder / FACTS).is_file():
            say(f"{folder.name} is pretrained once and then kept in {folder.parent}")
            with pin_threads(ALL_THREADS):  # others wait for it
                pretrain(config, folder, Tenths(say), device)
    finally:
        lock.release()
    return folder


def has_pretrained(name: str) -> bool:
    """Return whether a named model ships or is in the cache, so that it need not be pretrained."""
    return find_shipped(name) is not None or (find_cached(find_named(name)) / FACTS).is_file()


def find_cached(config: PretrainConfig) -> Path:
    """Return a config's folder in the cache, named by its tier and a digest of config and text."""
    plain = config.model_copy(update={"seed": 0, "half": False})
    name = next((name for name, known in TIERS.items() if known == plain), "own")
    made_from = config.model_dump_json(exclude={"text"}) + compute_fingerprint(config.text)
    digest = hashlib.blake2b(made_from.encode(), digest_size=6).hexdigest()
    return get_cache_folder() / "models" / f"{name}-{digest}"


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot keep pretrained models in {folder} ({error.strerror}); set {VARIABLE} to a "
            "folder that can be written"
        ) from error
    return folder
