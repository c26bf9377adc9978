"""The steps of a transcript are sorted here: which samples are targets, and which inputs are known.

Only the table of packets is gone through. Tensors are read for the steps that are chosen, so a
transcript of any size takes the memory of these. Of a large table the last steps are held, or the
first, and of known inputs as many as fit in a bounded memory.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from simsplit.errors import RunError
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.wires.facts import PacketRow
from simsplit.wires.transcript import Transcript

TARGETS, TRAIN, QUERIES = "targets", "train", "queries"
"""Phases: samples that a client encoded for attacks to recover, training, and samples whose inputs
an attacker knows."""
MOST_LISTED = 1_000_000
"""Samples of steps that are held at once, at most, repetitions included."""
MOST_CLASSES = 1_000_000
"""Classes of labels, at most; every one has a name, and a value for each sample."""
MOST_PAIR_BYTES = 64 * 2**20
"""Bytes of what was sent for known inputs, at most, and of these inputs."""


@dataclass
class RecordedStep:
    """What crossed between one client and the server in one step."""

    rows: list[PacketRow] = field(default_factory=list)
    ids: tuple[int, ...] = ()
    """The ids of its samples that are used: the first ones of its packets, or those at `places`."""
    places: tuple[int, ...] | None = None
    """Where the samples that are used lie among those of its packets; None: they come first."""
    count: int = 0
    """Number of samples of its packets."""


@dataclass(frozen=True)
class ChosenSamples:
    """The samples that attacks recover, and those whose inputs they may know."""

    targets: Sequence[RecordedStep]
    pairs: Sequence[RecordedStep]
    counted: int
    """Samples with a known id among the client's packets."""


class ListedSteps(list[RecordedStep]):
    """The steps of one client in their order, and what did not fit in."""

    left_out = 0
    """Samples of steps that were left out, repetitions included: too many to hold."""


def list_steps(
    transcript: Transcript,
    phase: str,
    client: ClientId,
    *,
    with_ids: bool = True,
    latest: bool = False,
    most: int = MOST_LISTED,
) -> ListedSteps:
    """List the steps of one phase and client, in order; `with_ids`: of known samples.

    Of more than `most` samples the first steps are listed, or the last (`latest`).
    """
    steps: dict[tuple[int, int, int | None], RecordedStep] = {}
    held, left_out = 0, 0
    for row in transcript.rows():
        if row.phase != phase or row.client != client:
            continue
        key = (row.round, row.step, row.session)
        step = steps.get(key)
        if step is None:
            if not latest and held > most:
                left_out += len(row.ids) if row.leg == transcript.facts.legs[0] else 0
                continue
            step = steps[key] = RecordedStep()
        if row.ids and not step.ids:
            step.ids, step.count = row.ids, len(row.ids)
            held += len(row.ids)
        # All packets of a step have its ids, which are held once.
        step.rows.append(row._replace(ids=step.ids if row.ids == step.ids else row.ids))
        while held > most and latest and len(steps) > 1:
            dropped = len(steps.pop(next(iter(steps))).ids)
            held, left_out = held - dropped, left_out + dropped
    listed = ListedSteps(step for step in steps.values() if step.ids or not with_ids)
    listed.left_out = left_out
    return listed


def choose_samples(
    steps: Sequence[RecordedStep], count: int, *, latest: bool, with_pairs: bool
) -> ChosenSamples:
    """Choose whole steps with about `count` samples as targets, and others for known inputs.

    `latest`: the last steps, whose client has learned most; else the first. With pairs at most half
    of all samples are targets.
    """
    known = {each for step in steps for each in step.ids}
    half = max(1, len(known) // 2)
    wanted = min(count, half) if with_pairs else count
    taken: set[int] = set()
    targets, pairs = [], []
    for step in reversed(steps) if latest else steps:
        if len(taken) < wanted and taken.isdisjoint(step.ids):
            room = wanted if not taken else len(step.ids)
            if with_pairs:
                room = min(room, half - len(taken))
            kept = replace(step, ids=step.ids[: max(1, room)])
            targets.append(kept)
            taken.update(kept.ids)
    used = set(taken)
    for step in reversed(steps) if latest else steps:
        if with_pairs and not used.issuperset(step.ids):
            pairs.append(step)
            used.update(step.ids)
    if latest:
        targets, pairs = targets[::-1], pairs[::-1]
    return ChosenSamples(targets, pairs, len(known))


def find_steps(
    steps: Sequence[RecordedStep], wanted: Sequence[int], *, latest: bool, with_pairs: bool
) -> ChosenSamples:
    """Find the steps in which samples crossed that are known by their ids, and others for pairs.

    `latest`: the last steps with them, else the first. Raise RunError where one did not cross.
    """
    ordered = [*reversed(steps)] if latest else [*steps]
    left = set(wanted)
    targets = []
    for step in ordered:
        places = [place for place, each in enumerate(step.ids) if each in left]
        if places:
            ids = tuple(step.ids[place] for place in places)
            targets.append(replace(step, ids=ids, places=tuple(places)))
            left.difference_update(ids)
    if left:
        raise RunError(
            f"{len(left)} of the {len(wanted)} samples that are attacked did not cross in it, such "
            f"as {min(left)}; record the same samples without the defence, with the same ids"
        )
    others = {*wanted}
    pairs = [step for step in ordered if with_pairs and not others.issuperset(step.ids)]
    known = {each for step in steps for each in step.ids}
    return ChosenSamples(targets, pairs, len(known))


def load_targets(
    transcript: Transcript, steps: Sequence[RecordedStep]
) -> tuple[list[list[Packet]], frozenset[Leg]]:
    """Load the packets of steps, cut to their ids; steps are numbered anew, from 0 on.

    Also return the legs on which a packet has not one row for each sample of its step: such rows
    may be as many as the samples that are used, and mix them with others.
    """
    batches, mixed = [], set[Leg]()
    for number, step in enumerate(steps):
        # No more is read than is attacked: a packet may have any number of rows.
        most = len(step.ids) if step.places is None else 1 + max(step.places)
        read = [each.packet for each in transcript.read(step.rows, most, of=step.count)]
        own = _list_mixed(read, most)
        if most < step.count:  # what is not cut has as many rows, whatever is asked for
            first = 1 if most > 1 else 2
            again = transcript.read(step.rows, first, of=step.count)
            own |= _list_mixed((each.packet for each in again), first)
        batches.append([_pick_places(each, number, step.places, own) for each in read])
        mixed |= own
    return batches, frozenset(mixed - {Leg.LABELS})


def _list_mixed(packets: Iterable[Packet], rows: int) -> set[Leg]:
    """List the legs of packets that have not so many rows."""
    return {
        packet.leg
        for packet in packets
        if any(tensor.shape[:1] != (rows,) for tensor in packet.tensors)
    }


def _pick_places(
    packet: Packet, number: int, places: Sequence[int] | None, mixed: Collection[Leg]
) -> Packet:
    """Return a packet of step `number` with the rows at some places, if it has such rows."""
    packet = replace(packet, step=number)
    if places is None or packet.leg in mixed:
        return packet
    picked = torch.tensor(places)
    return packet.with_tensors(tuple(tensor[picked] for tensor in packet.tensors))


def load_as_sent(transcript: Transcript, steps: Sequence[RecordedStep]) -> list[list[Packet]]:
    """Load the packets of steps as they were sent."""
    return [[each.packet for each in transcript.read(step.rows)] for step in steps]


def load_pairs(
    transcript: Transcript,
    steps: Sequence[RecordedStep],
    without: Iterable[int],
    size: int,
    most: int,
) -> tuple[list[list[Packet]], list[int]]:
    """Load what was sent for at most `most` known inputs, in batches of `size`, and their ids.

    There are fewer where these would take more than MOST_PAIR_BYTES.
    """
    seen = set(without)
    rows: list[Tensor] = []
    ids: list[int] = []
    for step in steps if most else ():
        if len(ids) >= most:
            break
        sent = [row for row in step.rows if row.leg == Leg.SMASHED]
        # Of a large packet the first rows, with room for those that are targets.
        shown = step.ids[: most + len(seen)]
        for packet in (each.packet for each in transcript.read(sent, len(shown), of=step.count)):
            (tensor, *more) = packet.tensors
            shape = rows[0].shape[1:] if rows else tensor.shape[1:]
            if more or tensor.shape != (len(shown), *shape):
                continue
            most = min(most, MOST_PAIR_BYTES // max(1, tensor[0].nbytes))
            fresh = [place for place, each in enumerate(shown) if each not in seen]
            fresh = fresh[: max(0, most - len(ids))]
            ids += [shown[place] for place in fresh]
            seen.update(shown)
            rows.append(tensor[fresh])
    if not ids:
        return [], []
    parts = torch.cat(rows)[:most].split(size)
    made = [[Packet(0, Leg.SMASHED, 1, n, (part,))] for n, part in enumerate(parts)]
    return made, ids[:most]


def find_sample_legs(batches: Sequence[Sequence[Packet]], counts: Sequence[int]) -> frozenset[Leg]:
    """Find the legs on which each packet of the targets has a row for each sample."""

    def has_rows(leg: Leg, batch: Sequence[Packet], count: int) -> bool:
        own = [packet for packet in batch if packet.leg is leg]
        if len(own) != 1:
            return False
        return leg is Leg.LABELS or all(each.shape[:1] == (count,) for each in own[0].tensors)

    legs = {packet.leg for batch in batches for packet in batch}
    pairs = [*zip(batches, counts, strict=True)]
    return frozenset(leg for leg in legs if all(has_rows(leg, *pair) for pair in pairs))


def choose_client(clients: Mapping[ClientId, int], wanted: ClientId | None) -> ClientId:
    """Choose the client whose samples are attacked: the wanted one, or that with most packets."""
    if wanted is None:
        return max(clients, key=lambda each: (clients[each], -each))
    if wanted not in clients:
        known = ", ".join(map(str, sorted(clients)[:10]))
        raise RunError(
            f"--client: the transcript has no packets of client {wanted}; it has {known}"
        )
    return wanted


def get_ids(steps: Sequence[RecordedStep]) -> list[int]:
    """Return the ids of all samples of steps, in order."""
    return [*chain.from_iterable(step.ids for step in steps)]


def stack_labels(labels: Sequence[Tensor] | None) -> Tensor | None:
    """Stack the labels of samples; None where a sample has no single class, such as -1 or 0.5."""
    if labels is None or any(each.numel() != 1 for each in labels):
        return None
    stacked = torch.stack([each.flatten()[0].double() for each in labels])
    is_class = (stacked == stacked.floor()) & (stacked >= 0) & (stacked < MOST_CLASSES)
    return stacked.long() if bool(is_class.all()) else None
