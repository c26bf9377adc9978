"""This module defines what a part of a scenario can need, as a small closed vocabulary.

A part's config lists its needs. One place (`scenario.needs`) knows what a scenario gives, and
refuses a part whose needs are not satisfied. A part that does not list a need may silently do
nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from simsplit.packets import Leg


class Given(StrEnum):
    """What a scenario can give to its parts."""

    CROSSES = "crosses"
    """Packets cross on a leg."""
    SAMPLES = "samples"
    """Each row that crosses on a leg belongs to one sample, not to several."""
    READABLE = "readable"
    """A packet of a leg can be read without the packets before it."""
    FLOATS = "floats"
    """Packets of a leg hold values, not codes that stand for values."""
    CLASSES = "classes"
    """The server can infer each sample's class, from labels that it is sent or from gradients."""
    LABELLED = "labelled"
    """Samples have classes, which clients learn."""
    SCORING = "scoring"
    """Clients hold the tail and so compute the task's loss."""
    CLASSIFIES = "classifies"
    """A sample has one label, a class."""
    TASK_GRADIENT = "task_gradient"
    """The loss on a client's labels is part of the gradient that goes back to the server."""
    TWO_CLASSES = "two_classes"
    """There are two classes; it is checked when the data are known."""
    ADAPTER_SETS = "adapter_sets"
    """A client has at least `least` sets of adapters."""
    OWN_ADAPTERS = "own_adapters"
    """Adapters are changed by one client's optimizer only."""
    IN_A_ROW = "in_a_row"
    """A server is asked at two steps in a row."""
    LEARNED_TRUNK = "learned_trunk"
    """The trunk learns."""
    FROZEN_TRUNK = "frozen_trunk"
    """No part of the server learns."""
    IMAGES = "images"
    TEXTS = "texts"
    TABLES = "tables"
    """Samples are features: rows of a table, or arrays of floats."""
    NUMBERS = "numbers"
    """Samples are images or tables, not texts."""
    UNMASKED = "unmasked"
    """Texts cross without a mask: they are padded on the right, and attention is causal."""
    CAUSAL = "causal"
    """The model predicts tokens."""
    KNOWN_TAIL = "known_tail"
    """The weights from which the clients' tail starts are public."""
    SESSIONS = "sessions"
    """Clients write texts with a tail of their own, and each row that crosses is of one text."""
    PUBLIC = "public"
    """There are public data to learn from."""
    SUPPORT = "support"
    """There are texts with which clients can mix private ones."""
    PAIRS = "pairs"
    """A method sends the server public texts both plain and disguised like private ones."""
    WATCHED = "watched"
    """All packets of training cross the wire of the process that drives the run."""
    TURNS = "turns"
    """Clients take whole turns over one trunk."""
    LAPS = "laps"
    """All clients take a step at the same time and wait for each other."""
    BARRIER = "barrier"
    """The trunk waits for all clients only at the end of a round, or at each step."""
    SHARED = "shared"
    """Clients share weights."""
    HANDED_ROUND = "handed_round"
    """The weights that clients share can be handed from one to the next, or they share none."""
    CLIENTS = "clients"
    """There are at least `least` clients."""
    ASKED = "asked"
    """At least `least` clients are asked per round."""
    BATCH = "batch"
    """A batch has at least `least` samples."""


@dataclass(frozen=True)
class Need:
    """One need of a part."""

    what: Given
    field: str = "kind"
    """The part's field that asks for it, and that an error names."""
    leg: Leg | None = None
    """The leg that the need is about, if it is about one."""
    least: int = 1
    """The smallest number that satisfies the need, if it is about a number."""


Needs = tuple[Need, ...]


def need_leg(leg: Leg, field: str = "kind") -> Need:
    """Return the need that packets cross on a leg."""
    return Need(Given.CROSSES, field, leg)
