"""The targets of an audit: which recorded samples are attacked, and what crossed for them.

Of a reference they are the same samples as of the wire itself, by their ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np

from simsplit.auditing.audit_options import AuditOptions
from simsplit.auditing.recorded_sessions import (
    SESSIONS,
    ChosenSessions,
    choose_sessions,
    join_sessions,
)
from simsplit.auditing.recordings import (
    TARGETS,
    TRAIN,
    ChosenSamples,
    RecordedStep,
    choose_samples,
    find_sample_legs,
    find_steps,
    list_steps,
    load_targets,
)
from simsplit.errors import RunError, format_count
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.phases import EVALUATE
from simsplit.wires.transcript import Transcript, TranscriptSummary
from simsplit.wires.truth import Truth

MOST = 6000
"""Inputs that an attacker knows, at most."""


@dataclass(frozen=True)
class AuditTargets:
    """The samples that are attacked, and what was recorded of them."""

    chosen: ChosenSamples
    batches: Sequence[Sequence[Packet]]
    """Their packets, step by step."""
    legs: frozenset[Leg]
    """The legs on which every packet has a row for each sample."""
    sessions: ChosenSessions = field(default_factory=ChosenSessions)
    """The sessions that are attacked; empty where the targets are samples of steps."""
    notes: Sequence[str] = ()
    """What was left out."""


def find_targets(
    options: AuditOptions,
    transcript: Transcript,
    truth: Truth,
    summary: TranscriptSummary,
    client: ClientId,
) -> AuditTargets:
    """Find the targets among sessions or steps, and load their packets."""
    if summary.by_phase[SESSIONS]:
        most = options.count_pairs(MOST)
        sessions = choose_sessions(
            transcript, truth, client, options.targets, most, wanted=options.samples
        )
        if sessions.targets:
            step = RecordedStep(ids=tuple(each.id for each in sessions.targets))
            chosen = ChosenSamples([step], (), len(step.ids) + len(sessions.known))
            batches = [join_sessions(sessions.targets, client)]
            legs = find_sample_legs(batches, [len(step.ids)])
            return AuditTargets(chosen, batches, legs, sessions)
    chosen, notes = _choose_steps(options, transcript, truth, summary, client)
    batches, mixed = load_targets(transcript, chosen.targets)
    whole = [len(own) == len(step.rows) for own, step in zip(batches, chosen.targets, strict=True)]
    if not any(whole):
        raise RunError(
            f"{transcript.name}: every step of the targets has a packet with numbers that are not "
            "finite in float32; record or transcribe finite numbers"
        )
    if not all(whole):
        notes.append(
            f"{whole.count(False)} of {format_count(len(whole), 'step')} of the targets are not "
            "attacked: a packet of theirs has numbers that are not finite in float32"
        )
        chosen = replace(chosen, targets=[*compress(chosen.targets, whole)])
        batches = [*compress(batches, whole)]
    legs = find_sample_legs(batches, [len(step.ids) for step in chosen.targets])
    return AuditTargets(chosen, batches, legs - mixed, notes=notes)


def _choose_steps(
    options: AuditOptions,
    transcript: Transcript,
    truth: Truth,
    summary: TranscriptSummary,
    client: ClientId,
) -> tuple[ChosenSamples, list[str]]:
    """Choose the steps of targets and of known inputs; note what is too much to hold."""
    # A recording of a network that is only used has packets of evaluation alone.
    phase = next((each for each in (TARGETS, TRAIN) if summary.by_phase[each]), EVALUATE)
    latest = phase == TRAIN
    listed = list_steps(transcript, phase, client, latest=latest)
    steps = [step for step in listed if np.isin(step.ids, truth.ids).all()]
    if not steps and not options.samples:
        raise RunError(
            f"{transcript.name} has no packet of the phase '{phase}' whose samples' truth is known"
        )
    with_pairs = (
        transcript.facts.modality != "texts"
        and truth.has("inputs")
        and options.find_pairs(transcript) is None
        and options.count_pairs(1) > 0
    )
    if options.samples:
        chosen = find_steps(steps, options.samples, latest=latest, with_pairs=with_pairs)
    else:
        chosen = choose_samples(steps, options.targets, latest=latest, with_pairs=with_pairs)
    if not listed.left_out:
        return chosen, []
    return chosen, [
        f"targets and known inputs are of the {'last' if latest else 'first'} "
        f"{chosen.counted:,} samples; {listed.left_out:,} others (repetitions included) are too "
        "many to hold"
    ]
