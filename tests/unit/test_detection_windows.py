"""One window for all detectors: what is judged in a round is the mean over the latest ones."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from simsplit.detectors import DETECTORS, RoundView, thresholds
from simsplit.detectors.detector import Detector
from simsplit.detectors.readings import Readings, Sums
from simsplit.detectors.thresholds import SequentialConfig, compute_mad_z, format_window
from simsplit.metrics.detection_rates import score_detection
from simsplit.seeds import rng_for

ROUNDS, CLIENTS = 6, 5
SIGNALS = torch.randn(ROUNDS, CLIENTS, 7, generator=rng_for(0, "signals"))


def views() -> Iterator[RoundView]:
    """Make rounds in which client 1 takes part every second time."""
    for number in range(ROUNDS):
        there = [client for client in range(CLIENTS) if client != 1 or number % 2]
        sums = {("payload", c): Sums(3 * SIGNALS[number, c], torch.tensor(0.0), 3) for c in there}
        yield RoundView(number, Readings(sums), 10)  # type: ignore[arg-type]


def compute_expected(window: int | None, client: int, number: int) -> torch.Tensor:
    """Compute by hand the mean of what the client sent in its latest rounds."""
    rounds = [n for n in range(number + 1) if client != 1 or n % 2]
    latest = rounds if window is None else rounds[-max(window, 1) :]
    return SIGNALS[latest, client].mean(0)


@pytest.mark.parametrize("window", [0, 1, 2, 3, None])
def test_means_are_compared_over_the_window(window: int | None) -> None:
    detector = DETECTORS["cosine_mad"].model_validate({"window": window}).build()
    for number, view in enumerate(views()):
        verdicts = detector.judge(view)
        means = np.stack([compute_expected(window, client, number).numpy() for client in verdicts])
        centre = means.mean(0)
        cosines = means @ centre / np.linalg.norm(means, axis=1) / np.linalg.norm(centre)
        assert [v.score for v in verdicts.values()] == pytest.approx(cosines.tolist(), abs=1e-6)
        assert [v.z for v in verdicts.values()] == pytest.approx(
            compute_mad_z(cosines).tolist(), rel=1e-3
        )


class Loudness(Detector):
    """Scores of its own, and nothing about windows: a plugin's, say."""

    def score(self, view: RoundView) -> dict[int, float]:
        return {c: float(s.total[0]) for (_, c), s in view.readings.sums.items()}


@pytest.mark.parametrize("window", [0, 1, 2, None])
def test_any_detector_s_scores_are_averaged_over_it(window: int | None) -> None:
    detector = Loudness(DETECTORS["krum"].model_validate({"window": window}))
    for number, view in enumerate(views()):
        for client, verdict in detector.judge(view).items():
            assert verdict.score == pytest.approx(
                3 * compute_expected(window, client, number)[0].item(), abs=1e-5
            )


@pytest.mark.parametrize("window", [1, 3, None])
def test_what_a_window_remembers_is_all_that_it_needs(window: int | None) -> None:
    values = [{c: SIGNALS[n, c] for c in range(CLIENTS)} for n in range(ROUNDS)]
    config = DETECTORS["cosine_mad"].model_validate({"window": window})
    whole, first, second = (config.build() for _ in range(3))
    before = [whole.average(each) for each in values]
    for each in values[:4]:
        first.average(each)
    second.load(first.state())
    for number in (4, 5):
        result = second.average(values[number])
        assert all(torch.equal(result[c], before[number][c]) for c in range(CLIENTS))


@pytest.mark.parametrize(("word", "rounds"), [("round", 1), ("running", None), (None, None)])
def test_words_of_earlier_scenarios_are_understood(word: str | None, rounds: int | None) -> None:
    for kind in ("cosine_mad", "within_class", "foolsgold", "krum"):
        assert DETECTORS[kind].model_validate({"window": word}).window == rounds


@pytest.mark.parametrize("wrong", [-1, 1.5, "often"])
def test_what_is_no_window_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="window"):
        DETECTORS["cosine_mad"].model_validate({"window": wrong})


def test_every_detector_has_one_and_tables_name_it() -> None:
    made = {kind: config() for kind, config in DETECTORS.items()}
    message = {kind: format_window(config.window) for kind, config in made.items()}
    assert message == dict.fromkeys(DETECTORS, "round") | dict.fromkeys(
        ("within_class", "root_class", "foolsgold", "contra"), "all rounds"
    )
    assert format_window(4) == "4 rounds"


def test_a_sequential_threshold_spends_its_share_over_all_rounds_and_no_more(monkeypatch):
    """The shares of rounds add up to the run's, of which the first round has three fifths."""
    monkeypatch.setattr(thresholds, "simulate_null_quantile", lambda clients, side, fpr: fpr)
    config = SequentialConfig(fpr=0.02)
    spent = [config.cut(10, "high", number) for number in range(1, 20_001)]
    assert sum(spent) == pytest.approx(0.02, rel=1e-4)
    assert spent[0] == pytest.approx(0.02 * 6 / math.pi**2)


def test_who_is_found_at_few_false_alarms_does_not_depend_on_a_straight_line() -> None:
    """One alarm in a hundred is a point of the curve, though it lies between two others."""
    honest = dict.fromkeys(range(200), 0.0) | {0: 5.0, 1: 5.0, 2: 3.0, 3: 3.0}
    malicious = {200: 9.0, 201: 5.0, 202: 3.0, 203: 0.0}
    figures = score_detection(honest | malicious, [], malicious)
    assert figures["tpr_at_1pct_fpr"] == 0.5
