"""All that leaves a client in a run, and all that is derived from it, is listed here.

The accountant and deployed clients read this one list. A guarantee covers everything on it: packets
by the noise of methods, figures by being withheld, and the rest because it is the same whichever
sample is replaced. What none of these covers voids the guarantee. So a figure, a count or a call
that is added to simsplit needs an entry: tests hold the list against what a deployed client sends.

A figure that is withheld does not leave a deployed client. A simulation still has it in its tables,
as the simulator's view: no detector, attack or schedule reads it.

Neighbours differ in one sample, which is replaced and not removed. So counts of samples, batches
and bytes, the names of classes, and the lengths of texts are the same for both, and so is the time
that a step takes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from simsplit.methods import MethodConfig
from simsplit.methods.clipping import Response
from simsplit.scenario import Scenario

SPENDING_COLUMNS = ("times_sent", "epsilon", "epsilon_next")
"""What clients that count their own spending report each round."""
SCORES = "scores"
"""The departure of all figures of evaluations; the tables have a column for each."""


class SamplePart(StrEnum):
    """A part of a sample that a guarantee can protect."""

    INPUT = "input"
    LABEL = "label"


class Handling(StrEnum):
    """What keeps a departure from voiding a guarantee."""

    NOISE = "noise"
    """The noise of methods covers it, under the accountant's rules for that noise."""
    WITHHELD = "withheld"
    """A deployed client keeps it to itself where it exposes what a guarantee protects."""
    EQUAL = "equal"
    """It is the same for neighbours, or made of held-out samples and of what left before."""
    NONE = "none"
    """Nothing: a guarantee of what it exposes is void."""


@dataclass(frozen=True)
class Departure:
    """Something that leaves a client, or that the server derives from what has left."""

    name: str
    what: str
    """What it is, for pages and messages."""
    handling: Handling
    sent_by: tuple[str, ...] = ()
    """The calls whose answers carry it, or fields of the greeting; empty: it is derived."""
    exposes: frozenset[SamplePart] = frozenset()
    """The parts of private samples on which it depends, other than through what has left before."""


_BOTH = frozenset(SamplePart)
_LABEL = frozenset({SamplePart.LABEL})
_NOTHING = frozenset[SamplePart]()


def counts_spending(scenario: Scenario) -> bool:
    """Return whether clients report what they have spent."""
    return scenario.train.dp is not None or scenario.epsilon_limit is not None


def list_departures(scenario: Scenario) -> tuple[Departure, ...]:
    """List all that leaves a client of a scenario's run."""
    return (
        *_list_tensors(),
        *_list_figures(scenario),
        *_list_counts(scenario),
        *_list_derived(scenario),
    )


def list_withheld(scenario: Scenario, protected: frozenset[SamplePart]) -> tuple[str, ...]:
    """List the columns of figures that a client withholds to protect these parts of its samples."""
    names = [
        each.name
        for each in list_departures(scenario)
        if each.handling is Handling.WITHHELD and each.exposes & protected
    ]
    scores = scenario.figures if SCORES in names else ()
    return (*(name for name in names if name != SCORES), *scores)


def find_uncovered(scenario: Scenario, protected: frozenset[SamplePart]) -> Iterator[str]:
    """Yield what voids a guarantee of these parts of a sample, and how to avoid it."""
    for each in list_departures(scenario):
        if each.handling is Handling.NONE and each.exposes & protected:
            yield each.what


def _list_tensors() -> Iterator[Departure]:
    yield Departure(
        "packets",
        "packets of a step of training",
        Handling.NOISE,
        ("Begin", "BeginInterleaved", "Proceed"),
        _BOTH,
    )
    yield Departure(
        "held-out packets",
        "packets of a step on held-out samples, in evaluation and in generation",
        Handling.EQUAL,
        ("Probe", "Write", "WriteOn"),
    )
    yield Departure(
        "weights",
        "weights and moments of segments that clients hand over, averages of them, and the power "
        "of two below which their norm lies",
        Handling.NOISE,
        ("HandOver",),
        _BOTH,
    )


def _list_figures(scenario: Scenario) -> Iterator[Departure]:
    """List the figures that a client reports, each with what it exposes."""
    held, by = Handling.WITHHELD, ("ReportRound",)
    if scenario.crossings.tail_with_client:
        labels = _NOTHING if _has_drawn_labels(scenario.method) else _LABEL
        for name, what in (
            ("train_loss", "mean loss of a round"),
            ("train_accuracy", "share of a round's samples that are predicted right"),
        ):
            yield Departure(name, what, held, by, labels)
    exposed = [_find_exposed(scenario.method, index) for index in range(len(scenario.method))]
    terms = frozenset[SamplePart]().union(*exposed)
    yield Departure("method_loss", "mean of the loss terms of methods", held, by, terms)
    for method, parts in zip(scenario.method, exposed, strict=True):
        for column in method.columns:
            changed = column == method.changed_share_column
            what = f"figure that {method.kind_name} reports"
            yield Departure(column, what, held, by, _BOTH if changed else parts)
    # What a tail that learns by `train.dp` scores is made of weights that the noise has passed.
    learned = not _has_drawn_labels(scenario.method) and "tail" in scenario.model.learning
    learned = learned and scenario.train.dp is None
    yield Departure(
        SCORES,
        "figures of evaluations, by the client's own tail, and the best round by them",
        held,
        ("Assess",),
        _LABEL if learned and scenario.crossings.tail_with_client else _NOTHING,
    )


def _list_counts(scenario: Scenario) -> Iterator[Departure]:
    """List what is the same whichever sample is replaced."""
    equal = Handling.EQUAL
    yield Departure(
        "counts",
        "numbers of batches, steps, samples and plain bytes",
        equal,
        ("CountSteps", "ReportRound"),
    )
    yield Departure(
        "greeting",
        "the client's number, the digest of its terms, its machine, and the number of its samples",
        equal,
        ("greeting.client", "greeting.terms", "greeting.facts", "greeting.samples"),
    )
    yield Departure(
        "form",
        "the form of the data: shape, class names, scaling, sizes of held-out splits; public",
        equal,
        ("greeting.form",),
    )
    if scenario.data.aligns:
        yield Departure(
            "alignment",
            "which samples all parties have, found by blinded ids: the parties learn it",
            Handling.NONE,
            ("Align",),
            _BOTH,
        )
    for name in SPENDING_COLUMNS if counts_spending(scenario) else ():
        yield Departure(name, "what a client has spent, by its counts", equal, ("ReportRound",))
    yield Departure("time", "the time that an answer takes, which grows with sizes alone", equal)
    yield Departure(
        "failure",
        "the type of an error that ends the client's part, and proofs that a seal is unusable",
        equal,
        ("failed", "unusable", "unopened", "disclose"),
    )


def _list_derived(scenario: Scenario) -> Iterator[Departure]:
    """List what the server decides by what has left."""
    scores = next(each for each in _list_figures(scenario) if each.name == SCORES)
    if scenario.stop is not None and scenario.stop.metric is not None:
        yield Departure(
            "early stopping",
            f"early stopping reads {scenario.stop.metric} of a tail that learns from true labels; "
            "leave stop out",
            Handling.NONE,
            exposes=scores.exposes,
        )
    yield Departure(
        "verdicts", "what detectors and their responses make of packets", Handling.EQUAL
    )


def _has_drawn_labels(methods: Sequence[MethodConfig]) -> bool:
    """Return whether methods draw the labels that the tail too gets in training."""
    releases = [method.release for method in methods]
    return any(isinstance(each, Response) and not each.keeps_tail for each in releases)


def _find_exposed(methods: Sequence[MethodConfig], index: int) -> frozenset[SamplePart]:
    """Return what the loss terms and figures of one method expose.

    A drawing of labels computes them from drawn labels, and methods after it get no other ones.
    """
    method = methods[index]
    if method.reencodes or method.accounted:
        return _NOTHING
    return frozenset({SamplePart.INPUT}) if _has_drawn_labels(methods[:index]) else _BOTH
