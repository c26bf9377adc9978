"""Whose model is scored, when, and at whose cost; and which round a summary calls the best."""

import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from builders import enter_round, experiment, run_to_end, scenario
from finished import FinishedRuns
from texts import text_scenario

from simsplit.data.batches import Batcher
from simsplit.data.images import Views
from simsplit.data.samples import IGNORED
from simsplit.evaluation.evaluator import EvaluateConfig, choose
from simsplit.experiment import Experiment
from simsplit.metrics import is_lower_better
from simsplit.report.comparison import compare
from simsplit.report.run_tables import show
from simsplit.results import Run
from simsplit.results.ledger import Ledger, TableColumns
from simsplit.results.summary import summarise
from simsplit.scenario.declared_fields import StopConfig

OWN: dict[str, Any] = {"clients": {"heads": "per_client"}, "model": {"cut": "l2h"}}
ONE_ROUND = {"schedule": {"rounds": 1}}


def accuracy_by_hand(made: Experiment, client: int) -> float:
    """Compute accuracy by the client's head and tail around the trunk, without the parties."""
    data, parts = made.data, made.parts
    mine = parts.pool.clients[client].training.end
    batcher = Batcher(data.test, mean=data.mean, std=data.std)
    net = torch.nn.Sequential(mine.head, parts.server.end.trunk, mine.tail).eval()
    with torch.no_grad():
        outputs = net(batcher.batch(torch.arange(len(data.test))).inputs)
    hits = outputs.argmax(1) == data.test.labels
    return hits.sum().item() / len(hits)


def test_each_client_with_its_own_head_and_tail(tmp_path: Path) -> None:
    lr = {"train": {"client": {"kind": "sgd", "lr": 0.3}}}
    made = run_to_end(scenario(**OWN, **ONE_ROUND, **lr), tmp_path / "run")
    expected = [accuracy_by_hand(made, client) for client in range(3)]
    assert len(set(expected)) > 1, "the clients do not differ: nothing is tested"
    run = Run.load(made.path)
    assert run.clients["test_accuracy"].tolist() == expected
    assert run.rounds["test_accuracy"].tolist() == pytest.approx([sum(expected) / 3], rel=1e-12)


def test_a_shared_head_is_scored_once_with_its_holder(tmp_path: Path) -> None:
    made = run_to_end(scenario(**ONE_ROUND), tmp_path / "run")
    run = Run.load(made.path)
    assert run.rounds["test_accuracy"].tolist() == [accuracy_by_hand(made, 2)]
    scored = run.wire[run.wire["phase"] == "evaluate"]
    assert scored["client"].tolist() == [2, 2]
    assert scored["packets"].tolist() == [1, 1]
    assert "test_accuracy" not in run.clients


def test_views_of_an_image_count_as_published(tmp_path: Path) -> None:
    """By hand: half the image, a quarter each of a pixel up left and down right, all mirrored."""
    given = scenario(**ONE_ROUND, evaluate={"mirrored": True, "shifted": True})
    made = run_to_end(given, tmp_path / "run")
    end = made.parts.pool.clients[2].training.end
    net = torch.nn.Sequential(end.head, made.parts.server.end.trunk, end.tail).eval()
    batcher = Batcher(made.data.test, mean=made.data.mean, std=made.data.std)
    images = batcher.batch(torch.arange(len(made.data.test))).inputs
    bordered, size = torch.nn.ReflectionPad2d(1)(images), images.shape[-1]
    with torch.no_grad():
        one = net(images) + net(images.flip(-1))
        moved = [bordered[:, :, at : at + size, at : at + size] for at in (0, 2)]
        others = sum(net(each) + net(each.flip(-1)) for each in moved)
    labels = made.data.test.labels
    ways = (one + others / 2, one, others)
    hits = [(each.argmax(1) == labels).double().mean().item() for each in ways]
    assert len(set(hits)) == 3, "the views change nothing: nothing is tested"
    assert Run.load(made.path).rounds["test_accuracy"].tolist() == pytest.approx([hits[0]])


def test_without_views_of_its_own_an_image_is_alone() -> None:
    images, outputs = torch.rand(2, 1, 4, 4), torch.rand(2, 3)
    assert Views().stack_views(images).equal(images)
    assert Views().average(outputs) is outputs
    assert Views(mirrored=True).stack_views(images).equal(torch.cat([images, images.flip(-1)]))


def test_at_most_so_many_clients_by_seed(tmp_path: Path) -> None:
    made = run_to_end(scenario(**OWN, **ONE_ROUND, evaluate={"clients": 2}), tmp_path / "run")
    chosen = choose(range(3), 2, made.scenario.seed)
    clients = Run.load(made.path).clients
    assert clients.loc[clients["test_accuracy"].notna(), "client"].tolist() == chosen


def test_the_choice_of_clients_is_the_seeds() -> None:
    assert choose(range(10), None, 0) == choose(range(10), 10, 0) == list(range(10))
    choices = [choose(range(10), 3, seed) for seed in range(5)]
    assert choices[0] == choose(range(10), 3, 0)
    assert len({tuple(choice) for choice in choices}) > 1
    assert all(choice == sorted(set(choice)) and len(choice) == 3 for choice in choices)


@pytest.mark.parametrize(
    ("every", "due"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [5]), (9, [5])]
)
def test_when_an_evaluation_is_due(every: int, due: list[int]) -> None:
    config = EvaluateConfig(every=every)
    assert [number for number in range(1, 6) if config.due(number, 5)] == due


def test_rounds_without_an_evaluation_have_empty_figures(finished: FinishedRuns) -> None:
    rounds = Run.load(finished(scenario(schedule={"rounds": 3}, evaluate={"every": 2}))).rounds
    assert rounds.loc[rounds["test_loss"].notna(), "round"].tolist() == [2, 3]


@pytest.mark.parametrize("handover", ["state", "weights"])
def test_training_goes_on_in_training_mode(handover: str, tmp_path: Path) -> None:
    given = scenario(model={"cut": "l2h"}, clients={"count": 2, "handover": handover})
    made = experiment(given, tmp_path / "run")
    enter_round(made, 1)
    head = made.parts.pool.clients[0].training.end.head
    made.parts.exchange.step(0)
    made.parts.exchange.holder = 1  # another client's learner over the same modules
    made.parts.evaluator.evaluate(1)
    assert not head[4].training
    assert head[4].num_batches_tracked.item() == 1
    made.parts.exchange.step(0)
    assert head[4].training
    assert made.parts.server.end.trunk.training
    assert head[4].num_batches_tracked.item() == 2


@pytest.mark.slow
def test_an_evaluation_costs_no_bytes_of_the_runs(finished: FinishedRuns) -> None:
    often = Run.load(finished(scenario()))
    seldom = Run.load(finished(scenario(evaluate={"every": 0})))
    assert often.rounds["bytes_total"].tolist() == seldom.rounds["bytes_total"].tolist()
    training = often.wire[often.wire["phase"] != "evaluate"]
    total = int(training["bytes"].sum())
    assert often.rounds["bytes_total"].iloc[-1] == total == often.summary["bytes"]["total"]
    # 40 samples in two rounds: the cut's 20x12x12 up, 512 features down
    assert often.summary["bytes"]["evaluation"] == 2 * 40 * (20 * 12 * 12 + 512) * 4
    assert often.rounds["train_loss"].tolist() == seldom.rounds["train_loss"].tolist()


def tables(
    path: Path, metric: str, figures: list[tuple[float | None, float | None]], warm_up: int = 0
) -> Any:
    """Write a run directory of just these (validation, test) figures, with its summary."""
    given = scenario(data={"validation": 0.2}, evaluate={"metrics": [metric]})
    writer = Ledger(path, TableColumns(given.figures), None).writer
    writer.start(given.yaml(), {})
    columns = (f"validation_{metric}", f"test_{metric}")
    for number, values in enumerate(figures, start=1):
        shown = {name: v for name, v in zip(columns, values, strict=True) if v is not None}
        phase = "calibrate" if number <= warm_up else "train"
        counts = {"steps": 1, "bytes_up": 3, "bytes_down": 0, "bytes_total": 3}
        row = {"round": number, "phase": phase, "samples": 5, **counts, **shown}
        writer.append("rounds", [row])
        times = {"train_s": number, "evaluate_s": 0, "elapsed_s": number}
        writer.append("timing", [{"round": number, **times}])
    sent = {"client": 0, "phase": "train", "leg": "smashed", "packets": 1, "bytes": 3}
    writer.append("wire", [{"round": 1, **sent}])
    return summarise(Run.load(path), given.figures)


def test_the_best_round_is_chosen_on_validation_not_on_test(tmp_path: Path) -> None:
    facts = tables(
        tmp_path / "run", "accuracy", [(0.5, 0.9), (None, None), (0.7, 0.6), (0.7, 0.8), (0.6, 0.7)]
    )
    best = {"round": 3, "validation_accuracy": 0.7, "test_accuracy": 0.6}  # the first of equals
    assert facts["best_on_validation"] == best
    assert facts["best_on_test"]["round"] == 1
    assert facts["last"] == {"round": 5, "validation_accuracy": 0.6, "test_accuracy": 0.7}
    assert facts["bytes"] == {"smashed": 3, "total": 3, "evaluation": 0}


def test_a_run_whose_scores_are_no_numbers_has_a_last_round_and_no_best(tmp_path: Path) -> None:
    """The last step of training can make a network whose loss is no number."""
    facts = tables(tmp_path / "run", "loss", [(None, None), (math.nan, math.nan)])
    assert facts["best_on_validation"] is None
    assert facts["best_on_test"] is None
    assert facts["last"]["round"] == 2
    assert math.isnan(facts["last"]["test_loss"])


def test_a_warm_up_is_never_the_best_and_costs_no_sample_anything(tmp_path: Path) -> None:
    facts = tables(tmp_path / "run", "loss", [(0.1, 0.1), (0.4, 0.3), (0.6, 0.2)], warm_up=1)
    assert facts["best_on_validation"]["round"] == 2
    assert facts["best_on_test"]["round"] == 3
    # the only bytes are the first round's
    assert facts["per_sample"] == {"seconds": (2 + 3) / 10, "bytes": 0.0}
    facts = tables(tmp_path / "all", "loss", [(0.1, 0.1), (0.4, 0.3)])
    assert facts["per_sample"] == {"seconds": (1 + 2) / 10, "bytes": 3 / 10}


def test_the_best_loss_is_the_smallest(tmp_path: Path) -> None:
    facts = tables(tmp_path / "run", "loss", [(0.5, 0.1), (0.4, 0.3), (0.6, 0.2)])
    assert facts["best_on_validation"]["round"] == 2
    assert facts["best_on_test"]["round"] == 1


@pytest.mark.parametrize(
    ("figure", "smaller"),
    [
        ("test_loss", True),
        ("validation_perplexity", True),
        ("test_calibration_error", True),
        ("test_accuracy", False),
        ("attack_success", False),
    ],
)
def test_what_is_better_when_it_is_smaller_is_called_so(figure: str, smaller: bool) -> None:
    assert is_lower_better(figure) is smaller


def test_without_a_validation_part_nothing_is_chosen_on_it(finished: FinishedRuns) -> None:
    assert Run.load(finished(scenario(**ONE_ROUND))).summary["best_on_validation"] is None


class TestControls:
    """The same weights, scored in other ways."""

    WORDS: ClassVar = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1}
    MIXED: ClassVar = [{"kind": "mixguard", "tokens": 2, "warm_up": 1, "sampler": "affine"}]

    def run_texts(self, path: Path, **changes: Any) -> Experiment:
        words = {"model": {**self.WORDS, "tail": 1, **changes.pop("model", {})}}
        given = {"data": {"auxiliary": 0.3}, "schedule": {"rounds": 1}, **words, **changes}
        return run_to_end(text_scenario(path, **given), path / "run")

    def by_hand(self, made: Experiment, *, trunk: bool) -> tuple[float, float]:
        """Compute loss and accuracy of the words of the test texts."""
        end, test = made.parts.pool.clients[0].training.end, made.data.test
        with torch.no_grad():
            z = end.head(test.inputs)
            logits = end.tail(made.parts.server.end.trunk(z) if trunk else z)
        learned = test.labels != IGNORED
        scores, meant = logits[learned], test.labels[learned]
        loss = torch.nn.functional.cross_entropy(scores, meant).item()
        return loss, (scores.argmax(-1) == meant).float().mean().item()

    @pytest.mark.slow
    def test_without_trunk_the_tail_reads_what_the_head_sent(self, tmp_path: Path) -> None:
        made = self.run_texts(tmp_path, evaluate={"controls": ["without_trunk"]})
        row = Run.load(made.path).rounds.iloc[-1]
        for trunk, control in ((True, ""), (False, "_without_trunk")):
            loss, accuracy = self.by_hand(made, trunk=trunk)
            assert row[f"test_loss{control}"] == pytest.approx(loss, rel=1e-5)
            assert row[f"test_accuracy{control}"] == pytest.approx(accuracy, rel=1e-5)
        assert row["test_loss"] != row["test_loss_without_trunk"]

    @pytest.mark.slow
    def test_one_run_tells_plain_corrected_and_mixed_inference(self, tmp_path: Path) -> None:
        controls = ["plain", "calibrated", "mixed", "without_trunk"]
        made = self.run_texts(tmp_path, method=self.MIXED, evaluate={"controls": controls})
        row = Run.load(made.path).rounds.iloc[-1]
        losses = [row[f"test_loss_{control}"] for control in controls]
        assert len(set(losses)) == 4
        assert losses[0] == row["test_loss"] == pytest.approx(self.by_hand(made, trunk=True)[0])
        assert losses[3] == pytest.approx(self.by_hand(made, trunk=False)[0])

    @pytest.mark.slow
    def test_texts_are_generated_without_it_too(self, tmp_path: Path) -> None:
        metrics = {"metrics": ["loss", "rouge_l"], "max_new_tokens": 2, "generated_texts": 2}
        made = self.run_texts(tmp_path, evaluate={"controls": ["without_trunk"], **metrics})
        assert "test_rouge_l_without_trunk" in Run.load(made.path).rounds

    @pytest.mark.slow
    def test_a_skipped_trunk_has_nothing_and_head_and_tail_learn(self, tmp_path: Path) -> None:
        controls = {"evaluate": {"controls": ["without_trunk"]}}
        made = self.run_texts(tmp_path, model={"trunk": "skipped"}, **controls)
        assert not list(made.parts.server.end.trunk.parameters())
        run = Run.load(made.path)
        row = run.rounds.iloc[-1]
        assert row["test_loss"] == row["test_loss_without_trunk"]
        begun = experiment(made.scenario, tmp_path / "begun").parts.pool.clients[0].training.end
        end = made.parts.pool.clients[0].training.end
        for segment in ("head", "tail"):
            before, after = (getattr(each, segment).state_dict() for each in (begun, end))
            assert any(not torch.equal(weight, after[name]) for name, weight in before.items())

    @pytest.mark.slow
    def test_it_is_shown_and_compared_in_its_figures_units(self, tmp_path: Path) -> None:
        made = self.run_texts(tmp_path, evaluate={"controls": ["without_trunk"]})
        run = Run.load(made.path)
        shown = {row[0]: row[1] for row in show(run)[0].rows}
        last = run.summary["last"]
        assert shown["test loss without trunk"] == f"{last['test_loss_without_trunk']:.4f}"
        share = 100 * last["test_accuracy_without_trunk"]
        assert shown["test accuracy without trunk"] == f"{share:.2f}%"
        table = compare([run])
        (cells,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
        assert cells["accuracy_without_trunk"] == f"{share:.2f}"
        assert cells["perplexity_without_trunk"] == f"{last['test_perplexity_without_trunk']:.1f}"
        assert "loss_without_trunk" not in cells

    @pytest.mark.parametrize("loss", ["test_loss_without_trunk", "test_perplexity_mixed"])
    def test_losses_of_controls_fall_too(self, loss: str) -> None:
        assert is_lower_better(loss)
        assert not is_lower_better("test_accuracy_without_trunk")


def test_a_run_that_stops_by_a_backdoors_success_waits_for_it_to_fall() -> None:
    assert StopConfig(metric="attack_success").smaller_is_better
    assert not StopConfig(metric="test_accuracy").smaller_is_better
