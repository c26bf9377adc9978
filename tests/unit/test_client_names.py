"""Clients' names: from the data or the scenario, in all that people read, in nothing that computes.

Names are foreign text. Whoever has none keeps the tables of before.
"""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from builders import run_to_end, scenario
from gists import gist, says
from rich.console import Console
from texts import text_scenario

from simsplit import Run, SimsplitError, load_trained, run, value_clients
from simsplit.client_names import LONGEST, NO_NAMES, clean_name, name_owners
from simsplit.deploy.data_form import make_remote_data
from simsplit.deploy.terms import describe_data, digest_terms, select_terms
from simsplit.errors import DataError, RunError, RunFailedError, ScenarioError
from simsplit.progress import Observer, RunPlan
from simsplit.report.detections import list_detectors
from simsplit.report.figures import drawn, signal
from simsplit.report.grouping import Entry
from simsplit.report.page import Subject, write_page
from simsplit.report.run_figures import draw_holdings
from simsplit.report.run_tables import show
from simsplit.scenario import own, scenario_of
from simsplit.showing.run_output import make_observer
from simsplit.terminal.watching import watch

NAMES = ["NA", "Graz <b>", "_$Oslo$"]


def named(names=NAMES, **changes):
    return scenario(clients=changes.pop("clients", {}) | {"names": names}, **changes)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A table with a column of hospitals."""
    folder = tmp_path_factory.mktemp("people")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(90, 4)), columns=list("abcd"))
    frame["hospital"] = rng.choice(["St. Mary, east", "7", "\x1b[31mRed"], 90)
    frame["ill"] = rng.choice(["yes", "no"], 90)
    frame.to_csv(folder / "people.csv", index=False)
    return {
        "data": {
            "source": {
                "kind": "table",
                "path": str(folder / "people.csv"),
                "target": "ill",
                "client": "hospital",
            },
            "partition": "natural",
        },
        "model": {"kind": "mlp"},
        "clients": {"count": 3},
        "schedule": {"kind": "round_robin", "rounds": 1},
        "output": {"figures": False},
    }


def watched(path: Path, names: list[str] | None = NAMES) -> Run:
    """Run three clients with detectors, of whom the last is malicious."""
    poison = [{"kind": "label_flip", "target": 3}]
    clients = {"heads": "per_client", "malicious": {"ids": [2], "poison": poison}}
    detectors = [{"kind": "krum"}]
    run_to_end(scenario(clients=clients | {"names": names}, detectors=detectors), path)
    return Run.load(path)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return watched(tmp_path_factory.mktemp("named") / "run")


def test_names_of_a_column_are_the_clients_of_its_values(people, tmp_path):
    made = run(people, tmp_path / "run")
    # in the order of their values, a number with its column's name, on one line
    assert made.client_names.names == ("?[31mRed", "hospital 7", "St. Mary, east")
    assert made.data["clients"] == [*made.client_names.names]
    (first, *_), holdings = rows(tmp_path / "run" / "clients.csv"), made.holdings
    assert list(first)[:4] == ["round", "client", "name", "steps"]
    assert dict(zip(holdings["client"], holdings["name"], strict=True)) == dict(
        enumerate(made.client_names.names)
    )


def test_a_scenarios_names_take_the_place_of_the_datas(people, tmp_path):
    values = people | {"clients": {"count": 3, "names": ["x", "y", "z"]}}
    assert run(values, tmp_path / "run").client_names.names == ("x", "y", "z")


def test_texts_have_names_of_their_column_too(tmp_path):
    data = {"source": {"client": "topic"}, "partition": "natural"}
    given = text_scenario(tmp_path, data=data, clients={"count": 5})
    assert given.prepare_data().client_names.names == ("film", "old book", "play", "show", "song")
    even = text_scenario(tmp_path, data={"source": {"client": "topic"}}, clients={"count": 5})
    assert not even.prepare_data().client_names
    parts = [(["a b", "c"] * 3, [0, 1] * 3), (["d", "e f"] * 3, [0, 1] * 3)]
    dealt = scenario_of(given, own(parts))
    assert not dealt.prepare_data().client_names


def test_parts_that_are_passed_one_by_one_have_numbers(tmp_path):
    frame = pd.DataFrame({"x": np.arange(20.0), "y": [0, 1] * 10})
    made = run(
        {"model": {"kind": "mlp"}, "schedule": {"rounds": 1}, "output": {"figures": False}},
        tmp_path / "run",
        data=[frame, frame],
        target="y",
    )
    assert not made.client_names
    assert made.client_names.label(1) == "client 1"


def test_clients_without_names_have_the_columns_of_before(tmp_path):
    made = watched(tmp_path / "run", None)
    assert "name" not in made.clients
    assert [*made.holdings] == ["client", "class", "samples"]
    assert "clients" not in json.loads((tmp_path / "run" / "data.json").read_text())


def test_names_change_nothing_that_is_computed_or_sent(seen, tmp_path):
    plain = watched(tmp_path / "run", None)
    pd.testing.assert_frame_equal(seen.clients.drop(columns="name"), plain.clients)
    for table in ("rounds", "wire", "detections"):
        before = (tmp_path / "run" / f"{table}.csv").read_bytes()
        assert (seen.path / f"{table}.csv").read_bytes() == before


def test_a_client_called_na_is_read_back(seen):
    assert seen.clients["name"].tolist()[:3] == NAMES
    assert seen.holdings["name"].iloc[0] == "NA"


def test_detections_name_clients(seen):
    (table,) = [each for each in show(seen) if "detector" in each.columns]
    (row,) = [dict(zip(table.columns, cells, strict=True)) for cells in table.rows]
    assert row["malicious"] == NAMES[2]


def test_pictures_draw_names_as_they_stand(seen):
    figure = draw_holdings(seen)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [
        "NA",
        "Graz <b>",
        r" _\$Oslo\$",
    ]
    figure.savefig(io.BytesIO())  # a formula that is none would raise
    ax = signal(seen, list_detectors(seen)[0])
    assert r"_\$Oslo\$, malicious" in ax.get_legend().get_texts()[0].get_text()
    drawn(ax).savefig(io.BytesIO())


def test_the_page_names_clients_and_escapes_them(seen):
    page = write_page(Subject([Entry(seen)]))
    assert "Graz &lt;b&gt;, round 1" in page
    assert "Graz <b>" not in page


def test_a_run_and_watch_list_names(seen):
    console = Console(file=(lines := io.StringIO()), width=200)
    observer: Observer = make_observer(console, quiet=False)
    observer.begin(RunPlan(Path("x"), "x", 1, 0, 3, 9, "1 MiB", "inline", seen.client_names.names))
    assert says(lines.getvalue(), "3 clients ... Graz")
    watch(seen.path, Console(file=(lines := io.StringIO()), width=200))
    assert says(lines.getvalue(), "NA, Graz <b>, _$Oslo$")


def test_messages_have_number_and_name(tmp_path):
    given = named(train={"client": {"kind": "sgd", "lr": 1e30}})
    with pytest.raises(RunFailedError, match=gist("client 0 (NA)")):
        run_to_end(given, tmp_path / "run")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a", "b"], "3 clients ... 2"),
        (["a", "b", "a"], "2 are alike"),
        (["a" * 50 + "1", "b", "a" * 50 + "2"], "2 are alike"),
        (["a", " \n", "b"], "1 is blank"),
        ([1, 2, 3], "0 ... 1"),
    ],
)
def test_wrong_names_are_refused_by_path(names, why):
    with pytest.raises(ScenarioError, match=gist(f"scenario.clients.names: ... {why}")):
        named(names)


def test_names_are_on_one_line_and_short():
    given = named(["a\nb\x1b[0m", 3, "x" * 99])
    assert given.clients.names[:2] == ("a b?[0m", "3")
    assert len(given.clients.names[2]) == LONGEST
    assert clean_name("\u202eevil") == "?evil"


def test_values_that_are_alike_once_cleaned_are_refused():
    with pytest.raises(DataError, match=gist("data.source.client ... who")):
        name_owners("who", ["a b", "a  b"])


def test_values_that_are_the_clients_numbers_are_no_names():
    assert name_owners("who", ["0", "1", "2"]) == ()
    assert name_owners("who", ["1", "2"]) == ("who 1", "who 2")


def test_names_of_a_run_that_another_wrote_are_cleaned(seen, tmp_path):
    (tmp_path / "scenario.yaml").write_text((seen.path / "scenario.yaml").read_text())
    facts = json.loads((seen.path / "data.json").read_text())
    (tmp_path / "data.json").write_text(json.dumps(facts | {"clients": ["\x1b]0;" + "x" * 999]}))
    (name,) = Run.load(tmp_path).client_names.names
    assert len(name) == LONGEST
    assert "\x1b" not in name
    (tmp_path / "data.json").write_text(json.dumps(facts | {"clients": "Bonn"}))
    with pytest.raises(RunError, match=gist("data.json ... clients")):
        _ = Run.load(tmp_path).client_names


def test_a_deployment_sends_no_names():
    given = named()
    assert "names" not in select_terms(given)["clients"]
    assert digest_terms(given, "private") == digest_terms(scenario(), "private")
    sent = describe_data(given.prepare_data())
    assert not any(name in json.dumps(sent) for name in NAMES)
    # a server's own scenario names them, and its data have none
    assert not make_remote_data("digits", sent, [3, 3, 3]).client_names


def test_runs_from_before_there_were_names_are_resumed():
    assert "names" not in scenario().identity()
    assert named().identity() != scenario().identity()


def test_a_run_from_before_its_data_gave_names_goes_on_with_numbers(people, tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr("simsplit.data.preparing._choose_names", lambda *_: NO_NAMES)
        run(people, tmp_path / "run")
    assert "name" not in Run.load(tmp_path / "run").clients
    longer = people | {"schedule": {"kind": "round_robin", "rounds": 2}}
    made = run(longer, tmp_path / "run", resume=True)
    assert made.summary["status"] == "finished"
    assert not made.client_names
    assert made.clients["round"].max() == 2
    valued = value_clients(made)
    assert len(valued) == 3
    assert "name" not in valued


def test_a_network_is_chosen_by_its_clients_name(seen, simsplit):
    by_name, by_number = load_trained(seen, "Graz <b>").weights(), load_trained(seen, 1).weights()
    assert all(torch.equal(by_name[name], tensor) for name, tensor in by_number.items())
    with pytest.raises(SimsplitError, match=gist("Graz <c> ... did you mean 'Graz <b>'")):
        load_trained(seen, "Graz <c>")
    code, _, err = simsplit("export", seen.path, "--client", "NA", "--out", "ours")
    assert (code, err) == (0, "")
    code, _, err = simsplit("export", seen.path, "--client", "-1", "--out", "theirs")
    assert code == 2
