"""Figures of texts by networks, on folders with random weights."""

from pathlib import Path

import pytest
import torch

from simsplit.errors import ScenarioError
from simsplit.metrics.learned import BertScore, Bleurt
from simsplit.seeds import isolate

WORDS = tuple("abcdefghijklmn")
PAIRS = [
    ("a b c d e f", "e b c d a f"),
    ("a g", "a g h i j"),
    ("k l m", "k l m"),
    ("", "a g"),
]


def folder_of(path: Path, outputs: int) -> Path:
    """Write a BERT of two layers that knows a few words; one with one output scores pairs."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    path.mkdir()
    listed = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (path / "vocab.txt").write_text("\n".join(listed) + "\n")
    BertTokenizerFast(str(path / "vocab.txt"), model_max_length=64).save_pretrained(path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(listed), intermediate_size=32, num_labels=outputs, **sizes)
    with isolate(0, "bert"):
        BertForSequenceClassification(config).save_pretrained(path)
    return path


def by_hand(folder: Path, text: str, truth: str) -> float:
    """Match token by token without a batch, by cosine; the ends match each other only."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = (kind.from_pretrained(folder) for kind in (AutoModel, AutoTokenizer))
    with torch.no_grad():
        one, other = (
            model.eval()(**tokenizer(t, return_tensors="pt")).last_hidden_state[0]
            for t in (text, truth)
        )
    alike = [[float(torch.cosine_similarity(a, b, dim=0)) for b in other] for a in one]
    best = [max(row) for row in alike][1:-1]
    results = [max(column) for column in zip(*alike, strict=True)][1:-1]
    precision, recall = sum(best) / len(best), sum(results) / len(results)
    return 2 * precision * recall / (precision + recall)


def test_bert_score_is_greedy_matching_by_hand(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "bert", 2)
    scores = BertScore(folder, "targets.bert_score")(*zip(*PAIRS, strict=True))
    wanted = [by_hand(folder, *pair) for pair in PAIRS[:3]]
    assert scores == pytest.approx([*wanted, 0.0], abs=1e-6)
    assert scores[2] == pytest.approx(1)
    assert len(set(scores)) == 4


def test_bleurt_reads_the_reference_first(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = folder_of(tmp_path / "bleurt", 1)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts, meant = zip(*PAIRS[:2], strict=True)
    with torch.no_grad():
        wanted, turned = (
            [model(**tokenizer(a, b, return_tensors="pt")).logits.item() for a, b in pairs]
            for pairs in (zip(meant, texts, strict=True), zip(texts, meant, strict=True))
        )
    assert wanted != pytest.approx(turned, abs=1e-6), "the order changes nothing"
    assert Bleurt(folder, "targets.bleurt")(texts, meant) == pytest.approx(wanted, abs=1e-6)


def test_what_is_no_such_folder_is_refused_by_field(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"targets.bert_score: .*got .*none"):
        BertScore(tmp_path / "none", "targets.bert_score")
    with pytest.raises(ScenarioError, match=r"targets.bleurt:.*one output.*2"):
        Bleurt(folder_of(tmp_path / "two", 2), "targets.bleurt")
