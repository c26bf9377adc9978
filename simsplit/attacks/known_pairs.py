"""The ceiling of attacks on sessions (ours): an inverter that is given sessions with their texts.

A client writes `sessions` further sessions after public prompts, with the run's own weights and
methods, and the server is told the texts. No honest server has these, so it is an upper bound: it
says how much of a text is left in what crosses, where attacks that start from the pretrained
weights read nothing. A server whose own account is among the users', or that guesses a few texts
right, comes near it. It learns from these sessions alone: of an undefended head, an inverter of
many public texts may read more.

The inverter is the Gaussian one (see `inverters`), of the head's output at a token, alone or joined
with the trunk's output one position earlier, which predicts the token. Held-out known sessions, a
fifth, choose between both and the ridge penalty; then all known sessions are learned.
"""

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.attacks.inverters import LEAST, NOTHING, GaussianInverter
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.openings import SessionAttackConfig
from simsplit.attacks.session_attack import SessionAttack, Steps
from simsplit.attacks.session_records import Record
from simsplit.attacks.sip import SipConfig
from simsplit.attacks.threat import Knows, Sees, Threat, When

CEILING = "known_pairs"
"""How the names of upper bounds begin, which are given the texts of some sessions."""
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
"""The ridge penalties that held-out sessions choose from."""
HELD_OUT = 5
"""One known session in this many chooses, unless there are fewer."""


def is_ceiling(name: str) -> bool:
    """Return whether an attack of this name is an upper bound."""
    return name == CEILING or name.startswith(f"{CEILING}_")


class KnownPairsConfig(SessionAttackConfig):
    """An inverter fitted to sessions whose texts are known: an upper bound, not an attack."""

    kind: Literal["known_pairs"] = "known_pairs"
    threat: ClassVar[Threat] = Threat(
        (Sees.SENT, Sees.RETURNED), (Knows.PUBLIC, Knows.WRITTEN), when=When.WRITING
    )
    sessions: int = Field(default=50, ge=1)
    """Number of known sessions, after the first public prompts; at most as many as there are."""
    effort: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not is_ceiling(self.title):
            raise ValueError(f"name: a ceiling's begins with {CEILING}, got {self.title}")
        return self

    def build(self, known: Knowledge) -> "KnownPairs":
        return KnownPairs(self, known)


class _Way(NamedTuple):
    """A way to fit the inverter."""

    joined: bool
    """Whether it reads the trunk's output too."""
    penalty: float


class KnownPairs(SessionAttack):
    """An upper bound that reads sessions with an inverter of the client's own head."""

    def __init__(self, config: KnownPairsConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.known_sessions = config.sessions
        self._way = _Way(joined=False, penalty=PENALTIES[0])
        self._inverter: GaussianInverter | None = None

    def learn_sessions(self, record: Record, tokens: Tensor) -> None:
        numbers = torch.arange(len(tokens))
        held = numbers[numbers % HELD_OUT == 0] if len(tokens) >= HELD_OUT else numbers
        rest = numbers[numbers % HELD_OUT != 0] if len(tokens) >= HELD_OUT else numbers
        ways = [_Way(*way) for way in itertools.product((False, True), PENALTIES)]
        rights = [
            self._count_right(self._fit(way, record, tokens, rest), way, record, tokens, held)
            for way in ways
        ]
        self._way = ways[max(range(len(ways)), key=rights.__getitem__)]
        self._inverter = self._fit(self._way, record, tokens, numbers)

    def read(self, record: Record) -> Steps:
        # There are no steps to yield; this makes a generator of `read`, as in other attacks.
        yield from ()
        assert self._inverter is not None, "known sessions come before any work"
        return self._read_rows(self._inverter, self._way, record, range(len(record.sent)))

    def _fit(self, way: _Way, record: Record, tokens: Tensor, rows: Tensor) -> GaussianInverter:
        embeddings, vocabulary = self.known.pretrained.embeddings, self.known.vocabulary
        assert vocabulary is not None, "refused without texts when the scenario is read"
        width = record.sent.shape[-1] * (1 + way.joined)
        fields = SipConfig(penalty=way.penalty)
        made = GaussianInverter(width, embeddings, vocabulary.pad, fields).to(embeddings.device)
        for row in rows.tolist():
            seen, length = _join(record, row, way), int(record.lengths[row])
            made.add(seen, tokens[None, row, :length].to(seen.device))
        return made

    def _count_right(
        self, inverter: GaussianInverter, way: _Way, record: Record, tokens: Tensor, rows: Tensor
    ) -> int:
        read = self._read_rows(inverter, way, record, rows.tolist())
        true = tokens[rows].to(read.device)
        return int(((read == true) & (true != NOTHING)).sum())

    @torch.no_grad()
    def _read_rows(
        self, inverter: GaussianInverter, way: _Way, record: Record, rows: Sequence[int]
    ) -> Tensor:
        """Read sessions one by one: the scores of all their tokens would not fit in memory."""
        shape = (len(rows), record.sent.shape[1])
        read = torch.full(shape, NOTHING, device=record.sent.device)
        for place, row in enumerate(rows):
            scores = inverter.scores(_join(record, row, way))
            read[place, : scores.shape[1]] = scores[0].argmax(-1)
        return read


def _join(record: Record, row: int, way: _Way) -> Tensor:
    """Return what the inverter reads of a session, 1 x L x D or 1 x L x 2 D."""
    length = int(record.lengths[row])
    sent = _level(record.sent[row : row + 1, :length])
    if not way.joined:
        return sent
    before = _level(record.features[row : row + 1, :length]).roll(1, 1)
    before[:, 0] = 0.0  # nothing predicts the first token
    return torch.cat([sent, before], dim=-1)


def _level(x_1LD: Tensor) -> Tensor:
    """Divide a session by the median norm of its tokens, so that one penalty suits all models."""
    norm = x_1LD.square().sum(-1).sqrt().median().clamp_min(LEAST)
    return x_1LD * math.sqrt(x_1LD.shape[-1]) / norm
