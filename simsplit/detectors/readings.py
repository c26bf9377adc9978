"""What the server keeps of the packets that it sees: sums by client and round, not the packets.

A sensor watches the wire as a tap does, wherever the packets go by: in the driver, or on a host
that trains against copies of the trunk. What it has read travels and is merged there. It decodes a
packet as the server does, with the server's half of the methods, so it sees what the server can
see.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from simsplit.packets import ClientId, Leg, Packet
from simsplit.phases import Moment
from simsplit.seeds import rng_for

Signal = Literal["payload", "features", "features_grad", "smashed_grad"]

SIGNALS: dict[Leg, Signal] = {
    Leg.SMASHED: "payload",
    Leg.FEATURES: "features",
    Leg.FEATURES_GRAD: "features_grad",
    Leg.SMASHED_GRAD: "smashed_grad",
}
LEGS: dict[Signal, Leg] = {signal: leg for leg, signal in SIGNALS.items()}
SKETCH = 256
"""Numbers that are kept of one sample's tensor, at most: its projection on so many directions."""
KEPT = 512
"""Samples of which a sketch is kept, by client and round."""

Decode = Callable[[Packet], Tensor]


@dataclass
class Sums:
    """Sums of one signal over one client's samples of a round."""

    total: Tensor
    """Sum of all samples' values, flattened."""
    norm: Tensor
    """Sum of all samples' norms."""
    count: int

    def add(self, other: "Sums") -> None:
        """Add sums that another sensor made."""
        self.total += other.total
        self.norm += other.norm
        self.count += other.count

    @property
    def mean(self) -> Tensor:
        """Mean over the samples, on the CPU."""
        return (self.total / self.count).cpu()


@dataclass
class Sampled:
    """Sketches of single samples of one client's round, row by row for each signal."""

    rows: dict[Signal, list[Tensor]] = field(default_factory=dict)
    labels: list[Tensor] = field(default_factory=list)
    """Labels, under a vanilla cut, where clients send them."""

    def stacked(self, signal: Signal) -> Tensor:
        """All samples' sketches of a signal, on the CPU."""
        return torch.cat(self.rows[signal]).float().cpu()


@dataclass
class Readings:
    """What was read off a round's packets, by client: sums, and sketches of single samples."""

    sums: dict[tuple[Signal, ClientId], Sums] = field(default_factory=dict)
    samples: dict[ClientId, Sampled] = field(default_factory=dict)
    inferred: dict[int, dict[ClientId, Tensor]] = field(default_factory=dict, compare=False)
    """Samples' classes by how many were looked for, found once for all detectors."""

    def merge(self, other: "Readings") -> None:
        """Add what another sensor read."""
        for key, sums in other.sums.items():
            if key in self.sums:
                self.sums[key].add(sums)
            else:
                self.sums[key] = sums
        self.samples |= other.samples

    def means(self, signal: Signal) -> dict[ClientId, Tensor]:
        """Each client's mean of a signal, ordered by client."""
        found = {client: sums.mean for (name, client), sums in self.sums.items() if name == signal}
        return dict(sorted(found.items()))

    def norms(self, signal: Signal) -> dict[ClientId, float]:
        """Each client's mean norm of a signal."""
        return {
            client: float(sums.norm) / sums.count
            for (name, client), sums in self.sums.items()
            if name == signal
        }


class Sensor:
    """A tap that sums up.

    Args:
        signals: Which to sum.
        sketched: Which to keep of single samples.
        decode: A packet's tensor, a row per sample, as the server understands it.
        seed: Of the projections.
        moment: Says whether what crosses is training; nothing else is read.
        at_most: How many samples a round to keep of a client, the first ones.
    """

    def __init__(
        self,
        signals: Iterable[Signal],
        sketched: Iterable[Signal],
        decode: Decode,
        seed: int,
        *,
        moment: Moment,
        at_most: int = KEPT,
    ) -> None:
        self.signals, self.sketched = frozenset(signals), frozenset(sketched)
        self.at_most, self.decode, self.seed = at_most, decode, seed
        self.moment = moment
        self._readings = Readings()
        self._projections: dict[tuple[Signal, int], Tensor] = {}

    def observe(self, packet: Packet) -> None:
        """Add a packet to the sums."""
        if not self.moment.training:
            return
        if packet.leg is Leg.LABELS and self.sketched:
            self._keep_labels(packet)
            return
        signal = SIGNALS.get(packet.leg)
        if signal is None or signal not in self.signals | self.sketched:
            return
        values = _by_sample(self.decode(packet).detach().float())
        if signal in self.signals:
            self._sum(signal, packet.client, values)
        if signal in self.sketched:
            self._keep(signal, packet.client, values)

    def take(self) -> Readings:
        """What was read since the last call."""
        taken, self._readings = self._readings, Readings()
        return taken

    def merge(self, readings: Readings) -> None:
        """Add what another sensor read."""
        self._readings.merge(readings)

    def _sum(self, signal: Signal, client: ClientId, values: Tensor) -> None:
        norm = torch.linalg.vector_norm(values, dim=1).sum()
        added = Sums(values.sum(0), norm, len(values))
        known = self._readings.sums.get((signal, client))
        if known is None:
            self._readings.sums[signal, client] = added
        elif known.total.shape == added.total.shape:
            known.add(added)

    def _keep(self, signal: Signal, client: ClientId, values: Tensor) -> None:
        kept = self._readings.samples.setdefault(client, Sampled())
        rows = kept.rows.setdefault(signal, [])
        room = self.at_most - sum(map(len, rows))
        if room > 0:
            rows.append(self._sketch(signal, values[:room]).bfloat16())

    def _keep_labels(self, packet: Packet) -> None:
        kept = self._readings.samples.setdefault(packet.client, Sampled())
        room = self.at_most - sum(map(len, kept.labels))
        if room > 0:
            kept.labels.append(packet.tensors[0][:room])

    def _sketch(self, signal: Signal, values: Tensor) -> Tensor:
        """Projected on random directions, which keeps distances (Johnson and Lindenstrauss)."""
        wide = values.shape[1]
        if wide <= SKETCH:
            return values
        projection = self._projections.get((signal, wide))
        if projection is None:
            rng = rng_for(self.seed, "sketch", signal)
            drawn = torch.randn(wide, SKETCH, generator=rng) / SKETCH**0.5
            projection = self._projections[signal, wide] = drawn.to(values)
        return values @ projection


def _by_sample(values: Tensor) -> Tensor:
    """A row per sample. A text's is the mean over its tokens, since texts differ in length."""
    return values.mean(1) if values.ndim == 3 else values.flatten(1)
