"""Ray's runtime: started quietly, or joined where one runs, and taken down however the block ends.

Whoever needs Ray asks here for it, so that one place knows its switches. Ray is imported when a
cluster is asked for and not before.
"""

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from simsplit.errors import ScenarioError

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # an actor that is charged no GPU still sees the one that it shares
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # `uv run` would have Ray pack up the working folder, run directories and all
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
_FAST = {
    # a batch at the cut is often just above Ray's 100 KB, beyond which it takes a way twice as long
    "RAY_max_direct_call_object_size": str(2 * 2**20),
}
_PATIENT = {
    # Ray's own half a minute is short where other work has the processors
    "RAY_gcs_server_port_wait_time_s": "120",
}
_LATE = "timed out during startup"
"""What Ray says when a node is not up within half a minute, for which it has no switch."""
_WORKERS = {
    # between two calls a host has nothing to do, and its idle threads would keep processors busy
    # which the server needs: libgomp spins for milliseconds before it sleeps
    "GOMP_SPINCOUNT": "3000",
}
SMALL_STORE_BYTES = 100 * 2**20
"""For callers that send a few numbers at a time; Ray takes a third of the memory unless told."""

ANSWER_S = 5.0
"""How long a cluster has to answer."""


@contextmanager
def cluster(
    address: str | None,
    processors: int | None = None,
    object_store_bytes: int = SMALL_STORE_BYTES,
) -> Iterator[None]:
    """Ray for the length of a block; one that was running before is used and left running.

    Args:
        address: Of a running cluster (`auto`, `ray://host:port`, `host:port`); None: start one.
        processors: What a cluster started here hands out; None: all there are.
        object_store_bytes: Shared memory of a cluster started here.

    Workers import from wherever this process does, the working folder included.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    if address is not None:
        _refuse_unreachable(address)
    for name, value in (_QUIET | _FAST | ({} if address else _PATIENT)).items():
        os.environ.setdefault(name, value)
    folder = tempfile.mkdtemp(prefix="simsplit-ray-", dir=_short_folder())
    local: dict[str, Any] = {
        "num_cpus": processors,
        "object_store_memory": object_store_bytes,
        "include_dashboard": False,
        "_temp_dir": folder,
    }
    try:
        with _stdout_kept_clean():
            if address is None:
                _init_again_if_late({"address": "local"} | local)
            else:
                try:
                    _init({"address": address})
                except ConnectionError as error:
                    raise _unreachable(address, error) from None
            try:
                yield
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _init_again_if_late(options: Mapping[str, Any]) -> None:
    import ray

    try:
        _init(options)
    except Exception as error:  # Ray raises a bare one
        if _LATE not in str(error).lower():
            raise
        ray.shutdown()
        _init(options)


def _init(options: Mapping[str, Any]) -> None:
    import ray

    ray.init(
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": import_path(), **_WORKERS}},
        **options,
    )


def _refuse_unreachable(address: str) -> None:
    """ScenarioError within seconds; Ray itself tries for minutes, and warns all the while."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    if address != "auto" and place.hostname and place.port:
        try:
            socket.create_connection((place.hostname, place.port), timeout=ANSWER_S).close()
        except OSError as error:
            raise _unreachable(address, error) from None


def _unreachable(address: str, error: OSError) -> ScenarioError:
    return ScenarioError(
        "engine.address",
        f"no Ray cluster answers at {address} ({str(error).rstrip('.')}); start one there (`ray "
        "start --head`), or leave engine.address out to have one started here",
    )


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Ray prints the death of a worker on stdout, whatever `log_to_driver` says; callers see to it.

    There is no switch for it, so the function that prints is replaced. Where a later Ray has it no
    more, nothing happens.
    """
    from ray._private import worker

    printing = getattr(worker, "print_to_stdstream", None)
    if printing is None:
        yield
        return
    setattr(worker, "print_to_stdstream", lambda *_, **__: None)  # noqa: B010 - not ours to declare
    try:
        yield
    finally:
        setattr(worker, "print_to_stdstream", printing)  # noqa: B010


def import_path() -> str:
    """Where this process imports from beyond its installation, as PYTHONPATH."""
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    folders = [Path(entry).resolve() for entry in ("", *sys.path)]
    own = [path for path in folders if not installed & {path, *path.parents}]
    return os.pathsep.join(dict.fromkeys(map(str, own)))


def _short_folder() -> str | None:
    """A socket's path may have a hundred letters, which some systems' temporary folders use up."""
    return "/tmp" if os.name == "posix" else None  # mkdtemp makes a private one in it
