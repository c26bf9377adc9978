"""This module starts or joins Ray's runtime, and always shuts it down after use.

All users of Ray start it here, so that its switches are set in one place. Ray is imported only when
a cluster is needed.
"""

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from simsplit.errors import RunFailedError, ScenarioError

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # An actor without a reserved GPU must still see the one that it shares.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Under `uv run`, Ray would pack the working folder, including run directories.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
_FAST = {
    # A batch at the cut often exceeds Ray's 100 KB, above which a call takes twice as long.
    "RAY_max_direct_call_object_size": str(2 * 2**20),
}
_PATIENT = {
    # Ray's half a minute is too short if other work occupies the processors.
    "RAY_gcs_server_port_wait_time_s": "120",
}
_LATE = "timed out during startup"
"""A part of Ray's message if a node needs more than half a minute, a limit without a switch."""
_WORKERS = {
    # Between two calls a host is idle. Its threads would keep processors busy that the server
    # needs, since libgomp spins for milliseconds before it sleeps.
    "GOMP_SPINCOUNT": "3000",
}
SMALL_STORE_BYTES = 100 * 2**20
"""The shared memory for callers that send few numbers; by default Ray takes a third of the memory.
"""

_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""A frame of HTTP/2 with which each side begins; its fourth byte is the kind of frame."""
ANSWER_S = 5.0
"""The time limit for a cluster's answer, in seconds."""
WATCH_S = 1.0
"""How often it is checked that Ray's head process lives, in seconds."""
LOOK_S = 2.0
"""Seconds between two looks at a cluster while something of it is waited for."""
KEPT = "the last checkpoint is kept, go on from it with --resume"
"""The end of a sentence on a run that has lost what it ran on."""
_SHORT = "/tmp" if os.name == "posix" else None
"""Where folders are made; None: the system's temporary folder. A socket's path has about a hundred
characters at most, which some systems' temporary folders exceed."""
_PARTS = 10_000
"""The parts of a processor or GPU that Ray can share out."""
UNLIMITED = sys.maxsize
"""The room of a node for what needs nothing of it."""
_heads: list[tuple[str, int]] = []
"""Where the head process of the cluster that was started here listens; empty without one."""
_head_is_gone = threading.Event()
"""Set once the head process of a cluster started here is gone, until that cluster is shut down."""


@contextmanager
def run_with_cluster(
    address: str | None,
    processors: int | None = None,
    object_store_bytes: int = SMALL_STORE_BYTES,
    option: str = "engine.address",
) -> Iterator[None]:
    """Run a block with Ray; use a runtime that this process has started before, and keep it.

    Args:
        address: Address of a running cluster (`auto`, `ray://host:port`, `host:port`); None: start
            a local one. Where nothing answers, ScenarioError is raised, whatever runs already.
        processors: Number of processors of a cluster started here; None: all.
        object_store_bytes: Shared memory of a cluster started here, in bytes.
        option: The name of what gives the address, for errors.

    Workers import from the same folders as this process, including the working folder.
    """
    import ray

    if address is not None:
        _refuse_unreachable(address, option)
    if ray.is_initialized():
        yield
        return
    for name, value in (_QUIET | _FAST | ({} if address else _PATIENT)).items():
        os.environ.setdefault(name, value)
    folder = tempfile.mkdtemp(prefix="simsplit-ray-", dir=_SHORT)  # private, in a shared one
    local: dict[str, Any] = {
        "num_cpus": processors,
        "object_store_memory": object_store_bytes,
        "include_dashboard": False,
        "_temp_dir": folder,
    }
    try:
        with _keep_stdout_clean():
            if address is None:
                _init_with_retry({"address": "local"} | local)
            else:
                try:
                    _init({"address": address})
                except ConnectionError as error:
                    raise _make_unreachable_error(address, error, option) from None
            try:
                # others may restart the head process of a cluster of theirs
                with _watch_head(folder) if address is None else nullcontext():
                    yield
            finally:
                ray.shutdown()
                _head_is_gone.clear()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_dead_node() -> None:
    """Raise RunFailedError if Ray itself has ended here; it would soon end this process too."""
    # Ray would wait a minute for it and then end this process. So it is asked for here too: the
    # thread that watches may be a second late.
    if _head_is_gone.is_set() or not all(_is_listening(*each) for each in _heads):
        raise RunFailedError(f"Ray has ended on this machine (its head process is gone); {KEPT}")
    ray: Any = import_module("ray")  # half of it has no types
    here = ray.get_runtime_context().get_node_id()
    node = next((each for each in ray.nodes() if each["NodeID"] == here), None)
    # Ray itself lists a dead node as alive for about fifteen seconds.
    if node is not None and node["Alive"]:
        address = node["NodeManagerAddress"]
        # a port of another machine may be closed to this one
        elsewhere = address != ray.util.get_node_ip_address()
        if elsewhere or _is_listening(address, node["NodeManagerPort"]):
            return
    raise RunFailedError(f"Ray has ended on this machine (its raylet is gone); {KEPT}")


def _is_listening(host: str, port: int) -> bool:
    """Return whether a process of this machine listens on a port."""
    try:
        socket.create_connection((host, port), ANSWER_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # too busy to answer, perhaps
        return True
    return True


@contextmanager
def _watch_head(folder: str) -> Iterator[None]:
    """Watch the head process (GCS) of the cluster that was started here, in a thread.

    Without its head process a cluster works on for a minute; then Ray ends this process without an
    exception, and its workers stay behind. So at the death of the head process all others are
    killed: calls that wait for hosts fail, and `refuse_dead_node` raises.
    """
    ray: Any = import_module("ray")
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    head = host, int(port)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_S):
            if not _is_listening(*head):
                _head_is_gone.set()
                _kill_processes(folder)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    _heads.append(head)
    try:
        yield
    except Exception:
        if _head_is_gone.is_set():
            refuse_dead_node()  # whatever call it was that failed because of it
        raise
    finally:
        _heads.remove(head)
        over.set()
        thread.join()


def _kill_processes(folder: str) -> None:
    """Kill the processes of the cluster that was started in a folder, and their children."""
    psutil: Any = import_module("psutil")  # Ray brings its own
    for process in psutil.Process().children():
        with suppress(psutil.Error):  # gone in the meantime
            if any(folder in word for word in process.cmdline()):
                # Its workers are listed before it dies, as they then have another parent.
                for each in (*process.children(recursive=True), process):
                    with suppress(psutil.Error):
                        each.kill()


def count_room(needs: Mapping[str, float]) -> int:
    """Count the tasks or actors that a cluster's nodes could hold if nobody else were there.

    `needs` has the CPU and the GPU of each. What is less than a GPU lies on one GPU, not on two.
    """
    return sum(count_room_of_node(resources, needs) for resources in list_resources())


def list_resources() -> list[Mapping[str, float]]:
    """List the resources of each node that is alive, by their names."""
    ray: Any = import_module("ray")
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def count_room_of_node(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Count the tasks or actors with these needs that one node could hold."""
    counts = []
    for kind, need in needs.items():
        # whole numbers, as Ray counts: a tenth fits three times into three tenths
        wanted, present = round(need * _PARTS), round(resources.get(kind, 0) * _PARTS)
        if kind == "GPU" and 0 < wanted < _PARTS:
            counts.append(present // _PARTS * (_PARTS // wanted))
        elif wanted:
            counts.append(present // wanted)
    return min(counts, default=UNLIMITED)


def end_actors(actors: Iterable[Any]) -> None:
    """Kill actors at once; those of a cluster without a head process are killed already."""
    ray: Any = import_module("ray")
    for actor in actors if not _head_is_gone.is_set() else ():
        ray.kill(actor)


def _init_with_retry(options: Mapping[str, Any]) -> None:
    """Start Ray; try once more if it was too slow."""
    import ray

    try:
        _init(options)
    except Exception as error:  # Ray raises a plain Exception
        if _LATE not in str(error).lower():
            raise
        ray.shutdown()
        _init(options)


def _init(options: Mapping[str, Any]) -> None:
    import ray

    heeded = signal.getsignal(signal.SIGTERM)
    ray.init(
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": get_import_path(), **_WORKERS}},
        **options,
    )
    if threading.current_thread() is threading.main_thread() and heeded is not None:
        # Ray has set a handler of its own, which would abort this process.
        signal.signal(signal.SIGTERM, heeded)


def _refuse_unreachable(address: str, option: str) -> None:
    """Raise ScenarioError within seconds if nothing answers; Ray itself would try for minutes."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    if address != "auto" and place.hostname and place.port:
        try:
            _greet(place.hostname, place.port)
            _await_answer(place.hostname, place.port)
        except OSError as error:
            raise _make_unreachable_error(address, error, option) from None


def _greet(host: str, port: int) -> None:
    """Begin to speak HTTP/2, as all of Ray does; raise OSError unless the other side answers so.

    A port can accept connections although the process behind it has stopped.
    """
    with socket.create_connection((host, port), timeout=ANSWER_S) as stream:
        stream.settimeout(ANSWER_S)
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
        with stream.makefile("rb") as answer:
            if answer.read(len(_SETTINGS))[3:4] != _SETTINGS[3:4]:
                raise ConnectionError("what answers there is not Ray")


def _await_answer(host: str, port: int) -> None:
    """Raise ConnectionError unless a call is answered, with whatever it may be.

    A connection may stand while the process behind it has stopped, or is none of Ray's. Ray itself
    would try for minutes, and print a line of its own for each try.
    """
    try:
        import grpc
    except ImportError:  # Ray then finds out by itself
        return
    with grpc.insecure_channel(f"{host}:{port}", options=(("grpc.enable_http_proxy", 0),)) as there:
        try:
            there.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=ANSWER_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                raise ConnectionError("it takes connections, and answers no call") from None


def _make_unreachable_error(address: str, error: OSError, option: str) -> ScenarioError:
    return ScenarioError(
        option,
        f"no Ray cluster answers at {address} ({str(error).rstrip('.')}); start one there (`ray "
        f"start --head`), or leave {option} out to start one here",
    )


@contextmanager
def _keep_stdout_clean() -> Iterator[None]:
    """Keep Ray from printing the death of a worker on stdout, which callers report themselves.

    Ray prints it whatever `log_to_driver` is, without a switch, so the function that prints is
    replaced. If a later Ray does not have this function, nothing is changed.
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


def get_import_path() -> str:
    """Return the import folders outside of the Python installation, in PYTHONPATH's format."""
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    folders = [Path(entry).resolve() for entry in ("", *sys.path)]
    own = [path for path in folders if not installed & {path, *path.parents}]
    return os.pathsep.join(dict.fromkeys(map(str, own)))
