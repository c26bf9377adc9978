"""A scenario is planned: its parts are probed on a few samples, and its rounds played on paper."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from simsplit.assembly.dry_pass import measure_head_speed
from simsplit.assembly.dry_step import Prober
from simsplit.assembly.exchanges import build_clock
from simsplit.assembly.memory import estimate_memory
from simsplit.errors import format_list
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.forecasting.drafting import DraftRound, RunDraft
from simsplit.forecasting.footprints import measure_footprints
from simsplit.forecasting.forecast import OWN, Facts, Forecast, SweepForecast
from simsplit.forecasting.outline import outline_data
from simsplit.forecasting.private_plans import foresee_privacy
from simsplit.machine import pin_threads, read_free_bytes
from simsplit.models.language import LanguageConfig
from simsplit.models.shards import make_weightless
from simsplit.models.text_model import TextModel
from simsplit.network.clock import Clock
from simsplit.network.profiles import LINKS, NetworkConfig
from simsplit.phases import Phase
from simsplit.plugins import Given
from simsplit.pretrain.cache import has_pretrained
from simsplit.pretrain.tiers import find_named
from simsplit.scenario import Scenario, Sweep, own, scenario_of
from simsplit.scenario.stacking import list_obstacles

LARGE = 2**31
"""Bytes of weights in float32 from which on a model is planned without them."""
TIMED = 30e9
"""Operations of a timed step, at most; a larger batch is timed on fewer samples."""
MOST_TIMED, ENOUGH_S = 5, 1.0
"""Steps that are timed, at most, and seconds after which no other one is."""
_SKIPPED = {
    "attacks": "attacks take time and, for what they ask clients, evaluation bytes of their own",
    "detectors": "detectors take time, and clients that they flag may be left out",
    "stop": "the run may stop before its last round",
}


SEARCHED = "these cells are examples, as many as the search tries: it chooses their settings later"
SHALLOWEST = "FLOPs of a sample are those at the shallowest cut; totals count each client's own"
TOO_LARGE = "the model is too large to be loaded for a plan, so no step was timed"
TOO_SLOW = (
    "a step of this model takes long, so none was computed: activations are those of the model "
    "alone in float32, and seconds those of a pass of the head, scaled by operations"
)


def plan(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    *,
    timing: bool = True,
    read_data: bool = False,
    epsilon: float | None = None,
    data: Any = None,  # noqa: ANN401 - many forms
    model: Any = None,  # noqa: ANN401
    plugins: Given = (),
    **columns: Any,  # noqa: ANN401
) -> Forecast:
    """Say what a run of a scenario will take, without training it.

    Args:
        scenario: A file or shipped name, its fields as a dict, or a scenario.
        timing: Whether to time a step or two on this machine.
        read_data: Whether to read the data wherever they are. Otherwise only small ones that are at
            hand are read; of others the shape and the number of samples are known.
        epsilon: A budget of the whole run; the forecast then has the noise that reaches it.
        data: Arrays, texts, a Dataset, a frame, ... in place of the scenario's data (see `own`).
        model: A `SplitModel`, or head, trunk and tail, in place of the scenario's model.
        plugins: Modules with parts of your own; a loaded scenario has its own plugins already.
        columns: How `data` are read: a frame's `target`, texts' `task`, ... (see `own`).

    >>> plan("scenarios/quickstart.yaml").memory  # doctest: +SKIP
    """
    given = scenario_of(scenario, own(data, model, **columns), plugins)
    with pin_threads(given.threads):
        return _plan(given, timing=timing, read=read_data, epsilon=epsilon)


def plan_sweep(
    sweep: Sweep,
    *,
    timing: bool = True,
    read_data: bool = False,
    tell: Callable[[str], None] = lambda cell: None,
) -> SweepForecast:
    """Say what the cells of a sweep will take; `tell` is told each cell before it is planned."""
    made: dict[str, Forecast] = {}
    notes = [] if sweep.search is None else [SEARCHED]
    for cell in sweep.cells:
        tell(cell.name)
        made[cell.name] = plan(cell.scenario, timing=timing, read_data=read_data)
    return SweepForecast(sweep.name, made, notes)


def _plan(scenario: Scenario, *, timing: bool, read: bool, epsilon: float | None) -> Forecast:
    kept, settled = _settle_model(_strip(scenario))
    too_large = _is_too_large(kept)
    with make_weightless(wanted=too_large):
        outline = outline_data(kept, read=read)
        prober = Prober(kept, outline.data)
        network = kept.network or NetworkConfig()
        clocks = _build_clocks(kept, prober, network)
        draft = RunDraft(prober, outline, clocks)
        rounds = list(draft.play())
        main = draft.program.phases[-1]
        train_s = evaluate_s = None
        if timing and not too_large:
            train_s, evaluate_s = _estimate_wall_s(prober, main, draft, rounds)
        private = foresee_privacy(
            scenario, outline.data.parts, prober, draft, rounds, epsilon=epsilon
        )
        process = estimate_memory(prober.assembler.owners, outline.data)
        facts = Facts(
            name=scenario.name,
            num_clients=scenario.clients.count,
            client_names=outline.data.client_names,
            chains=_list_chains(scenario),
            samples=outline.counts,
            network=describe_network(network),
            is_network_given=scenario.network is not None,
            topology=kept.crossings,
            flops=prober.assembler.flops,
            footprints=measure_footprints(prober, main),
            process=replace(process, parts={**process.parts, "samples": outline.nbytes}),
            train_s=train_s,
            evaluate_s=evaluate_s,
            notes=(
                *outline.notes,
                *([TOO_LARGE] if prober.is_weightless else [TOO_SLOW] if prober.is_slow else []),
                *filter(None, [prober.assembler.owners.copies]),
                *draft.notes,
                *settled,
                *_list_omissions(scenario),
            ),
            **private,
        )
        return Forecast(facts, rounds)


def _is_too_large(scenario: Scenario) -> bool:
    """Return whether a scenario's model is planned without its weights."""
    model = scenario.model
    if not isinstance(model, LanguageConfig) or model.encodes():
        return False
    info = scenario.data.describe()
    assert info is not None, "sources of texts know their shape"
    with make_weightless():
        made = model.build(info.shape, info.classes, scenario.seed)
    segments = (made.head, made.trunk, made.tail)
    held = 4 * sum(p.numel() for each in segments for p in each.parameters())
    return held > min(LARGE, read_free_bytes(torch.device("cpu")) // 2) or not model.has_weights()


def _strip(scenario: Scenario) -> Scenario:
    """Return the scenario without what is not planned."""
    clients = scenario.clients.model_copy(update={"malicious": None})
    return scenario.model_copy(
        update={
            "attacks": (),
            "detectors": (),
            "observers": (),
            "stop": None,
            "clients": clients,
            "engine": scenario.inline_engine,
        }
    )


def _list_omissions(scenario: Scenario) -> list[str]:
    """List what the scenario has and the forecast leaves out, or assumes."""
    left_out = [words for name, words in _SKIPPED.items() if getattr(scenario, name)]
    if scenario.clients.malicious is not None and scenario.clients.malicious.has_aim:
        left_out.append("triggered test samples cross in evaluation too")
    if set(scenario.metrics) & GENERATION_METRICS.keys():
        left_out.append("texts that models write cross, and take time, in evaluation too")
    notes = [f"not counted: {words}" for words in left_out]
    if scenario.cohort.deadline_s is not None:
        notes.append("who is late on another link is taken to be late on the scenario's network")
    if scenario.has_own_cuts:
        notes.append(SHALLOWEST)
    if scenario.inline_engine.stack != "off":
        notes.append(_describe_stacking(scenario))
    return notes


def _describe_stacking(scenario: Scenario) -> str:
    """Say whether clients are stacked, and what the seconds of a plan then are."""
    if (why := next(list_obstacles(scenario), None)) is not None:
        return f"clients are not stacked: {why}"
    how = "if the run finds it faster" if scenario.inline_engine.stack == "auto" else "in each step"
    alone = ", malicious ones one by one" if scenario.clients.malicious is not None else ""
    return f"clients are stacked {how}{alone}; seconds are those of one client after another"


def _settle_model(scenario: Scenario) -> tuple[Scenario, list[str]]:
    """Return the scenario with random weights for a model of ours that is not pretrained yet."""
    model = scenario.model
    if not isinstance(model, TextModel) or model.own_name is None or has_pretrained(model.own_name):
        return scenario, []
    sizes = {"public": True}
    fields = {"family", "width", "layers", "heads", "vocabulary"}
    sizes |= find_named(model.own_name).model_dump(include=fields)
    made = type(model).model_validate({**model.model_dump(), "name": None, "sizes": sizes})
    note = f"{model.origin} is to be pretrained first, for minutes; its layers' widths are assumed"
    return scenario.model_copy(update={"model": made}), [note]


def _build_clocks(scenario: Scenario, prober: Prober, network: NetworkConfig) -> dict[str, Clock]:
    """Build the clock of a network, and those with each link profile in its place."""
    if not scenario.crossings.accounted:
        return {}
    timed = scenario if scenario.network else scenario.model_copy(update={"network": network})
    own_clock = build_clock(timed, prober.assembler.flops)
    clocks = {OWN: own_clock}
    for link in LINKS:
        other = network.model_copy(
            update={"link": link, "up_mbps": None, "down_mbps": None, "latency_ms": None}
        )
        rates = other.draw_rates(scenario.clients.count, scenario.seed)
        clocks[link] = replace(own_clock, rates=rates)
    return clocks


_UNITS = {
    "up_mbps": "Mbps up",
    "down_mbps": "Mbps down",
    "latency_ms": "ms latency",
    "gflops": "GFLOPS",
}
"""The speeds that a network may set in place of its profiles', and their units."""


def describe_network(network: NetworkConfig) -> str:
    """Return the devices and links of a network in words."""
    device, link = (
        each if isinstance(each, str) else " and ".join(each)
        for each in (network.device, network.link)
    )
    own = {name: getattr(network, name) for name in _UNITS}
    speeds = [f"{value:g} {_UNITS[name]}" for name, value in own.items() if value is not None]
    return ", ".join([link, device, *(f"with {format_list(speeds)}" for _ in speeds[:1])])


def _estimate_wall_s(
    prober: Prober, phase: Phase, draft: RunDraft, rounds: Sequence[DraftRound]
) -> tuple[float, float]:
    """Time a step and an evaluation, and return the seconds that all take."""
    flops = prober.assembler.flops
    each = 3 * (flops.head + flops.trunk + flops.tail)
    work = [_sum_work(prober.scenario, each) for each in rounds]
    samples = sum(count for _, count in work)
    assembler = prober.assembler
    if prober.is_slow and (
        speed := measure_head_speed(assembler.owners, prober.number, assembler.autocast)
    ):
        return samples * each / speed, _count_evaluated(prober, draft) * each / 3 / speed
    rows = max(2, min(prober.batch_rows, int(TIMED / each) if each else prober.batch_rows))
    batch = torch.arange(rows) % len(prober.feeds["private"].part)
    spent: list[float] = []
    while len(spent) < MOST_TIMED and sum(spent) < ENOUGH_S:  # the first one warms up
        begun = time.perf_counter()
        prober.step(phase, batch)
        spent.append(time.perf_counter() - begun)
    steps = sum(count for count, _ in work)
    full = rows == prober.batch_rows
    trained_s = min(spent) * (steps if full else samples / rows)
    return trained_s, _estimate_evaluation_s(prober, phase, draft, each / 3)


def _sum_work(scenario: Scenario, one: DraftRound) -> tuple[int, int]:
    """Sum a round's steps and samples; those of parties are one step of the same samples."""
    add = max if scenario.parties else sum
    steps, samples = (add([each[place] for each in one.work.values()] or [0]) for place in (0, 1))
    return steps * one.times, samples * one.times


def _estimate_evaluation_s(prober: Prober, phase: Phase, draft: RunDraft, each: float) -> float:
    """Time the evaluation of a batch, and return the seconds that all samples take.

    `each` are the operations of one sample.
    """
    splits = prober.scenario.splits
    if not splits:
        return 0.0
    # As large as in the run: a batch of training may have two samples, of clients with few.
    rows = min(prober.scenario.evaluate.batch_size, draft.book.outline.counts[splits[0]])
    few = torch.arange(max(1, min(rows, int(TIMED / each) if each else rows)))
    begun = time.perf_counter()
    prober.predict(phase, splits[0], few, "")
    spent = time.perf_counter() - begun
    return spent / len(few) * _count_evaluated(prober, draft)


def _count_evaluated(prober: Prober, draft: RunDraft) -> int:
    """Count the samples of all evaluations, each as often as a model predicts it."""
    config, counts = prober.scenario.evaluate, draft.book.outline.counts
    samples = sum(counts[split] for split in prober.scenario.splits)
    scored = 1 if prober.scenario.parties else len(draft.list_scored())
    models = scored * (1 + len(config.controls))
    return samples * models * config.count_due(draft.program.rounds)


def _list_chains(scenario: Scenario) -> list[str]:
    """List the methods at each party's cut, where they differ; else none."""
    parties = scenario.parties if scenario.has_own_methods else ()
    chains = (scenario.select_methods(party).values() for party in parties)
    return [", ".join(each.kind_name for each in chain) or "none" for chain in chains]
