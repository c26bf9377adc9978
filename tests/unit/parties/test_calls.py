"""Calls take their packets along to the device of the client that answers."""

from inspect import isabstract, signature

import pytest
import torch

from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties import calls
from simsplit.parties.calls import Call

META = torch.device("meta")
DEFINED = [each for each in vars(calls).values() if isinstance(each, type)]
CALLS = [each for each in DEFINED if issubclass(each, Call) and not isabstract(each)]
CARRYING = [kind for kind in CALLS if {"packet", "packets"} & signature(kind).parameters.keys()]


@pytest.mark.parametrize("kind", CARRYING, ids=lambda kind: kind.__name__)
def test_a_call_moves_its_packets(kind: type[Call[object]]) -> None:
    packet = Packet(0, Leg.FEATURES, 1, 0, (torch.zeros(2),))
    values = {"packet": packet, "packets": (packet,), "making": Leg.FEATURES_GRAD}
    call = kind(**{name: values[name] for name in signature(kind).parameters}).to_device(META)
    moved = [getattr(call, "packet", None), *getattr(call, "packets", ())]
    assert [each.tensors[0].device for each in moved if each is not None] == [META]
