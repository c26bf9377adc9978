"""The curve of an attack over rounds, beside the best guess that needs no attack."""

from types import SimpleNamespace

import pandas as pd
import pytest

from simsplit.report.input_figures import draw_attack_curves

ROWS = [
    *((1, "fora", 0.2, 0.5), (1, "black", 0.0, 0.3), (1, "mean_image", 0.7, 0.1)),
    *((3, "fora", 0.9, 0.02), (3, "black", 0.0, 0.3), (3, "mean_image", 0.7, 0.1)),
]


def judge(rows, figure="correlation"):
    return SimpleNamespace(attacks=pd.DataFrame(rows, columns=["round", "attack", figure, "mse"]))


@pytest.mark.parametrize("figure", ["correlation", "rouge_l"])
def test_each_attack_has_a_line_and_the_best_guess_is_dashed(figure):
    (ax,) = draw_attack_curves(judge(ROWS, figure)).axes
    attack, guess = ax.lines
    assert list(attack.get_xdata()) == [1, 3]
    assert list(attack.get_ydata()) == [0.2, 0.9]
    assert list(guess.get_ydata()) == [0.7, 0.7]
    assert guess.get_linestyle() == "--"
    assert ax.get_legend().get_texts()[0].get_text() == "fora"


def test_what_was_judged_once_has_no_curve():
    assert draw_attack_curves(judge(ROWS[:3])) is None
    assert draw_attack_curves(judge(ROWS, "other")) is None
    assert draw_attack_curves(SimpleNamespace(attacks=pd.DataFrame())) is None
