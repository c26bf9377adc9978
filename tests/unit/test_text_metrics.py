"""Figures of texts: hand-made values, floors, final answers, and packages that are not there."""

import math
import random
import sys
from types import SimpleNamespace

import pytest

from simsplit.errors import SimsplitError
from simsplit.metrics.text import (
    bleu,
    code_bleu,
    exact_answers,
    find_answer,
    meteor,
    perplexity,
    rouge_l,
    score_texts,
    token_rouge_l,
)


def test_rouge_is_of_the_longest_common_subsequence():
    # "the cat on mat" is in both: 4 of 5 words, 4 of 6
    assert rouge_l("the cat on mat lay", "The cat sat on the mat.") == pytest.approx(8 / 11)
    assert rouge_l("mat the on sat cat", "cat sat on the mat") == pytest.approx(1 / 5)


def test_rouge_of_tokens_is_that_of_a_table_of_all_prefixes():
    assert token_rouge_l([5, 6, 7], [5, 9, 7, 8]) == pytest.approx(2 * 2 / 7)
    assert token_rouge_l([], [1]) == token_rouge_l([1], []) == token_rouge_l([2], [1]) == 0
    rng = random.Random(0)
    for _ in range(50):
        one, other = ([rng.randrange(4) for _ in range(rng.randrange(1, 80))] for _ in range(2))
        table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
        for i, a in enumerate(one):
            for j, b in enumerate(other):
                longer = max(table[i][j + 1], table[i + 1][j])
                table[i + 1][j + 1] = table[i][j] + 1 if a == b else longer
        assert token_rouge_l(one, other) == 2 * table[-1][-1] / (len(one) + len(other))


def test_rouge_takes_words_as_they_are():
    assert rouge_l("cats", "cat") == 0


def test_meteor_weighs_recall_and_takes_a_cubed_penalty_for_pieces():
    # all 5 words match 5 of 6, in two pieces: "a cat sat on" and "mat"
    precision, recall = 1, 5 / 6
    mean = precision * recall / (0.9 * precision + 0.1 * recall)
    expected = mean * (1 - 0.5 * (2 / 5) ** 3)
    assert meteor("a cat sat on mat", "a cat sat on the mat") == pytest.approx(expected)
    assert expected == pytest.approx(0.82034, abs=1e-5)


def test_meteor_halves_what_is_all_there_and_all_apart():
    assert meteor("four three two one", "one two three four") == pytest.approx(0.5)


def test_meteor_matches_stems_but_no_synonyms():
    assert meteor("Cats ran", "cat ran") == pytest.approx(1 - 0.5 / 8)
    assert meteor("car", "automobile") == 0


def test_meteor_tells_words_from_punctuation():
    # 2 words of 2 match 2 of 3, in a row
    expected = (2 / 3) / (0.9 + 0.1 * 2 / 3) * (1 - 0.5 / 8)
    assert meteor("stop it", "stop it!") == pytest.approx(expected)


def test_meteor_looks_for_no_data(monkeypatch):
    def forbidden(resource, *paths):
        raise AssertionError(resource)

    monkeypatch.setattr("nltk.data.find", forbidden)
    assert meteor("unlike this.", "nothing like it. Two.") > 0


def test_empty_text_is_near_to_nothing():
    figures = score_texts(["", "a cat", "", " "], ["a cat", "", "", "\n"])
    assert figures == [{"rouge_l": 0, "meteor": 0}] * 4


def test_the_same_text_has_all_of_rouge_and_nearly_all_of_meteor():
    (figures,) = score_texts(["a cat sat on it"], ["a cat sat on it"])
    assert figures["rouge_l"] == 1
    assert figures["meteor"] == pytest.approx(1 - 0.5 / 5**3)


def test_figures_of_many_pairs_are_those_of_each_in_its_place():
    recovered, truth = ["a cat", "dogs bark at me", ""], ["a cat sat", "a dog barks", "x"]
    figures = score_texts(recovered, truth)
    pairs = list(zip(recovered, truth, strict=True))
    assert [each["rouge_l"] for each in figures] == [rouge_l(*pair) for pair in pairs]
    assert [each["meteor"] for each in figures] == [meteor(*pair) for pair in pairs]
    assert figures[0] != figures[1]
    assert score_texts([], []) == []


@pytest.mark.parametrize("figure", [score_texts, bleu, exact_answers])
def test_texts_without_a_partner_are_refused(figure):
    with pytest.raises(ValueError, match="zip"):
        figure(["1 2 3 4"], ["1 2 3 4", "1 2 3 4"])


def test_bleu_is_the_geometric_mean_of_four_precisions_for_what_is_not_too_short():
    # runs of one to four words: 5 of 5, 3 of 4, 2 of 3, 1 of 2; 5 words where 6 are due
    expected = 100 * (1 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4) * math.exp(1 - 6 / 5)
    hypotheses, references = ["the cat sat on mat"], ["the cat sat on the mat"]
    assert bleu(hypotheses, references) == pytest.approx(expected)
    assert bleu(references, references) == pytest.approx(100)


def test_bleu_counts_runs_over_the_whole_corpus():
    # of the two, 100 and 0, the longer one has more of the runs
    expected = 100 * (5 / 9 * 4 / 7 * 3 / 5 * 2 / 3) ** (1 / 4)
    assert bleu(["a b c d e", "p q r s"], ["a b c d e", "w x y z"]) == pytest.approx(expected)
    assert bleu([""], ["a b c d"]) == bleu([], []) == 0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6 * 7 = 42\n#### 42", "42"),
        ("#### 42\nQuestion: and 7?\n#### 7", "42"),
        ("#### 42 #### 7", "42"),
        ("#### Step 1: add 40 and 2\nIt is 42", "42"),
        ("####$1,234,567.50 in all", "1234567.5"),
        ("#### -$3", "-3"),
        ("First 3, then 4, so she has 12.", "12"),
        ("She pays $ 42.00.", "42"),
        ("She pays $.50", "0.5"),
        ("It costs 100", "100"),
        ("007", "7"),
        ("10-5", "5"),
        ("from 10 to -5", "-5"),
        ("of 1,2,3", "3"),
        ("of 1,2345", "2345"),
        ("-0.0", "0"),
        ("none at all", None),
        ("####", None),
        ("", None),
    ],
)
def test_the_final_answer_is_the_marked_number_or_the_last(text, answer):
    assert find_answer(text) == answer


def test_answers_are_compared_as_numbers():
    lines = ["so $1,000.0.", "#### 42", "41", "no idea", "7"]
    meant = ["... 3\n#### 1000", "#### 42.0", "#### 42", "no number", "none"]
    assert exact_answers(lines, meant) == pytest.approx(2 / 5)
    assert exact_answers([], []) == 0


def test_perplexity_is_what_the_loss_is_the_logarithm_of():
    assert perplexity(math.log(50257)) == pytest.approx(50257)
    assert perplexity(0) == 1
    assert perplexity(1e4) == perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


@pytest.mark.parametrize(
    ("figure", "module", "package"),
    [
        (rouge_l, "rouge_score.rouge_scorer", "rouge-score"),
        (meteor, "nltk.translate.meteor_score", "nltk"),
        (bleu, "sacrebleu", "sacrebleu"),
    ],
)
def test_a_missing_package_is_named(figure, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SimsplitError, match=rf"{package}: pip install {package}$"):
        figure("a", "a")


def codebleu_with(monkeypatch, grammar, calc=None):
    """Stand in for the package, whose pins keep it out of many environments."""
    monkeypatch.setitem(sys.modules, "codebleu", SimpleNamespace(calc_codebleu=calc))
    utils = SimpleNamespace(get_tree_sitter_language=grammar)
    monkeypatch.setitem(sys.modules, "codebleu.utils", utils)


def test_code_wants_its_package_and_a_grammar_that_fits_it(monkeypatch):
    def grammar(language):
        raise TypeError("an integer is required")

    codebleu_with(monkeypatch, grammar)
    with pytest.raises(SimsplitError, match=r"pip install '\.\[code\]'"):
        code_bleu(["x = 1"], ["x = 1"])
    monkeypatch.setitem(sys.modules, "codebleu", None)
    with pytest.raises(SimsplitError, match=r"pip install '\.\[code\]'"):
        code_bleu(["x = 1"], ["x = 1"])


def test_code_is_handed_to_the_package_truth_first(monkeypatch):
    def calc(references, predictions, lang):
        assert (references, predictions, lang) == (["y = 2"], ["x = 1"], "python")
        return {"codebleu": 0.75, "ngram_match_score": 0.5}

    codebleu_with(monkeypatch, lambda language: language, calc)
    assert code_bleu(("x = 1",), ("y = 2",)) == 0.75
    assert code_bleu([], []) == 0
