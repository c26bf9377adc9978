"""A client: five parts that share its head and tail. `calls` lists all that it can be asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simsplit.legs import ClientId
from simsplit.parties.client_end import ClientEnd, ClientParts
from simsplit.parties.examination import Examination, Exposure
from simsplit.parties.feed import Exam, Feed
from simsplit.parties.sharing import Keeping, Sharing
from simsplit.parties.training import Spending, Training
from simsplit.poisons import Poison
from simsplit.protocol import Protocol


@dataclass(frozen=True)
class Client:
    """One client, wherever it runs. A deployed client has no exposure."""

    training: Training
    examination: Examination
    exposure: Exposure
    sharing: Sharing
    keeping: Keeping

    @classmethod
    def of(
        cls,
        end: ClientEnd,
        parts: ClientParts,
        protocols: tuple[Protocol, Protocol],
        feeds: Mapping[str, Feed],
        exams: Mapping[str, Exam],
        *,
        poisons: Sequence[Poison] = (),
        accumulate: int = 1,
        account: Spending | None = None,
    ) -> "Client":
        """Build a client around one end; `protocols` are those of training and of inference."""
        steps, inference = protocols
        training = Training(end, steps, feeds, poisons, accumulate=accumulate, account=account)
        return cls(
            training,
            Examination(end, inference, exams, training),
            Exposure(end, steps, exams, training),
            Sharing(parts, training, poisons),
            Keeping(parts, training, poisons),
        )

    @property
    def number(self) -> ClientId:
        """The number by which the server and tables know the client."""
        return self.training.end.number
