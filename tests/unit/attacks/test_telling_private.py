"""Which of several readings is the private text."""

import pytest
import torch

import simsplit
from simsplit.attacks.telling_private import PublicTexts, compute_agreement
from simsplit.errors import ScenarioError
from simsplit.report.numbers import measure
from simsplit.scenario import parse

PUBLIC = {
    "kind": "python_docs",
    "topics": ["http", "mailbox", "tarfile", "inspect"],
    "task": "language",
    "length": 32,
}
COVERED = {
    "data": {
        "source": {"kind": "python_docs", "length": 32, "learns": "all"},
        "public": PUBLIC,
        "train_samples": 64,
        "test_samples": 8,
    },
    "model": {"kind": "causal_lm", "name": "simsplit/ci", "head": 1, "tail": 1},
    "clients": {"count": 1},
    "schedule": {"kind": "round_robin", "rounds": 1, "local_steps": 1},
    "train": {"batch_size": 2},
    "method": [{"kind": "cover", "messages": 3}],
    "targets": {"count": 20, "batch_size": 2},
    "threads": 1,
}
SIP = {"kind": "sip", "inverter": "gaussian", "batch_size": 16}


def test_agreement_is_of_rare_tokens_wherever_they_stand():
    weight = (
        torch.zeros(20)
        .index_fill(0, torch.tensor([1, 2, 3]), 2.0)
        .index_fill(0, torch.tensor([5, 6]), 0.5)
    )
    one = torch.tensor([[[1, 2, 3, 5]], [[5, 6, 7, 8]]])
    other = torch.tensor([[[9, 2, 2, 1, 4]], [[5, 5, 7, 7, 9]]])
    torch.testing.assert_close(
        compute_agreement(one, other, weight)[..., 0],
        torch.tensor([[4 / 6.5, 0.5 / 6.5], [0.0, 0.5]]),
    )


def test_padding_and_frequent_words_agree_less_than_a_short_text_among_secret_tokens():
    frequent = [10, 11, 12]
    texts = PublicTexts(
        torch.tensor([[*frequent, row, row + 20, 0] for row in range(13, 30)]), 99, 0
    )
    public, private = [*frequent, 13, 14, *[0] * 5], [70, 3, 80, 4, 81, 5, 82, 83, 84, 85]
    again, other = [[*frequent, 15, 16, *[0] * 5], [90, 91, 3, 92, 4, 93, 5, 94, 95, 96]]
    one, two = (torch.tensor(rows)[:, None] for rows in ([public, private], [again, other]))
    alike = compute_agreement(one, two, texts.rarity_V)[..., 0]
    assert alike[1, 1] > 3 * alike[0, 0]
    assert alike[0, 1] == alike[1, 0] == 0


def test_a_reading_is_as_familiar_as_its_different_pairs_of_neighbours_are():
    public = PublicTexts(torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]]), 10, pad=0)
    readings = torch.tensor([[[1, 2, 9, 8]], [[4, 5, 4, 5]], [[2, 1, 5, 4]], [[7, 0, 0, 0]]])
    torch.testing.assert_close(
        public.measure_familiarity(readings)[:, 0], torch.tensor([1 / 3, 1 / 2, 0, 1])
    )


def read_by_both(folder, support):
    """Return what SIP reads of covered texts by its surest and by its strangest reading."""
    data = COVERED["data"] | ({"support": support} if support else {})
    attacks = [SIP, SIP | {"name": "strangest", "picks": "strangest"}]
    run = simsplit.run(parse(COVERED | {"data": data, "attacks": attacks}), folder)
    figures = measure([run], "last")
    return [figures[f"{name}_token_rouge_l"][0] for name in ("sip", "strangest")]


def test_the_strangest_reading_is_private_where_covers_are_of_another_kind_and_not_elsewhere(
    tmp_path,
):
    surest, strangest = read_by_both(tmp_path / "public", None)
    assert strangest > surest + 0.1
    near = {"kind": "python_docs", "length": 32}
    surest, strangest = read_by_both(tmp_path / "near", near)
    assert strangest < surest + 0.05


@pytest.mark.parametrize(("inputs", "same"), [(3, False), (5, True)])
def test_with_more_texts_than_messages_the_search_takes_the_surest(inputs, same, tmp_path):
    mixing = {"kind": "mixguard", "calibrate": False, "tokens": 0, "sampler": "general"}
    mixing |= {"condition": 20, "purest": 1, "inputs": inputs}
    search = {"kind": "span_search", "inverter": "gaussian", "batch_size": 16, "starts": 32}
    attacks = [search, search | {"name": "strangest", "picks": "strangest"}]
    run = simsplit.run(parse(COVERED | {"method": [mixing], "attacks": attacks}), tmp_path)
    figures = measure([run], "last")
    read = [figures[f"{name}_token_rouge_l"] for name in ("span_search", "strangest")]
    assert (read[0] == read[1]) == same


def test_two_epochs_and_the_strangest_of_one_exclude_each_other():
    attack = SIP | {"looks": 2, "picks": "strangest"}
    with pytest.raises(ScenarioError, match="picks"):
        parse(COVERED | {"attacks": [attack]})
