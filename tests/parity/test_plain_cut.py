"""`bytes_plain` is what the same scenario sends without methods, round by round, to the byte."""

from pathlib import Path
from typing import Any

import pytest
from builders import image_folder, run_to_end, scenario
from pace import quick
from texts import text_scenario

from simsplit.report.run_tables import show
from simsplit.results import Run
from simsplit.scenario import Scenario
from simsplit.scenario.files import merge

BESIDE = ("handover", "broadcast")
ADAM = {"kind": "adam", "lr": 2e-3}
BOTH = ["smashed", "features"]
METHODS: dict[str, list[dict[str, Any]]] = {
    "lightsplit": [{"kind": "lightsplit", "ratio": 8}],
    "lightsplit, both legs, int8": [
        {"kind": "lightsplit", "ratio": 8, "legs": BOTH},
        {"kind": "cast", "to": "int8", "legs": BOTH},
    ],
    "c3sl": [{"kind": "c3sl", "ratio": 4}],
    "topk": [{"kind": "topk", "ratio": 8}],
    "learned1x1": [{"kind": "learned1x1", "ratio": 4}],
}
TWO_TOPOLOGIES = pytest.mark.parametrize("topology", ["u_shaped", "vanilla"])
DROPS = {"cohort": {"dropout": 0.6}, "schedule": {"rounds": 3}}
PARALLEL = {"kind": "parallel", "rounds": 2}
COURSES: dict[str, dict[str, Any]] = {
    "some drop out": DROPS,
    "some drop out of one step": merge(DROPS, {"schedule": {"local_steps": 1}}),
    "full batches": {"train": {"drop_last": True}},
    "splitfed_v1, some drop out": merge(DROPS, {"aggregation": "splitfed_v1"}),
    "fused, some drop out": merge(DROPS, {"aggregation": "fused", "schedule": PARALLEL}),
    "asynchronous, some drop out": {
        "schedule": {"kind": "asynchronous", "rounds": 3},
        "clients": {"heads": "per_client"},
        "network": {"spread": 0.5},
        "cohort": {"dropout": 0.6},
    },
    "bf16": {"train": {"precision": "bf16"}},
}


def count_sent(made: Run) -> dict[int, int]:
    """Count the bytes on the legs of the cut in training proper, by round."""
    wire = made.wire[(made.wire["phase"] == "train") & ~made.wire["leg"].isin(BESIDE)]
    return wire.groupby("round")["bytes"].sum().to_dict()


def assert_plain(given: Scenario, raw: Scenario, path: Path) -> None:
    """Assert that `bytes_plain` is what the twin sends; warm-ups come before the twin's rounds."""
    run_to_end(raw, path / "raw")
    run_to_end(given, path / "run")
    twin, made = Run.load(path / "raw"), Run.load(path / "run")
    training = made.rounds["phase"] == "train"
    plain_bytes = made.rounds.loc[training, "bytes_plain"].tolist()
    by_round = count_sent(twin)
    assert plain_bytes == [by_round.get(number, 0) for number in twin.rounds["round"]]
    assert sum(plain_bytes) > 0
    assert (made.rounds.loc[~training, "bytes_plain"] == 0).all()


def images(path: Path, model: str, **changes: Any) -> Scenario:
    """Build a scenario with parts and batches of uneven sizes: 16, 16, 13 or so of a client."""
    common: dict[str, Any] = {"data": {"train_samples": 130, "test_samples": 8}}
    common["data"]["partition"] = {"kind": "dirichlet", "alpha": 1.0}
    if model == "resnet20":
        folder = path / "images"
        if not folder.exists():
            image_folder(folder, classes=3, each=11)
        source = {"kind": "folder", "path": str(folder), "size": 32}
        common = {"data": {"source": source, "train_samples": None, "test_samples": None}}
        common["model"] = {"kind": "resnet20", "width": 4}
    return scenario(**merge(common, changes))


def twins(path: Path, model: str, method: list[Any], **changes: Any) -> tuple[Scenario, Scenario]:
    return images(path, model, method=method, **changes), images(path, model, **changes)


CUTS = [("u_shaped", method) for method in METHODS]
CUTS += [("vanilla", method) for method in METHODS if "both legs" not in method]


@pytest.mark.slow
@pytest.mark.parametrize("cut", quick(CUTS, ("u_shaped", "lightsplit"), ("vanilla", "c3sl")))
@pytest.mark.parametrize("model", quick(["simplecnn", "resnet20"], "simplecnn"))
def test_of_images(model: str, cut: tuple[str, str], tmp_path: Path) -> None:
    topology, method = cut
    assert_plain(*twins(tmp_path, model, METHODS[method], topology=topology), tmp_path)


@pytest.mark.slow
@TWO_TOPOLOGIES
@pytest.mark.parametrize("course", quick(COURSES, "some drop out", "some drop out of one step"))
def test_however_a_round_goes(course: str, topology: str, tmp_path: Path) -> None:
    changes = merge({"topology": topology}, COURSES[course])
    method = "lightsplit" if topology == "vanilla" else "lightsplit, both legs, int8"
    given, raw = twins(tmp_path, "simplecnn", METHODS[method], **changes)
    assert_plain(given, raw, tmp_path)
    if "drop" in course:
        assert Run.load(tmp_path / "run").rounds["dropped"].sum() > 0


WORDS = {"kind": "causal_lm", "sizes": {"width": 16}, "head": 1, "tail": 1}
MIXGUARD = {"kind": "mixguard", "tokens": 5, "warm_up": 1}
TEXTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mixguard": (MIXGUARD, {}),
    # dropouts are drawn by the round's number, which a warm-up would shift
    "mixguard, of words": ({**MIXGUARD, "warm_up": 0}, {"model": WORDS, **DROPS}),
    "naive_mix": ({"kind": "naive_mix"}, {}),
    "dp_forward, padded on the left": (
        {"kind": "dp_forward"},
        {"data": {"source": {"padding": "left"}}, **DROPS},
    ),
    "dp_forward": ({"kind": "dp_forward"}, {"train": {"drop_last": True}}),
    "dp_forward, vanilla": (
        {"kind": "dp_forward"},
        {"topology": "vanilla", "data": {"source": {"padding": "left"}}},
    ),
    "snd, bf16": (
        {"kind": "snd", "heads": 2, "layers": 1, "warm_up": 1},
        {"train": {"precision": "bf16"}},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(TEXTS, "mixguard", "dp_forward, padded on the left"))
def test_of_texts(case: str, tmp_path: Path) -> None:
    method, changes = TEXTS[case]
    small = {"data": {"auxiliary": 0.3, "train_samples": 38, "test_samples": 4}}
    changes = merge(small, changes)
    given = text_scenario(tmp_path, method=[method], **changes)
    assert_plain(given, text_scenario(tmp_path, **changes), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(["mid", "admi", "dp_forward"], "mid", "dp_forward"))
def test_layers_that_methods_add_leave_a_bf16_run_as_wide_as_it_was(
    kind: str, tmp_path: Path
) -> None:
    """A transformer's head puts out its residual sum, which an autocast leaves in fp32.

    What an added layer puts out is bf16, on the way there as on the way back.
    """
    task = {"kind": "generation", "prompt": "{sentence} is", "answer": " {topic}"}
    sizes = {"width": 16, "layers": 3, "public": True}
    given = text_scenario(
        tmp_path,
        model={"kind": "causal_lm", "sizes": sizes, "head": 1, "tail": 1},
        data={"source": {"task": task, "length": 40}},
        method=[{"kind": kind}],
        train={"precision": "bf16"},
    )
    run_to_end(given, tmp_path / "run")
    made = Run.load(tmp_path / "run")
    training = made.rounds[made.rounds["phase"] == "train"]
    plain = dict(zip(training["round"], training["bytes_plain"], strict=True))
    assert count_sent(made) == plain


@pytest.mark.slow
def test_show_says_how_much_less_the_legs_of_the_cut_are(tmp_path: Path) -> None:
    """By hand: 20 channels of 12 x 12 sent as 5, 512 features, and both back."""
    method = METHODS["learned1x1"]  # whose own weights make hand-overs larger
    given = images(tmp_path, "simplecnn", method=method, schedule={"rounds": 1})
    run_to_end(given, tmp_path / "run")
    made = Run.load(tmp_path / "run")
    _, legs, *_ = show(made)
    (crossed, _, sent, _, _), (label, _, nbytes, _, against) = legs.rows[-2:]
    assert (crossed, label) == ("(across the cut)", "(a plain cut sends across)")
    values, fewer = 2 * (20 * 12 * 12 + 512), 2 * (5 * 12 * 12 + 512)
    samples = int(made.rounds["samples"].sum())
    assert nbytes == f"{samples * 4 * values:,}"
    assert sent == f"{samples * 4 * fewer:,}"
    assert against == f"{values / fewer:.2f} times as much"
