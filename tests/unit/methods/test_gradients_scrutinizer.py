"""The Gradients Scrutinizer: its score by hand and by numpy's fit, and what it leaves alone."""

import math

import numpy as np
import pytest
import torch
from builders import experiment, run_to_end, scenario

from simsplit import Run
from simsplit.data.batches import Batch
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import Site, Step
from simsplit.methods.gradients_scrutinizer import (
    GradientsScrutinizer,
    GradientsScrutinizerConfig,
    SeriesSums,
    compare_pairs,
    compute_score,
)


def test_the_score_by_hand():
    """Intervals .4 to .6 and .55 to .85: a ninth is common."""
    means, stds = torch.tensor([0.5, 0.7]), torch.tensor([0.1, 0.15])
    gap = (0.2 / 1.2) ** 0.4
    x = gap * -math.log(7 * 0.02 + math.exp(-2)) * -math.log(1 / 9 + math.exp(-1)) - 0.7
    expected = 1 / (1 + math.exp(-5 * x))
    assert compute_score(means, stds, 0.02) == pytest.approx(expected, rel=1e-5)
    # Apart, so that nothing is common; and the other way round, as no task's gradients are.
    apart = torch.tensor([0.01, 0.01])
    assert compute_score(means, apart, 0.0) > 0.5 > compute_score(means.flip(0), apart, 0.0)
    assert compute_score(torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.1]), 0.0) == pytest.approx(
        1 / (1 + math.exp(3.5)), rel=1e-5
    )


@pytest.mark.parametrize("steps", [1, 3, 4, 50, 3000])
def test_the_error_is_that_of_the_best_parabola(steps):
    rng = np.random.default_rng(0)
    t = np.arange(steps)
    series = [0.5 + 1e-4 * t + 0.02 * rng.normal(size=steps), 0.7 - 0.01 * np.sin(t)]
    sums = SeriesSums()
    for pair in zip(*series, strict=True):
        sums.add(torch.tensor(pair))
    expected = 0.0
    if steps > 3:
        left = [values - np.polyval(np.polyfit(t, values, 2), t) for values in series]
        expected = float(np.mean([np.sqrt(np.mean(values**2)) for values in left]))
    assert sums.measure_error() == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_pairs_are_compared_as_the_published_loops_do():
    """It compares each pair twice, and gives 0 to a pair with a gradient of zeros."""
    gradients = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    gradients[2] = 0
    labels = [0, 1, 0, 2, 1, 0, 2]
    kinds: dict[bool, list[float]] = {False: [], True: []}
    for i, one in enumerate(gradients.numpy()):
        for j, other in enumerate(gradients.numpy()):
            norms = np.linalg.norm(one) * np.linalg.norm(other)
            similar = 0.5 + 0.5 * float(one @ other / norms) if norms > 0 else 0.0
            if i != j:
                kinds[labels[i] == labels[j]].append(similar)
    means, stds = compare_pairs(gradients, torch.tensor(labels))
    assert means.tolist() == pytest.approx([np.mean(kinds[False]), np.mean(kinds[True])], rel=1e-5)
    assert stds.tolist() == pytest.approx([np.std(kinds[False]), np.std(kinds[True])], rel=1e-5)


def scrutinizer(**fields) -> GradientsScrutinizer:
    site = Site("client", Leg.SMASHED, (4,), 0, torch.device("cpu"))
    built = GradientsScrutinizerConfig(**fields).build(site)
    assert isinstance(built, GradientsScrutinizer)
    return built


@pytest.mark.parametrize(
    ("labels", "training", "scored"),
    [([0, 0, 1, 1], True, True), ([0, 1, 2, 3], True, False), ([0, 0, 1, 1], False, False)],
)
def test_which_steps_are_scored(labels, training, scored):
    """A batch in which no label comes twice is left out, and so are evaluations."""
    method = scrutinizer(after=0)
    step = Step(0, 1, 0, 0, training=training)
    given = torch.tensor(labels)
    method.transform(Batch(torch.zeros(4, 4), given, given), step)
    gradients = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    step.leg = Leg.SMASHED_GRAD
    assert method.unpack((gradients,), step) is gradients
    assert ("gradients_scrutinizer" in step.figures) == scored


def test_one_that_would_never_begin_is_refused(tmp_path):
    late = {"kind": "gradients_scrutinizer", "after": 30}
    given = scenario(method=[late], schedule={"rounds": 2})
    with pytest.raises(ScenarioError, match=r"got 30") as refused:
        experiment(given, tmp_path / "run")
    assert refused.value.field == "method.0.after"


def test_training_is_as_without_it(tmp_path):
    """It draws nothing, sends nothing and changes nothing."""
    runs = []
    scored = [{"kind": "gradients_scrutinizer", "after": 0}]
    for name, method in (("with", scored), ("without", [])):
        given = scenario(method=method, clients={"count": 1})
        runs.append(Run.load(run_to_end(given, tmp_path / name).path))
    ours, plain = runs
    assert ours.rounds["test_loss"].tolist() == plain.rounds["test_loss"].tolist()
    assert ours.rounds["bytes_total"].tolist() == plain.rounds["bytes_total"].tolist()
    assert ours.clients["gradients_scrutinizer"].notna().all()
