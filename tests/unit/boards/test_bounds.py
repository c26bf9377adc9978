"""Beside the epsilon that a strength claims stands what an audit shows of it."""

from planted_boards import measure_at, plant

from simsplit.boards.entries import build_board
from simsplit.boards.figure_names import AUDITED, EPSILON, LEAKS
from simsplit.boards.guarantees import describe_guarantees
from simsplit.boards.tabulating import describe_board, tabulate_strengths
from simsplit.evidence.evidence_tables import KnownRows
from simsplit.metrics.metric_registry import METRICS

NOTHING = KnownRows({}, {})
HEADS = [METRICS[name].words for name in (EPSILON, AUDITED)]


def read_bounds(rows):
    table = tabulate_strengths(plant({name: [name] for name in rows}, rows))
    return {row[1]: [row[table.columns.index(name)] for name in HEADS] for row in table.rows}


def test_an_audits_bound_stands_beside_the_epsilon_and_refutes_it_where_it_is_larger():
    plain = measure_at(90, 0.8)
    rows = {
        "none": plain | {AUDITED: [3.0, 3.0, 3.0]},
        "holds": plain | {EPSILON: [8.0, 8.0, 8.0], AUDITED: [1.0, 1.5, 2.0]},
        "broken": plain | {EPSILON: [1.0, 1.0, 1.0], AUDITED: [2.0, 2.0, 2.0]},
    }
    read = read_bounds(rows)
    assert read["none"] == ["none", "3.00 ± 0.00"]
    assert read["holds"][1].startswith("1.50 ±")
    assert [name for name, (_, audited) in read.items() if "REFUTED" in audited] == ["broken"]
    strengths = {
        each["strength"]: each
        for each in describe_board(plant({name: [name] for name in rows}, rows))["strengths"]
    }
    assert strengths["holds"][AUDITED] == 1.5
    assert strengths["holds"][EPSILON] == 8


def test_a_board_without_audits_has_no_columns_for_them():
    plain = measure_at(90, 0.8)
    table = tabulate_strengths(plant({"none": ["none"]}, {"none": plain}))
    assert not {*HEADS} & {*table.columns}


def test_members_are_audited_in_runs_of_their_own_and_canaries_are_no_leak():
    board = build_board("members", "quick", known=NOTHING)
    assert "canaries" not in board.attacks
    assert "canaries" not in board.beside["wire"]
    audits = [cell for cell in board.table.cells if AUDITED in cell.digests]
    assert len(audits) == len(board.scenarios)
    assert not any(LEAKS in name for cell in audits for name in cell.digests)
    claimed = {cell.axes["defence"] for cell in audits if EPSILON in cell.digests}
    assert claimed == {f"train-dp-{budget}-frozen" for budget in (2, 8, 50)}


def test_a_budget_is_said_as_it_was_given():
    scenarios = build_board("members", "quick", known=NOTHING).scenarios
    lines = [*describe_guarantees({"it": scenarios["train-dp-8-frozen"]})]
    assert len(lines) == 1
    assert "epsilon 8 " in lines[0]
