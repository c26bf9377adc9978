"""This module defines what a part of a scenario can need, as a small closed vocabulary.

A part's config lists its needs. All words about each thing, in listings and in refusals, stand
here too. `scenario.setting` measures what a scenario gives, and `scenario.unmet_needs` refuses a
part whose needs are not satisfied. A part that does not list a need may silently do nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from simsplit.legs import Leg


@dataclass(frozen=True)
class Fact:
    """The words about one thing that a scenario can give."""

    why: str
    """Why a part is refused without it, with names of words that `scenario.unmet_needs` fills
    in."""
    mend: str = ""
    """A remedy elsewhere in the scenario; empty if there is none."""
    words: str = ""
    """The words of listings; empty for what has a column of its own there."""
    kinds: bool = False
    """Whether a refusal lists kinds that can replace the part's."""
    counted: bool = False
    """Whether every scenario gives one, so that only a need for more says something."""
    modalities: frozenset[str] = frozenset()
    """The kinds of data that satisfy it; empty for a thing that is not about data."""
    taken: str = ""
    """Why a part is refused if a method takes the thing away, for which there is no remedy; empty:
    as `why`."""


_SET_PUBLIC = "data.auxiliary (the part of the training samples that is public, such as 0.2)"


class Given(Enum):
    """What a scenario can give to its parts, and all words about it."""

    CROSSES = Fact(
        "needs {leg}, which do not cross {a_topology} cut",
        "topology: {crossed}",
        taken="needs {leg}, and with {culprit} none cross",
    )
    """Packets cross on a leg."""
    SAMPLES = Fact(
        "needs {leg} of single samples, and {culprit} sends none",
        words="{leg} of single samples",
    )
    """Each row that crosses on a leg belongs to one sample, not to several."""
    READABLE = Fact(
        "needs {leg} in their places, which {culprit} does not send",
        words="{leg} that can be read alone",
    )
    """A packet of a leg can be read without the packets before it."""
    FLOATS = Fact(
        "needs {leg} as floats, and {culprit} sends codes",
        "another method than {culprit} on them",
        words="{leg} as floats",
    )
    """Packets of a leg hold values, not codes that stand for values."""
    CLASSES = Fact(
        "needs gradients of single samples, and {culprit} sends none in their places",
        words="gradients of single samples, or labels",
    )
    """The server can infer each sample's class, from labels that it is sent or from gradients."""
    LABELLED = Fact(
        "works on the classes of samples, and these texts have none",
        "data.source.task with kind: classification",
        words="samples with classes",
    )
    """Samples have classes, which clients learn."""
    SCORING = Fact(
        "needs clients to compute the loss, which the server does at {a_topology} cut",
        "topology: {scoring}",
    )
    """Clients hold the tail and so compute the task's loss."""
    CLASSIFIES = Fact(
        "is for samples with one label each, and those of {model} are tokens",
        "sequence_classifier",
        words="one label a sample",
    )
    """A sample has one label, a class."""
    TASK_GRADIENT = Fact(
        "changes the gradient of the task's loss, which another method keeps from the server",
        "one of both methods",
        words="a trunk that the task's loss trains (not pslf)",
    )
    """The loss on a client's labels is part of the gradient that goes back to the server."""
    TWO_CLASSES = Fact(
        "is for two classes",
        words="two classes",
    )
    """There are two classes; it is checked when the data are known."""
    ADAPTER_SETS = Fact(
        "mixes the states of several sets of adapters, and clients have {got}",
        "topology: {adapting} with model.adapters: {least}",
        words="{least} sets of adapters",
    )
    """A client has at least `least` sets of adapters."""
    OWN_ADAPTERS = Fact(
        "needs adapters that only one client's steps change, and here there are none",
        "clients.heads: per_client, a model.learns with head and train.client.lookahead: null",
        words="adapters that one client alone trains",
    )
    """Adapters are changed by one client's optimizer only."""
    IN_A_ROW = Fact(
        "needs a server that is asked two steps in a row; with servers: {servers} and {messages} "
        "per gradient none is",
        "fewer servers (with so many it would recover nothing)",
        words="a server that is asked two steps in a row",
    )
    """A server is asked at two steps in a row."""
    LEARNED_TRUNK = Fact(
        "judges clients by the trunk's steps, and the trunk does not learn",
        "model.learns with trunk",
        words="a trunk that learns",
    )
    """The trunk learns."""
    ONE_HEAD = Fact(
        "runs the trunk behind one head, and {a_topology} cut joins several",
        words="a trunk behind one head (not vertical)",
    )
    """The trunk takes the output of a single head."""
    PARTIES = Fact(
        "is by a party of several that have columns of the same samples",
        "topology: vertical",
        words="parties with columns of the same samples (vertical)",
    )
    """Clients are parties with columns of the same samples."""
    FROZEN_TRUNK = Fact(
        "needs a trunk that does not learn: it would learn from messages that hide the gradient",
        "model.learns without trunk",
        words="a trunk that does not learn",
    )
    """No part of the server learns."""
    IMAGES = Fact(
        "is for images, got {modality}",
        kinds=True,
        modalities=frozenset({"images"}),
    )
    TEXTS = Fact(
        "is for texts, got {modality}",
        kinds=True,
        modalities=frozenset({"texts"}),
    )
    TABLES = Fact(
        "is for tables, got {modality}",
        kinds=True,
        modalities=frozenset({"tables"}),
    )
    """Samples are features: rows of a table, or arrays of floats."""
    NUMBERS = Fact(
        "is for images and tables, got {modality}",
        kinds=True,
        modalities=frozenset({"images", "tables"}),
    )
    """Samples are images or tables, not texts."""
    UNMASKED = Fact(
        "needs texts without a mask, which encoders and padding on the left bring along",
        "data.source.padding: right",
        words="texts without a mask",
    )
    """Texts cross without a mask: they are padded on the right, and attention is causal."""
    CAUSAL = Fact(
        "needs a model that predicts tokens, got {model}",
        "causal_lm",
        words="a model that predicts tokens",
    )
    """The model predicts tokens."""
    KNOWN_TAIL = Fact(
        "keeps the tail unlike the pretrained one, and random weights have no pretrained tail",
        "a pretrained model (model.name), or model.sizes.public: true",
        words="pretrained weights",
    )
    """The weights from which the clients' tail starts are public."""
    SESSIONS = Fact(
        "reads the texts that clients write, but {unseen}",
        words="rows of single texts when clients write",
    )
    """Clients write texts with a tail of their own, and each row that crosses is of one text."""
    PUBLIC = Fact(
        "needs public data",
        f"{_SET_PUBLIC}{{or_public}}",
        words="public data",
    )
    """There are public data to learn from."""
    SUPPORT = Fact(
        "needs public texts to mix with",
        f"{_SET_PUBLIC}{{or_public}}",
        words="public texts to mix with",
    )
    """There are texts with which clients can mix private ones."""
    PAIRS = Fact(
        "learns from public texts that cross both plain and disguised, and here none do",
        "mixguard or snd, with a warm-up",
        words="mixguard or snd, with a warm-up",
    )
    """A method sends the server public texts both plain and disguised like private ones."""
    WATCHED = Fact(
        "follows training by the server's wire, which the steps of {aggregation} do not pass",
        "another aggregation",
        words="a trunk that all clients train (not splitfed_v1)",
    )
    """All packets of training cross the wire of the process that drives the run."""
    TURNS = Fact(
        "judges whole turns of clients over one trunk, and {schedule} with {aggregation} has none",
        "schedule: per_client, with aggregation: none or splitfed_v2",
        words="whole turns of clients (per_client)",
    )
    """Clients take whole turns over one trunk."""
    LAPS = Fact(
        "takes one step for all clients at once, which {schedule} does not do",
        "schedule: parallel",
        words="steps of all clients at once (parallel)",
        kinds=True,
    )
    """All clients take a step at the same time and wait for each other."""
    BARRIER = Fact(
        "trains a trunk for each client, and under {schedule} all step one",
        words="a schedule that waits (not asynchronous)",
        kinds=True,
    )
    """The trunk waits for all clients only at the end of a round, or at each step."""
    SHARED = Fact(
        "needs something that clients share, and they share nothing",
        "clients.heads: shared",
        words="something that clients share",
        kinds=True,
    )
    """Clients share weights."""
    HANDED_HEAD = Fact(
        "reads the first layer of a head that clients share whole, which must be linear; "
        "the model is {model}, heads are {heads}",
        "model.kind: mlp with clients.heads: shared, and aggregation.bits: null",
        words="a shared head whose first layer is linear (mlp)",
    )
    """Clients get all weights of a head whose first layer is linear."""
    HANDED_ROUND = Fact(
        "hands shared segments from client to client, and {schedule} has no turns for that",
        "{apart}",
        words="turns, where clients share something",
        kinds=True,
    )
    """The weights that clients share can be handed from one to the next, or they share none."""
    CLIENTS = Fact(
        "needs at least {least} clients",
        "clients.count: {least}",
        words="{least} clients",
        counted=True,
    )
    """There are at least `least` clients."""
    ASKED = Fact(
        "needs at least {least} clients a round; clients.count and cohort.fraction make it {got}",
        words="{least} clients a round",
        counted=True,
    )
    """At least `least` clients are asked per round."""
    BATCH = Fact(
        "needs batches of {least}; train.batch_size makes it {got}",
        words="batches of {least}",
        counted=True,
    )
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

    @property
    def in_words(self) -> str:
        """The words of listings; empty if every scenario satisfies it."""
        fact = self.what.value
        if fact.counted and self.least == 1:
            return ""
        return fact.words.format(leg=self.leg.words if self.leg else "", least=self.least)


Needs = tuple[Need, ...]


def need_leg(leg: Leg, field: str = "kind") -> Need:
    """Return the need that packets cross on a leg."""
    return Need(Given.CROSSES, field, leg)


def join_needs(needs: Iterable[Need]) -> str:
    """Join needs in words, each once."""
    return "; ".join(dict.fromkeys(filter(None, (need.in_words for need in needs))))
