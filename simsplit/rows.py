"""Rows of the run directory's tables, written and read by name.

Columns that every run may have are fields. Those that depend on the scenario (metrics of evaluated
splits, what methods report, detectors' scores) stand in `further`, in the place that the field has
among the others. A row is a mapping of columns to values as well, which is how tables are written
and how observers read it; a column whose value is None is left out, and its cell stays empty.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Self, cast, get_args

from simsplit.legs import ClientId, Leg

if TYPE_CHECKING:
    import pandas as pd

Cells = Mapping[str, object]
"""Values by column."""
LEARNED = ("train_loss", "train_accuracy")
"""Columns that say how clients learn."""
_FURTHER = "further"
WITHHELD = "withheld"
"""What a table has in place of a figure that clients keep to themselves; it is read as no value."""


class TableRow(Mapping[str, object]):
    """Base class of rows: a dataclass with a field `further` among the others."""

    further: Cells
    """Values of the columns that are not fields, in their order."""

    @classmethod
    def of(cls, cells: Mapping[str, Any]) -> Self:
        """Return the row with these cells; cells that are not fields go to `further`."""
        kinds, make = _kinds_of(cls), cast("Callable[..., Self]", cls)
        own: dict[str, object] = {}
        further: dict[str, object] = {}
        for name, value in cells.items():
            (own if name in kinds else further)[name] = value
        return make(**own, further=further)

    @classmethod
    def from_table(cls, cells: Cells) -> Self:
        """Read a row from a line as csv or pandas gives it; an empty cell is a missing column."""
        kinds = _kinds_of(cls)
        return cls.of(
            {
                name: kinds.get(name, _number)(value)
                for name, value in cells.items()
                if not _is_empty(value)
            }
        )

    @classmethod
    def in_frame(cls, table: "pd.DataFrame") -> Iterator[Self]:
        """Read the rows of a table, in their order."""
        names = [str(name) for name in table]
        for values in table.itertuples(index=False, name=None):
            yield cls.from_table(dict(zip(names, values, strict=True)))

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Return the columns that are fields, in their order."""
        return tuple(name for name in _kinds_of(cls) if name != _FURTHER)

    @property
    def cells(self) -> dict[str, object]:
        """The row's columns that have a value, in their order."""
        cells: dict[str, object] = {}
        for name, value in vars(self).items():  # fields, in their order
            if name == _FURTHER:
                cells.update(value)
            elif value is not None:
                cells[name] = value
        return cells

    def __getitem__(self, column: str) -> object:
        return self.cells[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)


@dataclass(frozen=True, eq=False)
class RoundRow(TableRow):
    """A row of `rounds`: sums and means over a round's clients, and its evaluation."""

    round: int
    phase: str = "train"
    """train, or the name of a phase that a method adds."""
    steps: int = 0
    """Mini-batches of all clients."""
    samples: int = 0
    clients: int | None = None
    """How many clients took part; None, like the next two, if all clients always take part."""
    dropped: int | None = None
    """How many clients dropped out in the middle of a step."""
    late: int | None = None
    """How many clients missed the deadline."""
    bytes_plain: int | None = None
    """Bytes that the cut would have sent without methods, in this round: to compare with `bytes_up`
    and `bytes_down`, which have hand-overs too, and not with `bytes_total`."""
    train_loss: float | None = None
    """None, like the other means, if nobody trained."""
    train_accuracy: float | None = None
    method_loss: float | None = None
    """Mean of the terms that methods add to the loss."""
    staleness: float | None = None
    """Mean number of trunk updates during a client's step, of asynchronous schedules."""
    further: Cells = field(default_factory=dict)
    """Figures of the evaluated splits."""
    bytes_up: int = 0
    """Bytes from clients in this round, to the server or to the next client."""
    bytes_down: int = 0
    """Bytes to clients in this round."""
    bytes_total: int = 0
    """Bytes in both directions since the run began, summed over rounds."""
    simulated_s: float | None = None
    """Simulated seconds of the round; this and the next three columns where there is a network."""
    simulated_total_s: float | None = None
    """Simulated seconds since the run began."""
    server_busy: float | None = None
    """Share of the round's seconds in which the server computes."""
    waiting: float | None = None
    """Mean share of the round's seconds in which a client neither computes nor transfers."""


@dataclass(frozen=True, eq=False)
class ClientRow(TableRow):
    """A row of `clients`: one client's work in a round, and detectors' scores of it."""

    round: int
    client: ClientId
    name: str | None = None
    """Its name, where clients have names."""
    steps: int = 0
    samples: int = 0
    dropped: int | None = None
    """1 if it dropped out in the middle of a step, else 0."""
    late: int | None = None
    """1 if it missed the deadline, else 0."""
    malicious: int | None = None
    """1 if the scenario makes it malicious, else 0."""
    barred: int | None = None
    """1 if a detector's response leaves it out, else 0."""
    train_loss: float | None = None
    train_accuracy: float | None = None
    method_loss: float | None = None
    staleness: float | None = None
    further: Cells = field(default_factory=dict)
    """Figures of the client's own model, methods' reports, and detectors' scores of the client."""
    compute_s: float | None = None
    """Simulated seconds in which it computes; this and the next three columns where there is a
    network."""
    transfer_s: float | None = None
    """Simulated seconds in which its packets are on its link."""
    simulated_s: float | None = None
    """Simulated seconds from the round's start until it is done."""
    waiting: float | None = None
    """Share of the round's seconds in which it neither computes nor transfers."""


# Not frozen: a round of many clients has thousands of these rows, and freezing would be slow.
@dataclass(eq=False)
class WireRow(TableRow):
    """A row of `wire`: what one client sent on one leg, in one phase of a round."""

    round: int
    client: ClientId
    phase: str
    leg: Leg
    packets: int = 0
    bytes: int = 0
    """Bytes of the packets' tensors."""
    received_packets: int | None = None
    """Hand-overs of other clients that this one received; None if there were none."""
    received_bytes: int | None = None
    transfer_s: float | None = None
    """Simulated seconds on the link, where there is a network."""
    further: Cells = field(default_factory=dict)

    @property
    def received(self) -> tuple[int, int]:
        """Packets and bytes of other clients that this one received."""
        return self.received_packets or 0, self.received_bytes or 0


@dataclass(frozen=True, eq=False)
class DetectionRow(TableRow):
    """A row of `detections`: how many clients one detector flagged in a round, and how well."""

    round: int
    detector: str
    window: str = ""
    threshold: str = ""
    clients: int = 0
    malicious: int = 0
    flagged: int = 0
    caught: int = 0
    """How many of the flagged clients are malicious."""
    auroc: float | None = None
    """None, like the other figures, in rounds in which it does not exist."""
    tpr_at_1pct_fpr: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    fpr: float | None = None
    further: Cells = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LeakRow(TableRow):
    """A row of `leaks`: one figure of what one attack recovered of one target, as judged once."""

    round: int
    kind: str
    """What was recovered: images, texts, rows, labels, sessions."""
    attack: str
    role: str
    """`attack`; `floor`: a guess that needs no attack; `ceiling`: an upper bound, which knows what
    no attacker could; `written`: no leak, but what the model wrote, against the references."""
    target: int | None = None
    """The number of the image, text, row or session; none for labels."""
    label: int | None = None
    """The target's class, where it has one."""
    view: str = ""
    """What was read: a view of what crosses, or a session's prompt, response or both."""
    adapter: int | None = None
    metric: str = ""
    """The figure's name, such as mse, rouge_l, auc or ap."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    """The ends of the 95 % interval, where the figure has one."""
    samples: int | None = None
    """How many targets a figure over all of them counts."""
    known: float | None = None
    """The share of the labels that the attack knows."""
    further: Cells = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TimingRow(TableRow):
    """A row of `timing`: a round's wall-clock seconds."""

    round: int
    train_s: float = 0.0
    evaluate_s: float = 0.0
    elapsed_s: float = 0.0
    """Seconds of all rounds up to this one."""
    further: Cells = field(default_factory=dict)


@cache
def _kinds_of(row: type[TableRow]) -> dict[str, Callable[[Any], object]]:
    """Return a row's fields in their order, each with the type of its value if it has one."""
    return {each.name: (get_args(each.type) or (each.type,))[0] for each in fields(row)}  # type: ignore[arg-type]


def _is_empty(value: object) -> bool:
    """Return whether a cell has no value: csv gives an empty text for it, pandas a NaN."""
    return value in ("", WITHHELD) or (isinstance(value, float) and math.isnan(value))


def _number(value: object) -> object:
    """Return a cell as a number if it is one, else unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return value
