"""The transcript of a deployment is that of its simulation, without the truth."""

from pathlib import Path

import pytest
import torch
from builders import scenario
from deployed import Deployment

from simsplit import run
from simsplit.wires.transcript import Transcript
from simsplit.wires.truth import Truth

pytestmark = pytest.mark.deploy


def test_the_server_keeps_what_crossed_and_has_no_truth(
    deployment: Deployment, tmp_path: Path
) -> None:
    given = scenario(clients={"count": 2}, observers=[{"kind": "transcript", "clients": [1]}])
    deployment.run(given, tmp_path)
    assert deployment.ends(2) == ["finished", "finished"]
    run(given, tmp_path / "inline")
    both = [tmp_path / name / "transcript" for name in ("run", "inline")]
    one, other = (list(Transcript.open(path).packets()) for path in both)
    assert len(one) == len(other) > 4
    for deployed, simulated in zip(one, other, strict=True):
        assert (deployed.leg, deployed.round, deployed.step) == (
            simulated.leg,
            simulated.round,
            simulated.step,
        )
        assert all(map(torch.equal, deployed.tensors, simulated.tensors))
    assert Truth.open(both[0]) is None
    assert Truth.open(both[1]) is not None
    assert not any(row.ids for row in Transcript.open(both[0]).rows())
