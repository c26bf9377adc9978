"""All rules that a whole scenario must keep stand in one table, and nothing else refuses one."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import simsplit
from simsplit.catalogue import tabulate_catalogue
from simsplit.errors import ScenarioError
from simsplit.needs import Given
from simsplit.scenario.findings import Finding, Occasion, Rule
from simsplit.scenario.refusals import RULES, list_findings, list_warnings, refuse
from simsplit.scenario.setting import AMOUNTS, TAKING

ROOM = Path(simsplit.__file__).parent / "scenario"
EVERY = [rule for rules in RULES.values() for rule in rules]


def test_every_function_that_finds_is_in_the_table_once() -> None:
    defined = [
        f"{file.stem}.{node.name}"
        for file in ROOM.glob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("find_")
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "Findings"
    ]
    listed = [f"{rule.find.__module__.split('.')[-1]}.{rule.find.__name__}" for rule in EVERY]
    assert Counter(defined) == Counter(listed)
    assert len(listed) > 40


def test_no_file_of_rules_raises_by_itself() -> None:
    files = {rule.find.__module__.split(".")[-1] for rule in EVERY}
    raising = [
        name
        for name in sorted(files)
        for node in ast.walk(ast.parse((ROOM / f"{name}.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
    ]
    assert not raising


def test_every_rule_says_what_it_does_by_its_severity() -> None:
    verbs = {"refuse": "Refuse ", "warn": "Warn of "}
    assert not [rule.about for rule in EVERY if not rule.about.startswith(verbs[rule.severity])]
    (table,) = tabulate_catalogue("rules")
    assert len(table.rows) == len(EVERY)
    assert {row[0] for row in table.rows} == {occasion.value for occasion in Occasion}


def test_every_need_is_measured_once() -> None:
    of_data = {what for what in Given if what.value.modalities}
    assert Counter([*AMOUNTS, *TAKING, *of_data]) == Counter(Given)


def test_the_first_finding_is_refused_and_warnings_are_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_both(given: object) -> list[Finding]:
        return [Finding("a.b", "first"), Finding("", "second")]

    rules = (Rule(find_both, "a", "warn"), Rule(find_both, "a"))
    monkeypatch.setitem(RULES, Occasion.READ, rules)  # type: ignore[arg-type]
    given: Any = object()
    with pytest.raises(ScenarioError) as error:
        refuse(Occasion.READ, given)
    assert (error.value.field, error.value.reason) == ("a.b", "first")
    assert list_warnings(given) == ["scenario.a.b: first", "second"]
    assert list_findings(Occasion.READ, given) == find_both(given)
