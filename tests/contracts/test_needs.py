"""Nothing is silently off: every part on every axis is refused by its path, or does what it is for.

Each test walks many combinations and tells all that are wrong at once.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from contracts.walk import (
    BESIDE,
    CLIENTS,
    EVERY_PART,
    MALICIOUS,
    METHOD_PARTS,
    OTHER_PARTS,
    PLAIN,
    PRODUCT,
    TOPOLOGIES,
    Axes,
    Part,
    Seen,
    Walker,
    assert_no,
    refusal,
    small_judges,
)

from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.needs import Given


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Walker:
    return Walker(tmp_path_factory.mktemp("walk"))


@pytest.mark.slow
def test_every_part_on_every_axis_is_refused_by_its_own_path_or_not_at_all() -> None:
    bare = {
        (axes, texts): refusal(axes, {}, texts=texts) for axes in PRODUCT for texts in (False, True)
    }
    wrong = []
    for part, axes in itertools.product(EVERY_PART, PRODUCT):
        message, alone = refusal(axes, part.changes, texts=part.texts), bare[axes, part.texts]
        if alone is not None:
            if message is None:
                wrong.append(f"{part} on {axes}: not refused, but without it: {alone}")
        elif message is not None and not _blames(message, part):
            wrong.append(f"{part} on {axes}: {message}")
    assert_no(wrong)


def _blames(error: ScenarioError, part: Part) -> bool:
    """Return whether an error names the part, or an aggregation that it does not work with."""
    beside = tuple(f"{name}.0" for name in BESIDE.get(part.kind, {}))
    return error.field.startswith((part.where, *beside)) or (
        error.field == "aggregation" and part.kind in error.reason
    )


BACK_AND_FORTH = {
    "dp_sgd": "method.0.kind",
    "randomised_response": "method.0.kind",
    "distance_correlation": "method.0.kind",
    "pslf": "method.0.kind",
    "marvell": "method.0.kind",
    "max_norm": "method.0.kind",
    "cae": "method.0.kind",
    "discrete_sgd": "method.0.kind",
    "grad_perturb": "method.0.kind",
    "p3eft": "method.0.kind",
    "private_backprop": "method.0.kind",
    "naive_mix": "method.0.kind",
    "mixguard": "method.0.kind",
    "cover": "method.0.kind",
    "admi": "method.0.kind",
    "dualguard": "method.0.kind",
    "snd{'denoise': True}": "method.0.denoise",
    "tag": "attacks.0.kind",
    "tag_linear": "attacks.0.kind",
    "lamp": "attacks.0.kind",
    "bisr": "attacks.0.kind",
    "gradient_ratio": "attacks.0.kind",
    "gradient_norm": "attacks.0.kind",
    **dict.fromkeys(("spectral", "norm", "kmeans", "probe"), "attacks.0.kind"),
    **dict.fromkeys(
        (
            "mc",
            "mc_trained",
            "session_sip",
            "dsi",
            "vmi",
            "rmi",
            "pmi",
            "pidi",
            "known_pairs",
            "session_matching",
        ),
        "attacks.0.kind",
    ),
    **dict.fromkeys(
        ("singular_direction", "direction_scoring", "model_completion", "exploit"),
        "attacks.0.kind",
    ),
    "tamper{'leg': 'features_grad'}": "clients.malicious.poison.0.leg",
}
"""What lives on the tail at the client, or on what crosses because of it."""


def test_what_a_vanilla_cut_has_not_is_refused_and_all_else_is_not() -> None:
    results = {}
    for part in EVERY_PART:
        message = refusal(("vanilla", *PLAIN[1:]), part.changes, texts=part.texts)
        if message is not None and refusal(PLAIN, part.changes, texts=part.texts) is None:
            results[str(part).split(":", 1)[1]] = message.field
    legs = {name: where for name, where in results.items() if "features" in name}
    assert all(where.endswith((".legs", ".signal", ".leg")) for where in legs.values())
    assert len(legs) > 10
    assert results.pop("adaptive_online") == "method.0.kind"  # of the method that makes its pairs
    assert {
        n: w for n, w in results.items() if n not in legs or n in BACK_AND_FORTH
    } == BACK_AND_FORTH


def trainable(
    parts: Iterable[Part], places: Callable[[int], list[Axes]]
) -> Iterator[tuple[Part, Axes]]:
    """Yield parts at some places of the axes, where they are not refused."""
    for index, part in enumerate(parts):
        for axes in places(index):
            if refusal(axes, part.changes, texts=part.texts) is None:
                yield part, axes


WITHOUT = {
    "method.0:snd{'denoise': False}": {
        "Snd.decode",
        "Snd.compute_tail_loss",
        "Snd.make_optimizer",
    },
    "method.0:dp_forward": {"DpForward.embed"},
}
"""Hooks that have nothing to do where a part is so switched."""
WATCHES = {"gradients_scrutinizer"}
"""Methods that read what crosses for a figure, and must change nothing."""


def of_method(part: Part, axes: Axes, walker: Walker) -> str | None:
    """Return what is missing of a method's effect, against the same run without it."""
    seen = walker.observe_run(axes, part.changes, texts=part.texts)
    plain = walker.twin(axes, part.around, texts=part.texts)
    if idle := seen.idle - WITHOUT.get(str(part), set()):
        return f"never called: {', '.join(sorted(idle))}"
    if part.kind == "raw":
        same = seen.packets == plain.packets
        return None if same else "raw is not the same as no method"
    if part.kind in WATCHES:
        same = seen.packets == plain.packets and same_weights(seen, plain)
        return None if same else "only watches, yet packets or weights differ"
    config = seen.made.scenario.method[0]
    crossing = [need.leg for need in config.needs if need.what is Given.CROSSES]
    # all but a few read smashed data, and some of them leave those as they are
    for leg in (leg for leg in crossing if leg is not Leg.SMASHED):
        keys = [(client, leg) for client in range(CLIENTS)]
        if any(seen.packets[key][0] == plain.packets[key][0] for key in keys):
            return f"changes nothing on the leg {leg}"
    if seen.packets == plain.packets and same_weights(seen, plain):
        return "changes neither packets nor weights"
    return None


def same_weights(one: Seen, other: Seen) -> bool:
    shared = one.weights.keys() & other.weights.keys()
    assert shared
    return all(torch.equal(one.weights[name], other.weights[name]) for name in shared)


def of_detector(part: Part, axes: Axes, walker: Walker) -> str | None:
    """Return an error unless every client has a score, but for the trusted ones."""
    seen = walker.observe_run(axes, part.changes, texts=part.texts)
    config = seen.made.scenario.detectors[0]
    result, _ = seen.made.live.detection.judge_round(1)
    scored = {client for client, row in result.clients.items() if row.get(config.title) is not None}
    missing = set(range(CLIENTS)) - scored - set(config.trusted)
    return f"scores {sorted(scored)} alone" if missing else None


def of_poison(part: Part, axes: Axes, walker: Walker) -> str | None:
    """Return an error unless the malicious client sends something else than an honest one."""
    twice = {"schedule": {"rounds": 2}} if part.kind == "replace" else {}
    seen = walker.observe_run(axes, {**part.changes, **twice}, texts=part.texts)
    plain = walker.twin(axes, twice, texts=part.texts)
    for key, packets in seen.packets.items():
        if key[0] == MALICIOUS and packets != plain.packets[key]:
            return None
    return "the malicious client sends what it would anyway"


def of_attack(part: Part, axes: Axes, walker: Walker) -> str | None:
    """Return an error unless an attack recovers something, and learns if it can."""
    seen = walker.observe_run(axes, part.changes, texts=part.texts)
    config, attacking = seen.made.scenario.attacks[0], seen.made.live.attacking
    attack = attacking.attacks[config.title]
    if config.threat.follows_training:
        fresh, after = config.build(attack.known).state(), attack.state()
        moved = {n for n in after if n not in fresh or not torch.equal(fresh[n], after[n])}
        if not moved - {"iteration"}:
            return "followed training and learned nothing"
    judged = attacking.judge(1, lambda what, done, total: None)
    rows = judged.leaks
    mine = [row for row in rows if row["attack"] == config.title]
    return None if mine else "recovered nothing"


EFFECTS = {
    "method.0": of_method,
    "detectors.0": of_detector,
    "clients.malicious.poison.0": of_poison,
    "attacks.0": of_attack,
}


def without_effect(cases: Iterable[tuple[Part, Axes]], walker: Walker) -> list[str]:
    """Return what is wrong with parts that were not refused."""
    wrong = []
    for part, axes in cases:
        try:
            missing = EFFECTS[part.where](part, axes, walker)
        except Exception as error:  # noqa: BLE001 - whatever a combination that was let through throws
            missing = f"{type(error).__name__}: {error}"
        if missing:
            wrong.append(f"{part} on {axes}: {missing}")
    return wrong


def every_topology(index: int) -> list[Axes]:
    del index
    return [(topology, *PLAIN[1:]) for topology in TOPOLOGIES]


@pytest.mark.slow
def test_every_method_of_images_does_something_under_every_topology(walker: Walker) -> None:
    parts = [part for part in METHOD_PARTS if not part.texts]
    assert_no(without_effect(trainable(parts, every_topology), walker))


def elsewhere(index: int) -> list[Axes]:
    """Return a place under either topology, different ones for each part."""
    places = [axes for axes in PRODUCT if refusal(axes, {}, texts=False) is None]
    half = len(places) // 2
    return [places[index * 5 % half], places[half + index * 7 % half]]


def turns(index: int) -> list[Axes]:
    """Return places where clients take whole turns, as one detector needs it."""
    del index
    return [(topology, "own", "per_client", "none") for topology in TOPOLOGIES]


@pytest.mark.slow
def test_methods_of_images_on_the_other_axes(walker: Walker) -> None:
    parts = [part for part in METHOD_PARTS if not part.texts]
    assert_no(without_effect(trainable(parts, elsewhere), walker))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["detectors.0", "clients.malicious.poison.0", "attacks.0"])
def test_who_attacks_and_who_watches(
    where: str, walker: Walker, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_judges(monkeypatch)
    parts = [part for part in OTHER_PARTS if part.where == where and not needs_seat(part)]
    by_turns = [part for part in parts if part.kind == "safesplit"]
    cases = list(itertools.chain(trainable(parts, every_topology), trainable(by_turns, turns)))
    if where != "attacks.0":
        cases += trainable([part for part in parts if not part.texts], elsewhere)
    assert {part.kind for part, _ in cases} == {part.kind for part in parts}
    assert_no(without_effect(cases, walker))


ELSEWHERE = {
    "handed_weights": "tests/unit/attacks/test_handed_weights.py",
    "canaries": "tests/unit/attacks/test_members.py",
    "site_inference": "tests/unit/attacks/test_attributes.py",
}
"""Attacks that need a linear head, or learn nothing before they judge, and their own tests."""


def needs_seat(part: Part) -> bool:
    """Return whether a part acts at a party, or is tested elsewhere."""
    wanted = {need.what for need in part.config().needs}  # type: ignore[attr-defined]
    return Given.PARTIES in wanted or part.kind in ELSEWHERE


@pytest.mark.slow
def test_every_method_of_texts_does_something_under_every_topology(walker: Walker) -> None:
    parts = [part for part in METHOD_PARTS if part.texts]
    assert_no(without_effect(trainable(parts, every_topology), walker))
