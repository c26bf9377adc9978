"""What the noise of a run guarantees: differential privacy of what its clients send in training.

**Released** is all that crosses the cut in training, and so all that the server makes of it. Two
data sets are **neighbours** if they differ in one sample of one client: in its input alone
(`dp_forward`; its label and its length stay), in its label alone (`dp_sgd`), or in both, where both
methods have a guarantee. Of a causal model there is only the last, for its labels are its tokens.
Taken as known are the partition, the batches, how inputs are scaled, and weights before training
(which must not come of these samples: `model.weights` of a run on them is a release of its own).

**Counted** is how often a sample is sent: once an epoch, for the batches of an epoch are disjoint.
Steps do not count, other samples' batches have noise of their own. A client that drops out has sent
its first packet, which counts. Nothing is claimed for subsampling: batches are passes over a
shuffled part, not draws, and the server knows who takes part. k sendings at a noise of sigma are
one at sigma / sqrt(k), and noise on both legs adds up as 1 / sigma^2 does; epsilon at a delta is
the exact one of that Gaussian (Balle and Wang, 2018), by dp-accounting.

**Labels that are drawn** at random once per sample (`randomised_response`, `pslf`) have an epsilon
of their own, at a delta of 0, which does not grow: whatever is sent is made of the drawn labels.
The share of each class is taken as known.

**Not counted**: held-out samples in evaluation (they are nobody's training samples), and what
clients are made to encode so that attacks can be scored, which no deployed client sends.

There is no guarantee unless all that depends on a sample lies behind the noise. A head that learns
carries samples on into what it sends of others, and so does a tail with labels: they must not learn
(`model.learns`). What does not learn infers, row by row: batch normalisation is by running
statistics then. Other methods must come after the noise and do nothing but encode.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.util import find_spec

from simsplit.errors import install_command
from simsplit.methods import MethodConfig
from simsplit.methods.clipping import Release, Response
from simsplit.models.language import LanguageConfig
from simsplit.packets import ClientId, Leg
from simsplit.phases import EVALUATE
from simsplit.rows import WireRow
from simsplit.scenario import Scenario

FEWEST = 100
"""Of a client with fewer samples, epsilon is told at the delta of this many."""
MISSING = f"epsilon is not known without the package dp-accounting: {install_command('dp')}"
_INPUT, _LABEL, _TOKEN = "a sample's input", "a sample's label", "a token of a text"


@dataclass(frozen=True)
class Guarantee:
    """What noise protects, or why nothing."""

    method: str
    protects: str
    multiplier: float = 0.0
    """Noise of one sending, in units of how far a neighbour's can be off."""
    delta: float | None = None
    """Null: by the client's samples."""
    lacks: str = ""
    """Why there is no guarantee; empty: there is one."""
    epsilon: float | None = None
    """Of labels that are drawn once, and so the same however often they are used; delta is 0."""


@dataclass(frozen=True)
class Spent:
    """What of one client's samples is known at the end."""

    client: ClientId
    samples: int
    times_sent: int
    delta: float
    epsilon: float


def guarantees_of(scenario: Scenario) -> list[Guarantee]:
    """What the scenario's noise guarantees; empty where no method is there for its noise."""
    found = [
        _guarantee(scenario, index, method)
        for index, method in enumerate(scenario.method)
        if method.release is not None
    ]
    sound = [each for each in found if not each.lacks and each.epsilon is None]
    both = _together(sound) if {each.protects for each in sound} >= {_INPUT, _LABEL} else None
    if scenario.model.kind == "causal_lm":
        rest = [each if each.lacks else _given_away(each) for each in found]
        return [each for each in found if each.lacks] + [both] if both else rest
    return [*found, *([both] if both else [])]


def times_sent(wire: Iterable[WireRow], steps: Mapping[ClientId, int]) -> dict[ClientId, int]:
    """Return how often each client sent the one of its samples that it sent most often.

    `steps` is how many batches make an epoch of each client.
    """
    batches: Counter[ClientId] = Counter()
    for row in wire:
        if row.leg in (Leg.SMASHED, Leg.INPUTS) and row.phase != EVALUATE:
            batches[row.client] += row.packets
    return {client: math.ceil(batches[client] / each) for client, each in steps.items() if each}


def spent(
    guarantee: Guarantee, times: Mapping[ClientId, int], samples: Sequence[int]
) -> Iterator[Spent]:
    """Client by client; ImportError without dp-accounting."""
    for client, count in times.items():
        if guarantee.epsilon is not None:
            yield Spent(client, samples[client], count, 0.0, guarantee.epsilon)
            continue
        delta = guarantee.delta or 1 / max(samples[client], FEWEST)
        epsilon = epsilon_of(guarantee.multiplier, count, delta)
        yield Spent(client, samples[client], count, delta, epsilon)


@lru_cache(maxsize=4096)
def epsilon_of(multiplier: float, times: int, delta: float) -> float:
    """Epsilon of so many Gaussian releases of the same sample, at a delta."""
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(multiplier / math.sqrt(times), delta)) if times else 0.0


def unknown_to(scenario: Scenario) -> bool:
    """Whether there is a guarantee, and no accountant installed that could tell it."""
    found = guarantees_of(scenario)
    wanted = any(not each.lacks and each.epsilon is None for each in found)
    return wanted and find_spec("dp_accounting") is None


def told(
    guarantee: Guarantee, times: Mapping[ClientId, int], samples: Sequence[int]
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """An entry of `summary.json`, of the client that fares worst; and rows of `privacy.csv`."""
    entry: dict[str, object] = {"method": guarantee.method, "protects": guarantee.protects}
    if guarantee.lacks:
        return entry | {"epsilon": None, "none": guarantee.lacks}, []
    try:
        every = list(spent(guarantee, times, samples))
    except ImportError:
        return entry | {"epsilon": None, "none": MISSING}, []
    if not every:
        return entry | {"epsilon": None, "none": "nothing was sent"}, []
    rows = [{"protects": guarantee.protects, **asdict(each)} for each in every]
    worst = max(every, key=lambda each: (each.epsilon, -each.client))
    if guarantee.epsilon is None:
        entry["multiplier"] = guarantee.multiplier
    return entry | asdict(worst), rows


def _guarantee(scenario: Scenario, index: int, method: MethodConfig) -> Guarantee:
    release = method.release
    if isinstance(release, str):
        return Guarantee(method.word, "", lacks=release)
    assert release is not None, "asked of noise alone"
    if isinstance(release, Response):
        lacks = next(_lacking_of_labels(scenario, index, release), "")
        return Guarantee(method.word, _LABEL, lacks=lacks, epsilon=release.epsilon)
    protects = _LABEL if release.leg is Leg.FEATURES_GRAD else _INPUT
    protects = _TOKEN if release.of == "token" else protects
    delta = getattr(method, "report_delta", None)
    lacks = next(_lacking(scenario, index, release), "")
    return Guarantee(method.word, protects, release.multiplier, delta, lacks)


def _lacking_of_labels(scenario: Scenario, index: int, release: Response) -> Iterator[str]:
    """What stands against a guarantee of labels that are drawn once.

    All that comes after such a draw only knows what was drawn.
    """
    for place, other in enumerate(scenario.method):
        if place < index and not (other.reencodes or other.release is not None):
            yield f"{other.word} stands before the draw; list it after"
        elif release.keeps_tail and other.release is None and not other.reencodes:
            yield f"what {other.word} does besides is not accounted for"
    learns = "tail" in scenario.model.learning
    shared = scenario.clients.shares_tail and scenario.clients.count > 1
    if release.keeps_tail and learns and shared:
        yield (
            "the tail learns from labels as they are, and is shared; use clients.heads: per_client "
            "with clients.tail: own"
        )


def _lacking(scenario: Scenario, index: int, release: Release) -> Iterator[str]:
    """What stands against a guarantee."""
    if not scenario.crossings.accounted:
        yield f"what crosses under {scenario.topology} is not accounted for"
    behind = {Leg.SMASHED: ("head", "samples"), Leg.FEATURES_GRAD: ("tail", "labels")}
    segment, what = behind[release.leg]
    if segment in scenario.model.learning:
        yield (
            f"the {segment} learns from {what} as they are, and what it computes of others later "
            f"depends on them; leave {segment} out of model.learns"
        )
    layers = scenario.model.head if isinstance(scenario.model, LanguageConfig) else 0
    if release.of == "token" and layers:
        yield "the head's layers carry a token on into others; use model.head: 0, or per: sample"
    for place, other in enumerate(scenario.method):
        if other.release is None and not other.reencodes:
            yield f"what {other.word} does besides is not accounted for"
        elif place < index and release.leg is Leg.SMASHED and Leg.SMASHED in other.acts_on:
            yield f"{other.word} stands before the noise; list it after"


def _together(sound: Iterable[Guarantee]) -> Guarantee:
    """Of input and label: sigmas add up as precisions."""
    ours = [each for each in sound if each.protects in (_INPUT, _LABEL)]
    precision = sum(each.multiplier**-2 for each in ours)
    delta = min((each.delta for each in ours if each.delta is not None), default=None)
    names = " and ".join(each.method for each in ours)
    return Guarantee(names, "a sample, input and label", precision**-0.5, delta)


def _given_away(alone: Guarantee) -> Guarantee:
    """A guarantee of half of what crosses, where either half has the text's tokens."""
    labels = alone.protects == _LABEL
    other, helps = ("smashed data", "dp_forward") if labels else ("labels or gradients", "dp_sgd")
    why = f"labels are the texts' tokens, which {other} give away; {helps} must hide those as well"
    return replace(alone, lacks=why)
