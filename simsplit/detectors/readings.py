"""This module keeps sums of the packets that the server sees, by client and round.

A sensor is a tap on the wire: in the process that drives the run, or on a host that trains against
copies of the trunk, whose readings are sent to the driver and merged. It decodes a packet like the
server, with the server's half of the methods, so it sees exactly what the server can see.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
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
"""Largest number of values kept of one sample: its projection on so many random directions."""
KEPT = 512
"""Number of samples of which sketches are kept, by client and round."""

Decode = Callable[[Packet], Tensor]
"""A function that decodes a packet's tensor like the server, with a row per sample."""


@dataclass
class Sums:
    """Sums of one signal over one client's samples of a round."""

    total: Tensor
    """Sum of all samples' values, flattened."""
    norm: Tensor
    """Sum of all samples' norms."""
    count: int
    """Number of samples."""

    def add(self, other: "Sums") -> None:
        """Add other sums of the same client and signal."""
        self.total += other.total
        self.norm += other.norm
        self.count += other.count

    @property
    def mean(self) -> Tensor:
        """Mean over the samples, on the CPU."""
        return (self.total / self.count).cpu()


@dataclass
class Sampled:
    """Sketches of one client's samples of a round, a row per sample for each signal."""

    rows: dict[Signal, list[Tensor]] = field(default_factory=dict)
    labels: list[Tensor] = field(default_factory=list)
    """Labels of the samples, if clients send them."""

    def stack(self, signal: Signal) -> Tensor:
        """Stack all samples' sketches of a signal, on the CPU."""
        return torch.cat(self.rows[signal]).float().cpu()


@dataclass
class Readings:
    """What a sensor read from a round's packets, by client: sums, and sketches of samples."""

    sums: dict[tuple[Signal, ClientId], Sums] = field(default_factory=dict)
    samples: dict[ClientId, Sampled] = field(default_factory=dict)
    inferred: dict[int, dict[ClientId, Tensor]] = field(default_factory=dict, compare=False)
    """Inferred classes of the samples, by the number of classes; detectors share them."""

    def merge(self, other: "Readings") -> None:
        """Add the readings of another sensor."""
        for key, sums in other.sums.items():
            if self.sums.setdefault(key, sums) is not sums:
                self.sums[key].add(sums)
        self.samples |= other.samples

    def compute_means(self, signal: Signal) -> dict[ClientId, Tensor]:
        """Return each client's mean of a signal, ordered by client."""
        means = {client: sums.mean for (name, client), sums in self.sums.items() if name == signal}
        return dict(sorted(means.items()))

    def compute_norms(self, signal: Signal) -> dict[ClientId, float]:
        """Return each client's mean norm of a signal."""
        return {
            client: float(sums.norm) / sums.count
            for (name, client), sums in self.sums.items()
            if name == signal
        }


class Sensor:
    """A tap that sums signals and sketches samples.

    Args:
        signals: Signals whose sums are kept.
        sketched: Signals of which single samples are sketched.
        decode: Decodes a packet's tensor like the server, with a row per sample.
        seed: Seed of the projections.
        moment: The run's moment; packets that are not of training are ignored.
        at_most: Number of samples of a client that are sketched per round, from the first on.
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
        """Add a packet to the readings."""
        if not self.moment.is_training:
            return
        if packet.leg is Leg.LABELS and self.sketched:
            kept = self._readings.samples.setdefault(packet.client, Sampled())
            room = self.at_most - sum(map(len, kept.labels))
            if room > 0:
                kept.labels.append(packet.tensors[0][:room])
            return
        signal = SIGNALS.get(packet.leg)
        if signal is None or signal not in self.signals | self.sketched:
            return
        values = self.decode(packet).detach().float()
        # A text's row is the mean over its tokens, since lengths differ.
        values = values.mean(1) if values.ndim == 3 else values.flatten(1)
        if signal in self.signals:
            norm = torch.linalg.vector_norm(values, dim=1).sum()
            added = Sums(values.sum(0), norm, len(values))
            known = self._readings.sums.setdefault((signal, packet.client), added)
            if known is not added and known.total.shape == added.total.shape:
                known.add(added)
        if signal in self.sketched:
            self._keep(signal, packet.client, values)

    def take(self) -> Readings:
        """Return the readings since the last call."""
        taken, self._readings = self._readings, Readings()
        return taken

    def merge(self, readings: Readings) -> None:
        """Add the readings of another sensor."""
        self._readings.merge(readings)

    def _keep(self, signal: Signal, client: ClientId, values: Tensor) -> None:
        kept = self._readings.samples.setdefault(client, Sampled())
        rows = kept.rows.setdefault(signal, [])
        room = self.at_most - sum(map(len, rows))
        if room > 0:
            # half the memory of float32; a sketch is an approximation in any case
            rows.append(self._sketch(signal, values[:room]).bfloat16())

    def _sketch(self, signal: Signal, values: Tensor) -> Tensor:
        """Project samples on random directions; distances stay (Johnson and Lindenstrauss)."""
        wide = values.shape[1]
        if wide <= SKETCH:
            return values
        projection = self._projections.get((signal, wide))
        if projection is None:
            # drawn by signal, not by client: all clients' sketches must be comparable
            rng = rng_for(self.seed, "sketch", signal)
            drawn = torch.randn(wide, SKETCH, generator=rng) / SKETCH**0.5
            projection = self._projections[signal, wide] = drawn.to(values)
        return values @ projection
