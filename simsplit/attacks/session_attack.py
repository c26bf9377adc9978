"""What attacks on sessions share: they learn what reads first, then read all sessions in parts."""

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence

import torch
from torch import Tensor

from simsplit.attacks.base import Attack, Done
from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.openings import Opening, SessionAttackConfig
from simsplit.attacks.session_records import Record
from simsplit.packets import Packet

Steps = Generator[None, None, Tensor]
"""Steps of an attack, and in the end the tokens."""


class SessionAttack(Attack):
    """Reads the tokens of whole sessions, prompts and responses alike."""

    def __init__(self, config: SessionAttackConfig, opening: Opening, known: Knowledge) -> None:
        super().__init__(known)
        self.together, self.opening = config.together, opening
        self.learners = opening.learners
        self._record: Record | None = None
        self._tokens = torch.empty(0, 0, dtype=torch.int64)

    def hear(self, record: Record) -> None:
        """Be given what the server has of the sessions."""
        self._record = record

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Learn what reads first, then read all sessions, so many together."""
        del targets
        record = self._record
        assert record is not None, "which it is given first"
        for done, total in self.opening.learn(self.iteration):
            self.iteration = self.opening.iteration
            yield done, total
        tokens = torch.full_like(record.real, NOTHING, dtype=torch.int64)
        parts = torch.arange(len(tokens)).split(self.together or len(tokens))
        for number, rows in enumerate(parts):
            part = record.take(rows)
            read = self.read(part)
            steps = self.steps(part)
            for step in range(1, 1 + steps):
                try:
                    next(read)
                except StopIteration as end:
                    found: Tensor = end.value
                    break
                yield number * steps + step, steps * len(parts) + 1
            else:
                raise AssertionError("an attack tells of fewer steps than it takes")
            found = found.masked_fill(~part.real, NOTHING)
            tokens[rows.to(tokens.device), : found.shape[1]] = found
        self._tokens = tokens
        yield 1, 1

    def steps(self, record: Record) -> int:
        """How many steps `read` takes at most, the closing one among them."""
        del record
        return 1

    @abstractmethod
    def read(self, record: Record) -> Steps:
        """The tokens of sessions, S x L."""

    @property
    def recovered(self) -> Tensor:
        """Token by token; NOTHING where it reads none."""
        return self._tokens
