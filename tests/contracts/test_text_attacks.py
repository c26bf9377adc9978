"""Every attack on texts: what leaks is recovered, pure noise is not, and hosts change nothing."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import run_to_end
from texts import text_scenario

from simsplit.attacks import ATTACKS
from simsplit.methods.method import TEXTS
from simsplit.results import Run

pytestmark = pytest.mark.slow

WORDS = {
    "kind": "causal_lm",
    "sizes": {"width": 32, "layers": 3, "public": True},
    "head": 1,
    "tail": 1,
}
LEARNED = {"iterations": 250, "hidden": 64, "lr": 0.01}
READ = {"inverter": "gaussian", "starts": 128}
MATCHED = {"iterations": 60}
CASES: dict[str, dict[str, Any]] = {
    "sip": LEARNED,
    "gradient_ratio": LEARNED,
    "tag": MATCHED,
    "tag_linear": {},
    "lamp": {"iterations": 60, "permutations": 5, "language": 0.01},
    "bisr": LEARNED,
    "adaptive_offline": {**LEARNED, "unmixing": 150},
    "span_search": READ,
    "vocabulary_matching": {"candidates": 16},
}
"""adaptive_online lives on calibration, and has a test of its own."""
NOISE = [{"kind": "dp_forward", "sigma": 100.0}, {"kind": "dp_sgd", "multiplier": 100.0}]


def recover(path: Path, kind: str, method: list[Any], **more: Any) -> pd.DataFrame:
    """Return what an attack with more fields, or on other targets, recovers."""
    targets = {name: more.pop(name) for name in ("count", "batch_size") if name in more}
    attack = {"kind": kind, **CASES.get(kind, LEARNED), **more}
    return recover_by(path, [attack], method, **targets)


def recover_by(
    path: Path,
    attacks: list[dict[str, Any]],
    method: list[Any],
    count: int = 8,
    batch_size: int | None = None,
    *,
    padding: str = "right",
) -> pd.DataFrame:
    source = {"learns": "all", "padding": padding}  # gradients tell of what is learned
    given = text_scenario(
        path,
        data={"auxiliary": 0.5, "source": source},
        model=WORDS,
        clients={"count": 1},
        schedule={"kind": "round_robin", "rounds": 1},
        method=method,
        attacks=attacks,
        targets={"count": count, "batch_size": batch_size},
    )
    return Run.load(run_to_end(given, path / "run").path).attacks.set_index("attack")


def test_every_attack_on_texts_has_a_case():
    tokens = {kind: each for kind, each in ATTACKS.items() if each.recovers == "inputs"}
    of_texts = {kind for kind, each in tokens.items() if each.modalities == TEXTS}
    assert CASES.keys() | {"adaptive_online"} == of_texts


EVERY = [{"kind": kind, **fields} for kind, fields in CASES.items()]
"""In one run: a test below says that each is what it is alone."""


@pytest.fixture(scope="module")
def undefended(tmp_path_factory):
    return recover_by(tmp_path_factory.mktemp("undefended"), EVERY, [])


@pytest.fixture(scope="module")
def under_noise(tmp_path_factory):
    return recover_by(tmp_path_factory.mktemp("noise"), EVERY, NOISE)


@pytest.mark.parametrize("kind", CASES)
def test_what_leaks_is_recovered(kind, undefended):
    assert undefended.loc[kind, "token_accuracy"] > 0.8
    assert (
        undefended.loc[kind, "token_accuracy"]
        > 3 * undefended.loc["frequent_token", "token_accuracy"]
    )
    assert undefended.loc[kind, "rouge_l"] > undefended.loc["random_tokens", "rouge_l"] + 0.3


def test_vocabulary_matching_follows_a_mask_that_crosses_the_cut(tmp_path):
    attack = {"kind": "vocabulary_matching", "candidates": 16}
    read = recover_by(tmp_path, [attack], [], padding="left")
    assert read.loc["vocabulary_matching", "token_accuracy"] > 0.95


@pytest.mark.parametrize("kind", CASES)
def test_noise_is_not(kind, under_noise):
    assert under_noise.loc[kind, "token_accuracy"] < 0.35
    assert under_noise.loc[kind, "rouge_l"] < 0.25


@pytest.mark.parametrize("noise", ["none", "fixed"])
def test_gradients_give_away_what_mixguard_mixes(noise, tmp_path):
    """The hole: as good as undefended where most messages are read badly one by one."""
    fields = {"inputs": 10, "tokens": 4, "warm_up": 0, "noise": noise, "gamma": 1.0}
    mixed = [{"kind": "mixguard", **fields}]
    by_ratio = recover(tmp_path / "ratio", "gradient_ratio", mixed)
    by_message = recover(tmp_path / "sip", "sip", mixed)
    assert by_ratio.loc["gradient_ratio", "token_accuracy"] > 0.8
    # these texts have most of their words in common, and so have their mixtures
    unmixed = by_ratio.loc["gradient_ratio", "token_accuracy"]
    assert by_message.loc["sip", "mean_token_accuracy"] < 0.75 * unmixed


def test_the_purest_direction_in_the_span_of_mixtures_is_the_private_text(tmp_path):
    """Of k = 10 texts in m = 3 messages, though no message is near it, and without gradients."""
    mixed = [{"kind": "mixguard", "inputs": 10, "tokens": 4, "warm_up": 0}]
    result = recover(tmp_path / "span", "span_search", mixed, batch_size=4)
    assert result.loc["span_search", "token_accuracy"] > 0.9
    of_messages = recover(tmp_path / "sip", "sip", mixed, batch_size=4, inverter="gaussian")
    assert of_messages.loc["sip", "best_token_accuracy"] < 0.75


@pytest.mark.parametrize("kind", ["sip", "span_search"])
def test_each_text_of_a_cover_is_read_and_none_is_known_as_the_private_one(kind, tmp_path):
    # these texts have most words in common: of few peaks some are what they have in common
    peaks = {"peaks": 8} if kind == "span_search" else {}
    result = recover(tmp_path, kind, [{"kind": "cover"}], count=24, inverter="gaussian", **peaks)
    assert result.loc[kind, "best_token_accuracy"] > 0.85
    assert result.loc[kind, "token_accuracy"] < 0.7


@pytest.mark.parametrize("kind", ["span_search", "sip"])
def test_the_text_that_comes_again_among_fresh_covers_is_the_private_one(kind, tmp_path):
    cover = [{"kind": "cover", "fixed": False}]
    once, twice = (
        recover(tmp_path / str(looks), kind, cover, count=24, looks=looks, inverter="gaussian")
        for looks in (1, 2)
    )
    key = (kind, "token_accuracy")
    assert twice.loc[key] > once.loc[key] + 0.1  # many of these few words are covers' too


@pytest.mark.parametrize("batch_size", [1, 3])
def test_targets_in_batches_of_their_own(batch_size, tmp_path):
    """Each has secrets of its own; who reads what crosses plainly reads the same of any."""
    mixed = [{"kind": "mixguard", "tokens": 4, "warm_up": 0}]
    by_ratio = recover(tmp_path / "ratio", "gradient_ratio", mixed, batch_size=batch_size)
    assert by_ratio.loc["gradient_ratio", "token_accuracy"] > 0.8
    few, many = (
        recover(tmp_path / str(n), "sip", [], batch_size=n, iterations=40)
        for n in (batch_size, None)
    )
    pd.testing.assert_frame_equal(few, many)


def test_gradients_with_weights_of_their_own_give_away_less(tmp_path):
    """Of three batches, each with secrets of its own; labels are read as before."""
    read = {}
    for gradients in ("shared", "remixed"):
        mixed = {"kind": "mixguard", "tokens": 4, "warm_up": 0, "gradients": gradients}
        made = recover(tmp_path / gradients, "gradient_ratio", [mixed], count=24)
        read[gradients] = made.loc["gradient_ratio", "token_accuracy"]
    # not much less here: all these texts, and so their mixtures, have most words in common
    assert read["remixed"] < read["shared"] - 0.1


@pytest.mark.parametrize(
    ("method", "reads"),
    [
        ({"kind": "mixguard", "tokens": 4, "warm_up": 0, "noise": "none"}, "unmixed"),
        ({"kind": "mixguard", "tokens": 4, "warm_up": 0, "gradients": "remixed"}, "messages"),
        ({"kind": "mixguard", "tokens": 4, "warm_up": 0, "gradients": "remixed"}, "mean"),
        ({"kind": "cover"}, "unmixed"),
    ],
)
def test_mixing_does_not_hide_labels(method, reads, tmp_path):
    """Whichever way messages are combined, and though weights and their signs are unknown."""
    found = recover(tmp_path, "tag_linear", [method], reads=reads)
    assert found.loc["tag_linear", "token_accuracy"] > 0.8


def test_online_unmixing_learns_from_what_calibration_shows(tmp_path):
    """Two messages without blinding are the text's up to a sign; of few pairs little is learned."""
    made = {}
    for warm_up in (1, 40):
        mixed = {"kind": "mixguard", "messages": 2, "inputs": 2, "blind": False, "tokens": 0}
        mixed["sampler"] = "general"
        method = [{**mixed, "warm_up": warm_up, "refine_every": 0, "noise": "none"}]
        of = recover(tmp_path / str(warm_up), "adaptive_online", method)
        made[warm_up] = of.loc["adaptive_online", "token_accuracy"]
    assert made[40] > 0.6
    assert made[1] < 0.5


def test_attacks_that_read_by_the_same_inverter_are_what_they_are_alone(tmp_path):
    """It is trained but once in a run, whichever attack is first."""
    both = [{"kind": kind, **LEARNED, "iterations": 40} for kind in ("sip", "gradient_ratio")]
    tables = []
    for name, attacks in (("one", both[1:]), ("two", both), ("turned", both[::-1])):
        given = text_scenario(
            tmp_path,
            data={"auxiliary": 0.5},
            model=WORDS,
            clients={"count": 1},
            schedule={"kind": "round_robin", "rounds": 1},
            attacks=attacks,
            targets={"count": 8},
        )
        made = Run.load(run_to_end(given, tmp_path / name).path).recovered
        tables.append(made[made["attack"] == "gradient_ratio"].reset_index(drop=True))
    pd.testing.assert_frame_equal(tables[0], tables[1])
    pd.testing.assert_frame_equal(tables[0], tables[2])
