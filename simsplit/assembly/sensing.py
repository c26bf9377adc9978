"""The sensor of detectors is built here: it reads packets as the run's server does."""

import torch

from simsplit.detectors import Sensor
from simsplit.detectors.watch import list_signals, list_sketched
from simsplit.packets import Packet
from simsplit.parties.server import Server
from simsplit.phases import Moment
from simsplit.scenario import Scenario
from simsplit.seeds import derive_seed


def build_sensor(scenario: Scenario, server: Server, moment: Moment) -> Sensor:
    """Build the sensor, which reads packets, of several messages the first, as the server does."""

    def decode(packet: Packet) -> torch.Tensor:
        message = server.stack.split_messages(packet.leg, packet.tensors)[0]
        return server.stack.unpack(packet.leg, message, server.end.open_step(packet))

    detectors, seed = scenario.detectors, derive_seed(scenario.seed, "server", "sensor")
    return Sensor(list_signals(detectors), list_sketched(detectors), decode, seed, moment=moment)
