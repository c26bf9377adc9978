"""Clients that answer as they like, in threads here, and the real server on the loopback address.

A `Way` changes one answer of a client. A run has several hostile clients, each with a way of its
own, and two honest ones.
"""

import resource
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from simsplit.data import Prepared
from simsplit.deploy.connection import join
from simsplit.deploy.frames import read_frame, write_frame
from simsplit.deploy.handovers import Handovers
from simsplit.deploy.keys import SERVER, Keys, client_name, load_keys, make_keys
from simsplit.deploy.server_run import serve
from simsplit.deploy.site import ClientSite
from simsplit.results import Run
from simsplit.scenario import Scenario

MOST = 2**34
MOST_GROWN = 256 * 2**20
"""Bytes by which the peak memory of the process may rise in a run, clients included."""
Answer = dict[str, Any]
Change = Callable[[Answer, list[Tensor]], Any]
"""Changes the header and tensors of an answer, or returns a frame to send instead."""


@dataclass(frozen=True)
class Way:
    """What a hostile client does instead of an answer."""

    name: str
    call: str
    """The call or command that it answers in its own way."""
    change: Change
    leg: str = ""
    """The leg of the answer's first packet; empty: any."""
    after: int = 0
    """How many such calls it answers honestly before."""
    tamper: Callable[[Handovers], None] | None = None
    """Changes how the client seals; None: it seals honestly."""
    sly: bool = False
    """Whether the answer has the form of an honest one, so that the server may believe it."""

    @property
    def may_stay(self) -> bool:
        """Whether it may stay: finite numbers spoil no trunk whose gradients are clipped."""
        return self.sly or self.name in ("huge", "largest")

    def __str__(self) -> str:
        return f"{self.call} {self.name}"


BUILDING = threading.Lock()


class LoneSite(ClientSite):
    """A site that shares its process with others: weights are drawn by torch's one generator."""

    def _build(self) -> Any:
        with BUILDING:
            return super()._build()


class HostileSite(LoneSite):
    """A site that answers one call in a way of its own, until it is expelled."""

    way: Way
    done = 0
    """How often it has done so."""
    seen = 0

    def enable_sealing(self, keys: Keys) -> None:
        super().enable_sealing(keys)
        if self.way.tamper is not None:
            assert self.handovers is not None, "only hand-overs are sealed"
            self.way.tamper(self.handovers)

    def _answer(self, number: int, header: dict[str, Any], tensors: list[Tensor]) -> bytes:
        frame = super()._answer(number, header, tensors)
        asked = header.get("call", next(iter(header)))
        answer, made = read_frame(frame, MOST)
        packets = answer.get("answer")
        first = packets[0] if isinstance(packets, list) and packets else packets
        leg = first["leg"] if isinstance(first, dict) and "leg" in first else ""
        if asked != self.way.call or (self.way.leg and leg != self.way.leg):
            return frame
        self.seen += 1
        if self.seen <= self.way.after:
            return frame
        self.done += 1
        changed = self.way.change(answer, made)
        return changed if isinstance(changed, bytes) else write_frame(answer, made)


@dataclass
class Party:
    """A client in a thread of its own."""

    site: ClientSite
    thread: threading.Thread = field(init=False)
    end: str = "still running"
    done: int = 0
    """How often its earlier sites have answered in their own way."""

    def again(self, site: ClientSite) -> None:
        """Come back as a hostile client would: in another process, from its checkpoints."""
        self.done = self.count_done()
        self.site = site

    def count_done(self) -> int:
        """Count the answers that were no honest ones."""
        return self.done + (self.site.done if isinstance(self.site, HostileSite) else 0)


@dataclass
class Outcome:
    """The result of a run with hostile clients."""

    run: Run
    lines: list[str]
    parties: list[Party]
    grown: int
    """How many bytes the peak memory of this process has risen by."""


class Stage:
    """Keys and a folder, for run after run."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        make_keys(folder / "keys", count, 1)
        self.proofs = [load_keys(folder / "keys", client_name(n)) for n in range(count)]
        self.server = load_keys(folder / "keys", SERVER)

    def run(
        self,
        given: Scenario,
        out: Path,
        ways: dict[int, Way],
        *,
        data: Prepared | None = None,
        absent: Sequence[int] = (),
        resume: bool = False,
        say: Callable[[str], None] = lambda _: None,
        **more: Any,
    ) -> Outcome:
        """Serve with the clients, those of `ways` hostile, and wait until all have ended."""
        lines: list[str] = []
        parties: list[Party] = []
        held = data or given.prepare_data()

        def note(text: str) -> None:
            lines.append(text)
            if text.startswith("listening"):
                address = text.split(",")[0].removeprefix("listening on ")
                for number in range(given.clients.count):
                    if number not in absent:
                        make = partial(make_site, given, held, number, out, ways.get(number))
                        parties.append(start(address, self.proofs[number], make))
            say(text)

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times = {"patience_s": 20, "deadline_s": 20, **more}
        run = serve(
            given, out / "run", self.server, "127.0.0.1:0", resume=resume, say=note, **times
        )
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for party in parties:
            if party.site.number not in ways:
                party.thread.join(20)
        return Outcome(run, lines, parties, (after - before) * 1024)


def make_site(
    given: Scenario, data: Prepared, number: int, out: Path, way: Way | None = None
) -> ClientSite:
    """Make an honest site, or a hostile one."""
    folder = out / client_name(number)
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    if way is None:
        return LoneSite(given, data, number, folder)
    site = HostileSite(given, data, number, folder)
    site.way = way
    return site


def start(address: str, proof: Any, make: Callable[[], ClientSite]) -> Party:
    """Let a site join in a thread; a hostile one comes back, until it is refused."""
    party = Party(make())

    def work() -> None:
        for _ in range(8):
            try:
                party.end = join(address, proof, party.site, patience_s=3, say=lambda _: None)
            except Exception as error:  # noqa: BLE001 - the test is given it
                party.end = f"{type(error).__name__}: {error}"
            if not isinstance(party.site, HostileSite) or party.end == "finished":
                return
            if "RunError" in party.end or "no server" in party.end:
                return
            party.again(make())

    party.thread = threading.Thread(target=work, daemon=True)
    party.thread.start()
    return party


def assert_nobody_noticed(
    stage: Stage,
    given: Scenario,
    out: Path,
    ways: Sequence[Way],
    data: Prepared | None = None,
) -> None:
    """Run with these hostile clients: each is expelled, and the others have finished.

    One whose answers have the form of honest ones may stay, if that harms nobody else.
    """
    outcome = stage.run(given, out, dict(enumerate(ways)), data=data)
    honest = range(len(ways), given.clients.count)
    idle = [str(ways[p.site.number]) for p in outcome.parties[: len(ways)] if not p.count_done()]
    assert not idle, f"ways that were never taken: {idle}"
    expelled = outcome.run.expelled
    kinds = {} if expelled.empty else dict(zip(expelled["client"], expelled["kind"], strict=True))
    gone = [kinds.pop(number, "") == "expelled" for number in range(len(ways))]
    spared = [str(w) for w, is_gone in zip(ways, gone, strict=True) if not (is_gone or w.may_stay)]
    assert not spared, spared
    assert not kinds, "an honest client was expelled"
    ends = {party.site.number: party.end for party in outcome.parties}
    assert {ends[number] for number in honest} == {"finished"}, ends
    rounds, clients = outcome.run.rounds, outcome.run.clients
    assert list(rounds["round"]) == list(range(1, len(rounds) + 1))
    assert rounds["round"].max() >= given.schedule.rounds
    scores = rounds.filter(like="test_").drop(
        columns=outcome.run.summary.get("withheld", []), errors="ignore"
    )
    assert scores.notna().all(axis=None)
    trained = rounds.loc[rounds["phase"] == "train", "round"]
    of_honest = clients[clients["client"].isin(honest) & clients["round"].isin(trained)]
    assert (of_honest["steps"] > 0).all()
    assert outcome.run.summary["status"] == "finished"
    assert outcome.grown < MOST_GROWN, outcome.grown
