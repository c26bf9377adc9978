"""A table is judged by its sentence: planted rows that a wrong rule would judge otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from simsplit.errors import ScenarioError
from simsplit.evidence.claims import Claim, RowGate
from simsplit.evidence.evidence_rows import EvidenceRow, Known
from simsplit.evidence.evidence_tables import judge_table, read_known_rows
from simsplit.evidence.judging_claims import count_of, judge_claim, judge_sentence, list_beyond
from simsplit.evidence.papers import list_tables
from simsplit.evidence.verdicts import ClaimVerdict

FIGURES = {
    "leak": {"is": "sdar_ssim", "better": "less", "floors": ["nothing"]},
    "worst": {"is": "ridge_ssim", "better": "less"},
    "nothing": {"is": "mean_image_ssim"},
    "ratio": {"of": "leak", "against": {"method": "raw"}},
}
READ = {"leak": (0.8, 0.81, 0.82), "worst": (0.9, 0.91, 0.92), "nothing": (0.1, 0.12, 0.11)}
HIDDEN = {"leak": (0.2, 0.22, 0.21), "worst": (0.9, 0.92, 0.93), "nothing": (0.1, 0.12, 0.11)}


def make_claim(*holds: Mapping[str, object], rows: Sequence[str] = ("raw", "ours")) -> Claim:
    return Claim.model_validate(
        {
            "title": "Table I",
            "says": "ours hides.",
            "figures": FIGURES,
            "printed": "\n".join(["method, leak", *(f"{row}, " for row in rows)]),
            "undefended": {"method": "raw"},
            "measured": {"small": [{"scenario": "x.yaml"}]},
            "holds": holds,
        }
    )


def make_row(method: str, figures: Mapping[str, Sequence[float]]) -> EvidenceRow:
    known = {name: Known(dict(enumerate(values))) for name, values in figures.items()}
    reached = frozenset({*figures} - {"ratio"})
    return EvidenceRow({"method": method}, {}, known, reached=reached)


def judge(claim: Claim, **rows: Mapping[str, Sequence[float]]):
    judged = judge_claim(claim, "small", [make_row(*row) for row in rows.items()])
    return judge_sentence(claim, judged), judged


LESS = {"that": "ours < raw", "in": "leak"}
STRICTER = {"that": "ours < raw", "in": "worst", "ours": "the worst attack"}


def test_a_stricter_measure_of_ours_never_makes_the_sentence_fail():
    claim = make_claim(LESS, {**STRICTER, "that": "ours < 0.5"})
    verdict, judged = judge(claim, raw=READ, ours=HIDDEN)
    assert verdict is ClaimVerdict.HOLDS
    assert (count_of(judged, ours=False).holds, count_of(judged, ours=False).fails) == (1, 0)
    assert (count_of(judged, ours=True).holds, count_of(judged, ours=True).fails) == (0, 1)
    alone = make_claim(LESS, {"that": "ours < 0.5", "in": "worst"})
    assert judge(alone, raw=READ, ours=HIDDEN)[0] is ClaimVerdict.FAILS


def test_a_measure_of_ours_does_not_make_the_sentence_hold_either():
    claim = make_claim(STRICTER | {"that": "raw > 0.5"})
    assert judge(claim, raw=READ, ours=HIDDEN)[0] is ClaimVerdict.NOT_MEASURED


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        ({"raw": READ, "ours": HIDDEN}, ClaimVerdict.NOT_SETTLED),
        ({"raw": READ, "ours": {**READ, "leak": (0.9, 0.92, 0.93)}}, ClaimVerdict.FAILS),
        ({"raw": READ}, ClaimVerdict.NOT_MEASURED),
    ],
)
def test_a_sentence_of_which_a_part_is_measured_is_not_settled(known, verdict):
    names = ("raw", "ours", "lacking")
    claim = make_claim(LESS, {"that": "lacking < raw", "in": "leak"}, rows=names)
    reached = frozenset(READ)
    rows = [replace(make_row(name, known.get(name, {})), reached=reached) for name in names]
    assert judge_sentence(claim, judge_claim(claim, "small", rows)) is verdict


def test_an_attack_at_its_floor_where_nothing_is_defended_settles_nothing():
    blind = {**READ, "leak": (0.12, 0.1, 0.11)}
    verdict, (judged,) = judge(make_claim(LESS), raw=blind, ours={**HIDDEN, "leak": (0, 0, 0)})
    assert verdict is ClaimVerdict.NOT_SETTLED
    assert "nothing" in judged.judged.why_open
    assert judge(make_claim(LESS), raw=READ, ours=HIDDEN)[0] is ClaimVerdict.HOLDS


def test_it_settles_no_failure_either():
    blind = {**READ, "leak": (0.12, 0.1, 0.11)}
    more = {**HIDDEN, "leak": (0.3, 0.32, 0.31)}
    assert judge(make_claim(LESS), raw=blind, ours=more)[0] is ClaimVerdict.NOT_SETTLED


def test_a_figure_against_another_rows_has_the_floors_of_its_own():
    blind = {**READ, "leak": (0.12, 0.1, 0.11), "ratio": (1, 1, 1)}
    ours = {**HIDDEN, "ratio": (0.25, 0.26, 0.27)}
    claim = make_claim({"that": "ours < 1", "in": "ratio"})
    assert judge(claim, raw=blind, ours=ours)[0] is ClaimVerdict.NOT_SETTLED
    assert judge(claim, raw={**READ, "ratio": (1, 1, 1)}, ours=ours)[0] is ClaimVerdict.HOLDS


def test_an_attack_whose_error_is_small_is_beyond_a_floor_whose_error_is_large():
    figures = {**FIGURES, "leak": {"is": "sdar_mse", "better": "more", "floors": ["nothing"]}}
    claim = make_claim({"that": "ours > raw", "in": "leak"}).model_copy(
        update={
            "figures": Claim.model_validate(
                {**make_claim().model_dump(by_alias=True), "figures": figures}
            ).figures
        }
    )
    near = {"leak": (0.01, 0.012, 0.011), "nothing": (0.06, 0.061, 0.062)}
    far = {"leak": (0.06, 0.062, 0.061), "nothing": (0.06, 0.061, 0.062)}
    ours = {"leak": (0.1, 0.11, 0.12), "nothing": (0.06, 0.061, 0.062)}
    assert judge(claim, raw=near, ours=ours)[0] is ClaimVerdict.HOLDS
    assert judge(claim, raw=far, ours=ours)[0] is ClaimVerdict.NOT_SETTLED


def test_an_attack_that_has_not_begun_behind_a_defence_settles_nothing_of_it():
    figures = {
        **FIGURES,
        "leak": {**FIGURES["leak"], "starts": {"sign": 0.5}},
        "sign": {"is": "sdar_label_accuracy"},
    }
    values = {**make_claim(LESS).model_dump(by_alias=True), "figures": figures}
    claim = Claim.model_validate(values)
    raw = {**READ, "sign": (0.8, 0.9, 0.85)}
    for sign, verdict in (
        ((0.1, 0.12, 0.11), ClaimVerdict.NOT_SETTLED),
        ((0.8, 0.82, 0.81), ClaimVerdict.HOLDS),
        ((1.0, 1.0, 1.0), ClaimVerdict.HOLDS),
        ((0.5, 0.5, 0.5), ClaimVerdict.NOT_SETTLED),
    ):
        assert judge(claim, raw=raw, ours={**HIDDEN, "sign": sign})[0] is verdict


def test_an_undefended_row_alone_says_what_it_says():
    blind = {**READ, "leak": (0.12, 0.1, 0.11)}
    assert (
        judge(make_claim({"that": "raw < 0.5", "in": "leak"}), raw=blind)[0] is ClaimVerdict.HOLDS
    )


def test_a_part_of_the_sentence_that_no_scenario_measures_keeps_it_open():
    claim = make_claim(LESS, {"that": "ours > raw", "in": "worst"})
    half = {name: values for name, values in READ.items() if name != "worst"}
    verdict, judged = judge(claim, raw=half, ours={**HIDDEN, "leak": (0.2, 0.21, 0.22)})
    assert verdict is ClaimVerdict.NOT_SETTLED
    assert [each.in_ for each in list_beyond(claim, judged)] == ["worst"]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"that": "ours <= 0", "in": "nothing"}, "holds.0.that"),
        ({"that": "ours < 2", "in": "leak"}, "holds.0.that"),
        ({"that": "ours / raw > -1", "in": "ratio"}, "holds.0.that"),
    ],
)
def test_a_statement_that_nothing_could_settle_is_refused(changes, place):
    figures = {**FIGURES, "nothing": {"is": "cosine_f1"}}
    with pytest.raises(ScenarioError) as refused:
        Claim.model_validate(
            {**make_claim().model_dump(by_alias=True), "figures": figures, "holds": [changes]}
        )
    assert refused.value.field == place


@pytest.fixture(scope="module")
def shipped():
    known = read_known_rows()
    return [(table, *judge_table(table, known)) for table in list_tables()]


def test_nothing_that_ships_is_settled_without_an_interval(shipped):
    settled = [
        (table.full_name, str(each))
        for table, _, built in shipped
        for each in (built.judgements if built else ())
        if each.judged.verdict in (ClaimVerdict.HOLDS, ClaimVerdict.FAILS)
        and not each.judged.interval[1] > each.judged.interval[0]
    ]
    assert not settled


def test_a_table_that_fails_has_a_comparison_of_its_sentence_that_fails(shipped):
    verdicts = {table.full_name: verdict for table, verdict, _ in shipped}
    for table, verdict, built in shipped:
        if verdict is ClaimVerdict.FAILS:
            assert built.counts.fails, table.full_name
    # what failed there was a measure of ours, or was no part of the sentence
    for name in ("p3eft/table4", "p3eft/table7", "mixguard/table8", "lightsplit/table14"):
        assert verdicts[name] is not ClaimVerdict.FAILS


def test_what_tables_say_of_unsplit_at_its_floor_is_not_settled(shipped):
    for table, _, built in shipped:
        if table.full_name in {f"lightsplit/table{number}" for number in (6, 14, 15)}:
            reads = [each for each in built.judgements if each.statement.in_ != "accuracy"]
            assert all(each.judged.verdict.is_open for each in reads)
            assert any(each.judged.why_open for each in reads)


GATE = {"that": "worst >= 0.85", "at": {"method": "raw"}, "otherwise": "a longer run"}


@pytest.mark.parametrize(
    ("gate", "verdict"),
    [
        (GATE, ClaimVerdict.HOLDS),
        ({**GATE, "that": "worst >= 0.95"}, ClaimVerdict.NOT_SETTLED),
        ({**GATE, "that": "leak > nothing"}, ClaimVerdict.HOLDS),
        ({**GATE, "that": "nothing > leak"}, ClaimVerdict.NOT_SETTLED),
        ({**GATE, "that": "leak >= 0.5", "at": {}}, ClaimVerdict.NOT_SETTLED),
        ({**GATE, "that": "worst >= 0.95", "judges": ["worst"]}, ClaimVerdict.HOLDS),
        ({**GATE, "that": "worst >= 0.95", "judges": ["leak"]}, ClaimVerdict.NOT_SETTLED),
        ({**GATE, "that": "leak >= 0.5", "at": {}, "for": {"method": "raw"}}, ClaimVerdict.HOLDS),
    ],
)
def test_nothing_is_judged_by_a_row_that_misses_its_gate(gate, verdict):
    claim = make_claim(LESS).model_copy(update={"gates": (RowGate.model_validate(gate),)})
    found, judged = judge(claim, raw=READ, ours=HIDDEN)
    assert found is verdict
    why = judged[0].judged.why_open
    assert bool(why) == (verdict is ClaimVerdict.NOT_SETTLED)
    assert not why or "a longer run" in why


@pytest.mark.parametrize(
    ("that", "gated"),
    [
        ("ours < raw", False),
        ("raw > ours > nobody", False),
        ("ours < 0.9", True),
        ("ours / raw < 0.9", True),
        ("raw - ours > 0.1", True),
        ("raw ~ ours within 0.9", True),
        ("raw > ours > 0.01", True),
    ],
)
def test_a_gate_of_bounds_decides_on_what_names_a_number(that, gated):
    gate = RowGate.model_validate({**GATE, "that": "worst >= 0.95", "bounds": True})
    given = make_claim({"that": that, "in": "leak"}, rows=("raw", "ours", "nobody"))
    claim = given.model_copy(update={"gates": (gate,)})
    _, judged = judge(claim, raw=READ, ours=HIDDEN, nobody={**HIDDEN, "leak": (0.1, 0.11, 0.12)})
    assert {bool(each.judged.why_open) for each in judged} == {gated}


def test_a_gate_of_a_ratio_is_that_of_what_it_divides_and_one_that_is_not_measured_is_missed():
    gate = RowGate.model_validate({**GATE, "that": "worst >= 0.95", "judges": ["leak"]})
    ratio = {"that": "ours < 1", "in": "ratio"}
    claim = make_claim(ratio).model_copy(update={"gates": (gate,)})
    rows = {**HIDDEN, "ratio": (0.2, 0.21, 0.22)}
    assert judge(claim, raw=READ, ours=rows)[0] is ClaimVerdict.NOT_SETTLED
    without = {name: READ[name] for name in ("leak", "nothing")}
    _, judged = judge(claim, raw=without, ours=rows)
    assert "worst of raw is not measured" in judged[0].judged.why_open


@pytest.mark.parametrize(
    ("gate", "field"),
    [
        ({**GATE, "that": "accuracy >= 1"}, "gates.0.that"),
        ({**GATE, "that": "leak >= -2"}, "gates.0.that"),
        ({**GATE, "at": {"data": "mnist"}}, "gates.0.at"),
        ({**GATE, "for": {"method": "none"}}, "gates.0.for"),
        ({**GATE, "judges": ["accuracy"]}, "gates.0.judges"),
    ],
)
def test_a_gate_on_what_the_table_lacks_is_refused(gate, field):
    values = make_claim(LESS).model_dump(by_alias=True) | {"gates": [gate]}
    with pytest.raises(ScenarioError) as raised:
        Claim.model_validate(values)
    assert field in str(raised.value)
