"""Weights handed over as changes: what one end codes, the other reads, and both hold the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import run_to_end, scenario
from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.changes import Changes
from simsplit.parties.sharing import Keeping
from simsplit.results import Run
from simsplit.seeds import rng_for

START = {
    "conv": torch.zeros(3, 2, 2, 2),
    "bias": torch.full((5,), 2.0),
    "counted": torch.tensor(7),
    "scale": torch.tensor(1.0),
}
AVERAGED = {"schedule": {"kind": "parallel", "rounds": 3}, "aggregation": {"kind": "splitfed_v2"}}


def packet(weights: dict[str, Tensor]) -> Packet:
    return Packet(2, Leg.HANDOVER, 1, 0, tuple(weights.values()), tuple(weights))


def drift(seed: int) -> dict[str, Tensor]:
    rng = rng_for(seed, "test")
    moved = {
        name: tensor + torch.randn(tensor.shape, generator=rng)
        for name, tensor in START.items()
        if tensor.is_floating_point()
    }
    return {**START, **moved, "counted": torch.tensor(9)}


@pytest.mark.parametrize("bits", [1, 3, 8, 16])
def test_a_change_is_read_to_within_a_step_of_its_row_s_range(bits: int) -> None:
    one, other = Changes(bits, 0, START), Changes(bits, 0, START)
    weights = drift(0)
    sent = one.encode(packet(weights), "up", 1)
    assert sent.names == ("codes", "ranges", "since", "counted")
    assert sent.tensors[0].nbytes == -(-(24 + 5 + 1) * bits // 8)
    assert sent.tensors[1].nbytes == 8 * (3 + 1 + 1)
    assert other.fits(sent)
    got = other.read(sent)
    assert list(got) == list(START)
    assert got["counted"] == 9
    for name in ("conv", "bias", "scale"):
        change = weights[name] - START[name]
        rows = change.reshape(len(change) if change.ndim > 1 else 1, -1)
        steps = (rows.amax(1) - rows.amin(1)) / (2**bits - 1)
        off = (got[name] - weights[name]).reshape(rows.shape).abs().amax(1)
        assert (off <= steps + 1e-6).all(), name


def test_a_change_is_its_codes_expectation() -> None:
    coder, weights = Changes(2, 0, START), drift(1)
    read = [coder.read(coder.encode(packet(weights), "up", n))["conv"] for n in range(1000)]
    mean = torch.stack(read).mean(0)
    widest = (weights["conv"].amax() - weights["conv"].amin()) / 3
    assert (mean - weights["conv"]).abs().max() < 4 * widest / 1000**0.5


def test_what_does_not_belong_is_not_taken_for_changes() -> None:
    coder = Changes(4, 0, START)
    good = coder.encode(packet(drift(0)), "up", 1)
    codes, ranges, since, counted = good.tensors
    for tensors in (
        (codes[:-1], ranges, since, counted),
        (codes.float(), ranges, since, counted),
        (codes, ranges[:-1], since, counted),
        (codes, ranges, since.float(), counted),
        (codes, ranges, since, counted.float()),
    ):
        assert not coder.fits(good.with_tensors(tensors))
    assert not coder.fits(good.with_names(("codes", "ranges"), (codes, ranges)))


def test_changes_since_another_round_are_refused() -> None:
    one, other = Changes(8, 0, START), Changes(8, 0, START)
    one.hold(drift(0), 3)
    with pytest.raises(ProtocolError, match=r"round 3.*round 0"):
        other.read(one.encode(packet(drift(1)), "up", 1))
    other.load({name: tensor.clone() for name, tensor in one.state().items()})
    other.read(one.encode(packet(drift(1)), "up", 1))


def test_clients_hold_what_the_averaging_side_believes_they_do(tmp_path: Path) -> None:
    given = scenario(**AVERAGED | {"aggregation": {"kind": "splitfed_v2", "bits": 3}})
    made = run_to_end(given, tmp_path)
    assert made.parts.federation is not None
    believed = made.parts.federation.changes
    assert believed is not None
    for client in made.parts.clients:
        keeping: Keeping = made.parts.pool.clients[client].keeping  # type: ignore[attr-defined]
        assert keeping.parts.changes is not None
        for name, tensor in keeping.parts.changes.held.items():
            assert torch.equal(tensor, believed.held[name]), (client, name)


def sizes(made: Any) -> tuple[int, int]:
    """Count the bytes of what clients share, whole and as changes of 8 bits."""
    weights = made.parts.federation.shared.weights.values()
    learned = [tensor for tensor in weights if tensor.is_floating_point()]
    others = sum(tensor.nbytes for tensor in weights if not tensor.is_floating_point())
    rows = sum(len(tensor) if tensor.ndim > 1 else 1 for tensor in learned)
    values = sum(tensor.numel() for tensor in learned)
    return 4 * values + others, values + 8 * rows + others + 8


def beside(path: Path) -> dict[tuple[int, str], int]:
    wire = Run.load(path).wire
    wire = wire[wire["leg"].isin(["handover", "broadcast"])]
    sums: dict[tuple[int, str], int] = wire.groupby(["round", "leg"])["bytes"].sum().to_dict()
    return sums


def test_bytes_of_hand_overs_are_the_codes_and_ranges(tmp_path: Path) -> None:
    coded = scenario(**AVERAGED | {"aggregation": {"kind": "splitfed_v2", "bits": 8}})
    run_to_end(scenario(**AVERAGED), tmp_path / "whole")
    made = run_to_end(coded, tmp_path / "coded")
    clients = len(made.parts.clients)
    whole, few = beside(tmp_path / "whole"), beside(tmp_path / "coded")
    assert set(whole.values()) == {sizes(made)[0] * clients}
    assert set(few.values()) == {sizes(made)[1] * clients}
    assert few.keys() == whole.keys()


@pytest.mark.slow
def test_who_missed_the_last_broadcast_gets_whole_weights(tmp_path: Path) -> None:
    given = AVERAGED | {"cohort": {"fraction": 0.5}, "schedule": {"kind": "parallel", "rounds": 6}}
    made = run_to_end(
        scenario(**given | {"aggregation": {"kind": "splitfed_v2", "bits": 8}}), tmp_path
    )
    wire = Run.load(tmp_path).wire
    down = wire[wire["leg"] == "broadcast"]
    heard, missed = None, 0
    for _, packets in down.groupby("round"):
        for client, nbytes in zip(packets["client"], packets["bytes"], strict=True):
            behind = heard is not None and client not in heard
            missed += behind
            assert nbytes == sizes(made)[0 if behind else 1]
        heard = set(packets["client"])
    assert missed
