"""Parties find their common ids, and neither the server nor another party learns any other id.

The sessions are in memory: one thread answers for each party. A toy stands for openmined-psi where
it is not installed: its secrets are multiplied as the package's are, but it knows all of them.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from builders import run_to_end
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from deployed import Deployment, assert_as_inline, needs_psi
from gists import says
from torch import Tensor

from simsplit.deploy import alignment, alignment_site
from simsplit.deploy.alignment import Blinder, Meeting, PartiesAway, make_statement, split_points
from simsplit.deploy.alignment_site import COMMON, AlignmentSite, align_ids
from simsplit.deploy.client_session import ClientSession, FaultOf
from simsplit.deploy.frames import bytes_to_tensor, read_frame, write_frame
from simsplit.deploy.join_check import check_join
from simsplit.deploy.keys import SERVER, client_name, load_keys, make_keys, read_roster
from simsplit.deploy.seals import Seals
from simsplit.deploy.server_run import _align_ids
from simsplit.deploy.server_tables import SocketTable
from simsplit.deploy.site_setup import load_own_data
from simsplit.errors import DataError, ProtocolError, RunError, RunFailedError, SimsplitError
from simsplit.results.directory import SOCKET
from simsplit.scenario import Scenario, parse

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
TERMS = "the terms"
MOST = 2**28


class ToyBlinder:
    """Multiplies the scalar of each point, which it remembers for all parties."""

    scalars: ClassVar[dict[bytes, int]] = {}

    def __init__(self) -> None:
        self.secret = len(self.scalars) + 2

    def blind(self, ids: Sequence[str]) -> Tensor:
        hashes = (hashlib.sha256(each.encode()).digest() for each in ids)
        return self._multiply([int.from_bytes(each) for each in hashes])

    def blind_again(self, points: Tensor) -> Tensor:
        return self._multiply([self.scalars[each] for each in split_points(points)])

    def _multiply(self, scalars: list[int]) -> Tensor:
        products = [scalar * self.secret % ORDER for scalar in scalars]
        points = [make_point(each) for each in products]
        self.scalars.update(zip(points, products, strict=True))
        return pack(points)


def make_point(scalar: int) -> bytes:
    public = ec.derive_private_key(scalar, ec.SECP256R1()).public_key()
    return public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def pack(points: Sequence[bytes]) -> Tensor:
    return torch.stack([bytes_to_tensor(each) for each in points])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "keys"
    make_keys(folder, 3, 1)
    return folder


@pytest.fixture(params=["toy", pytest.param("psi", marks=needs_psi)])
def blinder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "toy":
        monkeypatch.setattr(alignment_site, "Blinder", ToyBlinder)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment_site, "Blinder", ToyBlinder)


Answer = Callable[[AlignmentSite, bytes], bytes]


@dataclass
class Table:
    """The server's meeting, and parties who answer it in threads; all frames are kept."""

    folder: Path
    keys: Path
    deadline_s: float = 5
    meeting: Meeting = field(default_factory=lambda: Meeting(TERMS))
    frames: list[bytes] = field(default_factory=list)
    sites: dict[int, AlignmentSite] = field(default_factory=dict)

    def seat(self, number: int, ids: list[str], answer: Answer = AlignmentSite.answer) -> None:
        proof = load_keys(self.keys, client_name(number))
        site = self.sites[number] = AlignmentSite(TERMS, number, Seals(proof, 3), ids)
        session = ClientSession(number, 2**20, self.deadline_s, SocketTable(self.folder))
        self.meeting.admit(session)

        def talk() -> None:
            for frame in session.iterate_outgoing():
                self.frames.append(frame)
                if "over" in read_frame(frame, MOST)[0]:
                    return
                answered = answer(site, frame)
                self.frames.append(answered)
                session.arrive(answered)

        threading.Thread(target=talk, daemon=True).start()

    def hold(self) -> None:
        roster = read_roster(load_keys(self.keys, SERVER))
        self.meeting.hold(lambda: self.sites.keys(), lambda _: False, roster, self.deadline_s)


IDS = {
    0: ["ann-01", "bob-02", "cat-03", "dan-04", "eve-05"],
    1: ["eve-05", "fay-06", "bob-02", "dan-04"],
    2: ["gus-07", "dan-04", "eve-05", "ann-01", "hal-08", "ivy-09"],
}
COMMON_IDS = ["dan-04", "eve-05"]


@pytest.mark.usefixtures("blinder")
def test_all_parties_find_their_common_ids_and_no_id_crosses(tmp_path: Path, keys: Path) -> None:
    table = Table(tmp_path, keys)
    for number, ids in IDS.items():
        table.seat(number, list(ids))
    table.hold()
    assert [site.common for site in table.sites.values()] == [COMMON_IDS] * 3
    crossed = b"".join(table.frames)
    for each in {each for ids in IDS.values() for each in ids}:
        text = each.encode()
        digest = hashlib.sha256(text)
        for form in (text, digest.digest(), digest.hexdigest().encode()):
            assert form not in crossed, each
    # nor does a party send the rows that it was asked of in the order of its file
    assert any(list(site.ids) != IDS[number] for number, site in table.sites.items())


@needs_psi
def test_points_are_blinded_anew_each_time() -> None:
    """Equal ids of two parties, or of two alignments, are not equal before all have blinded."""
    one, other = Blinder(), Blinder()
    ids = ["ann", "bob"]
    assert not {*split_points(one.blind(ids))} & {*split_points(other.blind(ids))}
    assert torch.equal(other.blind_again(one.blind(ids)), one.blind_again(other.blind(ids)))


@pytest.mark.usefixtures("toy")
def test_two_parties_of_three_go_on_where_one_is_gone(tmp_path: Path, keys: Path) -> None:
    table = Table(tmp_path, keys)
    table.seat(0, list(IDS[0]))
    table.seat(2, list(IDS[2]))
    table.hold()
    assert table.sites[0].common == table.sites[2].common == ["ann-01", "dan-04", "eve-05"]
    with pytest.raises(ProtocolError) as late:
        table.seat(1, list(IDS[1]))
    assert says(str(late.value), "aligned ... --resume")


@pytest.mark.usefixtures("toy")
def test_a_party_that_says_nothing_is_away(tmp_path: Path, keys: Path) -> None:
    """It is not asked again for ever, and what it says too late is nobody's fault."""
    woken = threading.Event()

    def sleep(site: AlignmentSite, frame: bytes) -> bytes:
        woken.wait()
        return site.answer(frame)

    table = Table(tmp_path, keys, deadline_s=0.3)
    table.seat(0, list(IDS[0]))
    table.seat(1, list(IDS[1]), sleep)
    with pytest.raises(PartiesAway) as caught:
        table.hold()
    woken.set()
    assert caught.value.clients == [1]


@pytest.mark.usefixtures("toy")
def test_too_few_common_ids_end_the_run_with_a_reason(tmp_path: Path, keys: Path) -> None:
    table = Table(tmp_path, keys)
    table.seat(0, ["ann", "bob"])
    table.seat(1, ["bob", "cat"])
    with pytest.raises(RunFailedError) as caught:
        table.hold()
    assert says(str(caught.value), "1 ids ... at least 2 ... data.source.id")


def alter(change: Callable[[list[Tensor]], list[Tensor]], hop: int) -> Answer:
    """Return answers of a party that changes what it sends at a hop, and signs that."""

    def answer(site: AlignmentSite, frame: bytes) -> bytes:
        header, tensors = read_frame(site.answer(frame), MOST)
        asked, _ = read_frame(frame, MOST)
        if asked.get("hop", 0) == hop and "common" not in asked:
            points, *others = change(tensors)
            origin = asked.get("blind_again", site.number)
            statement = make_statement(TERMS, origin, hop, points)
            tensors = [points, bytes_to_tensor(site.seals.sign(statement)), *others][: len(tensors)]
        return write_frame(header, tensors)

    return answer


def forge(site: AlignmentSite, frame: bytes) -> bytes:
    header, (points, _) = read_frame(site.answer(frame), MOST)
    return write_frame(header, [points, bytes_to_tensor(site.seals.sign(b"other"))])


def leave_unsigned(site: AlignmentSite, frame: bytes) -> bytes:
    header, tensors = read_frame(site.answer(frame), MOST)
    return write_frame(header, tensors[:1])


HOSTILE: dict[str, tuple[Answer, str]] = {
    "one point": (alter(lambda sent: [sent[0][:1]], 0), "2 to"),
    "no bytes": (alter(lambda sent: [sent[0].int()], 0), "points"),
    "a flat list": (alter(lambda sent: [sent[0].flatten()], 0), "points"),
    "doubled": (alter(lambda sent: [sent[0][[0, 1, 1]]], 0), "twice"),
    "not on the curve": (alter(lambda sent: [torch.full_like(sent[0], 2).triu()], 0), "curve"),
    "others' points left out": (alter(lambda sent: [sent[0][:-1]], 1), "4 ... 5"),
    "others' points equal": (alter(lambda sent: [sent[0][[0] * len(sent[0])]], 1), "twice"),
    "signed for another": (forge, "signature"),
    "unsigned": (leave_unsigned, "points"),
}


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_party_that_sends_what_it_may_not_is_named(name: str, tmp_path: Path, keys: Path) -> None:
    answer, gist = HOSTILE[name]
    table = Table(tmp_path, keys)
    table.seat(0, list(IDS[0]))
    table.seat(1, list(IDS[1]), answer)
    with pytest.raises(FaultOf) as caught:
        table.hold()
    assert caught.value.client == 1
    assert says(str(caught.value), gist), str(caught.value)


def answer_the_last_wrongly(site: AlignmentSite, frame: bytes) -> bytes:
    """Answer another request than the one that brings the common ids."""
    answered = site.answer(frame)
    is_last = "common" in read_frame(frame, MOST)[0]
    return write_frame({"number": 10**6, "answer": None}, []) if is_last else answered


WAYS = {"away": None, "doubled": HOSTILE["doubled"][0], "at last": answer_the_last_wrongly}


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("quorum", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_party_of_three_costs_itself_alone(
    way: str, quorum: bool, tmp_path: Path, keys: Path
) -> None:
    """So does one that does not come."""
    hostile, is_away = WAYS[way], way == "away"
    table = Table(tmp_path, keys)
    lost = dict[int, str]()
    gate: Any = SimpleNamespace(
        meeting=table.meeting,
        count=3,
        sessions={},
        left_out=lost.keys(),
        patience_s=0.3,
        table=SimpleNamespace(add=lambda client, _, kind, why: lost.update({client: why})),
        is_quorum_without=lambda _: quorum,
        lose=lambda client, why, *_: lost.update({client: why}),
    )
    for number, ids in IDS.items():
        if number != 1 or not is_away:
            table.seat(number, list(ids), (number == 1 and hostile) or AlignmentSite.answer)
    if not quorum:
        with pytest.raises(RunFailedError) as caught:
            _align_ids(gate, load_keys(keys, SERVER))
        assert says(str(caught.value), "client 1 ... " + ("--out" if is_away else "--without 1"))
        return
    _align_ids(gate, load_keys(keys, SERVER))
    assert [*lost] == [1]
    assert table.sites[0].common == table.sites[2].common == ["ann-01", "dan-04", "eve-05"]


def ask(site: AlignmentSite, header: dict[str, Any], *tensors: Tensor) -> Any:
    return site.answer(write_frame({"number": site._last_number + 1, **header}, tensors))


AGAIN = {"blind_again": 1, "hop": 1, "from": 1}


@pytest.mark.usefixtures("toy")
class TestHostileServer:
    """A server that asks a party for more than the alignment needs gets nothing."""

    @pytest.fixture
    def sites(self, keys: Path) -> dict[int, AlignmentSite]:
        seals = {n: Seals(load_keys(keys, client_name(n)), 3) for n in range(3)}
        return {n: AlignmentSite(TERMS, n, seals[n], list(IDS[n])) for n in range(3)}

    @pytest.fixture
    def points(self, sites: dict[int, AlignmentSite]) -> list[Tensor]:
        return read_frame(ask(sites[1], {"blind": 2}), MOST)[1]

    def test_points_of_its_own(self, sites: dict[int, AlignmentSite], points: list[Tensor]) -> None:
        """By those it could try out ids."""
        ask(sites[0], {"blind": 2})
        guesses = ToyBlinder().blind(IDS[0])
        with pytest.raises(ProtocolError, match="signature"):
            ask(sites[0], AGAIN, guesses, points[1])
        assert ask(sites[1], {"blind": 2})

    def test_the_same_points_twice(
        self, sites: dict[int, AlignmentSite], points: list[Tensor]
    ) -> None:
        ask(sites[0], {"blind": 2})
        ask(sites[0], AGAIN, *points)
        with pytest.raises(ProtocolError, match="twice"):
            ask(sites[0], AGAIN, *points)

    @pytest.mark.parametrize(
        "change",
        [
            {"blind_again": 0},
            {"from": 0},
            {"from": 2},
            {"hop": 2},
            {"hop": True},
            {"from": 9},
            {"from": [1]},
            {"blind_again": "1"},
        ],
    )
    def test_points_under_another_name(
        self, change: dict[str, Any], sites: dict[int, AlignmentSite], points: list[Tensor]
    ) -> None:
        ask(sites[0], {"blind": 2})
        with pytest.raises(ProtocolError):
            ask(sites[0], {**AGAIN, **change}, *points)

    def test_points_before_its_own(
        self, sites: dict[int, AlignmentSite], points: list[Tensor]
    ) -> None:
        with pytest.raises(ProtocolError, match="nobody"):
            ask(sites[0], AGAIN, *points)

    @pytest.mark.parametrize(
        "places",
        [
            torch.tensor([0]),
            torch.tensor([0, 5]),
            torch.tensor([-1, 2]),
            torch.tensor([2, 1]),
            torch.tensor([1, 1]),
            torch.tensor([[0], [1]]),
            torch.tensor([0.0, 1.0]),
            torch.tensor([True, False]),
        ],
    )
    def test_places_that_are_none(self, places: Tensor, sites: dict[int, AlignmentSite]) -> None:
        ask(sites[0], {"blind": 2})
        with pytest.raises(ProtocolError):
            ask(sites[0], {"common": 2}, places)
        assert sites[0].common == []

    @pytest.mark.parametrize(
        "header", [{"call": "Begin"}, {"blind": 2, "more": 1}, {}, {"number": 7, "blind": 2}]
    )
    def test_other_requests(self, header: dict[str, Any], sites: dict[int, AlignmentSite]) -> None:
        with pytest.raises(ProtocolError):
            ask(sites[0], header)


def write_files(folder: Path) -> dict[str, Path]:
    """Write a bank's and a shop's rows, of 80 and 90 people, who share 70."""
    people = [f"person-{number:03d}" for number in range(100)]
    bank = pd.DataFrame({"id": people[:80], "income": [n % 17 for n in range(80)]})
    shop = pd.DataFrame({"id": people[10:], "items": [n % 7 for n in range(90)]})
    shop["bought"] = ["yes" if n % 3 else "no" for n in range(90)]
    files = {"bank": folder / "bank.csv", "shop": folder / "shop.csv"}
    bank.to_csv(files["bank"], index=False)
    shop.iloc[::-1].to_csv(files["shop"], index=False)
    return files


def of_files(files: dict[str, Path]) -> Scenario:
    source = {"kind": "joined", "files": {n: str(f) for n, f in files.items()}, "target": "bought"}
    return parse(
        {
            "topology": "vertical",
            "data": {"source": {**source, "align": "psi"}},
            "vertical": {"party": "shop"},
            "model": {"kind": "mlp", "widths": [6, 8, 5]},
            "schedule": {"rounds": 2},
            "output": {"figures": False},
            "threads": 1,
        }
    )


@needs_psi
@pytest.mark.deploy
def test_a_deployment_with_alignment_equals_its_simulation(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each party has one file; no frame of the whole run has an id, and the rest is equal."""
    files = write_files(tmp_path)
    crossed: list[bytes] = []
    arrive, outgoing = ClientSession.arrive, ClientSession.iterate_outgoing

    def keep_arriving(self: ClientSession, frame: bytes) -> None:
        crossed.append(frame)
        arrive(self, frame)

    def keep_leaving(self: ClientSession) -> Iterator[bytes]:
        for frame in outgoing(self):
            crossed.append(frame)
            yield frame

    monkeypatch.setattr(ClientSession, "arrive", keep_arriving)
    monkeypatch.setattr(ClientSession, "iterate_outgoing", keep_leaving)
    apart = of_files({name: tmp_path / "elsewhere" / file.name for name, file in files.items()})
    deployment.run(apart, tmp_path / "deployed", data={0: files["bank"], 1: files["shop"]})
    assert set(deployment.ends(2)) == {"finished"}
    run_to_end(of_files(files), tmp_path / "inline")
    assert_as_inline(tmp_path / "deployed", tmp_path / "inline", range(2))
    assert b"person-" not in b"".join(crossed)
    sent = pd.read_csv(tmp_path / "deployed" / "run" / SOCKET).query("leg == 'alignment'")
    # three answers each: own points, the other's points, and that the places came
    assert sent["up_frames"].tolist() == [3, 3]
    assert (sent["up_bytes"] >= (80 + 90) * 33).all()


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "find_spec", lambda _: None)
    with pytest.raises(SimsplitError) as caught:
        align(of_files(write_files(tmp_path)), tmp_path, keys)
    assert says(str(caught.value), "data.source.align ... openmined-psi ... [psi]")
    with pytest.raises(SimsplitError, match="openmined-psi"):
        list(check_join("127.0.0.1:1", 0, keys, of_files(write_files(tmp_path)), "rehearsal"))


def test_parties_that_kept_their_common_ids_are_not_asked_again(tmp_path: Path, keys: Path) -> None:
    """A server that was killed after the alignment goes on with parties who greet at once."""
    meeting = Meeting(TERMS)
    roster = read_roster(load_keys(keys, SERVER))
    meeting.hold(lambda: range(3), lambda _: True, roster, 0)
    with pytest.raises(RunFailedError) as caught:
        meeting.hold(lambda: range(3), lambda client: client != 2, roster, 0)
    assert says(str(caught.value), "client 0, 1, 2 ... 0 s ... --out")


def align(scenario: Scenario, out: Path, keys: Path, *, resume: bool = False) -> list[str] | None:
    proof = load_keys(keys, client_name(0))
    return align_ids(
        *(scenario, 0, "127.0.0.1:1", proof, out),
        data=None,
        mode="rehearsal",
        resume=resume,
        patience_s=0,
        say=lambda _: None,
    )


def test_a_resumed_party_has_its_common_ids(tmp_path: Path, keys: Path) -> None:
    scenario = of_files(write_files(tmp_path))
    (tmp_path / COMMON).write_text('["person-010", "person-011"]')
    assert align(scenario, tmp_path, keys, resume=True) == ["person-010", "person-011"]
    (tmp_path / COMMON).write_text('{"ids": 1}')
    with pytest.raises(RunError) as caught:
        align(scenario, tmp_path, keys, resume=True)
    assert says(str(caught.value), f"{COMMON} ... align them again")


def test_rows_of_common_ids_alone_are_used(tmp_path: Path) -> None:
    scenario = of_files(write_files(tmp_path))
    common = [f"person-{number:03d}" for number in range(10, 80)]
    own = load_own_data(scenario, None, 0, common)
    assert len(own.train) + len(own.test) == 70
    with pytest.raises(DataError) as caught:
        load_own_data(scenario, None, 0, [*common, "person-999"])
    assert says(str(caught.value), "files.bank ... 1 of the 71")


def test_an_unknown_alignment_is_refused_by_field(tmp_path: Path) -> None:
    source = of_files(write_files(tmp_path)).data.source.model_dump(mode="json")
    with pytest.raises(SimsplitError) as caught:
        parse({"topology": "vertical", "data": {"source": {**source, "align": "psy"}}})
    assert says(str(caught.value), "data.source.align ... psi")
