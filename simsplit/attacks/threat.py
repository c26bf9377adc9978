"""A threat is what an attack assumes of its attacker: what it sees, knows and does, and when.

An attack's needs are made from its threat, as are the columns of docs/threats.md and of
`simsplit list threats`, and the seats from which it can be made. What no server has makes an attack
an upper bound.
"""

from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from simsplit.legs import Leg
from simsplit.needs import Given, Need, Needs, need_leg


class Role(StrEnum):
    """What an attacker is in a run; it decides what its seat shows."""

    SERVER = "server"
    CLIENT = "client"
    """A client with samples of its own."""
    PARTY = "party"
    """Of several parties with columns of the same samples, one that has no labels."""
    READER = "party with labels"
    """The party that has the labels, and gets the trunk's features or outputs."""


@dataclass(frozen=True)
class Thing:
    """A thing that an attacker may see or know."""

    words: str
    needs: Needs = ()
    """What a scenario must give, so that an attacker has it."""
    beyond: bool = False
    """Whether no server has it."""
    seen_by: frozenset[Role] = frozenset({Role.SERVER})
    """The roles that see it; it is read of what an attacker sees alone."""


def _need_rows(*legs: Leg) -> Needs:
    """Return the needs for a row of each sample on each of these legs."""
    kinds = (Given.CROSSES, Given.SAMPLES, Given.READABLE)
    return tuple(Need(kind, leg=leg) for leg in legs for kind in kinds)


_GRADIENTS = need_leg(Leg.FEATURES_GRAD)
_ROWS = _need_rows(Leg.FEATURES, Leg.FEATURES_GRAD)
_SESSIONS = (Need(Given.CAUSAL), Need(Given.SESSIONS))
_STEPS = (need_leg(Leg.ADAPTERS), Need(Given.OWN_ADAPTERS), Need(Given.IN_A_ROW))


class Sees(Enum):
    """What an attacker can see."""

    SMASHED = Thing("smashed data", (need_leg(Leg.SMASHED),))
    RECEIVED = Thing(
        "smashed data, or features at a party with labels",
        (need_leg(Leg.SMASHED),),
        seen_by=frozenset({Role.SERVER, Role.READER}),
    )
    TRUNK = Thing("the trunk as it learns, and labels under a vanilla cut", (Need(Given.ONE_HEAD),))
    INPUTS = Thing("the victims' own images", beyond=True)
    GRADIENTS = Thing("features and their gradients", (_GRADIENTS,))
    ROWS = Thing(
        "a row for each sample of features and gradients, and an API's adapters",
        (_GRADIENTS, *_ROWS),
        seen_by=frozenset({Role.SERVER, Role.PARTY}),
    )
    RETURNED_GRADIENTS = Thing(
        "the gradients that come back to it",
        (Need(Given.PARTIES), *_need_rows(Leg.SMASHED, Leg.SMASHED_GRAD)),
        seen_by=frozenset({Role.PARTY}),
    )
    OWN = Thing(
        "its own columns and its trained head",
        (Need(Given.PARTIES),),
        seen_by=frozenset({Role.PARTY}),
    )
    STEPS = Thing(
        "adapters at two steps in a row, and the gradients' messages that go to one server",
        (*_ROWS, Need(Given.LABELLED), *_STEPS),
    )
    HANDED = Thing(
        "the shared head as it gets it",
        (Need(Given.SHARED), Need(Given.HANDED_HEAD)),
        seen_by=frozenset({Role.CLIENT}),
    )
    TRAINED = Thing(
        "what the trained model makes of samples", seen_by=frozenset({Role.SERVER, Role.CLIENT})
    )
    MESSAGES = Thing("smashed data of all clients", (need_leg(Leg.SMASHED), Need(Given.ONE_HEAD)))
    SENT = Thing("what the head sends", _SESSIONS)
    RETURNED = Thing("what the trunk returns", _SESSIONS)


class Knows(Enum):
    """What an attacker can know beside what it sees."""

    PUBLIC = Thing("public data", (Need(Given.PUBLIC),))
    SHAPE = Thing("the shape of the cut")
    ARCHITECTURE = Thing("the head's architecture")
    METHODS = Thing("the methods at the cut")
    SECRETS = Thing("how secrets are drawn")
    HEAD = Thing("the pretrained head")
    CAUSAL_HEAD = Thing("the pretrained head", (Need(Given.CAUSAL),))
    TAIL = Thing("the pretrained tail", (Need(Given.CAUSAL),))
    MODEL = Thing("the whole pretrained model")
    CLASSES = Thing("how many classes the targets have", (Need(Given.LABELLED),))
    LABELS = Thing("a part of the targets' labels")
    NOISE = Thing("which noise is added")
    OPTIMIZER = Thing("the client's optimizer with its options")
    DISGUISES = Thing("public texts both plain and disguised", (Need(Given.PAIRS),))
    CANDIDATES = Thing(
        "samples with labels, some of which were trained on", (Need(Given.ONE_HEAD),)
    )
    ENCODED = Thing("what a client encodes of candidates", beyond=True)
    QUERIES = Thing("what a client encodes of public data on demand", beyond=True)
    WEIGHTS = Thing("the client's head and methods, with their weights", beyond=True)
    WRITTEN = Thing("the texts of some sessions", beyond=True)


class When(Enum):
    """When an attacker sees packets."""

    TARGETS = Thing("of the targets")
    TRAINING = Thing("in training", (Need(Given.WATCHED),))
    WRITING = Thing("when clients write")


@dataclass(frozen=True)
class Threat:
    """What an attack assumes of its attacker; by default as many attacks do."""

    sees: tuple[Sees, ...] = (Sees.SMASHED,)
    knows: tuple[Knows, ...] = (Knows.PUBLIC,)
    acts: str = ""
    """What it changes of what the server sends; empty: it follows the protocol."""
    when: When = When.TARGETS
    limits: str = ""
    """What else must hold for it to read anything, in words; no check can tell."""

    @property
    def things(self) -> tuple[Thing, ...]:
        """All that it assumes, in the order in which its needs are checked."""
        return tuple(each.value for each in (*self.sees, *self.knows, self.when))

    @property
    def needs(self) -> Needs:
        """The needs of all that it assumes, each once."""
        return tuple(dict.fromkeys(need for thing in self.things for need in thing.needs))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles from which all that it sees can be seen."""
        return tuple(role for role in Role if all(role in each.value.seen_by for each in self.sees))

    @property
    def follows_training(self) -> bool:
        """Whether it observes training packet by packet; others see the targets' packets alone."""
        return self.when is When.TRAINING

    @property
    def asks_gradients(self) -> bool:
        """Whether clients must send gradients for the targets."""
        return not {Sees.GRADIENTS, Sees.ROWS, Sees.RETURNED_GRADIENTS}.isdisjoint(self.sees)

    @property
    def is_bound(self) -> bool:
        """Whether it assumes what no server has: it bounds what is left to read."""
        return any(thing.beyond for thing in self.things)

    @property
    def attacker(self) -> str:
        """The attacker, in words."""
        if self.is_bound:
            return "upper bound"
        role = self.roles[0]
        return f"malicious {role}: {self.acts}" if self.acts else f"curious {role}"


def complete_threat(threat: Threat, needs: Needs, queries: int) -> Threat:
    """Return a threat with all that an attack's needs and queries say.

    So an attack of a plugin that declares its needs alone has a threat too. What lacks its needs
    there is left out.
    """
    sees = [each for each in threat.sees if {*each.value.needs} <= {*needs}]
    knows = [each for each in threat.knows if {*each.value.needs} <= {*needs}]
    covered = {need for each in (*sees, *knows) for need in each.value.needs}
    legs = {need.leg for need in needs if need.what is Given.CROSSES and need not in covered}
    sees += [each for each in (Sees.SMASHED, Sees.GRADIENTS) if each.value.needs[0].leg in legs]
    asked = {need.what for need in needs}
    more = {Knows.PUBLIC: Given.PUBLIC in asked, Knows.QUERIES: queries > 0}
    knows += [each for each, holds in more.items() if holds and each not in knows]
    when = When.TRAINING if Given.WATCHED in asked else threat.when
    return replace(threat, sees=tuple(sees), knows=tuple(knows), when=when)
