"""A topology describes itself: no other room knows one by name."""

import ast
import re
from pathlib import Path

import pytest

import simsplit
from simsplit.legs import Leg
from simsplit.protocols import CARRIED, LEGS, USUAL, describe_leg, sort_legs
from simsplit.report.canvas import colour_of_leg
from simsplit.report.page.sent import _colour_of as page_colour
from simsplit.topologies import TOPOLOGIES, find_topology
from simsplit.topologies.topology import Content

PACKAGE = Path(simsplit.__file__).parent
FILES = sorted(
    file
    for file in PACKAGE.rglob("*.py")
    if not {"topologies", "protocols.py", "shipped"} & {*file.relative_to(PACKAGE).parts}
)
CONSTANTS = {"U_SHAPED", "VANILLA", "API"}


def names_in(tree: ast.AST) -> list[str]:
    """Return the topologies that code names, but for scenarios written as plain values."""
    scenarios = [
        value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "topology"
    ]
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in TOPOLOGIES and node not in scenarios
    ]
    imported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in CONSTANTS
    ]
    return [*strings, *imported]


def test_no_other_room_names_a_topology() -> None:
    named, read = {}, 0
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        # to parse all files takes seconds, and few have such a word at all
        if not any(word in text for word in (*TOPOLOGIES, *CONSTANTS)):
            continue
        read += 1
        if result := names_in(ast.parse(text)):
            named[str(file.relative_to(PACKAGE))] = result
    assert named == {}
    assert read > 5, "or it looked at nothing"


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ('if scenario.topology == "api": pass', ["api"]),
        ("from simsplit.topologies.vanilla import VANILLA", ["VANILLA"]),
        ('given = {"topology": "api"}', []),
        ('"""Of a vanilla cut."""', []),
    ],
)
def test_a_name_would_be_noticed(code: str, result: list[str]) -> None:
    assert names_in(ast.parse(code)) == result


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_each_leg_has_a_content_and_a_place(name: str) -> None:
    topology = TOPOLOGIES[name]
    assert set(topology.contents) == set(topology.legs)
    assert set(topology.contents.values()) <= set(Content.__args__)  # type: ignore[attr-defined]
    assert topology.whole_model is not None
    assert topology.accounted
    assert tuple(leg for leg in LEGS if leg in topology.training.legs) == topology.training.legs
    for leg in topology.returned:
        assert topology.contents[leg] in ("cut", "adapters"), "the way back to the head"


def test_what_goes_up_comes_back_alike() -> None:
    """A leg and the leg of its gradient carry the same content."""
    for topology in TOPOLOGIES.values():
        for crossing in topology.training.crossings:
            if crossing.gradient is not None:
                assert topology.contents[crossing.leg] == topology.contents[crossing.gradient]


def test_legs_in_the_order_of_a_step() -> None:
    assert LEGS[-len(CARRIED) :] == CARRIED
    assert len(set(LEGS)) == len(LEGS)
    shuffled = ["broadcast", "features_grad", "echo", "adapters_grad", "features", "adapters"]
    assert sort_legs([*shuffled, "inputs", "echo"]) == [
        *("inputs", "adapters", "features", "features_grad", "adapters_grad", "broadcast", "echo")
    ]


def test_advice_names_a_topology_that_fits() -> None:
    assert find_topology(lambda each: each.many_servers) == "api"
    assert find_topology(lambda each: each.has(Leg.LABELS)) == "vanilla"
    assert find_topology(lambda each: False) == USUAL


def test_every_leg_has_words_and_a_colour_of_its_own() -> None:
    assert len({describe_leg(leg) for leg in LEGS}) == len(LEGS)
    assert len({colour_of_leg(leg) for leg in LEGS}) == len(LEGS)
    style = (PACKAGE / "report" / "page" / "style.css").read_text(encoding="utf-8")
    defined = dict(re.findall(r"--(c\d+): light-dark\((#\w+),", style))
    classes = [page_colour(leg) for leg in (*LEGS, "echo")]  # and an unknown one
    assert len({defined[name] for name in classes}) == len(LEGS) + 1
    assert all(f".{name} {{ --c: var(--{name}); }}" in style for name in classes)
