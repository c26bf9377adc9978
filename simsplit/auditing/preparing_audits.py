"""An audit is prepared here: a transcript's packets, its truth and what the server knows.

The truth goes to the judges' data alone. What attacks get of a transcript are packets.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simsplit.attacks import Knows, Sees
from simsplit.auditing.audit_options import AuditOptions
from simsplit.auditing.audit_targets import MOST, find_targets
from simsplit.auditing.grounds import Ground, Shapes, lay_ground, lay_ground_of_run
from simsplit.auditing.known_inputs import load_pairs_elsewhere, refuse_other_pairs
from simsplit.auditing.offers import LEAST_PAIRS, Offers
from simsplit.auditing.recorded_clients import Testimony, WireRecord
from simsplit.auditing.recorded_sessions import (
    LEAST_KNOWN,
    SESSIONS,
)
from simsplit.auditing.recordings import (
    MOST_PAIR_BYTES,
    QUERIES,
    TARGETS,
    TRAIN,
    ChosenSamples,
    choose_client,
    get_ids,
    list_steps,
    load_as_sent,
    load_pairs,
    stack_labels,
)
from simsplit.auditing.server_holdings import find_model, find_network, read_public
from simsplit.auditing.truths import (
    choose_scale,
    make_image_samples,
    make_row_samples,
    make_text_samples,
)
from simsplit.data.samples import Samples
from simsplit.errors import RunError, SimsplitError, format_list
from simsplit.legs import Leg
from simsplit.needs import Given
from simsplit.packets import Packet
from simsplit.results import SCENARIO
from simsplit.wire import Counts
from simsplit.wires.transcript import Transcript, TranscriptSummary
from simsplit.wires.truth import Truth

Pixels = tuple[tuple[float, ...], tuple[float, ...]]
"""What was subtracted from each channel, and its divisor."""


@dataclass(frozen=True)
class PreparedAudit:
    """All that an audit needs."""

    ground: Ground
    offers: Offers
    record: WireRecord
    counts: Counts
    """Packets and bytes by round, client, phase and leg."""
    facts: Mapping[str, Any]
    samples: tuple[int, ...] = ()
    """The ids of the samples that are attacked; empty where a run has chosen them."""


def prepare_audit(options: AuditOptions) -> PreparedAudit:
    """Read what an audit needs of a transcript; raise SimsplitError for what a user can mend."""
    transcript = whole = Transcript.open(options.path)
    if options.reference:
        transcript = whole.open_reference() or whole
        # the same samples are of the same kind, whether the reference's recorder had them or not
        same = {"modality": whole.facts.modality, "image": whole.facts.image}
        transcript.facts = transcript.facts.model_copy(update=same)
        if transcript.facts.knows.public is None and whole.facts.knows.public is not None:
            public = {"model": whole.find_holding(whole.facts.knows.public)}
            options = replace(options, knows={**public, **options.knows})
    summary = transcript.summarise()
    if not summary.packets:
        raise RunError(f"{transcript.name} has no packets")
    client = choose_client(summary.clients, options.client)
    if "run" in options.knows:
        return _prepare_run(options, transcript, summary, client)
    return _prepare_foreign(options, transcript, summary, client)


def _prepare_foreign(
    options: AuditOptions, transcript: Transcript, summary: TranscriptSummary, client: int
) -> PreparedAudit:
    """Prepare an audit of a wire of which nothing is known but what was recorded."""
    truth = _require_truth(options, transcript)
    found = find_targets(options, transcript, truth, summary, client)
    chosen, batches, legs, sessions = found.chosen, found.batches, found.legs, found.sessions
    if transcript.facts.modality != "texts":
        _refuse_uneven(batches, legs)
    samples, notes, pixels, judged = _read_truth(options, transcript, truth, chosen)
    shapes, public = _measure_shapes(batches, legs), read_public(options, transcript, samples)
    ground = lay_ground(
        f"audit-{options.name}",
        shapes,
        samples,
        find_model(options, transcript) or find_network(options, transcript),
        summary.rounds,
        public=public,
        mean=pixels[0],
        std=pixels[1],
        seed=options.seed,
        device=options.device,
    )
    elsewhere, size = options.find_pairs(transcript), ground.scenario.train.batch_size
    # As many known inputs as fit in the memory for them, as floats.
    fitting = MOST_PAIR_BYTES // (4 * max(1, samples.inputs[0].numel()))
    make: Callable[[Sequence[int]], Samples]
    if elsewhere is None:
        most = min(options.count_pairs(MOST), fitting)
        pairs = load_pairs(transcript, chosen.pairs, get_ids(chosen.targets), size, most)
        make = partial(_make_samples, options, transcript, truth, pixels=pixels)
    else:
        make_there = partial(_make_samples, options, pixels=pixels)
        pairs, make = load_pairs_elsewhere(
            *(elsewhere, size, min(MOST, fitting), make_there), reference=options.reference
        )
    pair_batches, pair_ids = pairs
    things = set(ground.things)
    if len(pair_ids) >= LEAST_PAIRS:
        things.add(Knows.QUERIES)
        ground = replace(ground, pairs=make(pair_ids))
    if elsewhere is not None or ground.pairs is not None:
        refuse_other_pairs(elsewhere or options.path, pair_batches, ground)
    things |= {Knows.WRITTEN} if len(sessions.known) >= LEAST_KNOWN else set()
    things |= {Knows.CLASSES, Knows.LABELS} if "labels" in judged else set()
    has = {Given.LABELLED} if "labels" in judged else set()
    has |= {Given.PUBLIC} if ground.data.auxiliary is not None else set()
    has |= {Given.WATCHED} if summary.by_phase[TRAIN] else set()
    has |= {Given.KNOWN_TAIL} if transcript.facts.modality == "texts" else set()
    if sessions.targets and Leg.FEATURES in legs:
        has, judged = has | {Given.SESSIONS}, judged | {"sessions"}
    offers = Offers(ground.scenario, legs, frozenset(things), frozenset(has), judged)
    record = WireRecord(
        Testimony(batches, pair_batches, chosen=sessions, head=ground.head),
        partial(transcript.packets, phase=TRAIN, clients=[client]),
        Leg.SMASHED_GRAD not in transcript.facts.legs,
        max(1, summary.rounds),
    )
    known_inputs = len(pair_ids) or len(sessions.known)
    facts = _describe(transcript, summary, client, chosen, known_inputs)
    if options.names_pairs and elsewhere is None:
        named = options.knows["pairs"]
        notes.append(
            f"without the defence attacks know other samples of the reference, since {named} has "
            "no reference"
        )
    ground = replace(ground, notes=[*found.notes, *notes])
    ids = tuple(get_ids(chosen.targets))
    return PreparedAudit(ground, offers, record, _count_crossed(transcript), facts, ids)


def _require_truth(options: AuditOptions, transcript: Transcript) -> Truth:
    truth = Truth.open(options.path)
    if truth is None:
        raise RunError(
            f"{transcript.name} has no truth (inputs or labels of the recorded samples), so what "
            "attacks read cannot be judged; record it with tape.samples(ids, inputs=x, labels=y)"
        )
    return truth


def _describe(
    transcript: Transcript,
    summary: TranscriptSummary,
    client: int,
    chosen: ChosenSamples,
    pairs: int,
) -> dict[str, Any]:
    """Return what was recorded, and how much of it was used."""
    facts = transcript.facts
    return {
        "transcript": transcript.name,
        "modality": facts.modality,
        "status": facts.status,
        "ended": facts.ended,
        "packets": summary.packets,
        "legs": dict(summary.by_leg),
        "client": client,
        "samples": chosen.counted,
        "targets": len(get_ids(chosen.targets)),
        "pairs": pairs,
    }


def _read_truth(
    options: AuditOptions, transcript: Transcript, truth: Truth, chosen: ChosenSamples
) -> tuple[Samples, list[str], Pixels, frozenset[str]]:
    """Read the targets' truth: samples, notes, the scale of pixels, and what can be judged."""
    ids = get_ids(chosen.targets)
    notes: list[str] = []
    pixels: Pixels = ((), ())
    judged: set[str] = set()
    if truth.has("inputs"):
        judged |= {"inputs"}
        if transcript.facts.modality == "images":
            image = transcript.facts.image
            scale = choose_scale(
                truth.stack(ids),
                image.mean if image else (),
                image.std if image else (),
            )
            pixels = scale.mean, scale.std
            notes += [scale.note] if scale.note else []
    samples = _make_samples(options, transcript, truth, ids, pixels)
    if truth.has("labels") and len(np.unique(samples.groups)) > 1:
        judged |= {"labels"}
    elif truth.has("labels"):
        notes.append(
            "attacks on labels are not tried: all targets are of one class, as where samples are "
            "sorted by it; a larger --targets may reach others"
        )
    return samples, notes, pixels, frozenset(judged)


def _make_samples(
    options: AuditOptions,
    transcript: Transcript,
    truth: Truth,
    ids: Sequence[int],
    pixels: Pixels,
) -> Samples:
    """Make samples of the truth of some ids."""
    labels = stack_labels(truth.find_labels(ids) if truth.has("labels") else None)
    if not truth.has("inputs"):
        return make_row_samples(torch.zeros(len(ids), 1), labels)
    if (model := find_model(options, transcript)) is not None:
        return make_text_samples(truth.find_inputs(ids), labels, model.make_reader().pad)
    stacked = truth.stack(ids)
    if transcript.facts.modality == "images":
        return make_image_samples(stacked, labels, choose_scale(stacked, *pixels))
    return make_row_samples(stacked, labels)


def _refuse_uneven(batches: Sequence[Sequence[Packet]], legs: frozenset[Leg]) -> None:
    """Raise RunError where samples have several shapes on a leg; texts have several lengths."""
    for leg in sorted(legs - {Leg.LABELS}):
        own = (packet for batch in batches for packet in batch if packet.leg is leg)
        shapes = sorted({tuple(packet.tensors[0].shape[1:]) for packet in own})
        if len(shapes) > 1:
            every = format_list(str(list(shape)) for shape in shapes[:3])
            raise RunError(f"{leg}: samples of the targets need one shape, got {every}")


def _measure_shapes(batches: Sequence[Sequence[Any]], legs: frozenset[Leg]) -> Shapes:
    """Return the shapes of one sample's tensors, as they crossed."""
    by_leg: dict[Leg, Tensor] = {
        packet.leg: packet.tensors[0] for packet in batches[0] if packet.leg in legs
    }
    features = by_leg.get(Leg.FEATURES)
    cut = by_leg.get(Leg.SMASHED, features)
    if cut is None:
        raise RunError(
            "no packet of the targets has a row for each sample on smashed or features, so no "
            "attack can tell samples apart"
        )
    if cut.ndim < 2:
        raise RunError("packets need an axis of values beside that of samples, got N alone")
    sent = (packet.tensors[0] for batch in batches for packet in batch[:1])
    rows = max((len(each) for each in sent if each.ndim), default=1)
    return Shapes(
        tuple(cut.shape[1:]), None if features is None else tuple(features.shape[1:]), rows, legs
    )


def _prepare_run(
    options: AuditOptions, transcript: Transcript, summary: TranscriptSummary, client: int
) -> PreparedAudit:
    """Prepare an audit of the recording of a run, whose server has what a run's server has."""
    _refuse_beside_run(options)
    ground, live = lay_ground_of_run(Path(options.knows["run"]), client, options.device)
    scenario = ground.scenario
    targets = list_steps(transcript, TARGETS, client, with_ids=False)
    queries = list_steps(transcript, QUERIES, client, with_ids=False)
    batches = load_as_sent(transcript, targets)
    pairs = load_as_sent(transcript, queries)
    count = len(scenario.aims.choose(ground.data)[1])
    sessions = [*transcript.packets(phase=SESSIONS, clients=[client])]
    if not (batches or sessions):
        raise RunError(
            f"{transcript.name} has no packets of the phases '{TARGETS}' and '{SESSIONS}', which "
            "are what a run's attacks recover"
        )
    things: set[Knows | Sees] = set(ground.things)
    if pairs and ground.data.auxiliary is not None:
        things.add(Knows.QUERIES)
        ground = replace(ground, pairs=ground.data.auxiliary)
    has = {Given.LABELLED, Given.KNOWN_TAIL}
    has |= {Given.PUBLIC} if ground.data.auxiliary is not None else set()
    has |= {Given.WATCHED} if summary.by_phase[TRAIN] else set()
    has |= {Given.SESSIONS} if sessions else set()
    legs = frozenset(Leg(name) for name in transcript.facts.legs)
    judged = frozenset({"inputs", "labels", *(("sessions",) if sessions else ())})
    offers = Offers(scenario, legs, frozenset(things), frozenset(has), judged)
    record = WireRecord(
        Testimony(batches, pairs, live=live, sessions=sessions),
        partial(transcript.packets, phase=TRAIN, clients=[client]),
        Leg.SMASHED_GRAD not in legs,
        ground.number,
    )
    chosen = ChosenSamples(targets, queries, count)
    facts = _describe(transcript, summary, client, chosen, sum(len(b[0].tensors[0]) for b in pairs))
    facts["targets"] = count
    return PreparedAudit(ground, offers, record, _count_crossed(transcript), facts)


def _refuse_beside_run(options: AuditOptions) -> None:
    """Raise SimsplitError for what has no use beside a run, and for another run's transcript."""
    others = [f"--knows {name}" for name in options.knows if name != "run"]
    others += ["--public"] if options.public is not None else []
    if others:
        raise SimsplitError(
            "--knows: run=RUN says all that the server has, and which samples are attacked; leave "
            f"out {format_list(others)}"
        )
    run, home = Path(options.knows["run"]), options.path.resolve().parent
    own, named = home / SCENARIO, run / SCENARIO
    if own.exists() and named.exists() and own.read_bytes() != named.read_bytes():
        raise SimsplitError(
            f"--knows: run: {options.path} was recorded by the run in {home}, and {run} has "
            "another scenario, by whose samples it would be judged; name the recorded run"
        )


def _count_crossed(transcript: Transcript) -> Counts:
    """Count packets and bytes by round, client, phase and leg, from the files' headers."""
    packets: Counter[tuple[int, int, str, Leg]] = Counter()
    nbytes: Counter[tuple[int, int, str, Leg]] = Counter()
    for row, size in transcript.measure():
        key = (row.round, row.client, TRAIN, Leg(row.leg))
        packets[key] += 1
        nbytes[key] += size
    return {key: [count, nbytes[key], 0, 0] for key, count in packets.items()}
