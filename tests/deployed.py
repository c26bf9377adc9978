"""Deployed runs on the loopback address: a server here, clients in processes of their own."""

import multiprocessing
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from comparing import TABLES, weights

from simsplit.deploy.alignment import has_psi
from simsplit.deploy.keys import SERVER, client_name, load_keys, make_keys
from simsplit.deploy.server_run import serve
from simsplit.deploy.terms import Mode
from simsplit.results import Run
from simsplit.results.checkpoints import _list_folders, _read
from simsplit.scenario import Scenario

needs_psi = pytest.mark.skipif(not has_psi(), reason="needs the extra psi: openmined-psi")


@dataclass
class Job:
    """One `simsplit join` in a process of its own."""

    scenario: Scenario
    client: int
    address: str
    keys: Path
    out: Path
    mode: Mode = "rehearsal"
    resume: bool = False
    data: Path | None = None
    breaks: tuple[str, str, int] | None = None
    """A call, the leg that it brings and how many of these are answered before it is cut off."""
    spoils: int | None = None
    """How many steps are begun before it sends numbers that are none."""
    hands: bool = False
    """Whether it is in hand-overs that these are."""


class CutOff(BaseException):
    """Raised in the middle of a call, as if the power were gone."""


def break_off(site: Any, call: str, leg: str, left: int) -> None:
    """Have a site break off at a call."""
    answer = site._answer

    def until(number: int, header: dict[str, Any], tensors: list[Any]) -> bytes:
        nonlocal left
        legs = [packet["leg"] for packet in header.get("fields", {}).get("packets", ())]
        if call in (header.get("call"), *header) and (not leg or leg in legs):
            left -= 1
            if left < 0:
                raise CutOff
        return answer(number, header, tensors)

    site._answer = until


def spoil(site: Any, left: int, *, hands: bool = False) -> None:
    """Have a site send what is not finite; `hands`: to other clients, in its seal.

    It goes on where a round is done again, for which a site builds its client anew.
    """
    build = site._build

    def change(part: Any, name: str) -> None:
        made = getattr(part, name)

        def bad(*words: Any) -> Any:
            nonlocal left
            packet, left = made(*words), left - 1
            if left >= 0:
                return packet
            spoilt = (t * float("nan") if t.is_floating_point() else t for t in packet.tensors)
            return packet.with_tensors(tuple(spoilt))

        setattr(part, name, bad)

    def change_client() -> None:
        if hands:
            change(site.client.sharing, "hand_over")
        else:
            change(site.client.training.end, "make")

    def build_again() -> Any:
        assembler = build()
        change_client()
        return assembler

    site._build = build_again
    change_client()


def work(pipe: Connection, prepare: Callable[[], None] | None = None) -> None:
    """Run a client's process: join after join, until there is none."""
    if prepare is not None:
        prepare()
    import torch
    from sklearn.datasets import load_digits

    from simsplit.deploy.alignment_site import align_ids
    from simsplit.deploy.connection import join
    from simsplit.deploy.site_setup import make_site

    torch.set_num_threads(1)
    load_digits()
    pipe.send("ready")
    while (job := pipe.recv()) is not None:
        try:
            proof = load_keys(job.keys, client_name(job.client))
            own = {"data": job.data, "resume": job.resume}
            waits = {"patience_s": 20, "say": lambda _: None}
            about = (job.scenario, job.client)
            common = align_ids(*about, job.address, proof, job.out, mode=job.mode, **own, **waits)
            site = make_site(*about, job.out, job.mode, common=common, **own)
            if job.breaks is not None:
                break_off(site, *job.breaks)
            if job.spoils is not None:
                spoil(site, job.spoils, hands=job.hands)
            pipe.send(join(job.address, proof, site, **waits))
        except (Exception, CutOff) as error:  # noqa: BLE001 - the test gets it
            pipe.send(f"{type(error).__name__}: {error}")


@dataclass
class Client:
    """A process that can be a client, as often as it is asked to."""

    process: BaseProcess
    pipe: Connection
    unread: int = 1
    """How many messages are still to come: that it is ready, and the end of each job."""

    @classmethod
    def start(cls, prepare: Callable[[], None] | None = None) -> "Client":
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=work, args=(theirs, prepare), daemon=True)
        process.start()
        return cls(process, ours)

    def begin(self, job: Job) -> None:
        self.pipe.send(job)
        self.unread += 1

    def came_to(self, seconds: float = 60) -> str:
        assert self.pipe.poll(seconds), "the client has not ended"
        self.unread -= 1
        return str(self.pipe.recv())

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


@dataclass
class Deployment:
    """Keys and clients' processes, for run after run."""

    folder: Path
    clients: list[Client] = field(default_factory=list)
    prepare: Callable[[], None] | None = None

    @classmethod
    def of(
        cls, folder: Path, count: int, prepare: Callable[[], None] | None = None
    ) -> "Deployment":
        make_keys(folder / "keys", count, 2)
        clients = [Client.start(prepare) for _ in range(count)]
        assert {client.came_to(120) for client in clients} == {"ready"}
        return cls(folder, clients, prepare)

    def restart_busy(self) -> None:
        """Start clients anew that a failed test has left at work, or whose ends it has not read."""
        for number, client in enumerate(self.clients):
            if client.unread:
                client.stop()
                self.clients[number] = Client.start(self.prepare)
                assert self.clients[number].came_to(120) == "ready"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    def start(self, given: Scenario, number: int, address: str, out: Path, **more: Any) -> None:
        job = Job(given, number, address, self.keys, out / client_name(number), **more)
        self.clients[number].begin(job)

    def run(
        self,
        given: Scenario,
        out: Path,
        *,
        approved: Scenario | None = None,
        mode: Mode = "rehearsal",
        resume: bool = False,
        data: dict[int, Path] | None = None,
        breaks: dict[int, tuple[str, str, int]] | None = None,
        spoils: dict[int, int] | None = None,
        hands: bool = False,
        say: Callable[[str], None] = lambda _: None,
        through: Callable[[str], str] = str,
        **more: Any,
    ) -> Run:
        """Serve, with all clients; a client that `breaks` off comes back at once. The run.

        `through` gets the server's address, and returns the one that clients connect to.
        """
        left = dict(breaks or {})
        address = ""

        def hear(text: str) -> None:
            nonlocal address
            if text.startswith("listening"):
                address = through(text.split(",")[0].removeprefix("listening on "))
                for number in range(given.clients.count):
                    more = {"mode": mode, "resume": resume, "breaks": left.get(number)}
                    more["data"] = (data or {}).get(number)
                    more["spoils"] = (spoils or {}).get(number)
                    more["hands"] = hands
                    self.start(approved or given, number, address, out, **more)
            for number in list(left):
                if text.startswith(f"client {number} has gone"):
                    del left[number]
                    self.start(given, number, address, out, mode=mode, resume=True)
            say(text)

        keys = load_keys(self.keys, SERVER)
        more = {"patience_s": 60, "deadline_s": 60, **more}
        return serve(
            given, out / "run", keys, "127.0.0.1:0", mode=mode, resume=resume, say=hear, **more
        )

    def ends(self, count: int) -> list[str]:
        return [client.came_to() for client in self.clients[:count]]

    def stop(self) -> None:
        for client in self.clients:
            client.stop()


def assert_as_inline(deployed: Path, inline: Path, clients: Sequence[int]) -> None:
    """Assert that every table is equal to the letter, and every weight to the bit.

    `holdings` alone differs: of a client's samples it counts all, and no class.
    """
    counted = Run.load(deployed / "run").holdings
    totals = Run.load(inline).holdings.groupby("client")["samples"].sum()
    assert counted["class"].isna().all()
    assert dict(zip(counted["client"], counted["samples"], strict=True)) == {
        client: totals[client] for client in counted["client"]
    }
    for table in TABLES:
        one, other = (path / f"{table}.csv" for path in (deployed / "run", inline))
        assert one.exists() == other.exists()
        assert not one.exists() or one.read_text() == other.read_text(), table
    ours, theirs = (
        {
            name: tensor
            for name, tensor in weights(path).items()
            # a turn's may be sealed, and a server alone keeps how many steps it was of
            if "/shared/" not in name and not name.startswith("handover/")
        }
        for path in (deployed / "run", inline)
    )
    for name, tensor in ours.items():
        assert tensor.equal(theirs.pop(name)), name
    own = {f"client/{n}/{k}": t for n in clients for k, t in read_kept(deployed, n, "own/").items()}
    for name, tensor in own.items():
        assert tensor.equal(theirs.pop(name)), name
    held = [read_kept(deployed, number, "shared/") for number in clients]
    left = {name.removeprefix("holder/"): tensor for name, tensor in theirs.items()}
    assert not left or any(same(left, each) for each in held)


def read_kept(deployed: Path, client: int, part: str) -> dict[str, Any]:
    """Return what a client's last checkpoint holds."""
    newest = _list_folders(deployed / client_name(client) / "checkpoints")[0]
    state, _ = _read(newest)
    return {n.removeprefix(part): t for n, t in state.items() if n.startswith(part)}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(t.equal(other[name]) for name, t in one.items())


def apart(target: Callable[[], object]) -> threading.Thread:
    """Run something in a thread of its own."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])
