"""Attacks on images that see targets in several epochs: fresh noise is averaged, and no more."""

import math

import pytest
import torch
from builders import run_to_end, scenario
from contracts.leaks import BATCH, build_setting
from contracts.test_attacks import CASES, brief, shrink_judges

from simsplit import Run
from simsplit.attacks import ATTACKS, Knows
from simsplit.attacks.epoch_averages import average_epochs, average_queries, take_first_epoch
from simsplit.legs import Leg
from simsplit.packets import Packet

KIND_CASES = [(kind, fields) for kind, cases in CASES.items() for fields in cases]


def send(rows: torch.Tensor, epoch: int, number: int = 0, leg: Leg = Leg.SMASHED) -> Packet:
    return Packet(0, leg, epoch, number, (rows,))


def test_batches_are_averaged_over_epochs_by_hand():
    sent = [
        send(torch.tensor([[float(10 * batch + epoch**2)]]), epoch, batch)
        for epoch in (3, 4, 5)
        for batch in (0, 1)
    ]
    averaged = [*average_epochs(sent, lambda packet: packet.tensors[0])]
    assert [float(each) for each in averaged] == pytest.approx([50 / 3, 10 + 50 / 3])
    assert take_first_epoch(sent) == sent[:2]
    pixels = torch.zeros(1, 1)
    queries = [(each, pixels) for each in sent]
    (first, _), (second, _) = average_queries(queries, lambda packet: packet.tensors[0])
    assert (float(first), float(second)) == pytest.approx((50 / 3, 10 + 50 / 3))


def recover(kind: str, fields: dict, exposures: int) -> torch.Tensor:
    """Return what an attack recovers of targets that are sent alike in each epoch."""
    config = ATTACKS[kind](**brief(fields), exposures=exposures)
    here = build_setting(vanilla=True)
    attack = config.build(here.known)
    if Knows.WEIGHTS in config.threat.knows:
        attack.receive_head({f"head/{n}": t for n, t in here.head.state_dict().items()})
    epochs = range(1, exposures + 1)
    if config.queries:
        public = [here.known.public(number).inputs for number in range(4)]
        attack.study([(send(rows, epoch), rows) for epoch in epochs for rows in public])
    labels = here.labels(slice(BATCH))
    targets = [
        packet
        for epoch in epochs
        for packet in (send(here.truth, epoch), send(labels, epoch, leg=Leg.LABELS))
    ]
    for _ in attack.work(targets):
        pass
    return attack.recovered


@pytest.mark.parametrize(("kind", "fields"), KIND_CASES, ids=str)
def test_what_is_sent_alike_is_read_alike(kind, fields, monkeypatch):
    shrink_judges(monkeypatch)
    once, often = recover(kind, fields, 1), recover(kind, fields, 3)
    assert once.shape == (BATCH, 1, 8, 8)
    assert torch.equal(once, often)


def read_untrained(folder, method, *attacks) -> dict[str, float]:
    """Return the MSE of attacks on a network that nobody has trained."""
    given = scenario(
        data={"auxiliary": 0.5, "train_samples": 700},
        schedule={"kind": "round_robin", "rounds": 0},
        method=method,
        attacks=list(attacks),
        targets={"count": 30},
    )
    run = Run.load(run_to_end(given, folder).path)
    return dict(run.attacks.set_index("attack")["mse"])


def noise(sigma: float) -> list[dict]:
    return [{"kind": "noise", "sigma": sigma, "unit": "batch_std"}]


ONCE = {"kind": "ridge", "pairs": 300}
OFTEN = {**ONCE, "name": "often", "exposures": 8}


def test_eight_epochs_of_noise_are_read_like_an_eighth_of_its_variance(tmp_path):
    """The oracle: queries and targets are sent anew in each epoch, and noise is drawn afresh."""
    loud = read_untrained(tmp_path / "loud", noise(2.0), ONCE, OFTEN)
    soft = read_untrained(tmp_path / "soft", noise(2.0 / math.sqrt(8)), ONCE)
    assert loud["often"] < 0.8 * loud["ridge"]
    assert loud["often"] == pytest.approx(soft["ridge"], rel=0.1)


def test_without_noise_eight_epochs_read_what_one_does(tmp_path):
    read = read_untrained(tmp_path / "plain", [{"kind": "lightsplit", "ratio": 8}], ONCE, OFTEN)
    assert read["often"] == read["ridge"]


def test_exposures_are_at_least_one():
    with pytest.raises(ValueError, match="exposures"):
        ATTACKS["ridge"](exposures=0)
