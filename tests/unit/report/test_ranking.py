"""A search ends in an answer: the best setting by validation data, and what may be as good."""

import json
import math
from pathlib import Path

import matplotlib as mpl
import pytest
import yaml
from builders import TINY
from gists import says

import simsplit as package
from simsplit import load_scenario, rank
from simsplit.errors import RunError
from simsplit.report.canvas import save_figure_as
from simsplit.report.grouping import Entry, Loaded
from simsplit.report.parallel import draw_parallel
from simsplit.report.ranking import describe_best, rank_loaded, tabulate_ranking
from simsplit.scenario.files import dump, merge
from simsplit.scenario.shipped import list_names, locate
from simsplit.scenario.sweep_files import has_sweep
from simsplit.sweep.answers import shorten, write_best

mpl.use("agg")

SETTINGS = {  # batch size: validation accuracy of three seeds, test accuracy, validation loss
    8: ((0.80, 0.82, 0.84), 0.70, 0.5),
    16: ((0.79, 0.83, 0.83), 0.95, 0.3),
    32: ((0.70, 0.71, 0.75), 0.60, 0.9),
    2048: ((0.10, 0.12, 0.13), 0.50, 2.0),
}


@pytest.fixture
def make_entries(variant):
    def make(seeds=3):
        made = []
        for size, (validated, tested, loss) in SETTINGS.items():
            for seed in range(seeds):
                fields = {"seed": seed, "train": {"batch_size": size}, "name": "same"}
                scores = {
                    "validation_accuracy": validated[seed],
                    "validation_loss": loss,
                    "test_accuracy": tested,
                }
                made.append(Entry(variant(f"{size}-{seed}", fields, scores)))
        return made

    return make


def list_sizes(ranking):
    return [place.label["batch_size"] for place in ranking.places]


def test_validation_data_rank_and_the_seeds_tell_who_is_behind(make_entries):
    ranking = rank_loaded(Loaded(make_entries()))
    assert ranking.by == "validation_accuracy"
    assert list_sizes(ranking) == ["8", "16", "32", "2048"], "by test accuracy 16 would be first"
    assert [place.is_resolved for place in ranking.places] == [False, False, True, True]
    assert ranking.ties == 1
    low, high = ranking.places[1].interval
    # Differences of -.01, .01, -.01: mean -.00333, Student's half width 4.303 * .01155 / sqrt(3).
    assert (low, high) == pytest.approx((-0.03202, 0.02536), abs=1e-4)
    marks = [row[0] for row in tabulate_ranking(ranking).rows]
    assert marks == ["1", "2 =", "3", "4"]
    assert "1 of 3 others" in describe_best(ranking)


def test_less_of_a_loss_is_better_and_other_figures_can_rank(make_entries):
    entries = make_entries()
    assert list_sizes(rank_loaded(Loaded(entries), by="validation_loss")) == [
        "16",
        "8",
        "32",
        "2048",
    ]
    assert list_sizes(rank_loaded(Loaded(entries), by="test_accuracy"))[0] == "16"
    with pytest.raises(RunError, match="did you mean 'test_accuracy'"):
        rank_loaded(Loaded(entries), by="test_acuracy")


def test_who_is_better_on_the_seeds_that_both_have_is_not_called_worse(make_entries):
    entries = make_entries()
    # Of the first setting one seed remains, which says nothing about an order.
    kept = [entry for entry in entries if entry.run.path.name not in ("8-1", "8-2")]
    ranking = rank_loaded(Loaded(kept))
    assert list_sizes(ranking)[0] == "16"
    assert not ranking.places[1].is_resolved, "one common seed has no interval"
    by_loss = rank_loaded(Loaded(entries), by="validation_loss")
    assert [place.is_resolved for place in by_loss.places] == [False, True, True, True]


def test_one_seed_settles_nothing(make_entries):
    ranking = rank_loaded(Loaded(make_entries(seeds=1)))
    assert list_sizes(ranking) == ["8", "16", "32", "2048"]
    assert not any(place.is_resolved for place in ranking.places)
    assert "one seed" in describe_best(ranking)


def test_the_answer_is_a_scenario_that_runs_as_the_best_did(make_entries, tmp_path):
    ranking = rank_loaded(Loaded(make_entries()))
    file = tmp_path / "best.yaml"
    write_best(ranking, file)
    best = load_scenario(file)
    assert best.name == "best"
    saved = load_scenario(ranking.best.row.entries[0].run.path / "scenario.yaml")
    assert best.model_copy(update={"name": saved.name}) == saved
    assert best.train.batch_size == 8
    with pytest.raises(RunError):
        write_best(ranking, file)


def test_the_drawing_has_an_axis_a_field_and_a_line_a_setting(make_entries):
    picture = draw_parallel(rank_loaded(Loaded(make_entries())))
    assert picture._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"
    (ax,) = picture.axes
    titles = [label.get_text() for label in ax.get_xticklabels()]
    assert titles[-2:] == ["batch_size (log)", "validation accuracy, %"]
    lines = [list(line.get_ydata())[-2:] for line in ax.lines if line.get_marker() == "o"]
    # Drawn last, so that it lies above the others: the best, whose batch is the smallest.
    assert [lines[-1], lines[0]] == [[0.0, 1.0], [1.0, 0.0]]
    assert len(lines) == 4
    assert 0 < lines[-2][0] < 0.2, "16 lies near 8 on a logarithmic axis up to 2,048"


def list_plain_scenarios():
    return [name for name in list_names() if "/" not in name and not has_sweep(locate(Path(name)))]


@pytest.mark.parametrize("name", list_plain_scenarios())
def test_a_short_scenario_is_the_same_scenario(name):
    scenario = load_scenario(name)
    short = shorten(scenario)
    assert package.Scenario(**short) == scenario
    assert len(yaml.safe_dump(short)) < len(yaml.safe_dump(scenario.model_dump(mode="json")))


def test_a_search_ends_with_its_answer_and_rank_prints_it_again(simsplit, tmp_path):
    search = {"count": 2, "train.batch_size": [4, 8]}
    small = {
        "name": "search",
        "data": {"train_samples": 40, "test_samples": 20, "validation": 0.2},
        "clients": {"count": 2},
        "schedule": {"rounds": 1},
        "sweep": {"grid": {"seed": [0, 1]}, "random": search},
    }
    (tmp_path / "s.yaml").write_text(dump(merge(TINY, small)))
    code, out, _ = simsplit("sweep", "s.yaml", "--out", "swept", "--jobs", 1)
    assert code == 0
    (said,) = [line for line in out.splitlines() if line.startswith("best: ")]
    code, out, err = simsplit("rank", "swept", "--write", "b.yaml", "--plot", "p.png")
    assert code == 0
    assert said in out
    assert (tmp_path / "p.png").stat().st_size > 5000
    assert "b.yaml" in err
    assert simsplit("validate", "b.yaml")[0] == 0
    places = json.loads(simsplit("rank", "swept", "--json")[1])["places"]
    assert [place["place"] for place in places] == [1, 2]
    assert rank("swept")["place"].tolist() == [1, 2]


def test_a_picture_of_an_unknown_form_is_refused_by_its_file(make_entries, tmp_path):
    with pytest.raises(RunError, match=r"a\.xyz"):
        save_figure_as(draw_parallel(rank_loaded(Loaded(make_entries()))), tmp_path / "a.xyz")


def test_a_setting_whose_figure_is_no_number_has_no_place_and_its_reason(make_entries, variant):
    scores = {"validation_accuracy": 0.5, "validation_loss": math.nan, "test_accuracy": 0.5}
    fields = {"seed": 0, "train": {"batch_size": 4}, "name": "same"}
    diverged = Entry(variant("4-0", fields, scores))
    ranking = rank_loaded(Loaded([diverged, *make_entries()]), by="validation_loss")
    assert list_sizes(ranking) == ["16", "8", "32", "2048"]
    assert [says(line, "validation_loss ... 4") for line in ranking.left_out] == [True]
    with pytest.raises(RunError, match="validation_loss"):
        rank_loaded(Loaded([diverged]), by="validation_loss")


def test_a_seed_without_end_does_not_stop_the_ranking(make_entries, variant):
    scores = {"validation_accuracy": 0.5, "validation_loss": math.inf, "test_accuracy": 0.5}
    fields = {"train": {"batch_size": 4}, "name": "same"}
    endless = [Entry(variant(f"4-{seed}", fields | {"seed": seed}, scores)) for seed in (0, 1)]
    ranking = rank_loaded(Loaded([*endless, *make_entries()]), by="validation_loss")
    assert list_sizes(ranking)[-1] == "4"
    assert len(tabulate_ranking(ranking).rows) == 5
