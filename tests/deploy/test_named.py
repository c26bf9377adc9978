"""A server that names its clients sends no name, and clients that know none train with it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import run_to_end, scenario
from deployed import Deployment
from torch import Tensor

from simsplit.deploy import client_session, gate

pytestmark = pytest.mark.deploy
NAMES = ["Bonnhospital", "Grazhospital"]


def test_names_stay_with_whoever_gave_them(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    write = gate.write_frame

    def record(header: dict[str, object], tensors: Sequence[Tensor] = ()) -> bytes:
        sent.append(write(header, tensors))
        return sent[-1]

    for module in (gate, client_session):
        monkeypatch.setattr(module, "write_frame", record)
    plain = scenario(clients={"count": 2})
    named = scenario(clients={"count": 2, "names": NAMES})
    made = deployment.run(named, tmp_path, approved=plain)
    assert deployment.ends(2) == ["finished", "finished"]
    inline = run_to_end(named, tmp_path / "inline").path
    assert (made.path / "clients.csv").read_text() == (inline / "clients.csv").read_text()
    assert made.holdings["name"].tolist() == NAMES
    assert len(sent) > 20
    assert not any(name.encode() in frame for name in NAMES for frame in sent)
