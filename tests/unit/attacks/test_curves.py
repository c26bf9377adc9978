"""Curves of attacks: each point is the result of a shorter attack."""

import pandas as pd
import pytest
from builders import run_to_end, scenario
from texts import text_scenario

from simsplit import run
from simsplit.attacking.run_attacks import make_point, shorten
from simsplit.attacks.sip import SipConfig
from simsplit.attacks.unsplit import UnsplitConfig
from simsplit.report.input_tables import tabulate_convergence
from simsplit.report.numbers import measure
from simsplit.results import Run
from simsplit.results.leak_table import list_leaks
from simsplit.results.recovered_files import load_curves

WORDS = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
SIP = {"kind": "sip", "hidden": 8}


def test_a_shorter_attack_has_less_of_what_takes_its_time_alone():
    short = shorten(UnsplitConfig(outer=40, inner=7), 0.25)
    assert (short.outer, short.inner) == (10, 7)
    assert shorten(SipConfig(epochs=20), 0.1).epochs == 2
    assert shorten(SipConfig(iterations=5), 0.1).iterations == 1


def test_a_figure_that_a_target_lacks_is_averaged_over_the_others():
    """An image without a foreground, or with a small one, has no figures of it."""
    place = {"round": 1, "attack": "unsplit"}
    figures = ({"mse": 1.0}, {"mse": 2.0, "fg_ssim": 0.25}, {"mse": 3.0, "fg_ssim": 0.75})
    rows = [row for each in figures for row in list_leaks(place, each)]
    rows += list_leaks({**place, "attack": "other"}, {"mse": 9.0, "fg_ssim": 9.0})
    point = make_point(UnsplitConfig(), 0.5, rows)
    assert (point["mse"], point["fg_ssim"]) == (2.0, 0.5)
    assert make_point(UnsplitConfig(), 0.5, rows[:3]).get("fg_ssim") == 0.25


def of_images(iterations, **targets):
    return scenario(
        clients={"count": 1},
        data={"auxiliary": 0.3, "normalise": "unit"},
        schedule={"rounds": 1},
        attacks=[{"kind": "unsplit", "outer": iterations, "inner": 1}],
        targets={"count": 3, **targets},
    )


def of_texts(iterations, path, **targets):
    return text_scenario(
        path,
        clients={"count": 1},
        data={"auxiliary": 0.5},
        model=WORDS,
        schedule={"kind": "round_robin", "rounds": 1},
        attacks=[{**SIP, "iterations": iterations}],
        targets={"count": 3, **targets},
    )


def test_half_of_the_iterations_has_figures_of_its_own_where_the_curve_has_that_point(tmp_path):
    whole = measure([run(of_images(8, curve=2), tmp_path / "whole")], "last")
    half = measure([run(of_images(4), tmp_path / "half")], "last")
    assert whole["unsplit_mse_at_half"] == pytest.approx(half["unsplit_mse"])
    assert not any(name.endswith("_at_half") for name in half)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["mse", "token_accuracy"])
def test_points_are_what_shorter_attacks_come_to_and_the_last_is_the_attack(figure, tmp_path):
    def make_scenario(iterations, **targets):
        if figure == "mse":
            return of_images(iterations, **targets)
        return of_texts(iterations, tmp_path, **targets)

    whole = Run.load(run_to_end(make_scenario(8, curve=2), tmp_path / "whole").path)
    half = Run.load(run_to_end(make_scenario(4), tmp_path / "half").path)
    curve = load_curves(whole.path).set_index("share")
    for one, share in ((half, 0.5), (whole, 1.0)):
        made = one.attacks.set_index("attack").iloc[0]
        assert curve.loc[share, figure] == pytest.approx(made[figure], abs=1e-12)
    assert tabulate_convergence(whole).columns == ("attack", "50%", "100%")
    without = Run.load(run_to_end(make_scenario(8), tmp_path / "without").path)
    pd.testing.assert_frame_equal(whole.recovered, without.recovered)
    assert load_curves(without.path).empty
