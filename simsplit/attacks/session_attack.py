"""The base class of attacks on sessions: train the first reading, then read sessions in parts."""

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence

import torch
from torch import Tensor

from simsplit.attacks.attack import Done, KeepingAttack
from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.openings import Opening, SessionAttackConfig
from simsplit.attacks.session_records import Record
from simsplit.packets import Packet

Steps = Generator[None, None, Tensor]
"""The steps of an attack, as a generator that returns the tokens in the end."""


def group_by_length(lengths: Tensor, together: int | None) -> Sequence[Tensor]:
    """Return the rows of sessions in groups of similar length, or all in one group."""
    if together is None:
        return [torch.arange(len(lengths))]
    groups: Sequence[Tensor] = lengths.argsort(stable=True).split(together)
    return groups


class SessionAttack(KeepingAttack):
    """An attack that recovers the tokens of whole sessions, both prompts and responses.

    Where none is recovered, `recovered` has NOTHING.
    """

    config: SessionAttackConfig

    def __init__(
        self, config: SessionAttackConfig, known: Knowledge, opening: Opening | None = None
    ) -> None:
        super().__init__(config, known)
        self.opening = opening or Opening(config, known)
        self.learners = self.opening.learners
        self.known_sessions = 0
        """Number of sessions whose texts it is told; only for upper bounds."""
        self._record: Record | None = None
        self._recovered = torch.empty(0, 0, dtype=torch.int64)

    def hear(self, record: Record) -> None:
        """Receive the server's record of the sessions."""
        self._record = record

    def learn_sessions(self, record: Record, tokens: Tensor) -> None:
        """Receive the record of known sessions with their tokens, if it is told any."""
        del record, tokens

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        del targets
        record = self._record
        assert record is not None, "heard before any work"
        for done, total in self.opening.learn(self.iteration):
            self.iteration = self.opening.iteration
            yield done, total
        tokens = torch.full_like(record.real, NOTHING, dtype=torch.int64)
        parts = group_by_length(record.lengths.cpu(), self.config.together)
        for number, rows in enumerate(parts):
            part = record.take(rows)
            read = self.read(part)
            steps = self.steps(part)
            # `read` may end early, so the progress can leap at a part's end.
            for step in range(1, 1 + steps):
                try:
                    next(read)
                except StopIteration as end:
                    part_tokens: Tensor = end.value
                    break
                yield number * steps + step, steps * len(parts) + 1
            else:
                raise AssertionError("`read` takes more steps than `steps` returns")
            part_tokens = part_tokens.masked_fill(~part.real, NOTHING)
            tokens[rows.to(tokens.device), : part_tokens.shape[1]] = part_tokens
        self._recovered = tokens
        yield 1, 1

    def steps(self, record: Record) -> int:
        """Return the maximum number of steps that `read` takes, including the closing one."""
        del record
        return 1

    @abstractmethod
    def read(self, record: Record) -> Steps:
        """Recover the tokens of sessions, S x L, step by step."""
