"""Every table and figure of each paper is listed, and what a claim names is there.

The papers' texts are not part of this repository: the lists of names are written by hand from them.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import get_args

import pytest

from simsplit.evaluation.evaluator import AnyMetric, list_figure_columns
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.evidence.claims import FIGURE, Axes, Claim, Claims, Measured, RowGate, load_claims
from simsplit.evidence.measuring_cells import list_cells
from simsplit.evidence.statements import parse_statement
from simsplit.protocols import LEGS
from simsplit.report.numbers import _DETECTED
from simsplit.results.leak_table import INPUTS
from simsplit.results.recovered_kinds import KINDS, SIDES, list_reserved
from simsplit.scenario import Scenario
from simsplit.scenario.shipped import CLAIMS, find_folder


def number_names(what: str, last: int) -> set[str]:
    return {f"{what}{number}" for number in range(1, last + 1)}


PAPERS: Mapping[str, set[str]] = {
    "lightsplit": number_names("table", 17) | number_names("figure", 24),
    "mixguard": number_names("table", 8) | number_names("figure", 5),
    "p3eft": number_names("table", 8) | number_names("figure", 3) | {"appendix_c"},
    "pidi": number_names("table", 13) | number_names("figure", 11),
    "safesplit": number_names("table", 6) | number_names("figure", 11),
    "vertical": {"completion"},
}
DRAWINGS = {
    "lightsplit": number_names("figure", 3),
    "mixguard": {"figure1"},
    "p3eft": {"figure1"},
    "pidi": number_names("figure", 3),
    "safesplit": number_names("figure", 4),
    "vertical": set(),
}
_ONCE = {"seconds", "simulated_s", "resident_bytes", "attack_success", "attack_success_all"}
_ONCE |= {"bytes_total", "bytes_plain", "bytes_per_sample", "seconds_per_sample"}
_LABELS = (
    "labels",
    "labels_known",
    *(f"labels_{v}" for v in KINDS["labels"].views),
    *(f"labels_known_{v}" for v in KINDS["labels"].views),
)
_ONCE |= {f"{name}_{figure}" for name in _LABELS for figure in ("leak", "chance")}
_ONCE |= {"sessions_ap", "sessions_mp"}


@cache
def read(paper: str) -> Claims:
    return load_claims(find_folder() / "papers" / paper / CLAIMS)


@cache
def cells(paper: str, table: str, tier: str) -> list:
    return list_cells(read(paper).tables[table], tier, find_folder() / "papers" / paper)


def cells_of_entry(paper: str, table: str, tier: str, entry: Measured) -> list:
    """Return the cells of one of the scenarios that measure a table."""
    claim = read(paper).tables[table]
    if len(claim.measured[tier]) == 1:
        return cells(paper, table, tier)
    alone = claim.model_copy(update={"measured": {tier: (entry,)}})
    return list_cells(alone, tier, find_folder() / "papers" / paper)


def every_claim(paper: str) -> Iterator[tuple[str, Claim]]:
    yield from read(paper).tables.items()


def columns_of(scenario: Scenario) -> set[str]:
    """Return the figures that `compare` can have of a run of a scenario."""
    asked = set(scenario.evaluate.metrics or ())
    metrics = [
        name for name in get_args(AnyMetric) if name in asked or name not in GENERATION_METRICS
    ]
    known = _ONCE | {f"bytes_{leg}" for leg in LEGS}
    known |= set(list_figure_columns(("test", "validation"), metrics, scenario.evaluate.controls))
    weights = scenario.targets.lpips is not None
    every = [name for kind in INPUTS for name in KINDS[kind].metrics]
    figures = [name for name in every if weights or not name.endswith("lpips")]
    for attack in [*(each.title for each in scenario.attacks), *list_reserved()]:
        known |= {f"{attack}_{figure}" for figure in figures}
        known |= {f"{attack}_ap_{side}" for side in SIDES}
        known |= {f"labels_{attack}_{figure}" for figure in ("leak", "chance")}
    for detector in scenario.detectors:
        known |= {f"{detector.title}_{figure}" for figure in (*_DETECTED, "z_malicious")}
    return known


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_is_listed(paper: str) -> None:
    assert set(read(paper).tables) == PAPERS[paper]


def test_every_paper_with_claims_is_counted() -> None:
    shipped = {path.parent.name for path in find_folder().glob(f"papers/*/{CLAIMS}")}
    assert shipped == set(PAPERS)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_is_measured_by_scenarios_that_are_there(paper: str) -> None:
    for name, claim in every_claim(paper):
        list(claim.comparisons())
        for tier, entries in claim.measured.items():
            for entry in entries:
                assert (find_folder() / "papers" / paper / entry.scenario).is_file(), (name, tier)
            assert cells(paper, name, tier), (name, tier)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_claim_says_what_it_is(paper: str) -> None:
    for name, claim in every_claim(paper):
        assert claim.title.startswith(("Table", "Figure", "Appendix")), name
        assert claim.says.endswith("."), name
        assert claim.says.count(". ") == 0, f"{name} takes one sentence"
        if name in DRAWINGS[paper]:
            assert claim.describes.startswith("a drawing of"), name
        elif claim.measured:
            assert claim.rows, name
            assert claim.holds, name
            assert not claim.describes, name


@pytest.mark.parametrize("paper", PAPERS)
def test_a_full_size_alone_says_why(paper: str) -> None:
    for name, claim in every_claim(paper):
        if claim.measured and "small" not in claim.measured:
            assert claim.out_of_reach, name


@pytest.mark.parametrize("paper", PAPERS)
def test_every_statement_can_be_judged_at_some_tier(paper: str) -> None:
    for name, claim in every_claim(paper):
        measured = [cell.axes for tier in claim.measured for cell in cells(paper, name, tier)]
        rows = [axes for axes, _ in claim.rows if any(fits(axes, other) for other in measured)]
        places: dict[int, list[bool]] = {}
        for statement, where, comparison in claim.comparisons() if claim.measured else ():
            sides = (
                [{}]
                if statement.along == FIGURE
                else [{statement.along: n} for n in comparison.rows]
            )
            wanted = [{**where, **side} for side in sides]
            is_there = all(any(fits(each, axes) for axes in rows) for each in wanted)
            places.setdefault(id(statement), []).append(is_there or bool(statement.out_of_reach))
        unjudged = [each.that for each in claim.holds if not any(places.get(id(each), [True]))]
        assert not unjudged, (name, unjudged)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_bound_has_its_origin(paper: str) -> None:
    """A number in a statement stands in what the table says, or in the notes on what was taken."""
    for name, claim in every_claim(paper):
        notes = " ".join([claim.says, *claim.silent])
        known = {abs(float(number)) for number in re.findall(r"\d+(?:\.\d+)?", notes)}
        for statement, _, comparison in claim.comparisons():
            sides = (comparison.left, comparison.right)
            terms = [term for side in sides for term in side.terms if isinstance(term, float)]
            bounds = {abs(bound) for bound in (*terms, comparison.within) if bound}
            assert bounds <= known, (name, statement.that, bounds - known)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_is_a_column_of_compare(paper: str) -> None:
    for name, claim in every_claim(paper):
        measured = {each: figure.is_ for each, figure in claim.figures.items() if figure.is_}
        for tier, entries in claim.measured.items():
            for entry in entries:
                result = cells_of_entry(paper, name, tier, entry)
                assert result or claim.rows_of, (name, entry.scenario)
                if not result:
                    continue  # another table's scenario, of rows that this one lacks
                scenario = scenario_of(result[0])
                wanted = {measured[each] for each in entry.figures or measured}
                assert wanted <= columns_of(scenario), (
                    entry.scenario,
                    wanted - columns_of(scenario),
                )


def scenario_of(cell) -> Scenario:
    return cell.scenario


def fits(wanted: Mapping[str, str], axes: Mapping[str, str]) -> bool:
    return all(axes.get(name) == value for name, value in wanted.items())


def test_what_is_judged_has_words_for_the_first_screen_and_nothing_else_has() -> None:
    for paper in PAPERS:
        for name, claim in read(paper).tables.items():
            assert bool(claim.short) == bool(claim.holds), (paper, name)


def test_what_is_judged_at_tier_small_has_a_gate_or_says_why_none() -> None:
    """A sentence on a network of 87 % is not judged by one of 53 %."""
    for paper in PAPERS:
        for name, claim in read(paper).tables.items():
            judged = claim.holds and "small" in claim.measured and not claim.out_of_reach
            assert bool(claim.gates) != bool(claim.ungated) if judged else True, (paper, name)


def test_each_gate_decides_on_a_row_that_tier_small_has() -> None:
    decided = {(id(gate)): f"{paper}/{name}: {gate.that}" for paper, name, gate in list_gates()}
    for paper, name, gate in list_gates():
        rows = [axes for axes, _ in read(paper).tables[name].rows]
        if any({**axes, **gate.at} in rows for axes in rows if gate.for_.items() <= axes.items()):
            decided.pop(id(gate))
    assert not decided


def test_no_gate_shuts_out_a_row_that_the_paper_prints() -> None:
    """A gate above what the paper itself reached would leave open what the paper shows."""
    shut = [
        f"{paper}/{name}: {gate.that} ({', '.join(axes.values())})"
        for paper, name, gate in list_gates()
        for axes, figures in find_gated(read(paper).tables[name], gate)
        for comparison in parse_statement(gate.that, read(paper).tables[name].figures, "")
        if figures.keys() >= set(comparison.rows) and not comparison.is_true(figures)
    ]
    assert not shut


def find_gated(claim: Claim, gate: RowGate) -> Iterator[tuple[Axes, dict[str, float]]]:
    """Find the printed rows by which a gate decides on others."""
    decided = [axes for axes, _ in claim.rows if gate.for_.items() <= axes.items()]
    by = [{**axes, **gate.at} for axes in decided]
    return ((axes, figures) for axes, figures in claim.rows if axes in by)


def list_gates() -> Iterator[tuple[str, str, RowGate]]:
    for paper in PAPERS:
        for name, claim in read(paper).tables.items():
            for gate in claim.gates:
                yield paper, name, gate
