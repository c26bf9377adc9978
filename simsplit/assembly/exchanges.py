"""The exchange is built here: a server and a wire that are connected to a pool's clients."""

import torch

from simsplit.assembly.ownership import Ownership
from simsplit.detectors import Sensor
from simsplit.detectors.watch import list_signals, list_sketched
from simsplit.engine.pool import Pool
from simsplit.packets import Packet
from simsplit.parties.precision import Autocast
from simsplit.parties.server import Server
from simsplit.phases import Moment
from simsplit.scenario import Scenario
from simsplit.schedules.exchange import Exchange
from simsplit.seeds import derive_seed
from simsplit.wire import Wire


def build_exchange(owners: Ownership, autocast: Autocast, pool: Pool) -> Exchange:
    """Build a pool's exchange: a server, a wire, and a sensor if detectors ask for one."""
    exchange = Exchange(pool, _build_server(owners, autocast), Wire(), owners.topology)
    exchange.watch = pool.watch(exchange.server.learner)
    detectors = owners.scenario.detectors
    if list_signals(detectors) or list_sketched(detectors):
        exchange.sensor = _build_sensor(owners.scenario, exchange.server, exchange.moment)
        exchange.wire.taps.append(exchange.sensor)
    return exchange


def _build_server(owners: Ownership, autocast: Autocast) -> Server:
    """Build the server around its end of the topology; it gets the tail if the topology says so."""
    end = owners.topology.server(
        owners.model.trunk,
        owners.model.tail if "tail" in owners.topology.served else None,
        owners.server_stack,
        owners.build_server_learner(),
        owners.loss,
        seed=derive_seed(owners.scenario.seed, "server"),
        device=owners.device,
        autocast=autocast,
    )
    return Server(end, owners.topology.returned)


def _build_sensor(scenario: Scenario, server: Server, moment: Moment) -> Sensor:
    """Build the sensor, which reads packets as the server does.

    It reads the first message of a packet that holds several.
    """

    def decode(packet: Packet) -> torch.Tensor:
        message = server.stack.split_messages(packet.leg, packet.tensors)[0]
        return server.stack.unpack(packet.leg, message, server.end.open_step(packet))

    detectors, seed = scenario.detectors, derive_seed(scenario.seed, "server", "sensor")
    return Sensor(list_signals(detectors), list_sketched(detectors), decode, seed, moment=moment)
