"""The accountant of a run: the differential privacy that noise gives to packets of training.

**Release.** Everything that leaves a client is released, and so is everything that is derived from
it. `departures.py` lists it. Packets pass the noise. Figures that depend on what is protected, such
as a loss on true labels, are withheld from the server (`list_withheld_figures`). What is neither
voids the guarantee. Two data sets are **neighbours** if they differ in one sample of one
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
packets depend on the drawn labels alone. The share of each class is assumed to be public. Figures
of drawn labels leave, so noise on gradients has no smaller epsilon beside them, and a second draw
from true labels would add to the first.

**Not counted.** Held-out samples in evaluation are no client's training samples. Packets that
clients encode only so that attacks can be scored are never sent by a deployed client. A guarantee
is one run's: runs on the same samples, such as those of a sweep, add up. Noise is drawn in floating
point, by a generator whose seed the server does not know; where it does (a deployed rehearsal),
there is no guarantee.

The server is assumed to follow the protocol. A deployed client that returns to a checkpoint draws
the same noise again: smashed data is then the same, but gradients of other features are not, and
their difference has no noise. So a deployed run that has gone back has no guarantee by noise on
gradients, of labels or of weights.

A guarantee requires that every released value that depends on a sample has passed the noise. A head
that learns makes later packets of other samples depend on a sample, and so does a tail with labels:
they must not learn (`model.learns`), or learn by `train.dp`. Weights are then taken to be released
after each step, so that a hand-over, an average and the final weights cost nothing more, and noise
on them composes with that at the cut. `train.dp` alone hides nothing from the server, who sees what
crosses. Without noise at the cut it has a guarantee against who sees weights alone, if the trunk
does not learn. Only there do drawn batches (`sampling: poisson`) amplify privacy. A module that
does not learn is in inference mode, so batch normalisation uses running statistics and rows stay
independent. Other methods must come after the noise and only encode.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np

from simsplit.errors import install_command
from simsplit.legs import ClientId, Leg
from simsplit.methods import MethodConfig
from simsplit.methods.clipping import Release, Response
from simsplit.models.language import LanguageConfig
from simsplit.phases import EVALUATE
from simsplit.privacy.accounts import Account, Learning, choose_delta
from simsplit.privacy.composition import Releases, compose
from simsplit.privacy.departures import SamplePart, find_uncovered, list_withheld
from simsplit.rows import WireRow
from simsplit.scenario import Scenario

MISSING = f"epsilon is not known without the package dp-accounting: {install_command('dp')}"
_INPUT, _LABEL, _TOKEN = "a sample's input", "a sample's label", "a token of a text"
_WHOLE = "a sample, input and label"
WEIGHTS_ALONE = "a sample, from who sees weights alone"
_ONE_PARTY = (
    "it covers one party's columns, and what other parties have of the same sample is not "
    "accounted for"
)
PARTS = {
    _INPUT: frozenset({SamplePart.INPUT}),
    _LABEL: frozenset({SamplePart.LABEL}),
    _TOKEN: frozenset({SamplePart.INPUT}),
    _WHOLE: frozenset(SamplePart),
    WEIGHTS_ALONE: frozenset[SamplePart](),  # its figures reach the server, who is not meant
}


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
    learning: Learning | None = None
    """The part of weights that learn by `train.dp`; None: they do not depend on what is protected.
    """
    client: ClientId | None = None
    """The party that alone has what is protected; None: each client has its own."""

    def covers(self, client: ClientId | None) -> bool:
        """Return whether a client has what is protected; None stands for any client that has it."""
        return self.client is None or client in (None, self.client)

    def open_account(self, samples: int, limit: float | None = None) -> Account:
        """Open the account of a client with so many samples."""
        precision = self.multiplier**-2 if self.multiplier else 0.0
        noise, rate = None, 1.0
        if self.learning is not None:
            noise = self.learning.find_multiplier(samples) / 2
            rate = self.learning.get_rate(samples)
        return Account(precision, noise, rate, choose_delta(self.delta, samples), limit)


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
    weights = [] if both or scenario.train.dp is None else [_make_weights_guarantee(scenario)]
    if scenario.model.kind == "causal_lm":
        rest = [each if each.lacks else _void(each) for each in guarantees]
        lacking = [each for each in guarantees if each.lacks]
        return [*lacking, both] if both else [*rest, *weights]
    return _share_noise([*guarantees, *([both] if both else weights)])


def _share_noise(guarantees: list[Guarantee]) -> list[Guarantee]:
    """Return guarantees of one noise on weights: that of the one for which a budget is meant."""
    chosen = _choose(guarantees)
    if chosen is None or chosen.learning is None:
        return guarantees
    return [
        replace(each, learning=replace(each.learning, budget=chosen.learning))
        if each.learning is not None and each is not chosen
        else each
        for each in guarantees
    ]


def choose_guarantee(scenario: Scenario) -> Guarantee | None:
    """Return the guarantee that clients count: of the most that is protected; None without one.

    That of a whole sample comes before that of who sees weights alone, and this before one of an
    input or a label. Of these, one in which `train.dp` has a part comes first.
    """
    return _choose(list_guarantees(scenario))


def _choose(guarantees: Iterable[Guarantee]) -> Guarantee | None:
    sound = [each for each in guarantees if not each.lacks and each.epsilon is None]
    order = (_WHOLE, WEIGHTS_ALONE)
    ranks = {protects: rank for rank, protects in enumerate(order)}

    def rank(each: Guarantee) -> tuple[int, bool]:
        # The noise on weights is found for the chosen one, so it must be one that counts it.
        return ranks.get(each.protects, len(order)), each.learning is None

    return min(sound, key=rank, default=None)


def explain_lack(scenario: Scenario) -> str:
    """Write why a scenario has no guarantee that clients can count."""
    return next(
        (each.lacks for each in list_guarantees(scenario) if each.lacks),
        "no noise has a guarantee; use train.dp, dp_forward or dp_sgd with relative: false",
    )


def void_repeated(guarantees: Iterable[Guarantee]) -> list[Guarantee]:
    """Return the guarantees of a deployed run that has gone back to a checkpoint."""
    why = "the run went back to a checkpoint, and gradients of its rounds get the same noise again"
    made = []
    for each in guarantees:
        counted = not each.lacks and each.epsilon is None
        noised = counted and (each.learning or SamplePart.LABEL in PARTS[each.protects])
        made.append(replace(each, lacks=why) if noised else each)
    return made


def list_withheld_figures(scenario: Scenario) -> tuple[str, ...]:
    """Return the columns of figures that a deployed client withholds for the sake of a guarantee.

    They depend on what is protected, without noise. A simulation keeps them in its tables.
    """
    sound = [each.protects for each in list_guarantees(scenario) if not each.lacks]
    return list_withheld(scenario, frozenset[SamplePart]().union(*(PARTS[each] for each in sound)))


def count_releases(
    wire: Iterable[WireRow],
    steps: Mapping[ClientId, int],
    in_round: Mapping[ClientId, int] | None = None,
) -> dict[ClientId, int]:
    """Return, for each client, how often its most frequently sent sample was sent at most.

    `steps` is the number of packets in an epoch of each client (`count_packets`). `in_round` is
    that of a round where parties that are away miss batches; None: a client goes on with its next
    one.
    """
    sent: Counter[ClientId] = Counter()
    taken: Counter[ClientId] = Counter()
    for row in wire:
        if row.leg in (Leg.SMASHED, Leg.INPUTS) and row.phase != EVALUATE:
            before = (row.round - 1) * in_round[row.client] if in_round else 0
            sent[row.client] += row.packets
            # Epochs in which some batches were missed may all have sent the same sample.
            taken[row.client] = max(taken[row.client], before) + row.packets
    return {
        client: min(sent[client], math.ceil(taken[client] / each))
        for client, each in steps.items()
        if each
    }


def count_packets(
    scenario: Scenario, steps: Mapping[ClientId, int], samples: Sequence[int]
) -> dict[ClientId, int]:
    """Return the packets that each client sends in an epoch, by its number of batches in one.

    Of a mini-batch that crosses in parts (`train.accumulate`) each part is a packet. Where clients
    drop out, such a part may be all that is sent, so it counts as a batch, which is too many.
    """
    train = scenario.train
    if train.accumulate == 1 or scenario.cohort.dropout:
        return dict(steps)
    size = math.ceil(train.batch_size / train.accumulate)
    packets = {}
    for client, count in steps.items():
        whole, rest = divmod(samples[client], train.batch_size)
        last = math.ceil(rest / size) if count > whole else 0
        packets[client] = whole * math.ceil(train.batch_size / size) + last
    return packets


def count_in_round(scenario: Scenario, steps: np.ndarray) -> dict[ClientId, int] | None:
    """Return the batches of a round of each party; None unless clients are parties."""
    if not scenario.parties:
        return None
    return dict(enumerate(scenario.schedule.limit_steps(steps).tolist()))


def account(
    guarantee: Guarantee, times: Mapping[ClientId, int], samples: Sequence[int]
) -> Iterator[Spent]:
    """Yield the privacy spent by each client; raise ImportError without dp-accounting."""
    for client, count in times.items():
        if not guarantee.covers(client):
            continue
        if guarantee.epsilon is not None:
            yield Spent(client, samples[client], count, 0.0, guarantee.epsilon)
            continue
        own = guarantee.open_account(samples[client])
        yield Spent(client, samples[client], count, own.delta, own.compute(count))


def compute_epsilon(multiplier: float, times: int, delta: float) -> float:
    """Return the epsilon of `times` Gaussian releases of the same sample, at a delta."""
    return compose((Releases(multiplier, times),), delta)


def choose_audit(
    scenario: Scenario, entry: Mapping[str, Any], audited: str, bounds: Mapping[str, Any]
) -> float | None:
    """Return an audit's lower bound for a guarantee, an entry of `summary.json`, or None.

    A guarantee of a token says nothing of pairs of samples, and one of inputs nothing of pairs with
    other labels. One against who sees weights alone is held against the trained model, if no weight
    of it has learned without noise. A bound at a smaller delta than its own is none of it.
    """
    protects = str(entry["protects"])
    if bounds["delta"] < entry.get("delta", 0.0):
        return None
    if protects == WEIGHTS_ALONE:
        return None if "trunk" in scenario.model.learning else float(bounds["of_weights"])
    differing = frozenset(SamplePart) if audited == "sample" else frozenset({SamplePart(audited)})
    covered = protects != _TOKEN and differing <= PARTS.get(protects, frozenset(SamplePart))
    return float(bounds["value"]) if covered else None


def has_audit(scenario: Scenario, audited: str) -> bool:
    """Return whether an audit of pairs that differ in this bounds a guarantee, or there is none."""
    sound = [each.protects for each in list_guarantees(scenario) if not each.lacks]
    bounds = {"value": 0.0, "of_weights": 0.0, "delta": 1.0}
    held = [choose_audit(scenario, {"protects": each}, audited, bounds) for each in sound]
    return not sound or any(each is not None for each in held)


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
    if guarantee.learning is not None:
        own = guarantee.open_account(worst.samples)
        assert own.learning is not None, "weights have a part in it"
        entry["learning_multiplier"] = 2 * own.learning
        if guarantee.learning.config.sampling == "poisson":
            entry["amplified"] = own.is_amplified
    if guarantee.multiplier:
        entry["multiplier"] = guarantee.multiplier
    return entry | asdict(worst), rows


def _learns_privately(scenario: Scenario, parts: frozenset[SamplePart]) -> bool:
    """Return whether weights that learn by `train.dp` depend on these parts of a sample.

    A head's gradients depend on the input and on what the server sends, a tail's on the label and
    on that.
    """
    if scenario.train.dp is None:
        return False
    learning = {*scenario.model.learning} - scenario.crossings.served
    reach = {SamplePart.INPUT} if "head" in learning else set()
    reach |= {SamplePart.LABEL} if "tail" in learning else set()
    return bool(reach & parts)


def _make_weights_guarantee(scenario: Scenario) -> Guarantee:
    """Return the guarantee against who gets weights, and does not see what crosses the cut."""
    dp = scenario.train.dp
    assert dp is not None, "asked for where weights learn by it"
    lacks = next(_find_weights_gaps(scenario), "")
    learning = Learning(scenario, 0.0, seen=False, delta=dp.delta)
    return Guarantee("train.dp", WEIGHTS_ALONE, 0.0, dp.delta, lacks, learning=learning)


def find_weights_gap(scenario: Scenario) -> str:
    """Return why weights that learn by `train.dp` have no guarantee; empty if they have one."""
    sound = [each for each in list_guarantees(scenario) if not each.lacks]
    if any(each.protects in (_WHOLE, WEIGHTS_ALONE) for each in sound):
        return ""
    return next(_find_weights_gaps(scenario), "")


def _find_weights_gaps(scenario: Scenario) -> Iterator[str]:
    """Yield the reasons why weights depend on a sample otherwise than by noised gradients."""
    yield from _find_copies(scenario)
    if not scenario.crossings.accounted:
        yield f"topology: {scenario.topology} is not accounted for"
    if scenario.parties:
        yield _ONE_PARTY
    if served := scenario.crossings.served & {*scenario.model.learning}:
        yield (
            f"the server's {max(served)} learns from packets without noise, and its gradients "
            "reach all weights; leave it out of model.learns, or noise both legs (dp_forward and "
            "dp_sgd)"
        )
    for other in scenario.method:
        if not other.accounted:
            yield f"{other.kind_name} does more than add noise, which is not accounted for"
    if any(each.response != "none" for each in scenario.detectors):
        yield "detectors decide by packets without noise who takes part; use response: none"


def name_release(method: MethodConfig) -> str:
    """Return what guarantees call a method, and the party at whose cut it acts."""
    return method.kind_name if method.by is None else f"{method.kind_name} by {method.by}"


def _make_guarantee(scenario: Scenario, index: int, method: MethodConfig) -> Guarantee:
    """Return the guarantee of one method's release in this scenario."""
    release, owner = method.release, scenario.reader
    name = name_release(method)
    if isinstance(release, str):
        return Guarantee(name, "", lacks=release)
    assert release is not None, "only methods with a release have a guarantee"
    if isinstance(release, Response):
        gaps = _find_label_gaps(scenario, index, release)
        lacks = next(chain(gaps, find_uncovered(scenario, PARTS[_LABEL])), "")
        return Guarantee(name, _LABEL, lacks=lacks, epsilon=release.epsilon, client=owner)
    protects = _LABEL if release.leg is Leg.FEATURES_GRAD else _INPUT
    protects = _TOKEN if release.of == "token" else protects
    delta = getattr(method, "report_delta", None)
    gaps = _find_gaps(scenario, index, release)
    lacks = next(chain(gaps, find_uncovered(scenario, PARTS[protects])), "")
    made = Guarantee(name, protects, release.multiplier, delta, lacks, client=owner)
    if not _learns_privately(scenario, PARTS[protects]):
        return made
    return _add_learning(scenario, made)


def _add_learning(scenario: Scenario, alone: Guarantee) -> Guarantee:
    """Return a guarantee of noise at the cut with that of weights, which rows cross to learn."""
    dp = scenario.train.dp
    assert dp is not None, "asked for where weights learn by it"
    delta = min((each for each in (alone.delta, dp.delta) if each is not None), default=None)
    learning = Learning(scenario, alone.multiplier**-2, seen=True, delta=delta)
    return replace(alone, method=f"{alone.method} and train.dp", delta=delta, learning=learning)


def _find_copies(scenario: Scenario) -> Iterator[str]:
    """Yield that copies of a sample spend apart, of which each guarantee counts one."""
    if getattr(scenario.data.source, "repeat", 1) > 1:
        yield "each digit has copies, which spend apart; use data.source.repeat: 1"


def _find_label_gaps(scenario: Scenario, index: int, release: Response) -> Iterator[str]:
    """Yield the reasons why labels that are drawn once have no guarantee.

    Methods after such a draw get the drawn labels alone, so they cost nothing. So do those of
    parties that have no labels.
    """
    yield from _find_copies(scenario)
    for place, other in scenario.select_methods(scenario.reader or 0).items():
        first_alone = place < index or (release.keeps_tail and place > index)
        if first_alone and isinstance(other.release, Response):
            yield f"{other.kind_name} draws labels too; use one of both"
        elif place < index and not (other.reencodes or other.accounted):
            yield f"{other.kind_name} is listed before the draw; list it after"
        elif release.keeps_tail and not (other.reencodes or other.accounted):
            yield f"{other.kind_name} does more than encode, which is not accounted for"
    learns = "tail" in scenario.model.learning
    if release.keeps_tail and learns and scenario.train.clip_norm:
        yield (
            "train.clip_norm takes one norm over head and tail, and the tail learns from true "
            "labels; leave it out"
        )
    shared = scenario.clients.shares_tail and scenario.clients.count > 1
    if release.keeps_tail and learns and shared:
        yield (
            "the tail learns from true labels and is shared; use clients.heads: per_client with "
            "clients.tail: own"
        )


def _find_gaps(scenario: Scenario, index: int, release: Release) -> Iterator[str]:
    """Yield the reasons why a Gaussian release has no guarantee."""
    yield from _find_copies(scenario)
    if not scenario.crossings.accounted:
        yield f"topology: {scenario.topology} is not accounted for"
    if scenario.parties and release.leg is Leg.SMASHED:
        yield _ONE_PARTY
    behind = {Leg.SMASHED: ("head", "samples"), Leg.FEATURES_GRAD: ("tail", "labels")}
    segment, what = behind[release.leg]
    if segment in scenario.model.learning and scenario.train.dp is None:
        yield (
            f"the {segment} learns from {what} without noise, so its later outputs depend on them; "
            f"leave {segment} out of model.learns, or have it learn by train.dp"
        )
    if any(each.response == "rollback" and not each.by_turns for each in scenario.detectors):
        yield "an undone round's batches are sent again (response: rollback); use another response"
    layers = scenario.model.head if isinstance(scenario.model, LanguageConfig) else 0
    if release.of == "token" and layers:
        yield "the head's layers mix a token into others; use model.head: 0, or per: sample"
    # Other parties' packets do not depend on labels but by what has left before.
    for place, other in scenario.select_methods(scenario.reader or 0).items():
        yield from _find_gaps_beside(other, release, before=place < index)


def _find_gaps_beside(other: MethodConfig, release: Release, *, before: bool) -> Iterator[str]:
    """Yield the reasons why a Gaussian release has no guarantee beside another method."""
    if not (other.reencodes or other.accounted):
        yield f"{other.kind_name} does more than encode, which is not accounted for"
    elif release.leg is Leg.FEATURES_GRAD and isinstance(other.release, Response):
        yield (
            f"{other.kind_name} draws labels, and figures of drawn labels leave without this "
            "noise; use one of both"
        )
    elif before and release.leg is Leg.SMASHED and Leg.SMASHED in other.acts_on:
        yield f"{other.kind_name} is listed before the noise; list it after"


def _combine(sound: Iterable[Guarantee]) -> Guarantee:
    """Return the joint guarantee of input and label: their precisions, 1 / sigma^2, add up."""
    ours = [each for each in sound if each.protects in (_INPUT, _LABEL)]
    precision = sum(each.multiplier**-2 for each in ours)
    delta = min((each.delta for each in ours if each.delta is not None), default=None)
    names = " and ".join(each.method.removesuffix(" and train.dp") for each in ours)
    both = Guarantee(names, _WHOLE, precision**-0.5, delta)
    learning = next((each.learning for each in ours if each.learning is not None), None)
    return both if learning is None else _add_learning(learning.scenario, both)


def _void(alone: Guarantee) -> Guarantee:
    """Return a causal model's guarantee of one leg as void: the other leg carries the tokens."""
    labels = alone.protects == _LABEL
    other, helps = ("smashed data", "dp_forward") if labels else ("labels or gradients", "dp_sgd")
    why = f"labels are the texts' tokens, which {other} reveal; {helps} must hide those as well"
    return replace(alone, lacks=why)
