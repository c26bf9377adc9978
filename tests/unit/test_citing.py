"""Papers of parts: each shipped part has one on record or is known to have none."""

import json
import re

from typer.testing import CliRunner

from simsplit import load_scenario
from simsplit.__main__ import app
from simsplit.attacks import ATTACKS
from simsplit.catalogue.citing import choose_references, list_parts, read_references
from simsplit.detectors import DETECTORS
from simsplit.methods import METHODS
from simsplit.models import MODELS
from simsplit.poisons import POISONS
from simsplit.schedules.aggregation import AGGREGATIONS
from simsplit.schedules.strategies import STRATEGIES

SHIPPED = {
    "methods": METHODS,
    "attacks": ATTACKS,
    "detectors": DETECTORS,
    "poisons": POISONS,
    "models": MODELS,
    "aggregations": AGGREGATIONS,
    "strategies": STRATEGIES,
}
OWN_OR_COMMON = {
    "aggregations": "fused none",
    "attacks": "gradient_ratio kmeans known_pairs probe ridge rmi singular_direction span_search "
    "tag_linear whitebox",
    "detectors": "mislabelled root_class within_class",
    "methods": "cast cover noise quantise randomised_response raw sparsify topk",
    "models": "adapted_classifier causal_lm given micronnet mlp mnistnet sequence_classifier "
    "simplecnn",
    "poisons": "label_flip tamper",
}
"""Parts of simsplit's own, and of textbooks: they have no paper."""


def test_every_part_has_a_paper_or_is_known_to_have_none():
    on_record = frozenset().union(*(each.parts for each in read_references()))
    shipped = {f"{name}/{kind}" for name, kinds in SHIPPED.items() for kind in kinds}
    assert on_record <= shipped
    own = {f"{name}/{kind}" for name, kinds in OWN_OR_COMMON.items() for kind in kinds.split()}
    assert shipped - on_record == own


def test_entries_are_bibtex_with_a_key_a_title_and_a_year():
    references = read_references()
    assert len({each.key for each in references}) == len(references)
    for each in references:
        assert re.fullmatch(r"@\w+\{[a-z]+\d{4}\w*,\n(  \w+ = \{.*\},\n)+\}", each.bibtex)
        assert each.bibtex.count("{") == each.bibtex.count("}")
        assert {"title", "year"} <= each.fields.keys()
        assert "parts" not in each.fields


def test_a_scenario_cites_its_parts_alone():
    keys = {each.key for each in choose_references(list_parts(load_scenario("quickstart")))}
    assert keys == {"cihangiroglu2026lightsplit"}


def test_an_average_is_cited_with_its_strategy():
    average = {"kind": "splitfed_v1", "strategy": "fedadam"}
    changes = {"aggregation": average, "schedule.kind": "parallel"}
    keys = {
        each.key for each in choose_references(list_parts(load_scenario("quickstart", changes)))
    }
    assert {"thapa2022splitfed", "reddi2021adaptive"} < keys


def test_the_command_prints_bibtex_of_every_cell():
    outcome = CliRunner().invoke(app, ["cite", "mixguard"])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.startswith("@software{simsplit,")
    assert "@misc{mixguard2026," in outcome.stdout
    as_json = json.loads(CliRunner().invoke(app, ["cite", "mixguard", "--json"]).stdout)
    assert {"mixguard2026"} < {each["key"] for each in as_json["papers"]}
