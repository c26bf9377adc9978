"""What is reported of attacks on sessions, from tables that are written by hand."""

import io
import json

import matplotlib as mpl
import pandas as pd
import pytest
from builders import scenario
from written_leaks import write_leaks

from simsplit.errors import RunError
from simsplit.metrics import find_better
from simsplit.metrics.text import compute_defence_score
from simsplit.report import figures
from simsplit.report.grouping import Entry
from simsplit.report.input_tables import tabulate_dialogues
from simsplit.report.leak_tables import compare_leaks, compare_weighted, tabulate_leaks
from simsplit.report.numbers import measure, write_csv
from simsplit.results import Run
from simsplit.results.recovered_files import SESSIONS, encode_lines
from simsplit.results.recovered_kinds import SILENT
from simsplit.results.summary import summarise_leaks

mpl.use("agg")

READ = {"weak": (0.1, 0.2), "strong": (0.5, 0.9), "random_tokens": (0.0, 0.02)}


def write_sessions(path, *, utility=0.5, scale=1.0, method=(), number=1):
    """Write a finished run with two sessions that were read alike."""
    rows = []
    for session in (0, 1):
        at = {"round": number, "target": session}
        for attack, (prompt, response) in READ.items():
            sides = {"prompt": prompt * scale, "response": response * scale}
            sides["both"] = sum(sides.values()) / 2
            rows += [{**at, "attack": attack, "view": side, "ap": ap} for side, ap in sides.items()]
        both = {**at, "attack": "written", "view": "response", "ap": 0.1}
        rows.append({**both, "meteor": utility + 0.1 * (session - 0.5)})
    path.mkdir()
    write_leaks(path, "sessions", rows)
    (path / "scenario.yaml").write_text(scenario(method=list(method)).yaml())
    pd.DataFrame({"round": [1]}).to_csv(path / "rounds.csv", index=False)
    clients = {"round": [1], "client": [0], "malicious": [0]}
    pd.DataFrame(clients).to_csv(path / "clients.csv", index=False)
    summary = {"name": "run", "status": "finished", "bytes": {"total": 0}, "last": {"round": 1}}
    (path / "summary.json").write_text(json.dumps(summary))
    return Run.load(path)


@pytest.fixture
def run(tmp_path):
    return write_sessions(tmp_path / "run")


def test_the_strongest_is_by_both_ends_and_no_floor(run):
    facts = summarise_leaks(run.leaks)["sessions"]
    assert facts["attack"] == "strong"
    assert facts["ap_both"] == pytest.approx(0.7)
    assert facts["mp"] == pytest.approx(0.5)
    assert facts["floor"] == pytest.approx(0.01)
    assert summarise_leaks(pd.DataFrame()) == {}


def test_only_the_last_judgement_counts(run, tmp_path):
    early = write_sessions(tmp_path / "early", scale=0.1, number=0).leaks
    both = pd.concat([early, run.leaks])
    assert summarise_leaks(both) == summarise_leaks(run.leaks)


def test_a_row_per_attack_then_the_floors(run):
    table = tabulate_leaks(run, "sessions")
    assert [row[0] for row in table.rows] == ["weak", "strong", "(random tokens)"]
    assert table.rows[1][1:4] == ("0.500", "0.900", "0.700")
    assert "METEOR (MP) 0.5 " in table.title
    assert "2 sessions" in table.title


def test_runs_beside_each_other_have_dcs_against_the_raw_one(tmp_path):
    noise = [{"kind": "noise"}]
    raw = write_sessions(tmp_path / "raw")
    defended = write_sessions(tmp_path / "defended", utility=0.4, scale=0.1, method=noise)
    (table,) = compare_leaks("sessions", [Entry(raw), Entry(defended)])
    cells = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert cells[0]["DCS"] == ""
    assert float(cells[1]["DCS"]) == pytest.approx(compute_defence_score(0.07, 0.4, 0.5), abs=5e-4)
    assert cells[1]["strong"] == "0.070"
    assert (cells[2]["method"], cells[2]["MP"], cells[2]["strong"]) == (SILENT, "0", "")
    assert float(cells[2]["DCS"]) == pytest.approx(compute_defence_score(0, 0, 0.5), abs=5e-4)
    long = write_csv([Entry(raw), Entry(defended)], "last", "sessions")
    frame = pd.read_csv(io.StringIO(long)).set_index(["method", "attack", "view"])
    assert frame.loc[("raw", "strong", "response"), "ap_mean"] == pytest.approx(0.9)
    assert set(frame["seeds"]) == {1}
    assert compare_leaks("sessions", []) == []


def test_a_ceiling_is_marked_and_is_no_attack(tmp_path, monkeypatch):
    read = {"weak": (0.1, 0.2), "known_pairs": (0.9, 0.9), "random_tokens": (0.0, 0.02)}
    monkeypatch.setitem(globals(), "READ", read)
    run = write_sessions(tmp_path / "run")
    names = [row[0] for row in tabulate_leaks(run, "sessions").rows]
    assert names == ["weak", "known_pairs (ceiling)", "(random tokens)"]
    assert measure([run], "last")["sessions_ap"] == [pytest.approx(0.15)]
    assert summarise_leaks(run.leaks)["sessions"]["attack"] == "weak"


def test_dcs_is_of_the_attack_that_is_strongest_at_each_weight(tmp_path, monkeypatch):
    ends = {"of_prompts": (0.8, 0.1), "of_responses": (0.2, 0.9), "random_tokens": (1.0, 1.0)}
    monkeypatch.setitem(globals(), "READ", ends)
    raw = write_sessions(tmp_path / "raw")
    defended = write_sessions(tmp_path / "defended", utility=0.4, method=[{"kind": "noise"}])
    (table,) = compare_weighted("sessions", [Entry(raw), Entry(defended)])
    first, second, silent = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert first["alpha 0.5"] == ""
    read = {"alpha 0": 0.9, "alpha 0.5": 0.55, "alpha 0.75": 0.625, "alpha 1": 0.8}
    for column, ap in read.items():
        assert float(second[column]) == pytest.approx(compute_defence_score(ap, 0.4, 0.5), abs=5e-4)
    assert silent["method"] == SILENT
    assert {silent[column] for column in read} == {f"{compute_defence_score(0, 0, 0.5):.3f}"}
    assert compare_weighted("sessions", []) == []
    with pytest.raises(RunError, match="undefended"):
        compare_weighted("sessions", [Entry(defended)])


def test_figures_go_into_frames_and_less_is_better(run):
    figures = measure([run], "last")
    assert figures["strong_ap_both"] == [pytest.approx(0.7)]
    assert figures["sessions_mp"] == [pytest.approx(0.5)]
    assert find_better("strong_ap_both") == "less"
    assert figures["sessions_ap"] == [pytest.approx(0.7)]
    assert (find_better("sessions_ap"), find_better("sessions_mp")) == ("less", "more")


def test_texts_stand_below_the_private_ones(run):
    lines = [
        {"attack": name, "session": n, "prompt": "1", "response": f"{name} {n}"}
        | {"private_prompt": f"asked {n}", "private_response": "told"}
        for n in range(3)
        for name in READ
    ]
    SESSIONS.save(run.path, 1, encode_lines(lines))
    table = tabulate_dialogues(run)
    assert table.rows[0] == ("0", "(private)", "asked 0", "told")
    assert table.rows[1] == ("", "weak", "1", "weak 0")
    assert [row[0] for row in table.rows if row[0]] == ["0", "1"]
    assert not any("random" in row[1] for row in table.rows)


def test_lines_over_runs_are_of_attacks_and_the_best_guess_is_dotted(run, tmp_path):
    ax = figures.sessions({"open": run, "half": write_sessions(tmp_path / "half", scale=0.5)}, "ap")
    assert ax.lines[0].get_marker() not in ("", "None"), "an attack on one run alone is a mark"
    labels = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    *attacks, guess = labels
    assert (attacks, "guess" in guess) == (["weak", "strong"], True)
    assert labels["strong"] == pytest.approx([0.7, 0.35])
    assert labels[guess] == pytest.approx([0.01, 0.005])
    with pytest.raises(RunError, match=r"'app'.*'ap'"):
        figures.sessions({"open": run}, "app")


def test_a_session_is_drawn_token_by_token(run):
    pairs = {"tokens_prompt": [["He", "He"], [" said", " sat"]], "tokens_response": [["so", "so"]]}
    place = {"session": 0, "prompt": "", "response": "", "private_prompt": "He said"}
    texts = [{"attack": name, **place, **pairs} for name in ("strong", "random_tokens")]
    SESSIONS.save(run.path, 1, encode_lines(texts))
    drawn = figures.session(run)
    lines = [text.get_text() for text in drawn.texts]
    assert lines == ["private", "He", "said", "|", "so", "strong", "He", "sat", "|", "so"]
    boxes = [text.get_bbox_patch() for text in drawn.texts]
    colours = [None if box is None else box.get_facecolor() for box in boxes]
    assert colours[:6] == [None] * 6, "what is private was not read by anybody"
    right, wrong, _, again = colours[6:]
    assert right == again != wrong
    with pytest.raises(RunError, match="no session 3"):
        figures.session(run, 3)
    with pytest.raises(RunError, match="no attack 'weaker'"):
        figures.session(run, attacks=["weaker"])
