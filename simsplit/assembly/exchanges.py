"""The server, the wire, and the choreography between them and a pool's clients."""

import torch

from simsplit.assembly.ownership import Ownership
from simsplit.detectors import Sensor
from simsplit.detectors.watch import signals_of, sketched_of
from simsplit.engine.pool import Pool
from simsplit.packets import Packet
from simsplit.parties.precision import Autocast
from simsplit.parties.server import Server
from simsplit.phases import Moment
from simsplit.scenario import Scenario
from simsplit.schedules.exchange import Exchange
from simsplit.seeds import seed_for
from simsplit.wire import Wire


def exchange_for(owners: Ownership, autocast: Autocast, pool: Pool) -> Exchange:
    """Build a server and a wire around a pool's clients, with a sensor if detectors ask for one."""
    exchange = Exchange(pool, _server(owners, autocast), Wire(), owners.topology)
    detectors = owners.scenario.detectors
    if signals_of(detectors) or sketched_of(detectors):
        exchange.sensor = _sensor(owners.scenario, exchange.server, exchange.moment)
        exchange.wire.taps.append(exchange.sensor)
    return exchange


def _server(owners: Ownership, autocast: Autocast) -> Server:
    end = owners.topology.server(
        owners.model.trunk,
        owners.model.tail if "tail" in owners.topology.served else None,
        owners.server_stack,
        owners.server_learner(),
        owners.loss,
        seed=seed_for(owners.scenario.seed, "server"),
        device=owners.device,
        autocast=autocast,
    )
    return Server(end, owners.topology.returned)


def _sensor(scenario: Scenario, server: Server, moment: Moment) -> Sensor:
    """Build what reads packets as the server does: of several messages in one, the first."""

    def decode(packet: Packet) -> torch.Tensor:
        message = server.stack.messages(packet.leg, packet.tensors)[0]
        return server.stack.unpack(packet.leg, message, server.end.open_step(packet))

    detectors, seed = scenario.detectors, seed_for(scenario.seed, "server", "sensor")
    return Sensor(signals_of(detectors), sketched_of(detectors), decode, seed, moment=moment)
