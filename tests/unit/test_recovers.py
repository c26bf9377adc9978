"""What attacks recover: a kind is a judge, an entry and its metrics, and needs nothing else."""

import json

import lengths
import pandas as pd
import pytest
from builders import TINY

from simsplit import Run, compare, run
from simsplit.attacking.finished import attack
from simsplit.attacking.judges import JUDGES
from simsplit.attacks import ATTACKS
from simsplit.errors import ScenarioError, SimsplitError
from simsplit.metrics import METRICS, find_better
from simsplit.plugins import gather_plugins
from simsplit.report.grouping import Entry
from simsplit.report.page import Subject, write_page
from simsplit.report.presentations import list_presentations
from simsplit.results.leak_table import COLUMNS, keep_kinds
from simsplit.results.recovered_kinds import KINDS, list_recovered
from simsplit.scenario import parse
from simsplit.scenario.files import merge


def test_each_kind_is_declared_judged_and_shown():
    shown = [name for name, _ in list_presentations()]
    assert list_recovered() == list(JUDGES) == shown
    assert {config.recovers for config in ATTACKS.values()} == {*JUDGES}
    assert {name for kind in KINDS.values() for name in kind.metrics} <= METRICS.keys()


def test_no_two_kinds_share_a_table_or_a_name():
    tables = [name for name, _ in list_presentations()]
    asked = [name for _, each in list_presentations() for name in each.compare_on_request]
    drawn = [name for _, each in list_presentations() for name in each.drawings]
    for names in ([*tables, *asked], drawn):
        assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def registered():
    """A kind of a user's, for as long as this file's tests last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, lengths.KIND, lengths.RECOVERED)
        patch.setitem(JUDGES, lengths.KIND, lengths.LengthJudge)
        patch.setitem(METRICS, "length", lengths.LENGTH)
        yield


GIVEN = {
    "clients": {"count": 1},
    "attacks": [{"kind": "norms"}, {"kind": "unsplit", "outer": 1, "inner": 1}],
    "targets": {"count": 3, "every": 1},
}


@pytest.fixture(scope="module")
def ended(registered, tmp_path_factory):
    given = parse(merge(TINY, GIVEN), gather_plugins("lengths"))
    return run(given, tmp_path_factory.mktemp("lengths") / "run")


def test_its_rows_stand_beside_the_others(ended):
    whole = pd.read_csv(ended.path / "leaks.csv")
    assert list(whole) == list(COLUMNS)
    table = keep_kinds(whole, lengths.KIND)
    assert table.groupby(["round", "attack"]).size().to_dict() == {
        (number, name): count
        for number in (1, 2)
        for name, count in (("norms", 3), (lengths.GUESS, 1))
    }
    assert (table.loc[table["attack"] == "norms", "value"] > 0).all(), "which its judge passed on"
    assert set(ended.recovered["attack"]) == {"unsplit", "black", "mean_image"}


def test_what_its_judge_keeps_is_saved_round_by_round(ended):
    files = lengths.FILES.list_all(ended.path)
    assert [file.name for file in files] == ["round-000001.jsonl", "round-000002.jsonl"]
    assert set(json.loads(files[0].read_text())) == {"norms", lengths.GUESS}


def test_its_figure_stands_in_the_summary(ended):
    document = json.loads((ended.path / "summary.json").read_text())
    assert document["lengths"] == keep_kinds(ended.leaks, lengths.KIND)["value"].max()


def test_its_tables_are_shown_and_compared(ended, simsplit):
    code, shown, _ = simsplit("show", ended.path, "--format", "csv")
    assert code == 0
    assert "attack,length\nnorms," in shown
    assert "(one),1" in shown
    for form, heading in (("markdown", "length of recovered lengths"), ("csv", "norms,")):
        code, out, _ = simsplit("compare", ended.path, "--table", "lengths", "--format", form)
        assert code == 0
        assert heading in out
    assert (
        simsplit("compare", ended.path, "--format", "markdown")[1].count("recovered lengths") == 1
    )
    assert simsplit("compare", ended.path, "--table", "sessions")[0] == 2


def test_its_figures_are_numbers_that_know_their_better_way(ended):
    assert compare(ended)["norms_length_mean"].tolist() == [lengths.means(ended)["norms"]]
    assert find_better("norms_length") == "less"


def test_its_section_stands_in_the_report(ended):
    page = write_page(Subject([Entry(ended)]))
    assert '<section id="lengths"' in page
    assert page.index('id="lengths"') > page.index('id="recovered"')


def test_a_finished_run_is_attacked_for_it(ended, simsplit):
    attack(ended.path, "norms", {"name": "later"}, plugins="lengths")
    folder = ended.path / "attacks" / "later"
    assert set(pd.read_csv(folder / "leaks.csv")["kind"]) == {lengths.KIND}
    run = Run.load(ended.path)
    assert run.find_kind("later") == lengths.KIND
    assert set(keep_kinds(run.leaks, lengths.KIND)["attack"]) == {"norms", "later", lengths.GUESS}
    words = ("attack", ended.path, "--kind", "norms", "--plugin", "lengths", "--set", "name=last")
    code, out, _ = simsplit(*words, "--json")
    assert code == 0
    assert json.loads(out)["figures"].keys() >= {"last", lengths.GUESS}


def test_no_attack_may_be_called_as_its_guess(registered):
    named = [{"kind": "norms", "name": lengths.GUESS}]
    with pytest.raises(ScenarioError) as error:
        parse(merge(TINY, {**GIVEN, "attacks": named}), gather_plugins("lengths"))
    assert error.value.field.startswith("attacks.0")


def test_an_attack_on_what_nobody_knows_is_refused(registered, monkeypatch):
    monkeypatch.setattr(lengths.NormsConfig, "recovers", "length")
    with pytest.raises(SimsplitError, match="'lengths'"):
        gather_plugins("lengths")
