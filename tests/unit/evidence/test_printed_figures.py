"""Each statement holds on the paper's own printed figures, or says why these cannot decide it."""

from collections.abc import Iterator, Mapping
from itertools import groupby, product

import pytest

from simsplit.evidence.claims import FIGURE, Axes, Claim, Claims, Statement
from simsplit.evidence.papers import load_papers
from simsplit.evidence.statements import Comparison

_ROUNDING = 1e-9
EVERY = [
    pytest.param(paper, name, id=f"{paper}/{name}")
    for paper, claims in load_papers().items()
    for name, claim in claims.tables.items()
    if claim.holds
]


class PrintedFigures:
    """The figures that a paper prints for a table: there, or where it has its rows from."""

    def __init__(self, claims: Claims, claim: Claim) -> None:
        self.claim = claim
        self.source = claims.tables[claim.rows_of] if claim.rows_of else claim

    def find(self, axes: Axes, name: str) -> float | None:
        """Return a figure of a row: printed, or put against another printed row."""
        claim = self.claim
        alone = {axis: claim.values(axis)[0] for axis in claim.axes if len(claim.values(axis)) == 1}
        axes = {**alone, **axes}
        for claim in (self.claim, self.source):
            for row, printed in claim.rows:
                if name in printed and all(row.get(axis, v) == v for axis, v in axes.items()):
                    return printed[name]
        figure = self.claim.figures[name]
        if not figure.of or figure.as_ == "variation":
            return None
        mine = self.find(axes, figure.of)
        other = self.find({**axes, **figure.against}, figure.of)
        leaks = {leaked: self.find(axes, leaked) for leaked in figure.leaked}
        if mine is None or other is None or None in leaks.values():
            return None
        leak = sum(weight * leaks[leaked] for leaked, weight in figure.leaked.items())
        return figure.compare(mine, other, leak)

    def has(self, axis: str, value: str) -> bool:
        """Return whether the paper prints any figure for a value of an axis."""
        return any(
            printed and row.get(axis) == value
            for claim in (self.claim, self.source)
            for row, printed in claim.rows
        )


def list_places(figures: PrintedFigures, statement: Statement, where: Axes) -> Iterator[Axes]:
    """Yield where a statement would be made in the paper: in place of a row of ours, everywhere.

    A statement on MNIST, which stands for Fashion-MNIST, must hold on all data of the paper.
    """
    ours = [axis for axis in statement.for_ if not figures.has(axis, where[axis])]
    values = [[v for v in figures.claim.values(axis) if figures.has(axis, v)] for axis in ours]
    for chosen in product(*values):
        yield {**where, **dict(zip(ours, chosen, strict=True))}


def holds_on(figures: PrintedFigures, statement: Statement, comparison: Comparison, where: Axes):
    """Return whether a comparison holds on what is printed; None where something is not."""
    if statement.along == FIGURE:
        found = {name: figures.find(where, name) for name in comparison.rows}
    else:
        along = statement.along
        found = {row: figures.find({**where, along: row}, statement.in_) for row in comparison.rows}
    if None in found.values():
        return None
    return is_so(comparison, found)


def is_so(comparison: Comparison, values: Mapping[str, float]) -> bool:
    difference = comparison.difference(values)
    if comparison.sign == "~":
        return abs(difference) <= comparison.within + _ROUNDING
    if comparison.sign in ("<", "<="):
        difference = -difference
    return difference >= -_ROUNDING if "=" in comparison.sign else difference > 0


def judge_on_paper(claims: Claims, claim: Claim) -> Iterator[tuple[Statement, list[tuple]]]:
    """Yield each statement with the outcome of each comparison that the paper's figures decide."""
    figures = PrintedFigures(claims, claim)
    for _, group in groupby(claim.comparisons(), key=lambda made: id(made[0])):
        made = list(group)
        outcomes = {
            (str(comparison), tuple(sorted(place.items()))): outcome
            for statement, where, comparison in made
            for place in list_places(figures, statement, where)
            if (outcome := holds_on(figures, statement, comparison, place)) is not None
        }
        yield made[0][0], list(outcomes.items())


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_a_statement_holds_on_the_papers_own_figures_or_says_why_they_cannot_decide_it(paper, name):
    claims = load_papers()[paper]
    for statement, outcomes in judge_on_paper(claims, claims.tables[name]):
        against = [made for made, outcome in outcomes if not outcome]
        if statement.most:
            against = against if 2 * len(against) >= len(outcomes) else []
        assert not against, (statement.that, statement.in_, against)
        if outcomes:
            assert not statement.unprinted, (statement.that, "is decided by the paper's figures")
        else:
            assert statement.unprinted or statement.ours, (statement.that, statement.in_)


def test_a_statement_against_the_papers_own_cell_is_caught():
    """The evaluation itself can fail: 95 % at 32x is what the paper's table denies."""
    claims = load_papers()["lightsplit"]
    claim = claims.tables["table9"]
    where = {"partition": "iid", "cut": "l2h", "heads": "shared"}
    for bound, right in ((0.95, False), (0.94, True)):
        said = Statement.model_validate(
            {
                "that": f"lightsplit-32 / raw >= {bound}",
                "in": "accuracy",
                "for": {**where, "data": "cifar10"},
            }
        )
        other = claim.model_copy(update={"holds": (said,)})
        ((_, outcomes),) = judge_on_paper(claims, other)
        assert [outcome for _, outcome in outcomes] == [right]


def test_a_row_of_ours_is_held_against_all_rows_of_the_papers():
    claims = load_papers()["pidi"]
    said = Statement.model_validate(
        {"that": "admi < mid", "in": "ap", "for": {"model": "demo", "data": "docs"}}
    )
    claim = claims.tables["table2"].model_copy(update={"holds": (said,)})
    ((_, outcomes),) = judge_on_paper(claims, claim)
    assert len(outcomes) == 9
    assert sum(not outcome for _, outcome in outcomes) == 2
