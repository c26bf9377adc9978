"""What leaves a client beside noised packets is listed, and none of it undoes a guarantee."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import experiment, scenario
from gists import says
from torch import Tensor

from simsplit.deploy import site as site_module
from simsplit.deploy.call_codecs import ANSWERS, NOTHING
from simsplit.deploy.connection import JoiningSite
from simsplit.deploy.figure_bounds import FigureBounds, Holdings
from simsplit.deploy.handovers import DISCLOSE
from simsplit.deploy.site import ClientSite
from simsplit.errors import ProtocolError
from simsplit.experiment import Experiment
from simsplit.legs import ClientId, Leg
from simsplit.methods import METHODS
from simsplit.packets import Packet
from simsplit.parties.calls import Assess, ReportRound
from simsplit.privacy.accounting import list_guarantees, list_withheld_figures
from simsplit.privacy.departures import SamplePart, find_uncovered, list_departures
from simsplit.progress import Observer, RoundEnded
from simsplit.results import Run
from simsplit.scenario import Scenario

LEARNED = ("train_loss", "train_accuracy")
BACK = {"kind": "dp_sgd", "multiplier": 20.0, "relative": False}
FORWARD = {"kind": "dp_forward", "epsilon": 2.0, "relative": False}
PAIR = {
    "data": {"classes": [3, 8], "train_samples": 32, "test_samples": 20},
    "clients": {"count": 2},
    "schedule": {"kind": "round_robin", "rounds": 6},
    "train": {"client": {"kind": "sgd", "lr": 1e-4}, "server": {"kind": "sgd", "lr": 1e-4}},
}


def noised(**changes: Any) -> Scenario:
    """Two clients of 16 samples of two classes, whose labels noise hides at a small epsilon."""
    model = {"kind": "simplecnn", "learns": ["head", "trunk"]}
    return scenario(**{**PAIR, "model": model, "method": [BACK], **changes})


class Crossed(Observer):
    """Keeps what a server gets of each step: features it sent, and the figures of each round."""

    def __init__(self) -> None:
        self.features: dict[tuple[ClientId, int], Tensor] = {}
        self.reports: dict[tuple[ClientId, int], dict[str, float]] = {}

    def observe(self, packet: Packet) -> None:
        if packet.leg is Leg.FEATURES:
            self.features.setdefault((packet.client, packet.round), packet.tensors[0].clone())

    def round(self, ended: RoundEnded) -> None:
        for row in ended.clients:
            figures = {name: row[name] for name in LEARNED if name in row}
            self.reports[row.client, ended.number] = figures  # type: ignore[assignment]


def search_labels(logits_N2: Tensor, figures: Mapping[str, float]) -> Tensor:
    """Return the labels of a batch that explain its figures best, of all that it may have."""
    count = len(logits_N2)
    every_LN = (torch.arange(2**count)[:, None] >> torch.arange(count)) & 1
    costs_2N = -logits_N2.double().log_softmax(1).T
    losses_L = torch.where(every_LN == 1, costs_2N[1], costs_2N[0]).mean(1)
    hits_L = (every_LN == logits_N2.argmax(1)).double().mean(1)
    misfit_L = torch.zeros(len(every_LN), dtype=torch.float64)
    for name, values_L in zip(LEARNED, (losses_L, hits_L), strict=True):
        if name in figures:
            misfit_L += (values_L - figures[name]).abs()
    return every_LN[misfit_L.argmin()]


@pytest.mark.parametrize("reported", [False, True])
def test_no_search_over_labels_explains_what_a_client_with_a_guarantee_reports(tmp_path, reported):
    """With the figures that a simulation keeps in its tables the same search finds every label."""
    given = noised()
    crossed = Crossed()
    made = Experiment(given, tmp_path / "run", [crossed])
    made.parts.wire.taps.append(crossed)
    made.run(resume=False)
    (entry,) = Run.load(made.path).summary["privacy"]
    assert entry["epsilon"] < 0.5
    held = Holdings({0: 16, 1: 16}, {"test": 20})
    bounds = FigureBounds(given, held, classes=2, client_scores=True)
    right = total = 0
    for (client, number), features in crossed.features.items():
        training = made.parts.pool.clients[client].training  # type: ignore[attr-defined]
        figures = crossed.reports[client, number]
        if not reported:
            figures = bounds.withhold_from(ReportRound(), figures)
        with torch.no_grad():
            found = search_labels(training.end.tail(features), figures)
        right += int((found == training.feeds["private"].batch(number - 1).labels).sum())
        total += len(found)
    assert total == 192
    if reported:
        assert right == total, "the search itself must work"
    else:
        assert right / total < 0.65


def test_what_depends_on_protected_labels_is_withheld_and_nothing_else():
    assert list_withheld_figures(noised()) == LEARNED
    assert list_withheld_figures(noised(method=[{**BACK, "relative": True}])) == ()
    frozen = {"kind": "simplecnn", "learns": ["trunk", "tail"]}
    assert list_withheld_figures(scenario(model=frozen, method=[FORWARD])) == ()
    drawn = scenario(method=[{"kind": "randomised_response"}, {"kind": "wcc"}])
    assert list_withheld_figures(drawn) == ("labels_changed",)


def test_a_tail_with_true_labels_withholds_its_scores_and_stops_nobody():
    given = noised(
        method=[{"kind": "pslf"}], model={"kind": "simplecnn"}, clients={"heads": "per_client"}
    )
    withheld = list_withheld_figures(given)
    assert {*withheld} == {*LEARNED, "labels_flipped", *given.figures}
    stops = given.model_copy(
        update={"stop": scenario(stop={"metric": "test_loss", "patience": 1}).stop}
    )
    (entry,) = list_guarantees(stops)
    assert says(entry.lacks, "early stopping ... test_loss ... leave stop out")
    assert list_withheld_figures(stops) == ()


def test_a_server_takes_no_figure_that_is_withheld():
    bounds = FigureBounds(noised(), Holdings({0: 16}, {"test": 20}), classes=2, client_scores=True)
    counted = {"steps": 1, "samples": 16, "method_loss": 0.0}
    bounds.check_report(0, None, counted, 1)
    with pytest.raises(ProtocolError, match="train_loss"):
        bounds.check_report(0, None, counted | {"train_loss": 0.5}, 1)
    scores = dict.fromkeys(bounds.scenario.metrics, 0.5)
    assert bounds.withhold_from(Assess("test"), scores) == scores
    bounds.check_scores(0, scores)


def test_every_answer_and_every_field_of_the_greeting_is_listed(tmp_path):
    sent = {name for each in list_departures(noised()) for name in each.sent_by}
    answered = {call.__name__ for call, codec in ANSWERS.items() if codec is not NOTHING}
    given = noised()
    site = ClientSite(given, given.prepare_data(), 0, tmp_path)
    greeting = {f"greeting.{name}" for name in site.describe_itself()}
    source = inspect.getsource(site_module) + inspect.getsource(JoiningSite)
    others = {*re.findall(r'"number": [^,]+, "(\w+)"', source)} - {"answer"}
    assert others == {"failed", "unusable", "unopened"}
    assert sent == answered | greeting | others | {DISCLOSE}


def test_what_parties_learn_of_common_ids_has_no_guarantee(monkeypatch):
    given = noised()
    assert not [*find_uncovered(given, frozenset(SamplePart))]
    monkeypatch.setattr(type(given.data), "aligns", property(lambda _: True))
    (what,) = find_uncovered(given, frozenset(SamplePart))
    assert "blinded ids" in what


def test_every_figure_of_a_method_is_listed():
    for kind in ("pslf", "randomised_response"):
        given = scenario(method=[{"kind": kind}], data={"classes": [3, 8]})
        names = {each.name for each in list_departures(given)}
        assert names >= {*given.method[0].columns}


PARAMETERS = {"epsilon", "eta", "privacy", "multiplier", "report_delta"}


def test_every_method_with_a_privacy_parameter_gives_an_epsilon_or_says_why_none():
    named = {kind for kind, config in METHODS.items() if PARAMETERS & config.model_fields.keys()}
    assert named >= {"rantext", "santext", "custext", "snd", "text_obfuscator", "dp_sgd", "pslf"}
    for kind in sorted(named):
        assert METHODS[kind]().release is not None, kind


def test_a_simulation_marks_its_own_view(tmp_path: Path):
    made = experiment(noised(schedule={"rounds": 1}), tmp_path / "run")
    made.run(resume=False)
    done = Run.load(made.path)
    assert done.summary["simulators_view"] == [*LEARNED]
    assert "withheld" not in done.summary
    assert done.rounds["train_loss"].notna().all()
