"""This bench measures attacks in iterations per second, each on the network of its paper.

Attacks on texts are measured whole, behind MixGuard: what 60 texts take, from a few of them. With a
model of the user's they alone are measured, on that model.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benches.language import pretrain_model, scenario_on
from simsplit.assembly import Assembler
from simsplit.attacking import Attacking
from simsplit.attacks import Attack
from simsplit.attacks.kmeans import find_clusters
from simsplit.attacks.spectral import principal_components
from simsplit.attacks.text_attack import TextAttack, by_batch
from simsplit.bench.bench_scenarios import random_images, random_texts, scenario
from simsplit.bench.sides import BenchLines, Figures, Say, synchronise
from simsplit.legs import Leg
from simsplit.machine import find_device
from simsplit.packets import Packet
from simsplit.parties.calls import Begin, Expose
from simsplit.parties.feed import TARGETS
from simsplit.report.tables import Table
from simsplit.seeds import rng_for

Iterate = Callable[[], None]


@dataclass(frozen=True)
class AttackCase:
    """An attack, and the model and batch size that it attacks."""

    name: str
    attack: dict[str, Any]
    model: dict[str, Any]
    batch: int
    what: str = "steps of training followed"


_SDAR = {"kind": "resnet20", "cut": 4}
_FORA = {"kind": "mobilenet"}
_UNSPLIT = {"kind": "mnistnet"}
_TURN = {"kind": "unsplit", "outer": 1_000_000, "inner": 100}
CASES = (
    AttackCase("sdar, level 4", {"kind": "sdar"}, _SDAR, 128),
    AttackCase("sdar, level 7", {"kind": "sdar"}, {**_SDAR, "cut": 7}, 128),
    AttackCase("pcat, level 4", {"kind": "pcat"}, _SDAR, 128),
    AttackCase("fora", {"kind": "fora"}, _FORA, 64),
    AttackCase("fsha", {"kind": "fsha"}, _FORA, 64),
    AttackCase(
        "whitebox",
        {"kind": "whitebox", "start": "lift", "iterations": 10**6},
        _SDAR,
        64,
        "steps of the decoder",
    ),
    AttackCase("unsplit", _TURN, _UNSPLIT, 10, "turns of 2 x 100 steps, one image"),
    AttackCase(
        "unsplit, batched",
        {**_TURN, "clones": "batched"},
        _UNSPLIT,
        10,
        "turns of 2 x 100 steps, ten images",
    ),
)

LENGTH = 56
"""Tokens of a text, beside MixGuard's eight secret ones."""
TEXTS = 60
PAIR = 2
"""Texts that share a draw of secrets."""
_GAUSSIAN: dict[str, Any] = {"inverter": "gaussian", "batch_size": 16}
TEXT_ATTACKS: tuple[dict[str, Any], ...] = (
    {"kind": "sip", **_GAUSSIAN},
    {"kind": "tag", "iterations": 20},
    {"kind": "lamp", "iterations": 40, "permutations": 10},
    {"kind": "bisr", "smashed_steps": 100, "smashed_lr": 0.01, **_GAUSSIAN},
    {"kind": "tag_linear"},
    {"kind": "gradient_ratio", **_GAUSSIAN},
    {"kind": "span_search", **_GAUSSIAN},
)
"""The attacks on texts, at published scaling and in few steps."""


def measure_attacks(
    device: str,
    quick: bool,
    say: Say,
    cases: Sequence[AttackCase] = CASES,
) -> Iterator[tuple[Table, Figures]]:
    """Measure each attack in a row, and the attacks on labels in a second table."""
    lines = BenchLines()
    for case in cases:
        say(f"attacks: {case.name} ...")
        iterate = _prepare_iteration(case, device)
        iterate()
        seconds = _time_iteration(iterate, 1 if quick else 8.0)
        figures = {"per_s": 1 / seconds, "threads": torch.get_num_threads()}
        row = (case.name, str(case.batch), f"{1 / seconds:.3g}", case.what)
        lines.add(case.name, figures, row)
    title = f"attacks on {device}, {torch.get_num_threads()} threads"
    yield lines.table(title, ("attack", "batch", "a second", "of"), "lrrl")
    say("attacks: on labels ...")
    yield _time_label_attacks(1 if quick else 4)
    with tempfile.TemporaryDirectory() as folder:
        say("attacks: on texts ...")
        yield measure_text_attacks(device, quick, say, pretrain_model(Path(folder)))


def attacks_on(device: str, quick: bool, say: Say, model: str) -> Iterator[tuple[Table, Figures]]:
    """Measure the attacks on texts, on a given model."""
    yield measure_text_attacks(device, quick, say, model)


def measure_text_attacks(
    device: str,
    quick: bool,
    say: Say,
    model: str,
    attacks: Sequence[dict[str, Any]] = TEXT_ATTACKS,
) -> tuple[Table, Figures]:
    """Time each attack on a few texts behind MixGuard: its training steps, and a pair of texts."""
    lines = BenchLines()
    for fields in attacks:
        say(f"attacks: {fields['kind']} on texts ...")
        learning, pair = _time_text_attack(fields, model, device, 1 if quick else 3)
        minutes = (learning + pair * TEXTS / PAIR) / 60
        figures = {"learning_s": learning, "pair_s": pair, "minutes": minutes}
        row = (fields["kind"], f"{learning:.1f}", f"{pair:.2f}", f"{minutes:.2f}")
        lines.add(fields["kind"], figures, row)
    title = f"attacks on {TEXTS} texts of {LENGTH} tokens behind MixGuard (m = k = 3)"
    return lines.table(title, ("attack", "learning, s", "two texts, s", "all, min"), "lrrr")


def _time_text_attack(
    fields: dict[str, Any], model: str, name: str, pairs: int
) -> tuple[float, float]:
    """Return the seconds of an attack's training steps, and the mean seconds of a pair of texts."""
    device = find_device(name)
    method = {"kind": "mixguard", "tokens": 8, "warm_up": 0}
    targets = {"count": PAIR * pairs, "batch_size": PAIR}
    given = scenario_on(model, [method], PAIR, attacks=[fields], targets=targets)
    data = random_texts(given, LENGTH)
    parts = Assembler(given, data, device).assemble()
    parts.exchange.announce(parts.clients, counted=False)
    (attack,) = Attacking(given, parts, data, device).attacks.values()
    assert isinstance(attack, TextAttack), "no others are in the list"
    last = Leg.FEATURES_GRAD if fields["kind"] != "sip" else None
    crossing = [
        packet
        for number in range(pairs)
        for packet in parts.exchange.expose(0, Expose(TARGETS, 1, number, True), last)
    ]
    started = time.perf_counter()
    for number in range(attack.steps):
        attack.learn(number)
    synchronise(device)
    learnt = time.perf_counter()
    for seen in by_batch(crossing):
        attack.recover(seen)
    synchronise(device)
    return learnt - started, (time.perf_counter() - learnt) / pairs


def _time_label_attacks(budget_s: float) -> tuple[Table, Figures]:
    """Time attacks on labels, on a thousand states of 768 values."""
    states_ND = torch.randn(1000, 768, generator=rng_for(0, "bench", "states"))
    states_ND[::2, 0] += 3

    def spectral() -> None:
        principal_components(states_ND, 1)

    def kmeans() -> None:
        find_clusters(states_ND, 2, starts=10, seed=0)

    attacks = {"spectral": spectral, "kmeans": kmeans}
    took = {name: _time_iteration(iterate, budget_s) for name, iterate in attacks.items()}
    rows = [(name, f"{seconds:.3f}", "1") for name, seconds in took.items()]
    title = "attacks on labels, 1,000 targets, 768 values each"
    return Table(title, ("attack", "s", "target"), rows, "lrr"), dict(took)


def _time_iteration(iterate: Iterate, budget_s: float) -> float:
    """Return the mean seconds of an iteration, over as many as fit into a budget."""
    started, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < budget_s or not count:
        iterate()
        count += 1
    return passed / count


def _prepare_iteration(case: AttackCase, name: str) -> Iterate:
    """Return a function that runs one iteration of a case's attack."""
    device = find_device(name)
    given = scenario(
        case.model,
        case.batch,
        {"count": 1},
        data={"normalise": "unit", "auxiliary": 0.5},
        attacks=[case.attack],
        device=name,
    )
    data = random_images(given, 8 * case.batch)
    data = replace(data, auxiliary=data.train)
    parts = Assembler(given, data, device).assemble()
    parts.exchange.announce(parts.clients, counted=False)
    (attack,) = Attacking(given, parts, data, device).attacks.values()
    smashed = parts.pool.ask(0, Begin(1))[0]
    if not given.attacks[0].threat.follows_training:
        return _prepare_offline(
            attack, smashed, data.train.inputs[: case.batch].float().to(device) / 255
        )
    reply = Packet(0, Leg.SMASHED_GRAD, 1, 0, tuple(map(torch.zeros_like, smashed.tensors)))

    def follow() -> None:
        attack.observe(smashed)
        attack.observe(attack.answer(reply))
        synchronise(device)

    return follow


def _prepare_offline(attack: Attack, smashed: Packet, pixels: torch.Tensor) -> Iterate:
    attack.study([(smashed, pixels)])
    pieces = attack.work([smashed])

    def work() -> None:
        next(pieces)
        synchronise(pixels.device)

    return work
