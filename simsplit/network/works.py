"""The work of clients in a round is collected from rows of the wire, and timed."""

from collections.abc import Iterable, Mapping, Sequence

from simsplit.legs import ClientId, Leg
from simsplit.network.clock import ClientWork, Clock
from simsplit.network.events import RoundTimes
from simsplit.phases import EVALUATE
from simsplit.rows import WireRow


def simulate_round(
    clock: Clock,
    counts: Mapping[ClientId, tuple[int, int]],
    everybody: Iterable[ClientId],
    sent: Sequence[WireRow],
    round_number: int,
) -> tuple[RoundTimes, float]:
    """Return a round's simulated times, and its seconds with those of announcements before it.

    `counts` are the steps and samples of the clients that take part. Announcements count into the
    first round, as their bytes do.
    """
    times = clock.time_round(collect_works(counts, sent, round_number))
    announced = [row for row in sent if row.round == 0]
    if not announced:
        return times, times.seconds
    idle = dict.fromkeys(everybody, (0, 0))
    return times, times.seconds + clock.time_round(collect_works(idle, announced, 0)).seconds


def collect_works(
    counts: Mapping[ClientId, tuple[int, int]], sent: Iterable[WireRow], round_number: int
) -> dict[ClientId, ClientWork]:
    """Return the work and packets of each client of `counts` in a round, without evaluation.

    `counts` are the clients' steps and samples.
    """
    packets: dict[ClientId, dict[Leg, int]] = {client: {} for client in counts}
    nbytes: dict[ClientId, dict[Leg, int]] = {client: {} for client in counts}
    received = dict.fromkeys(counts, (0, 0))
    for row in sent:
        client, leg = row.client, row.leg
        if row.phase != EVALUATE and row.round == round_number and client in packets:
            # a step of another phase in between has rows of its own
            packets[client][leg] = packets[client].get(leg, 0) + row.packets
            nbytes[client][leg] = nbytes[client].get(leg, 0) + row.bytes
            more, known = row.received, received[client]
            received[client] = known[0] + more[0], known[1] + more[1]
    return {
        client: ClientWork(steps, samples, packets[client], nbytes[client], received[client])
        for client, (steps, samples) in counts.items()
    }
