"""The bound of an audit stands beside the epsilons that its pairs are neighbours of, alone."""

import pytest
from builders import scenario

from simsplit.privacy.accounting import _INPUT as INPUT
from simsplit.privacy.accounting import _LABEL as LABEL
from simsplit.privacy.accounting import _TOKEN as TOKEN
from simsplit.privacy.accounting import _WHOLE as WHOLE
from simsplit.privacy.accounting import WEIGHTS_ALONE, choose_audit
from simsplit.report.privacy import tabulate_entries, write_audit, write_epsilon_of

BOUNDS = {"value": 3.0, "of_weights": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("protects", "audited", "expected"),
    [
        (INPUT, "input", 3.0),
        (INPUT, "label", None),
        (INPUT, "sample", None),
        (LABEL, "label", 3.0),
        (LABEL, "sample", None),
        (WHOLE, "input", 3.0),
        (WHOLE, "sample", 3.0),
        (TOKEN, "input", None),
    ],
)
def test_a_bound_is_of_guarantees_whose_neighbours_its_pairs_are(protects, audited, expected):
    entry = {"protects": protects, "delta": 1e-5}
    assert choose_audit(scenario(), entry, audited, BOUNDS) == expected


def test_weights_are_held_against_the_model_alone_unless_a_part_learns_without_noise():
    frozen = scenario(model={"learns": ["head", "tail"]})
    entry = {"protects": WEIGHTS_ALONE, "delta": 1e-5}
    assert choose_audit(frozen, entry, "sample", BOUNDS) == 1.0
    assert choose_audit(scenario(), entry, "sample", BOUNDS) is None


def test_a_bound_at_a_smaller_delta_is_no_bound_of_a_guarantee_at_a_larger_one():
    """It may be larger than an epsilon that holds at the larger delta."""
    assert choose_audit(scenario(), {"protects": WHOLE, "delta": 1e-3}, "sample", BOUNDS) is None
    assert choose_audit(scenario(), {"protects": WHOLE, "delta": 1e-7}, "sample", BOUNDS) == 3.0
    assert choose_audit(scenario(), {"protects": WHOLE}, "sample", BOUNDS) == 3.0


def make(epsilon, **more):
    entry = {"method": "dp_forward", "protects": INPUT, "epsilon": epsilon, "none": "why"}
    return entry | {"times_sent": 2, "delta": 1e-5} | more


def test_tables_show_the_bound_and_whether_it_refutes_the_guarantee():
    table = tabulate_entries([make(8.0, audited=1.3), make(None)])
    assert table.columns[-1] == "audit"
    assert [row[-1] for row in table.rows] == ["at least 1.3", ""]
    assert len(table.columns) == len(table.rows[0]) == len(table.align)
    assert "REFUTED" in write_audit(make(8.0, audited=9.0))
    assert "REFUTED" not in write_audit(make(None, audited=9.0))
    assert "REFUTED" in write_audit(make(8.0, audited=6.0, audited_against=5.0)), "by its client"
    assert "REFUTED" not in write_audit(make(8.0, audited=6.0, audited_against=7.0))
    assert "audit" not in tabulate_entries([make(8.0)]).columns


def test_cells_show_the_bound_behind_the_epsilon():
    assert write_epsilon_of([[make(8.0, audited=1.0)], [make(8.0, audited=2.0)]]) == (
        f"8 ({INPUT}; audit: at least 1.5)"
    )
    assert write_epsilon_of([[make(8.0)]]) == f"8 ({INPUT})"
    assert write_epsilon_of([[make(None, audited=2.0)]]) == "none; audit: at least 2"
