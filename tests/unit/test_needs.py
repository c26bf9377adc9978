"""What a scenario lacks is reported at the field that asks for it, with the ways out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from builders import experiment, run_to_end, scenario
from by_hand import Recorder
from gists import says
from pace import quick
from texts import text_scenario

from simsplit.errors import ScenarioError
from simsplit.methods import Method, MethodConfig, Phase, Share, Site, Step
from simsplit.methods.method import CUT_LEGS
from simsplit.results import Run
from simsplit.scenario import parse

VANILLA = {"topology": "vanilla"}
CAUSAL = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
PUBLIC = {"data": {"auxiliary": 0.3}}
OWN = {"heads": "per_client"}
AT_ONCE = {"schedule": "parallel", "aggregation": "fused"}
IMAGES: list[tuple[dict[str, Any], str]] = [
    (
        {"method": [{"kind": "snd"}]},
        "method.0.kind: snd ... images ... raw, lightsplit, wcc",
    ),
    ({"attacks": [{"kind": "sip"}]}, "attacks.0.kind: sip ... images ... sdar"),
    (
        {"attacks": [{"kind": "sdar"}]},
        "attacks.0.kind: sdar ... data.auxiliary",
    ),
    (
        {**VANILLA, "method": [{"kind": "cast", "legs": ["smashed", "features"]}]},
        "method.0.legs: ... smashed, features; ... vanilla ... smashed, or topology: u_shaped",
    ),
    (
        {**VANILLA, "detectors": [{"kind": "krum", "signal": "features"}]},
        "detectors.0.signal: ... features ... vanilla ... payload, smashed_grad, "
        "or topology: u_shaped",
    ),
    (
        {"method": [{"kind": "topk"}], "detectors": [{"kind": "krum", "signal": "smashed_grad"}]},
        "detectors.0.signal: ... smashed_grad ... topk ... payload, features, features_grad",
    ),
    (
        {"method": [{"kind": "c3sl"}], "attacks": [{"kind": "unsplit", "objective": "adaptive"}]},
        "attacks.0.objective: ... adaptive ... c3sl ... upstream",
    ),
    (
        {**AT_ONCE, "method": [{"kind": "c3sl"}]},
        "aggregation: ... fused ... c3sl",
    ),
    (
        {"method": [{"kind": "c3sl", "ratio": 1000}], "train": {"batch_size": 32}},
        "method.0.ratio: ... 1000 ... 1000; train.batch_size ... 32",
    ),
    (
        {"clients": {"count": 1}, "detectors": [{"kind": "krum"}]},
        "detectors.0.kind: krum ... 3 clients ... clients.count ... cohort.fraction ... 1",
    ),
    (
        {"cohort": {"fraction": 0.2}, "detectors": [{"kind": "cosine_mad"}]},
        "detectors.0.kind: cosine_mad ... 3 clients ... clients.count ... cohort.fraction ... 2",
    ),
    (
        {
            "schedule": "per_client",
            "aggregation": "splitfed_v1",
            "detectors": [{"kind": "safesplit"}],
        },
        "detectors.0.kind: safesplit ... per_client ... splitfed_v1 ... schedule: per_client ... "
        "aggregation: none",
    ),
    (
        {**PUBLIC, "aggregation": "splitfed_v1", "attacks": [{"kind": "pcat"}]},
        "attacks.0.kind: pcat ... splitfed_v1",
    ),
    (
        {"clients": {**OWN, "malicious": {"ids": [1], "poison": [{"kind": "replace"}]}}},
        "clients.malicious.poison.0.kind: replace ... share ... badnets",
    ),
]
OF_TEXTS: list[tuple[dict[str, Any], str]] = [
    (
        {"method": [{"kind": "lightsplit"}]},
        "method.0.kind: lightsplit ... texts ... raw, cast, sparsify, quantise, noise",
    ),
    (
        {"method": [{"kind": "mixguard"}]},
        "method.0.kind: mixguard ... data.auxiliary ... 0.2 ... data.public",
    ),
    (
        {"data": {"support": "python_docs"}, "method": [{"kind": "mixguard"}]},
        "method.0.calibrate: ... true ... false, or data.auxiliary",
    ),
    ({"attacks": [{"kind": "sdar"}]}, "attacks.0.kind: sdar ... texts"),
    (
        {"attacks": [{"kind": "tag"}]},
        "attacks.0.kind: tag ... sequence_classifier ... causal_lm",
    ),
    (
        {**PUBLIC, "model": CAUSAL, "attacks": [{"kind": "adaptive_online"}]},
        "attacks.0.kind: adaptive_online ... mixguard or snd",
    ),
    (
        AT_ONCE,
        "aggregation: ... fused ... texts ... splitfed_v1",
    ),
    (
        {"clients": {"malicious": {"ids": [1], "poison": [{"kind": "badnets"}]}}},
        "clients.malicious.poison.0.kind: badnets ... texts ... tamper",
    ),
    (
        {"data": {"auxiliary": 0.3, "source": {"padding": "left"}}, "method": [{"kind": "snd"}]},
        "method.0.denoise: ... true ... mask ... false, or data.source.padding: right",
    ),
    (
        {"data": {"source": {"padding": "left"}}, "method": [{"kind": "naive_mix"}]},
        "method.0.kind: naive_mix ... mask ... data.source.padding: right",
    ),
    (
        {**VANILLA, "method": [{"kind": "dp_sgd"}]},
        "method.0.kind: dp_sgd ... features ... topology: u_shaped",
    ),
    (
        {**VANILLA, "method": [{"kind": "naive_mix"}]},
        "method.0.kind: naive_mix ... loss ... topology: u_shaped",
    ),
    (
        {**VANILLA, **PUBLIC, "method": [{"kind": "mixguard", "calibrate": False}]},
        "method.0.kind: mixguard ... features ... topology",
    ),
    (
        {**VANILLA, **PUBLIC, "method": [{"kind": "snd"}]},
        "method.0.denoise: ... true ... features ... false, or topology: u_shaped",
    ),
    (
        {**VANILLA, "model": CAUSAL, "attacks": [{"kind": "tag"}]},
        "attacks.0.kind: tag ... features ... vanilla",
    ),
    (
        {**PUBLIC, "method": [{"kind": "mixguard"}], "detectors": [{"kind": "within_class"}]},
        "detectors.0.",
    ),
]


def test_a_lack_is_refused_with_its_remedies(tmp_path: Path) -> None:
    few = {"clients": {"count": 3}}
    wrong = []
    for changes, gist in (*IMAGES, *OF_TEXTS):
        try:
            if (changes, gist) in IMAGES:
                parse(changes)
            else:
                text_scenario(tmp_path, **{**few, **changes})
            message = "nothing"
        except ScenarioError as error:
            message = str(error)
        if not says(message, f"scenario.{gist}"):
            wrong.append(f"{changes}: {message}")
    assert not wrong, "\n".join(["", *wrong])


class Shown(Method):
    """A plugin's: it would noise what a vanilla cut does not have, and says so nowhere."""

    def __init__(self, config: "ShownConfig") -> None:
        self.config = config

    def plan_phases(self, rounds: int) -> Sequence[Phase]:
        return [Phase("still", 1, gradients=False)] if self.config.what == "plan" else []


class Noisy(Shown):
    def split_gradient(self, grad: torch.Tensor, step: Step) -> Sequence[Share]:
        return [Share(grad * 2)]


class ShownConfig(MethodConfig):
    """Twice the gradient, or a phase without any."""

    kind: Literal["shown"] = "shown"
    what: Literal["plan", "outgoing", "nothing"] = "outgoing"

    def build(self, site: Site) -> Method:
        return Noisy(self) if self.what == "outgoing" else Shown(self)


@pytest.mark.parametrize("what", ["plan", "outgoing", "nothing"])
def test_a_plugin_that_lists_no_needs_is_judged_by_its_hooks(what: str, tmp_path: Path) -> None:
    base = scenario(**VANILLA).model_dump(mode="json")
    given = parse(
        {**base, "method": [{"kind": "shown", "what": what}]}, {"METHODS": {"shown": ShownConfig}}
    )
    if what == "nothing":
        experiment(given, tmp_path / "run")
        return
    with pytest.raises(ScenarioError, match=r"^scenario.method.0.kind: shown needs .*u_shaped$"):
        experiment(given, tmp_path / "run")
    fits = given.model_copy(update={"topology": "u_shaped"})
    experiment(fits, tmp_path / "run")


@pytest.mark.parametrize("padding", quick(["left", "right"], "left"))
def test_a_tail_at_the_server_reads_padded_texts_as_one_at_the_client_does(
    padding: str, tmp_path: Path
) -> None:
    """The first round's loss and the last evaluation are those of a U shape, bit for bit."""
    made = {}
    for topology in ("u_shaped", "vanilla"):
        data = {"source": {"padding": padding, "length": 64}}  # which is more than texts have
        one = {"schedule": {"rounds": 1, "local_steps": 1}, "clients": {"count": 1}}
        given = text_scenario(tmp_path, model=CAUSAL, topology=topology, data=data, **one)
        made[topology] = Run.load(run_to_end(given, tmp_path / topology).path).rounds
    for column in ("train_loss", "test_loss", "test_accuracy"):
        assert made["u_shaped"][column].tolist() == made["vanilla"][column].tolist(), column


@pytest.mark.parametrize("legs", quick([["smashed"], ["features"]], ["features"]))
def test_sparse_gradients_go_back_to_each_client_of_a_lap(legs: list[str], tmp_path: Path) -> None:
    """A cohort of one is what that client would have been by itself."""
    sent = []
    for aggregation in ("fused", "splitfed_v2"):
        given = scenario(
            clients={"count": 1},
            schedule={"kind": "parallel", "rounds": 1},
            aggregation=aggregation,
            method=[{"kind": "randtopk", "ratio": 4, "legs": legs}],
        )
        made, tap = experiment(given, tmp_path / aggregation), Recorder()
        made.parts.wire.taps.append(tap)
        made.run(resume=False)
        sent.append(
            [tensor for leg in sorted(CUT_LEGS) for p in tap.on(leg) for tensor in p.tensors]
        )
    assert len(sent[0]) == len(sent[1]) > 10
    assert all(torch.equal(one, other) for one, other in zip(*sent, strict=True))


@pytest.mark.slow
def test_detectors_read_texts_of_any_length_and_find_who_tampers(tmp_path: Path) -> None:
    """Of five clients whose batches differ in length one scales what it sends."""
    tampering = {"ids": [1], "poison": [{"kind": "tamper", "leg": "smashed"}]}
    given = text_scenario(
        tmp_path,
        clients={"count": 5, "malicious": tampering},
        detectors=[{"kind": "krum", "signal": "payload"}, {"kind": "cosine_mad"}],
    )
    made = Run.load(run_to_end(given, tmp_path / "run").path)
    last = made.detections.groupby("detector").last()
    assert last.loc["krum_payload", "caught"] == 1
    assert last.loc["krum_payload", "auroc"] == 1.0
