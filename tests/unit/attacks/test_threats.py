"""Each attack has one threat, from which its needs and every listing of it are made."""

from dataclasses import replace
from typing import Any, Literal

import pytest
from pace import together

from simsplit.attacks import ATTACKS, AttackConfig, Knows, Sees, Threat, When
from simsplit.catalogue import tabulate_catalogue
from simsplit.legs import Leg
from simsplit.needs import Given, Need, Needs, need_leg


class Plain(AttackConfig):
    """Declares no threat, and needs gradients alone, in training."""

    kind: Literal["plain"] = "plain"

    @property
    def needs(self) -> Needs:
        return need_leg(Leg.FEATURES_GRAD), Need(Given.WATCHED)

    def build(self, known: Any) -> Any:
        raise NotImplementedError


class Asking(AttackConfig):
    """Declares no threat, and has clients encode samples."""

    kind: Literal["asking"] = "asking"

    @property
    def queries(self) -> int:
        return 3

    def build(self, known: Any) -> Any:
        raise NotImplementedError


@together(ATTACKS)
def test_an_attacks_listing_shows_all_of_its_threat(kind: str) -> None:
    config = ATTACKS[kind]()
    shown = config.whole_threat
    assert {*config.threat.sees} == {*shown.sees}, "what it sees lacks a need"
    assert {*config.threat.knows} <= {*shown.knows}
    assert {*shown.knows} - {*config.threat.knows} <= {Knows.PUBLIC}  # by a field's default
    assert shown.when is config.threat.when
    # whichever field asks for it
    assert {replace(need, field="kind") for need in config.needs} >= {*config.threat.needs}


def test_upper_bounds_are_what_no_server_can_be() -> None:
    bounds = {kind for kind, config in ATTACKS.items() if config().whole_threat.is_bound}
    assert bounds == {
        *("fora_reference", "whitebox", "rmle", "ridge", "known_pairs"),
        *("attribute_probe", "canaries"),
    }
    assert {kind for kind, config in ATTACKS.items() if config.threat.acts} == {
        "fsha",
        "active_completion",
    }


def test_the_needs_of_a_threat_are_those_of_what_it_sees_knows_and_when() -> None:
    threat = Threat((Sees.SMASHED,), (Knows.PUBLIC, Knows.HEAD), when=When.TRAINING)
    assert threat.needs == (need_leg(Leg.SMASHED), Need(Given.PUBLIC), Need(Given.WATCHED))
    assert Threat(knows=()).needs == (need_leg(Leg.SMASHED),)


def test_a_plugin_without_a_threat_has_one_by_its_needs() -> None:
    threat = Plain().whole_threat
    assert (threat.sees, threat.knows) == ((Sees.GRADIENTS,), ())
    assert threat.when is When.TRAINING
    assert threat.attacker == "curious server"
    asking = Asking().whole_threat
    assert (asking.sees, asking.knows) == ((Sees.SMASHED,), (Knows.PUBLIC, Knows.QUERIES))
    assert asking.attacker == "upper bound"


def test_a_plugins_attack_is_listed_beside_the_others() -> None:
    (table,) = tabulate_catalogue("threats", [{"ATTACKS": {"plain": Plain}}])
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows.keys() == {*ATTACKS, "plain"}
    assert rows["plain"]["sees"].endswith(f"({When.TRAINING.value.words})")
    assert rows["plain"]["recovers"] == "images"
    assert rows["ridge"]["recovers"].startswith("images, or")


@pytest.mark.parametrize(
    ("kind", "options", "knows"),
    [("vmi", {}, False), ("vmi", {"start": "sip"}, True), ("dsi", {}, True)],
)
def test_a_field_that_needs_public_data_shows(
    kind: str, options: dict[str, Any], *, knows: bool
) -> None:
    assert (Knows.PUBLIC in ATTACKS[kind](**options).whole_threat.knows) is knows
