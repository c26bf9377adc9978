"""Every ordered pair of methods on a leg works as it reads, or is refused with what would."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from contracts.method_cases import BATCH, CUT, FEATURES
from contracts.method_exchange import Exchange, activation, exchange, joint_loss, pair
from contracts.walk import KNOWN, PLAIN, Walker, assert_no, refusal

from simsplit.errors import ScenarioError
from simsplit.methods import METHODS, CodecConfig, MethodConfig, Step
from simsplit.methods.method import IMAGES, TEXTS
from simsplit.methods.stack import compute_sent_shapes, refuse_disorder

FINE: dict[str, dict[str, Any]] = {
    "quantise": {"bits": 12},
    "topk": {"ratio": 4, "match": "values"},
    "randtopk": {"ratio": 4, "match": "values"},
    "sparsify": {"sparsity": 0.5},
    "c3sl": {"ratio": 2},
    "custext": {"epsilon": 1.0},
    "rantext": {"epsilon": 1.0},
    "lightsplit": {"ratio": 2},
    "learned1x1": {"ratio": 2},
    "splitguard": {"after": 0, "probability": 1.0},
    "gradients_scrutinizer": {"after": 0},
    "mixguard": {"tokens": 2, "warm_up": 1},
    "snd": {"warm_up": 1, "heads": 2, "layers": 1},
    "admi": {"warm_up": 1, "heads": 2},
    "dualguard": {"warm_up": 1, "inverter_rounds": 1, "hidden": 8},
    "cae": {"steps": 20},
    "dp_sgd": {"multiplier": 1e-6, "clip": 100.0, "relative": False},
}
"""Formats so fine that what they lose is no excuse; methods that act from the first batch on."""
ROUGH: set[str] = set()
"""Formats without such an option: what arrives, and its gradient, may be anything of its shape."""
NOISED = {"marvell", "max_norm", "discrete_sgd"}
"""Whose noise or rounding is as large as the gradient, which is what they are for."""
OF_LABELS = {
    *("randomised_response", "marvell", "pslf", "cae", "grad_perturb"),
    "gradients_scrutinizer",
}
"""Whose effect is on labels, or on figures of them; these steps have none (or many classes)."""
KNOWN_BAD = {
    ("mixguard", "snd"),
    ("naive_mix", "snd"),
    ("admi", "snd"),
    ("topk", "lightsplit"),
    ("randtopk", "c3sl"),
    ("c3sl", "wcc"),
    ("c3sl", "nopeek"),
    ("quantise", "cast"),
    ("quantise", "topk"),
    ("lightsplit", "lightsplit"),
    ("mixguard", "mixguard"),
    ("snd", "mixguard"),
    ("naive_mix", "mixguard"),
    ("mixguard", "naive_mix"),
    ("snd", "naive_mix"),
    ("sparsify", "mixguard"),
    ("sparsify", "naive_mix"),
    ("sparsify", "snd"),
    ("sparsify", "mid"),
    ("mixguard", "santext"),
    ("admi", "mixguard"),
    ("mixguard", "admi"),
    ("text_obfuscator", "cover"),
    ("noise", "noise"),
}
KNOWN_GOOD = {
    ("lightsplit", "wcc"),
    ("wcc", "lightsplit"),
    ("wcc", "wcc"),
    ("topk", "quantise"),
    ("cast", "topk"),
    ("topk", "wcc"),
    ("c3sl", "lightsplit"),
    ("learned1x1", "lightsplit"),
    ("bottlenet", "lightsplit"),
    ("mixguard", "dp_forward"),
    ("dp_forward", "mixguard"),
    ("quantise", "mixguard"),
    ("mixguard", "sparsify"),
    ("snd", "sparsify"),
    ("sparsify", "quantise"),
    ("santext", "mixguard"),
    ("custext", "snd"),
    ("santext", "admi"),
    ("text_obfuscator", "sparsify"),
}


def of(kind: str, leg: str = "smashed") -> MethodConfig:
    legs = {"legs": (leg,)} if issubclass(METHODS[kind], CodecConfig) else {}
    return METHODS[kind](**FINE.get(kind, {}), **legs)


def list_fitting(modalities: frozenset[Any]) -> list[str]:
    return [
        kind for kind, each in METHODS.items() if each.modalities >= modalities and kind != "raw"
    ]


def get_refusal(configs: list[MethodConfig]) -> ScenarioError | None:
    try:
        refuse_disorder(configs)
        compute_sent_shapes(configs, (CUT, FEATURES))
    except ScenarioError as error:
        return error
    return None


@pytest.mark.parametrize("modalities", [IMAGES, TEXTS], ids=["images", "texts"])
def test_the_order_that_a_refusal_names_is_one(modalities: frozenset[Any]) -> None:
    wrong, bad, kinds = [], set(), list_fitting(modalities)
    for first, second in itertools.product(kinds, kinds):
        try:
            refuse_disorder([of(first), of(second)])
        except ScenarioError as error:
            bad.add((first, second))
            named = re.search(r"method: \[(.*)\]$", str(error))
            other = [of(second), of(first)]
            if named is None:
                if first != second and get_refusal(other) is None:
                    wrong.append(f"{error}, but the other order is not refused")
            elif named[1] != f"{second}, {first}" or get_refusal(other):
                wrong.append(f"{error}, which is no way out")
            if error.field != "method.1.kind":
                wrong.append(f"{first}, {second}: blames {error.field}")
    assert_no(wrong)
    mine = set(itertools.product(kinds, kinds))
    assert mine & KNOWN_BAD <= bad
    assert not KNOWN_GOOD & bad


def test_a_longer_list_is_put_right_step_by_step() -> None:
    """Each refusal names a list that comes nearer; the methods stay the same."""
    words = ["quantise", "topk", "wcc", "c3sl", "nopeek", "noise"]
    for _ in range(10):
        try:
            refuse_disorder([of(word) for word in words])
            break
        except ScenarioError as error:
            words = re.findall(r"method: \[(.*)\]$", str(error))[0].split(", ")
    assert words.index("c3sl") > max(words.index("wcc"), words.index("nopeek"))
    assert words.index("topk") > max(words.index("c3sl"), words.index("noise"))
    assert words[-1] == "quantise"


def test_other_options_and_other_legs_are_other_pairs() -> None:
    refuse_disorder([of("lightsplit", "smashed"), of("lightsplit", "features")])
    refuse_disorder([METHODS["snd"](denoise=False), of("naive_mix")])
    refuse_disorder([of("mixguard"), METHODS["snd"](at="cut")])
    refuse_disorder([of("topk", "features"), of("lightsplit", "smashed")])
    with pytest.raises(ScenarioError, match=r"^scenario\.method\.2\.kind: .*topk"):
        refuse_disorder([of("topk", "features"), of("wcc"), of("lightsplit", "features")])


def image_pairs() -> Iterator[tuple[str, list[MethodConfig]]]:
    kinds = list_fitting(IMAGES)
    codecs = [kind for kind in kinds if issubclass(METHODS[kind], CodecConfig)]
    for leg, some in (("smashed", kinds), ("features", codecs)):
        for kinds_of in itertools.product(some, some):
            configs = [of(kind, leg) for kind in kinds_of]
            if get_refusal(configs) is None:
                yield f"{leg}: {', '.join(kinds_of)}", configs


@pytest.mark.slow
def test_pairs_of_image_methods_work_as_they_read() -> None:
    alone: dict[str, list[object]] = {}
    wrong = []
    for name, configs in image_pairs():
        try:
            lacking = find_fault(configs, alone)
        except Exception as error:  # noqa: BLE001 - whatever a pair that was let through throws
            lacking = f"{type(error).__name__}: {error}"
        if lacking:
            wrong.append(f"{name}: {lacking}")
    assert_no(wrong)


def find_fault(configs: list[MethodConfig], alone: dict[str, list[object]]) -> str | None:
    """Return what is wrong: shapes, values that arrive, gradients, or the effect of each."""
    seen, z, term = exchange_terms(configs)
    exchange(pair(configs), activation(BATCH), training=False)
    if seen.lifted.shape != (BATCH, *CUT) or seen.decoded.shape != (BATCH, *FEATURES):
        return f"comes out as {tuple(seen.lifted.shape)}, {tuple(seen.decoded.shape)}"
    if any(reply.shape != seen.sent.shape for reply in seen.replies):
        return "the reply is not of what was sent"
    sent, arrived = seen.sent.flatten(1), seen.arrived.flatten(1)
    largest = sent.abs().amax(1, keepdim=True)
    rough = not ROUGH.isdisjoint(config.kind_name for config in configs)
    if not rough and ((sent - arrived).abs() > 0.01 * largest).any():
        return "what arrives differs from what was encoded"
    joint = activation(BATCH).requires_grad_()
    joint_loss(pair(configs), joint).backward()
    assert z.grad is not None
    assert joint.grad is not None
    noised = rough or any(config.kind_name in NOISED for config in configs)
    if not noised and (z.grad - joint.grad).norm() > 0.05 * joint.grad.norm():
        return "its gradient is not that of the joint graph"
    for index, config in enumerate(configs):
        key = config.model_dump_json()
        if key not in alone:
            alone[key] = effects(*exchange_terms([config]))
        if configs[1 - index].kind_name not in OF_LABELS and effects(seen, z, term) == alone[key]:
            return f"{configs[1 - index].kind_name} changes nothing"
    return None


def exchange_terms(configs: list[MethodConfig]) -> tuple[Exchange, torch.Tensor, list[float]]:
    """Exchange a step; return it, its gradient, and the methods' own terms in it."""
    z, sides, terms = activation(BATCH).requires_grad_(), pair(configs), []
    inner = sides.client.compute_encode_loss

    def loss(step: Step) -> torch.Tensor | None:
        term = inner(step)
        terms.append(0.0 if term is None else term.item())
        return term

    sides.client.compute_encode_loss = loss  # type: ignore[method-assign]
    return exchange(sides, z), z, terms


def effects(seen: Exchange, z: torch.Tensor, term: list[float]) -> list[object]:
    """Return all that a method can change of a step."""
    assert z.grad is not None
    assert seen.step.labels is not None
    crossed = [t.tolist() for leg in sorted(seen.packed) for t in seen.packed[leg]]
    return [crossed, z.grad.tolist(), seen.step.labels.tolist(), term]


@pytest.mark.slow
def test_pairs_of_text_methods_train_and_each_has_its_effect(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    walker = Walker(tmp_path_factory.mktemp("pairs"))
    wrong = []
    for kinds in itertools.product(list_fitting(TEXTS), repeat=2):
        beside = KNOWN if {"admi", "dualguard"} & set(kinds) else {}
        changes = {"method": [{"kind": kind, **FINE.get(kind, {})} for kind in kinds], **beside}
        if refusal(PLAIN, changes, texts=True):
            continue
        try:
            seen = walker.observe_run(PLAIN, changes, texts=True)
            losses = [row["train_loss"] for row in seen.reports.values()]
        except Exception as error:  # noqa: BLE001 - whatever a pair that was let through throws
            wrong.append(f"{kinds}: {type(error).__name__}: {error}")
            continue
        if not torch.tensor(losses).isfinite().all():
            wrong.append(f"{kinds}: loses {losses}")
        for kind in set(kinds):
            one = {"method": [{"kind": kind, **FINE.get(kind, {})}], **beside}
            if walker.twin(PLAIN, one, texts=True).packets == seen.packets:
                wrong.append(f"{kinds}: the same as {kind} alone")
    assert_no(wrong)
