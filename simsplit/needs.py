"""What a part of a scenario cannot do without, in a small closed vocabulary.

A part's config lists its needs; one place (`scenario.needs`) knows what a scenario gives, and
refuses what lacks something. A part whose need is not listed can be silently off.
"""

from dataclasses import dataclass
from enum import StrEnum

from simsplit.packets import Leg


class Given(StrEnum):
    """What a scenario can offer to its parts."""

    CROSSES = "crosses"
    """Packets cross on a leg."""
    SAMPLES = "samples"
    """What crosses on a leg has one row for each sample, and no row of several."""
    READABLE = "readable"
    """A packet of a leg can be read without what crossed before it."""
    FLOATS = "floats"
    """What crosses on a leg is values, not codes that stand for them."""
    CLASSES = "classes"
    """The server can tell single samples' classes: it is sent labels, or gradients give them away.
    """
    LABELLED = "labelled"
    """Samples have classes, which clients learn."""
    SCORING = "scoring"
    """Clients hold the tail, and so compute the task's loss."""
    CLASSIFIES = "classifies"
    """A sample has one label, a class."""
    TWO_CLASSES = "two_classes"
    """There are two classes; only data say so, so it is checked when they are known."""
    ADAPTER_SETS = "adapter_sets"
    """At least so many sets of adapters at a client."""
    OWN_ADAPTERS = "own_adapters"
    """Adapters that one client's optimizer alone changes."""
    IN_A_ROW = "in_a_row"
    """A server that is asked at two steps in a row."""
    LEARNED_TRUNK = "learned_trunk"
    """The trunk learns."""
    FROZEN_TRUNK = "frozen_trunk"
    """Nothing of the server learns."""
    IMAGES = "images"
    TEXTS = "texts"
    TABLES = "tables"
    """Samples are numbers as they are: rows of a table, or arrays of floats."""
    NUMBERS = "numbers"
    """Samples are images or tables, and no texts."""
    UNMASKED = "unmasked"
    """Texts cross without a mask: padded on the right, and read by tokens that look back alone."""
    CAUSAL = "causal"
    """The model predicts tokens."""
    KNOWN_TAIL = "known_tail"
    """Everybody knows the weights that the clients' tail starts from."""
    SESSIONS = "sessions"
    """Clients write texts with a tail of their own, and a row of what crosses is one text's."""
    PUBLIC = "public"
    """Public data to learn from."""
    SUPPORT = "support"
    """Public texts to mix private ones with."""
    PAIRS = "pairs"
    """A method shows the server public texts both as they are and as it sends private ones."""
    WATCHED = "watched"
    """All packets of training pass the driver's wire."""
    TURNS = "turns"
    """Clients take whole turns over one trunk."""
    LAPS = "laps"
    """All clients take a step at the same time, and wait for each other."""
    BARRIER = "barrier"
    """The trunk waits for all clients only at the end of a round, or at each step."""
    SHARED = "shared"
    """Clients have weights in common."""
    HANDED_ROUND = "handed_round"
    """What clients share can go from one to the next (or they share nothing)."""
    CLIENTS = "clients"
    """At least so many clients."""
    ASKED = "asked"
    """At least so many clients per round."""
    BATCH = "batch"
    """At least so many samples per batch."""


@dataclass(frozen=True)
class Need:
    """One requirement of a part, possibly of a leg or a number."""

    what: Given
    field: str = "kind"
    """The part's field that asks for it."""
    leg: Leg | None = None
    least: int = 1


Needs = tuple[Need, ...]


def needs_leg(leg: Leg, field: str = "kind") -> Need:
    """The need for packets on a leg."""
    return Need(Given.CROSSES, field, leg)
