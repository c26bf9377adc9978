"""The judge of texts against attacks that know everything: what is perfect is scored as perfect."""

import json

import pytest
import torch
from texts import text_scenario
from written_leaks import group_by_target

from simsplit.attacking.text_scorer import TextScorer
from simsplit.attacks.attack import Guesses
from simsplit.data.texts import TextBatcher
from simsplit.methods.secret_tokens import insert_tokens
from simsplit.results.recovered_files import TEXTS
from simsplit.seeds import rng_for

WORDS = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
COUNT, SIZE = 6, 4


@pytest.fixture(scope="module", params=["right", "left"])
def judged(request, tmp_path_factory):
    """A judge of six texts in batches of four and two, and those batches."""
    given = text_scenario(
        tmp_path_factory.mktemp("texts"),
        data={"source": {"learns": "all", "padding": request.param}},
        model=WORDS,
        targets={"count": COUNT, "batch_size": SIZE},
        clients={"count": 1},
    )
    data = given.prepare_data()
    samples, rows = given.targets.choose(data)
    batches = [TextBatcher(samples).batch(part) for part in rows.split(SIZE)]
    return TextScorer(given, data), batches


def join(parts):
    """Join the rows of all batches, padded to the longest."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat(
        [torch.nn.functional.pad(p, (0, longest - p.shape[1]), value=-1) for p in parts]
    )


def accuracy(judge, guesses, own):
    result = judge.score(1, {"oracle": guesses}, own)
    return [row for row in group_by_target(result.rows) if row["attack"] == "oracle"]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_perfect_attack_is_perfect_whatever_stands_between_the_tokens(judged, ahead):
    """Labels, which gradients give away, are next tokens of the text, not of what was sent."""
    judge, batches = judged
    on_the_left = batches[0].mask is not None  # where no secret tokens are put into texts
    for secret in (0,) if on_the_left else (0, 5):
        sent = [insert_tokens(batch, secret, 259, rng_for(0, "secret")) for batch in batches]
        rows = join([batch.labels if ahead else batch.inputs for batch, _ in sent])
        own = [mask if secret else None for _, mask in sent]
        result = accuracy(judge, Guesses(rows, ahead=ahead), own)
        assert [row["token_accuracy"] for row in result] == [1.0] * COUNT
        assert [row["rouge_l"] for row in result] == [1.0] * COUNT


def test_the_figures_are_the_attacks_own_choice(judged):
    """Of two guesses the surer, right or wrong; beside it the mean and the best of both."""
    judge, batches = judged
    right = [batch.inputs for batch in batches]
    rows = join([torch.cat([each, torch.full_like(each, 5)]) for each in right])
    sure = torch.cat([torch.tensor([1.0] * len(x) + [0.0] * len(x)) for x in right])
    for picked, expected in ((sure, 1.0), (1 - sure, 0.0), (None, 0.5)):
        for row in accuracy(judge, Guesses(rows, picked), [None, None]):
            assert row["token_accuracy"] == pytest.approx(expected, abs=0.1)
            assert row["mean_token_accuracy"] == pytest.approx(0.5, abs=0.1)
            assert row["best_token_accuracy"] == 1.0


def test_texts_show_the_attacks_own_choice(judged):
    judge, batches = judged
    rows = join([torch.cat([batch.inputs, torch.full_like(batch.inputs, 5)]) for batch in batches])
    sure = torch.cat([torch.tensor([0.0] * len(x.inputs) + [1.0] * len(x.inputs)) for x in batches])
    result = judge.score(1, {"oracle": Guesses(rows, sure)}, [None, None])
    lines = result.files[TEXTS].decode().splitlines()
    shown = [text for text in map(json.loads, lines) if text["attack"] == "oracle"]
    assert {text["message"] for text in shown} == {1}
    assert all(text["recovered"] != text["private"] for text in shown)


def test_by_batch_a_reading_counts_for_the_text_that_it_fits_whatever_its_place(judged):
    """A server sees a batch, not an order: texts read in another place are read all the same.

    A reading from another batch counts for nothing, and no reading counts for two texts.
    """
    judge, batches = judged

    def score_moved(moved):
        rows = accuracy(judge, Guesses(join(moved)), [None, None])
        return rows, sum(row["batch_rouge_l"] for row in rows) / COUNT

    _, plain = score_moved([each.inputs for each in batches])
    rows, turned = score_moved([each.inputs.roll(1, 0) for each in batches])
    assert plain == turned == 1.0
    assert sum(row["rouge_l"] for row in rows) / COUNT < 0.8
    first, second = (each.inputs for each in batches)
    _, repeated = score_moved([first[:1].expand(SIZE, -1), second])
    assert repeated < 0.9, "one reading counts for one text"
    foreign = join([second[:1], first])[[0, 2, 3, 4]]
    rows, _ = score_moved([foreign, join([first[:1], second])[[0, 2]]])
    assert max(rows[0]["batch_rouge_l"], rows[SIZE]["batch_rouge_l"]) < 1.0, "of the other batch"


def test_by_batch_no_attack_reads_less_than_text_by_text(judged):
    """The place of each text is one of the assignments, so floors rise as attacks do."""
    judge, batches = judged
    rng = rng_for(0, "guesses")
    some = [
        torch.where(torch.rand(x.inputs.shape, generator=rng) < 0.5, x.inputs, 5) for x in batches
    ]
    judgement = judge.score(1, {"oracle": Guesses(join(some))}, [None, None])
    rows = group_by_target(judgement.rows)
    for name in {row["attack"] for row in rows}:
        mine = [row for row in rows if row["attack"] == name]
        by_batch, by_text = (sum(row[f] for row in mine) for f in ("batch_rouge_l", "rouge_l"))
        assert by_batch >= by_text - 1e-9
    oracle = [row for row in rows if row["attack"] == "oracle"]
    assert [row["batch_rouge_l"] for row in oracle] == [row["rouge_l"] for row in oracle]


def test_by_batch_the_attacks_own_choice_counts_or_the_mean_of_its_guesses(judged):
    judge, batches = judged
    rows = join([torch.cat([x.inputs.roll(1, 0), torch.full_like(x.inputs, 5)]) for x in batches])
    sure = torch.cat([torch.tensor([1.0] * len(x.inputs) + [0.0] * len(x.inputs)) for x in batches])
    for picked, expected in ((sure, 1.0), (1 - sure, 0.0), (None, 0.5)):
        made = accuracy(judge, Guesses(rows, picked), [None, None])
        assert sum(row["batch_rouge_l"] for row in made) / COUNT == pytest.approx(
            expected, abs=0.05
        )
