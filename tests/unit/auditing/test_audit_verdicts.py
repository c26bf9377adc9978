"""Verdicts: figures by hand, one sentence, and nothing said of defences."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import TINY
from gists import says

from simsplit.attacks import ATTACKS
from simsplit.attacks.whitebox import WhiteboxConfig
from simsplit.auditing import audits
from simsplit.auditing.audit_verdicts import (
    MEASURES,
    AuditFinding,
    find_worst,
    measure_findings,
    write_verdict,
)
from simsplit.auditing.audits import LABELS_CROSS, Audit
from simsplit.auditing.offers import AUDITED, LACKS, Offers, choose_attacks
from simsplit.errors import ScenarioError
from simsplit.needs import Given
from simsplit.results import Run
from simsplit.results.leak_table import ATTACK, CEILING, COLUMNS, FLOOR, WRITTEN
from simsplit.results.recovered_kinds import KINDS
from simsplit.scenario import parse


def leaks(*rows: tuple[str, str, str, str, list[float]]) -> pd.DataFrame:
    """Make a table of leaks of (kind, attack, role, metric, values)."""
    made = [
        dict.fromkeys(COLUMNS) | {"round": 1, "kind": kind, "attack": attack, "role": role}
        | {"metric": metric, "value": value, "target": n, "view": "", "known": 0.0}
        for kind, attack, role, metric, values in rows
        for n, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(made)


TEXTS = leaks(
    ("texts", "sip", ATTACK, "token_accuracy", [0.8, 0.9, 1.0, 0.5]),
    ("texts", "lamp", ATTACK, "token_accuracy", [0.0, 0.1, 0.0, 0.1]),
    ("texts", "random_tokens", FLOOR, "token_accuracy", [0.0, 0.0, 0.0, 0.0]),
    ("texts", "frequent_token", FLOOR, "token_accuracy", [0.0, 0.1, 0.1, 0.0]),
)


def test_a_figure_is_the_mean_beside_the_best_guess() -> None:
    sip, lamp = measure_findings(TEXTS, [])
    assert sip.value == pytest.approx(0.8)
    assert sip.floor == pytest.approx(0.05)
    assert sip.low < 0.8 < sip.high
    assert (sip.low, sip.high) == (measure_findings(TEXTS, [])[0].low, sip.high)
    assert sip.is_above_guess
    assert not lamp.is_above_guess
    assert find_worst([lamp, sip]) == sip
    assert write_verdict([lamp, sip]).startswith("80 % (")
    assert write_verdict([lamp, sip]).endswith(" 5 %.")
    assert "by sip" in write_verdict([lamp, sip])


def test_errors_are_better_read_the_smaller_they_are() -> None:
    table = leaks(
        ("rows", "ridge", ATTACK, "mse", [0.1, 0.1, 0.3]),
        ("rows", "mean_row", FLOOR, "mse", [1.0, 1.0, 1.0]),
    )
    (ridge,) = measure_findings(table, ["ridge"])
    assert ridge.role == CEILING
    assert ridge.share == pytest.approx(1 - 0.5 / 3)
    assert ridge.is_above_guess


def test_an_upper_bound_counts_only_where_no_attack_reads_anything() -> None:
    sip, lamp = measure_findings(TEXTS, ["sip"])
    assert find_worst([sip, lamp]) == lamp
    assert write_verdict([sip, lamp], 200).startswith("With 200 known inputs, 80 %")
    assert "says nothing" in write_verdict([lamp])


def test_an_attack_that_reads_more_and_gains_less_counts_for_ci(tmp_path: Path) -> None:
    """Labels of two classes are read with .8 where a guess has .5; images with .65, and .05."""
    found = [
        AuditFinding("kmeans", "labels", ATTACK, "accuracy", 0.8, 0.75, 0.85, 0.5, "chance", 400),
        AuditFinding("fora", "images", ATTACK, "ssim", 0.65, 0.6, 0.7, 0.05, "mean_image", 400),
    ]
    made = Audit(Run(tmp_path), found)
    assert made.worst is not None
    assert made.worst.attack == "fora"
    assert made.share == pytest.approx(0.8)


def test_every_kind_that_attacks_recover_has_a_measure() -> None:
    audited = {name for name, kind in KINDS.items() if kind.recovers in AUDITED}
    assert MEASURES.keys() == audited
    assert {kind.recovers for kind in KINDS.values()} >= AUDITED


def test_no_audit_offers_an_attack_on_what_it_cannot_judge() -> None:
    everything = frozenset(LACKS)
    scenario = parse(TINY)
    legs = frozenset(scenario.crossings.legs)
    offers = Offers(scenario, legs, everything, frozenset(Given), AUDITED)
    able, untried = choose_attacks(offers)
    assert {each.recovers for each in able} <= AUDITED
    others = {kind for kind, config in ATTACKS.items() if config.recovers not in AUDITED}
    assert {each.attack for each in untried} & others


def test_no_verdict_says_that_a_defence_works() -> None:
    sip, lamp = measure_findings(TEXTS, [])
    for findings in ([sip], [lamp], [], [sip, lamp]):
        said = write_verdict(findings).lower()
        assert not any(word in said for word in ("safe", "secure", "protect", "works", "private"))


def test_what_was_written_is_no_attack() -> None:
    table = leaks(
        ("sessions", "mc", ATTACK, "ap", [0.5, 0.6]),
        ("sessions", "random_tokens", FLOOR, "ap", [0.1, 0.1]),
        ("sessions", "written", WRITTEN, "ap", [0.9, 0.9]),
    ).assign(view="both")
    assert [each.attack for each in measure_findings(table, [])] == ["mc"]


def test_an_attack_whose_networks_do_not_fit_leaves_the_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cut of 360 values after a flat head has no image for whitebox's decoder."""

    def refuse(*_: object) -> None:
        raise ScenarioError("attacks", "needs other shapes")

    monkeypatch.setattr(audits, "attack_record", refuse)
    nothing: Any = None
    why = audits._let_attack(nothing, nothing, WhiteboxConfig(), math.inf, nothing)
    assert says(str(why), "whitebox ... other shapes")


def test_labels_that_cross_are_said_first() -> None:
    audit = Audit(None, (), facts={"legs": {"smashed": 3, "labels": 3}})  # type: ignore[arg-type]
    assert audit.verdict.startswith(LABELS_CROSS)
    assert not Audit(None, (), facts={"legs": {"smashed": 3}}).verdict.startswith(LABELS_CROSS)  # type: ignore[arg-type]
