"""What is made for images is refused on texts and the other way round, with what to use instead."""

import pytest
from builders import finished
from texts import text_scenario

from simsplit.errors import ScenarioError
from simsplit.results import Run
from simsplit.scenario import parse

WRITES = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
AVERAGED = {"schedule": {"kind": "parallel", "rounds": 1}, "aggregation": "fused"}
BADNETS = {"ids": [1], "poison": [{"kind": "badnets"}]}
TAMPERING = {"ids": [1], "poison": [{"kind": "tamper", "leg": "smashed"}]}


@pytest.mark.parametrize(
    ("changes", "where", "told"),
    [
        ({"method": [{"kind": "lightsplit"}]}, "method.0.kind", "cannot be used on texts"),
        ({"method": [{"kind": "mixguard"}]}, "method.0", "needs public texts"),
        ({"attacks": [{"kind": "sdar"}]}, "attacks.0.kind", "does not recover texts"),
        ({"data": {"auxiliary": 0.3}, "attacks": [{"kind": "tag"}]}, "attacks.0.kind", "causal_lm"),
        (AVERAGED, "aggregation", "splitfed_v2"),
        ({"clients": {"malicious": BADNETS}}, "clients.malicious.poison.0.kind", "tamper"),
    ],
    ids=["method", "public", "attack", "gradients", "fused", "poison"],
)
def test_parts_for_images_are_refused_on_texts(changes, where, told, tmp_path):
    with pytest.raises(ScenarioError) as caught:
        text_scenario(tmp_path, **changes)
    assert str(caught.value).startswith(f"scenario.{where}: ")
    assert told in str(caught.value)


@pytest.mark.parametrize("changes", [{"method": [{"kind": "snd"}]}, {"attacks": [{"kind": "sip"}]}])
def test_parts_for_texts_are_refused_on_images(changes):
    with pytest.raises(ScenarioError, match="images"):
        parse({"data": {"source": "digits", "auxiliary": 0.3}, **changes})


def test_texts_padded_on_the_left_are_not_mixed(tmp_path):
    data = {"auxiliary": 0.3, "source": {"padding": "left"}}
    with pytest.raises(ScenarioError, match=r"data\.source\.padding: got left"):
        text_scenario(tmp_path, model=WRITES, data=data, method=[{"kind": "mixguard"}])


def test_detectors_read_texts_of_any_length_and_find_who_tampers(tmp_path):
    """Of five clients whose batches differ in length one scales what it sends."""
    given = text_scenario(
        tmp_path,
        clients={"count": 5, "malicious": TAMPERING},
        detectors=[{"kind": "krum", "signal": "payload"}, {"kind": "cosine_mad"}],
    )
    made = Run.load(finished(given, tmp_path / "run").path)
    last = made.detections.groupby("detector").last()
    assert last.loc["krum_payload", "caught"] == 1
    assert last.loc["krum_payload", "auroc"] == 1.0
