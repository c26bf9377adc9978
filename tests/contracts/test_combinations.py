"""Methods, attacks, detectors and poisons together, of either modality: refused by path, or run.

And the table of what works with what says the same as scenarios do.
"""

import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from contracts.walk import (
    EVERY_PART,
    OF_LABELS,
    TOPOLOGIES,
    Axes,
    Part,
    Walker,
    assert_no,
    refusal,
    small_judges,
)

from simsplit.attacks import ATTACKS
from simsplit.catalogue import tabulate_catalogue
from simsplit.detectors import DETECTORS
from simsplit.methods import METHODS
from simsplit.needs import Given
from simsplit.poisons import POISONS
from simsplit.scenario.files import merge
from simsplit.topologies import TOPOLOGIES as REGISTRY

Row = tuple[Part, ...]
"""A method, an attack, a detector and a poison."""
MOST = 5
"""Rows that share a run."""
BESIDE_EACH = 6
"""Pairs of a detector and a poison that are read beside each pair of a method and an attack."""
PLACES = {
    "method.0": METHODS,
    "attacks.0": ATTACKS,
    "detectors.0": DETECTORS,
    "clients.malicious.poison.0": POISONS,
}

SHARED: Axes = ("u_shaped", "shared", "round_robin", "none")
TURNS: Axes = ("u_shaped", "shared", "per_client", "none")


OWN: Axes = ("u_shaped", "own", "round_robin", "none")


def plain(part: Part) -> Axes:
    needs = {need.what for need in part.config().needs}  # type: ignore[attr-defined]
    if Given.OWN_ADAPTERS in needs:
        return OWN
    return TURNS if Given.TURNS in needs else SHARED


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_table_says_what_scenarios_are_refused_for(topology: str) -> None:
    (table,) = tabulate_catalogue("compatibility")
    facts = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    parts = {part.kind: part for part in EVERY_PART}
    assert facts.keys() == parts.keys()
    if REGISTRY[topology].joint:  # what parties cannot have is no need of a part: rules say it
        assert topology not in table.columns
        return
    wrong = []
    for (kind, row), texts in itertools.product(facts.items(), (False, True)):
        whole = bool(REGISTRY[topology].whole_model)
        part = Part(parts[kind].where, kind, parts[kind].config, texts=texts and whole)
        promised = row["texts" if texts else "images"] == row[topology] == "yes"
        promised = promised and (texts or not whole)
        error = refusal((topology, *plain(part)[1:]), part.changes, texts=texts)
        of_one = Given.CLASSIFIES in {need.what for need in part.config().needs}  # type: ignore[attr-defined]
        if texts and of_one and kind not in OF_LABELS and not whole:
            promised = False  # the walk's texts are read by a model that predicts tokens
        if promised is not (error is None) and not (kind == "adaptive_online" and error):
            wrong.append(f"{kind}, texts: {texts}: the table says {promised}, the scenario {error}")
    assert_no(wrong)


def kinds_for(where: str, *, texts: bool) -> list[Part]:
    """List the kinds at one place that are for this kind of data."""
    parts = [Part(where, kind, config, texts=texts) for kind, config in PLACES[where].items()]
    return [part for part in parts if not other_data(part)]


def other_data(part: Part) -> bool:
    wanted = {need.what for need in part.config().needs}  # type: ignore[attr-defined]
    other = {Given.IMAGES, Given.NUMBERS, Given.TABLES} if part.texts else {Given.TEXTS}
    return bool(wanted & other)


def by_party(part: Part) -> bool:
    """Tell whether it can only be where clients are parties, which they are in no row here."""
    return Given.PARTIES in {need.what for need in part.config().needs}  # type: ignore[attr-defined]


def many_rows(*, texts: bool) -> Iterator[Row]:
    """Yield each method with each attack, and both with some of all pairs of the other two.

    Of these, each is with every detector and every poison then, for each needs something of
    another, and nothing of a third.
    """
    methods, attacks, detectors, poisons = (kinds_for(where, texts=texts) for where in PLACES)
    others = list(itertools.product(detectors, poisons))
    for method, attack in itertools.product(methods, attacks):
        some = random.Random(f"{method} {attack}").sample(others, min(BESIDE_EACH, len(others)))
        yield from ((method, attack, detector, poison) for detector, poison in some)


def some_rows(*, texts: bool) -> Iterator[Row]:
    """Yield each method with each attack, and detectors and poisons in turn."""
    methods, attacks, detectors, poisons = (kinds_for(where, texts=texts) for where in PLACES)
    for (i, method), (j, attack) in itertools.product(enumerate(methods), enumerate(attacks)):
        detector = detectors[(i + j) % len(detectors)]
        yield method, attack, detector, poisons[(i + j // 2) % len(poisons)]


def combine(row: Row) -> tuple[Axes, dict[str, Any]]:
    """Build a scenario of these four parts, as the method needs it."""
    changes: dict[str, Any] = functools.reduce(merge, (part.changes for part in row))
    by_turns = any(plain(part) is TURNS for part in row)
    return (TURNS if by_turns else SHARED), {**changes, "method": row[0].changes["method"]}


def combine_all(rows: Sequence[Row]) -> tuple[Axes, dict[str, Any]]:
    """Build a scenario of all attacks, detectors and poisons of rows with one method."""
    axes, changes = combine(rows[0])
    _, attacks, detectors, poisons = zip(*rows, strict=True)
    changes["attacks"] = distinct(part.changes["attacks"] for part in attacks)
    changes["detectors"] = distinct(part.changes["detectors"] for part in detectors)
    malicious = [part.changes["clients"]["malicious"] for part in poisons]
    poison = {"malicious": {**malicious[0], "poison": distinct(m["poison"] for m in malicious)}}
    return axes, merge(changes, {"clients": poison})


def distinct(lists: Iterable[list[Any]]) -> list[Any]:
    every = list(itertools.chain(*lists))
    return [each for index, each in enumerate(every) if each not in every[:index]]


def explain_refusal(row: Row) -> str | None:
    """Return why they are refused; an empty text where the error names a field of theirs."""
    axes, changes = combine(row)
    message = refusal(axes, changes, texts=row[0].texts)
    if message is None:
        return None
    theirs = (*PLACES, "clients.malicious")
    return "" if message.field.startswith(theirs) else f"{describe(row)}: {message}"


def describe(*rows: Row) -> str:
    kinds = (", ".join(part.kind for part in row) for row in rows)
    return f"{'texts' if rows[0][0].texts else 'images'}: {'; '.join(kinds)}"


def explain_failure(rows: Sequence[Row], walker: Walker, *, half: bool = False) -> str | None:
    """Return what goes wrong in a round with all of these, its detection and its attacks."""
    axes, changes = combine_all(rows)
    if half:  # what clients send is bf16 then, and what attackers compute in is not
        changes = merge(changes, {"train": {"precision": "bf16"}})
    try:
        seen = walker.observe_run(axes, changes, texts=rows[0][0].texts)
        result, _ = seen.made.live.detection.judge_round(1)
        judged = seen.made.live.attacking.judge(1, lambda what, done, total: None)
    except Exception as error:  # noqa: BLE001 - whatever a combination that was let through throws
        return f"{describe(*rows)}: {type(error).__name__}: {error}"
    losses = [report["train_loss"] for report in seen.reports.values() if "train_loss" in report]
    if not torch.tensor(losses).isfinite().all():
        return f"{describe(*rows)}: loses {losses}"
    scored = {each["attack"] for each in judged.leaks}
    lacking = {row[1].kind for row in rows} - scored
    # of few samples an untrained MLP shows gradients of one class alone, which this one compares
    of_mlp = changes.get("model", {}).get("kind") == "mlp"
    unseen = of_mlp and all(detector.kind == "mislabelled" for _, _, detector, _ in rows)
    judges = result.clients or unseen
    return f"{describe(*rows)}: nobody detects or recovers" if lacking or not judges else None


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Walker:
    return Walker(tmp_path_factory.mktemp("combinations"))


def sound_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the accepted rows; each of the others must be refused by a field of its own."""
    lines = [(row, explain_refusal(row)) for row in rows]
    assert_no([why for _, why in lines if why])
    return [row for row, why in lines if why is None]


@pytest.mark.parametrize("texts", [False, True], ids=["images", "texts"])
def test_each_method_with_each_attack_is_refused_by_a_path_or_not_and_one_of_them_runs(
    texts: bool, walker: Walker, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_judges(monkeypatch)
    rows = list(some_rows(texts=texts))
    sound = sound_rows(rows)
    able = [row for row in rows if not any(by_party(part) for part in row)]
    assert not any(by_party(part) for row in sound for part in row)
    assert len(sound) > len(able) / 2
    assert explain_failure([sound[len(sound) // 2]], walker) is None


@pytest.mark.slow
@pytest.mark.parametrize("texts", [False, True], ids=["images", "texts"])
def test_all_four_are_refused_by_a_path_or_run(
    texts: bool, walker: Walker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many are read; of the accepted ones, so many run that each pair is in a run. A run
    has several attacks, detectors and poisons; every other one is in half precision.
    """
    small_judges(monkeypatch)
    given = list(many_rows(texts=texts))
    kinds = [(part.where, part.kind) for where in PLACES for part in kinds_for(where, texts=texts)]
    assert list_pairs(given) == {
        pair for pair in itertools.combinations(kinds, 2) if pair[0][0] != pair[1][0]
    }
    rows = list(cover_pairs(sound_rows(given)))
    runs = enumerate(runs_of(rows))
    assert_no([why for i, run in runs if (why := explain_failure(run, walker, half=i % 2 == 1))])


def runs_of(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Group all rows into runs: each of one method, and of attacks of one kind with the same needs.

    A row joins the first run that a scenario may have with it.
    """
    alike: dict[Any, list[list[Row]]] = {}
    for row in rows:
        attack = ATTACKS[row[1].kind]
        work = attack.recovers, attack.threat.follows_training
        key = row[0].kind, combine(row)[0], repr(row[1].around), *work
        runs = alike.setdefault(key, [])
        run = next((run for run in runs if len(run) < MOST and may_hold(run, row)), None)
        if run is None:
            runs.append([row])
        else:
            run.append(row)
    for runs in alike.values():
        yield from runs


def may_hold(run: list[Row], row: Row) -> bool:
    axes, changes = combine_all([*run, row])
    return refusal(axes, changes, texts=row[0].texts) is None


def cover_pairs(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a few of these rows, which have each pair of parts that any of them has."""
    left = list_pairs(rows)
    for wanted in range(6, 0, -1):  # those first that have many a pair that is not yet covered
        for row in rows:
            new = left & set(itertools.combinations(row_key(row), 2))
            if len(new) >= wanted:
                left -= new
                yield row


def list_pairs(rows: Iterable[Row]) -> set[tuple[tuple[str, str], ...]]:
    return {pair for row in rows for pair in itertools.combinations(row_key(row), 2)}


def row_key(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple((part.where, part.kind) for part in row)
