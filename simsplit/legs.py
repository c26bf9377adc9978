"""This module defines the legs on which packets cross, and the numbers of clients.

What reads a finished run needs these names, and no tensor.
"""

from typing import ClassVar

ClientId = int
"""A client's number, from 0 on; it stays the same for the whole run."""
CROWD = 10_000
"""A run of more clients is a crowd: its tables and checkpoints have those that took part."""


def is_crowd(count: int) -> bool:
    """Return whether so many clients are a crowd, of which a run lists those that took part."""
    return count > CROWD


class Leg(str):
    """The direction and meaning of a crossing, as an interned string.

    The shipped topologies use the legs below. Another topology declares its own legs:
    `Leg("echo", up=False)`.
    """

    up: bool
    """Whether packets travel from a client towards the server, or to the next client."""
    words: str
    """The leg's name in sentences and figures."""

    SMASHED: ClassVar["Leg"]
    FEATURES: ClassVar["Leg"]
    FEATURES_GRAD: ClassVar["Leg"]
    SMASHED_GRAD: ClassVar["Leg"]
    LABELS: ClassVar["Leg"]
    INPUTS: ClassVar["Leg"]
    ADAPTERS: ClassVar["Leg"]
    ADAPTERS_GRAD: ClassVar["Leg"]
    HANDOVER: ClassVar["Leg"]
    BROADCAST: ClassVar["Leg"]
    _known: ClassVar[dict[str, "Leg"]] = {}

    def __new__(cls, name: str, *, up: bool | None = None, words: str = "") -> "Leg":
        """Return the leg of this name; `up` declares a new one, which reports name by `words`."""
        known = cls._known.get(name)
        if known is None:
            if up is None:
                raise ValueError(f"no leg is called '{name}'; known: {', '.join(cls._known)}")
            known = cls._known[name] = super().__new__(cls, name)
            known.up, known.words = up, words or name.replace("_", " ")
        return known

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by name, so that it is unpickled as the interned object of the other process."""
        # with its direction: the other process may not have imported the plugin that declared it
        return _declare, (str(self), self.up, self.words)


def _declare(name: str, up: bool, words: str) -> Leg:
    return Leg(name, up=up, words=words)


Leg.SMASHED = Leg("smashed", up=True, words="smashed data")
Leg.FEATURES = Leg("features", up=False)
Leg.FEATURES_GRAD = Leg("features_grad", up=True, words="gradients of features")
Leg.SMASHED_GRAD = Leg("smashed_grad", up=False, words="gradients of smashed data")
Leg.LABELS = Leg("labels", up=True)
Leg.INPUTS = Leg("inputs", up=True)
Leg.ADAPTERS = Leg("adapters", up=True)
Leg.ADAPTERS_GRAD = Leg("adapters_grad", up=False, words="gradients of adapters")
Leg.HANDOVER = Leg("handover", up=True, words="hand-overs")
Leg.BROADCAST = Leg("broadcast", up=False, words="broadcasts")
