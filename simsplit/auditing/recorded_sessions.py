"""Recorded sessions of any language model: a prompt crosses once, then each written token once.

A session of a foreign wire has one text, whose pass at position 0 is its prompt. The truth has the
tokens that crossed. Other recorded sessions, which are not attacked, serve as known ones.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from simsplit.attacking.session_judge import SessionJudge, WrittenSessions
from simsplit.attacks import Knowledge
from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.session_attack import SessionAttack
from simsplit.attacks.session_records import Record, build_record
from simsplit.errors import RunError
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.wires.facts import PacketRow
from simsplit.wires.transcript import Transcript
from simsplit.wires.truth import Truth

SESSIONS = "sessions"
"""The phase of packets in which a client's model writes, for attacks on sessions."""
LEAST_KNOWN = 10
"""Fewer known sessions teach nothing."""
MOST_KNOWN, MOST_KNOWN_BYTES = 200, 256 * 2**20
"""Known sessions that are held, and the bytes of their packets, at most."""


@dataclass(frozen=True)
class RecordedSession:
    """One session: its packets, its tokens that crossed, and how many of these are its prompt."""

    id: int
    packets: Sequence[Packet]
    tokens: Tensor
    prompt: int

    def join(self, leg: Leg) -> Tensor:
        """Return what crossed on a leg for all of its tokens, 1 x L x D."""
        return torch.cat([each.tensors[0] for each in self.packets if each.leg is leg], dim=1)


@dataclass(frozen=True)
class ChosenSessions:
    """The sessions that attacks recover, and those whose texts an upper bound knows."""

    targets: Sequence[RecordedSession] = ()
    known: Sequence[RecordedSession] = ()


def choose_sessions(
    transcript: Transcript,
    truth: Truth,
    client: ClientId,
    count: int,
    most_known: int,
    *,
    wanted: Collection[int] = (),
) -> ChosenSessions:
    """Load at most `count` sessions with a truth as targets, and others as known ones.

    With known sessions at most half of all are targets. `wanted`: the ids of those that are.
    """
    by_session: dict[int, list[PacketRow]] = {}
    for row in transcript.rows():
        if row.phase != SESSIONS or row.client != client or row.session is None:
            continue
        # Of a large recording the first sessions, some of which may have no truth.
        if row.session in by_session or len(by_session) < 2 * (count + MOST_KNOWN):
            by_session.setdefault(row.session, []).append(row)
    able = [rows for rows in by_session.values() if np.isin(_get_ids(rows), truth.ids).all()]
    able = [rows for rows in able if _get_ids(rows)]
    most = min(count, max(1, len(able) // 2)) if most_known else count
    if wanted:
        able.sort(key=lambda rows: _get_ids(rows)[0] not in wanted)
        most = sum(_get_ids(rows)[0] in wanted for rows in able)
        if most < len(wanted):
            raise RunError(
                f"{transcript.name}: {len(wanted) - most} of the {len(wanted)} sessions that are "
                "attacked are not in it; record the same sessions without the defence, with the "
                "same ids"
            )
    loaded = (_load(transcript, truth, rows) for rows in able)
    targets = [*islice(loaded, most)]
    known: list[RecordedSession] = []
    room = MOST_KNOWN_BYTES
    for session in islice(loaded, min(most_known, MOST_KNOWN)):
        room -= sum(packet.nbytes for packet in session.packets)
        if room < 0:
            break
        known.append(session)
    return ChosenSessions(targets, known)


def _get_ids(rows: Iterable[PacketRow]) -> tuple[int, ...]:
    return next((row.ids for row in rows if row.ids), ())


def _load(transcript: Transcript, truth: Truth, rows: Sequence[PacketRow]) -> RecordedSession:
    """Load one session; raise RunError for one that has gaps, or several texts."""
    packets = [each.packet for each in transcript.read(rows)]
    name, (number, *more) = f"{transcript.name}: session {rows[0].session}", _get_ids(rows)
    for leg in (Leg.SMASHED, Leg.FEATURES):
        place = 0
        for packet in (each for each in packets if each.leg is leg):
            tensor, *others = packet.tensors
            if others or more or tensor.dim() != 3 or len(tensor) != 1:
                raise RunError(f"{name}: its packets must be of one text, 1 x tokens x width")
            if packet.position != place:
                raise RunError(f"{name}: a packet stands at {packet.position}, expected {place}")
            place += tensor.shape[1]
    by_leg = Counter(packet.leg for packet in packets)
    if by_leg[Leg.FEATURES] not in (0, by_leg[Leg.SMASHED]):
        raise RunError(f"{name}: it has as many packets of features as of smashed data, or none")
    (tokens,) = truth.find_inputs([number])
    sent = [each.tensors[0].shape[1] for each in packets if each.leg is Leg.SMASHED]
    if sum(sent) != len(tokens.flatten()):
        raise RunError(f"{name}: {sum(sent)} tokens crossed, and its truth has {tokens.numel()}")
    return RecordedSession(number, packets, tokens.flatten().long(), sent[0])


def join_sessions(sessions: Sequence[RecordedSession], client: ClientId) -> list[Packet]:
    """Join sessions to packets of whole texts, for attacks on texts; zeros follow the shorter."""
    crossed = {packet.leg for each in sessions for packet in each.packets}
    return [
        Packet(client, leg, 1, 0, (_pad([each.join(leg)[0] for each in sessions]),))
        for leg in (Leg.SMASHED, Leg.FEATURES)
        if leg in crossed
    ]


def build_records(known: Knowledge, sessions: Sequence[RecordedSession]) -> Record:
    """Build what the server has of sessions, one after another."""
    records = [build_record(known, each.packets) for each in sessions]
    return Record(
        _pad([each.sent[0] for each in records]),
        _pad([each.features[0] for each in records]),
        torch.cat([each.lengths for each in records]),
        torch.cat([each.prompts for each in records]),
    )


def _pad(rows: list[Tensor], value: float = 0.0) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


class RecordedSessionJudge(SessionJudge):
    """The judge of sessions that were recorded with their texts; no client is there to write."""

    chosen = ChosenSessions()

    def begin(self, number: int) -> None:
        """Take the recorded sessions; there are no references, and no text without a prompt."""
        self.number, targets = number, self.chosen.targets
        self.sessions = WrittenSessions(
            packets=(),
            in_sessions=True,
            prompts=[each.tokens[: each.prompt] for each in targets],
            responses=[each.tokens[each.prompt :] for each in targets],
            written=(),
            references=(),
            unprompted=torch.empty(0, dtype=torch.int64),
        )

    def inform(self, attack: SessionAttack) -> None:
        """Give an attack what the server has of the sessions."""
        attack.hear(build_records(attack.known, self.chosen.targets))
        if attack.known_sessions:
            known = self.chosen.known[: attack.known_sessions]
            tokens = _pad([each.tokens for each in known], NOTHING)
            attack.learn_sessions(build_records(attack.known, known), tokens)

    def _make_floors(self, sessions: WrittenSessions) -> dict[str, list[Tensor]]:
        floors = super()._make_floors(sessions)
        return {name: each for name, each in floors.items() if name != "said_to_nothing"}
