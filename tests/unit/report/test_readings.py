"""What attacks read of texts, in pictures and words, from runs and from attacks on them."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from builders import run_to_end
from texts import text_scenario

from simsplit.attacking.finished import attack
from simsplit.report import figures
from simsplit.report.input_tables import tabulate_texts
from simsplit.results import Run
from simsplit.results.recovered_files import load_texts

mpl.use("agg")
WORDS = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
SIP = {"kind": "sip", "iterations": 5, "hidden": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    path = tmp_path_factory.mktemp("readings")
    given = text_scenario(
        path,
        data={"auxiliary": 0.5},
        model=WORDS,
        method=[{"kind": "mixguard", "tokens": 2, "warm_up": 0}],
        attacks=[SIP, {"kind": "gradient_ratio", "iterations": 5, "hidden": 8}],
        targets={"count": 4},
        output={"figures": True},
    )
    run_to_end(given, path / "run")
    attack(path / "run", "tag", {"iterations": "3"})
    return Run.load(path / "run")


@pytest.mark.slow
def test_a_run_of_texts_leaves_a_picture(run):
    assert (run.path / "figures" / "recovered.png").stat().st_size > 5000


@pytest.mark.slow
def test_bars_are_means_lines_are_bests_and_guesses_are_dashed(run):
    ax = figures.read({"one": run, "other": run}, "token_accuracy")
    last = run.attacks.groupby("attack").last()
    named = ["sip", "gradient_ratio", "tag"]
    assert [each.get_text() for each in ax.get_xticklabels()] == ["sip", "gradient\nratio", "tag"]
    means = last.loc[named, "token_accuracy"].tolist()
    assert [bar.get_height() for bar in ax.patches[:3]] == means
    tops = [segment[1][1] for segment in ax.collections[0].get_segments()]
    assert tops == last.loc[named, "best_token_accuracy"].tolist()
    guesses = last.loc[["random_tokens", "frequent_token"], "token_accuracy"]
    assert ax.lines[0].get_ydata()[0] == guesses.max()
    plt.close("all")


@pytest.mark.slow
def test_texts_of_attacks_made_afterwards_stand_beside_the_runs_own(run):
    texts = load_texts(run.path)
    assert set(texts["attack"]) >= {"sip", "gradient_ratio", "tag", "random_tokens"}
    assert not texts.duplicated(["attack", "text"]).any()
    rows = tabulate_texts(run, most=2).rows
    assert [row[1] for row in rows] == ["(private)", "sip", "gradient_ratio", "tag"] * 2
