"""The accountant of a run: the differential privacy that noise gives to packets of training.

**Release.** Everything that crosses the cut in training is released, and so is everything that the
server computes from it. Two data sets are **neighbours** if they differ in one sample of one
client: in its input alone (`dp_forward`; its label and its length stay), in its label alone
(`dp_sgd`), or in both, if both methods have a guarantee. A causal model has only the last kind,
since its labels are its tokens. The partition, the batches, the scaling of inputs and the weights
before training are assumed to be public. These weights must not depend on the samples:
`model.weights` of a run on them is a release of its own.

**Count.** A sample is sent once per epoch, since the batches of an epoch are disjoint. Steps do not
count: other samples' batches have noise of their own. A client that drops out has sent its first
packet, which counts. Subsampling gives no further privacy here: batches are passes over a shuffled
part, not draws, and the server knows who takes part. k releases at a noise of sigma equal one at
sigma / sqrt(k), and noise on both legs adds up as 1 / sigma^2 does. Epsilon at a delta is exact for
that Gaussian (Balle and Wang, 2018), computed by dp-accounting.

**Randomised labels.** Labels that are drawn once per sample (`randomised_response`, `pslf`) have an
epsilon of their own, at a delta of 0. It does not grow with the number of releases, since all
packets depend on the drawn labels alone. The share of each class is assumed to be public.

**Not counted.** Held-out samples in evaluation are no client's training samples. Packets that
clients encode only so that attacks can be scored are never sent by a deployed client.

A guarantee requires that every released value that depends on a sample has passed the noise. A head
that learns makes later packets of other samples depend on a sample, and so does a tail with labels:
they must not learn (`model.learns`). A module that does not learn is in inference mode, so batch
normalisation uses running statistics and rows stay independent. Other methods must come after the
noise and only encode.
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
"""The smallest number of samples whose inverse is used as delta."""
MISSING = f"epsilon is not known without the package dp-accounting: {install_command('dp')}"
_INPUT, _LABEL, _TOKEN = "a sample's input", "a sample's label", "a token of a text"


@dataclass(frozen=True)
class Guarantee:
    """The guarantee of a method's noise, or the reason why there is none."""

    method: str
    protects: str
    multiplier: float = 0.0
    """Standard deviation of one release's noise, in units of its sensitivity."""
    delta: float | None = None
    """The delta at which epsilon is reported; None: one over the client's number of samples."""
    lacks: str = ""
    """Why there is no guarantee; empty: there is one."""
    epsilon: float | None = None
    """Epsilon, at a delta of 0, of labels that are drawn once; None: epsilon is to be computed."""


@dataclass(frozen=True)
class Spent:
    """The privacy that one client's samples have lost at the end of a run."""

    client: ClientId
    samples: int
    times_sent: int
    delta: float
    epsilon: float


def list_guarantees(scenario: Scenario) -> list[Guarantee]:
    """Return the guarantees of the scenario's noise; empty if no method adds noise for one."""
    guarantees = [
        _make_guarantee(scenario, index, method)
        for index, method in enumerate(scenario.method)
        if method.release is not None
    ]
    sound = [each for each in guarantees if not each.lacks and each.epsilon is None]
    both = _combine(sound) if {each.protects for each in sound} >= {_INPUT, _LABEL} else None
    if scenario.model.kind == "causal_lm":
        rest = [each if each.lacks else _void(each) for each in guarantees]
        return [each for each in guarantees if each.lacks] + [both] if both else rest
    return [*guarantees, *([both] if both else [])]


def count_releases(wire: Iterable[WireRow], steps: Mapping[ClientId, int]) -> dict[ClientId, int]:
    """Return, for each client, how often its most frequently sent sample was sent.

    `steps` is the number of batches in an epoch of each client.
    """
    batches: Counter[ClientId] = Counter()
    for row in wire:
        if row.leg in (Leg.SMASHED, Leg.INPUTS) and row.phase != EVALUATE:
            batches[row.client] += row.packets
    return {client: math.ceil(batches[client] / each) for client, each in steps.items() if each}


def account(
    guarantee: Guarantee, times: Mapping[ClientId, int], samples: Sequence[int]
) -> Iterator[Spent]:
    """Yield the privacy spent by each client; raise ImportError without dp-accounting."""
    for client, count in times.items():
        if guarantee.epsilon is not None:
            yield Spent(client, samples[client], count, 0.0, guarantee.epsilon)
            continue
        delta = guarantee.delta or 1 / max(samples[client], FEWEST)
        epsilon = compute_epsilon(guarantee.multiplier, count, delta)
        yield Spent(client, samples[client], count, delta, epsilon)


@lru_cache(maxsize=4096)
def compute_epsilon(multiplier: float, times: int, delta: float) -> float:
    """Return the epsilon of `times` Gaussian releases of the same sample, at a delta."""
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(multiplier / math.sqrt(times), delta)) if times else 0.0


def lacks_accountant(scenario: Scenario) -> bool:
    """Return whether a guarantee needs dp-accounting, which is not installed."""
    guarantees = list_guarantees(scenario)
    wanted = any(not each.lacks and each.epsilon is None for each in guarantees)
    return wanted and find_spec("dp_accounting") is None


def summarise_privacy(
    guarantee: Guarantee, times: Mapping[ClientId, int], samples: Sequence[int]
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Return an entry of `summary.json`, for the client with the largest epsilon, and the rows of
    `privacy.csv`.
    """
    entry: dict[str, object] = {"method": guarantee.method, "protects": guarantee.protects}
    if guarantee.lacks:
        return entry | {"epsilon": None, "none": guarantee.lacks}, []
    try:
        every = list(account(guarantee, times, samples))
    except ImportError:
        return entry | {"epsilon": None, "none": MISSING}, []
    if not every:
        return entry | {"epsilon": None, "none": "nothing was sent"}, []
    rows = [{"protects": guarantee.protects, **asdict(each)} for each in every]
    worst = max(every, key=lambda each: (each.epsilon, -each.client))
    if guarantee.epsilon is None:
        entry["multiplier"] = guarantee.multiplier
    return entry | asdict(worst), rows


def _make_guarantee(scenario: Scenario, index: int, method: MethodConfig) -> Guarantee:
    """Return the guarantee of one method's release in this scenario."""
    release = method.release
    if isinstance(release, str):
        return Guarantee(method.kind_name, "", lacks=release)
    assert release is not None, "only methods with a release have a guarantee"
    if isinstance(release, Response):
        lacks = next(_find_label_gaps(scenario, index, release), "")
        return Guarantee(method.kind_name, _LABEL, lacks=lacks, epsilon=release.epsilon)
    protects = _LABEL if release.leg is Leg.FEATURES_GRAD else _INPUT
    protects = _TOKEN if release.of == "token" else protects
    delta = getattr(method, "report_delta", None)
    lacks = next(_find_gaps(scenario, index, release), "")
    return Guarantee(method.kind_name, protects, release.multiplier, delta, lacks)


def _find_label_gaps(scenario: Scenario, index: int, release: Response) -> Iterator[str]:
    """Yield the reasons why labels that are drawn once have no guarantee.

    Methods after such a draw get the drawn labels alone, so they cost nothing.
    """
    for place, other in enumerate(scenario.method):
        if place < index and not (other.reencodes or other.release is not None):
            yield f"{other.kind_name} is listed before the draw; list it after"
        elif release.keeps_tail and other.release is None and not other.reencodes:
            yield f"{other.kind_name} does more than encode, which is not accounted for"
    learns = "tail" in scenario.model.learning
    shared = scenario.clients.shares_tail and scenario.clients.count > 1
    if release.keeps_tail and learns and shared:
        yield (
            "the tail learns from true labels and is shared; use clients.heads: per_client with "
            "clients.tail: own"
        )


def _find_gaps(scenario: Scenario, index: int, release: Release) -> Iterator[str]:
    """Yield the reasons why a Gaussian release has no guarantee."""
    if not scenario.crossings.accounted:
        yield f"topology: {scenario.topology} is not accounted for"
    behind = {Leg.SMASHED: ("head", "samples"), Leg.FEATURES_GRAD: ("tail", "labels")}
    segment, what = behind[release.leg]
    if segment in scenario.model.learning:
        yield (
            f"the {segment} learns from {what} without noise, so its later outputs depend on them; "
            f"leave {segment} out of model.learns"
        )
    layers = scenario.model.head if isinstance(scenario.model, LanguageConfig) else 0
    if release.of == "token" and layers:
        yield "the head's layers mix a token into others; use model.head: 0, or per: sample"
    for place, other in enumerate(scenario.method):
        if other.release is None and not other.reencodes:
            yield f"{other.kind_name} does more than encode, which is not accounted for"
        elif place < index and release.leg is Leg.SMASHED and Leg.SMASHED in other.acts_on:
            yield f"{other.kind_name} is listed before the noise; list it after"


def _combine(sound: Iterable[Guarantee]) -> Guarantee:
    """Return the joint guarantee of input and label: their precisions, 1 / sigma^2, add up."""
    ours = [each for each in sound if each.protects in (_INPUT, _LABEL)]
    precision = sum(each.multiplier**-2 for each in ours)
    delta = min((each.delta for each in ours if each.delta is not None), default=None)
    names = " and ".join(each.method for each in ours)
    return Guarantee(names, "a sample, input and label", precision**-0.5, delta)


def _void(alone: Guarantee) -> Guarantee:
    """Return a causal model's guarantee of one leg as void: the other leg carries the tokens."""
    labels = alone.protects == _LABEL
    other, helps = ("smashed data", "dp_forward") if labels else ("labels or gradients", "dp_sgd")
    why = f"labels are the texts' tokens, which {other} reveal; {helps} must hide those as well"
    return replace(alone, lacks=why)
