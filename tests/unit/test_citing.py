"""Papers of parts: each shipped part has one on record or is known to have none."""

import json
import re

from typer.testing import CliRunner

from simsplit import __version__, load_scenario
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
    "attacks": "gradient_ratio kmeans known_pairs probe ridge rmi singular_direction "
    "site_inference span_search "
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


def test_the_folder_of_a_run_or_sweep_cites_what_was_run(tmp_path):
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "scenario.yaml").write_text("method: [{kind: lightsplit}]")
    for folder in (run, run.parent):
        outcome = CliRunner().invoke(app, ["cite", str(folder), "--json"])
        assert outcome.exit_code == 0, outcome.output
        alone = {each.key for each in choose_references(frozenset({"methods/lightsplit"}))}
        assert alone
        assert alone <= {each["key"] for each in json.loads(outcome.stdout)["papers"]}


def test_a_run_or_sweep_cites_the_version_and_commit_that_its_runs_share(tmp_path):
    def make(name, version, commit):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "scenario.yaml").write_text("method: []")
        facts = {"packages": {"simsplit": version}, "commit": commit}
        (run / "environment.json").write_text(json.dumps(facts))
        return run

    def cite(folder):
        return CliRunner().invoke(app, ["cite", str(folder)]).stdout

    one = make("one", "0.0.3", "abc123-dirty")
    for folder in (one, one.parent):
        assert "version = {0.0.3}" in cite(folder)
        assert "at commit abc123-dirty}" in cite(folder)
    make("two", "0.0.3", None)
    assert "version = {0.0.3}" in cite(one.parent)
    assert "commit" not in cite(one.parent)
    assert f"version = {{{__version__}}}" in cite(make("evil", "}, note = {", "x } y"))
    assert "commit" not in cite(tmp_path / "runs" / "evil")


def test_a_folder_without_a_run_has_nothing_to_cite(tmp_path):
    assert "no scenario.yaml" in str(CliRunner().invoke(app, ["cite", str(tmp_path)]).exception)
