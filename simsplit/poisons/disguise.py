"""This module clips payloads of poisoned samples so that they look like clean ones (ours)."""

from collections.abc import Mapping

from torch import Tensor

from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.states import select_below

KEPT = 0.9
"""Factor of older samples' weight at each step; they must fade, since the head changes."""
FEWEST = 8
"""Smallest weight of clean samples whose spread is used."""


class Disguise:
    """A clipping of poisoned samples' payloads to the spread of the client's clean samples.

    The spread is of clean samples of the target, or of all classes while few of the target were
    sent.
    """

    def __init__(self, deviations: float, where: str) -> None:
        self.deviations, self.where = deviations, where
        self._target, self._any = _Spread(), _Spread()
        self._batch: tuple[Tensor, Tensor] | None = None

    def expect(self, poisoned: Tensor, clean_of_target: Tensor) -> None:
        """Set the masks of the batch whose packet comes next."""
        self._batch = poisoned, clean_of_target

    def on_packet(self, packet: Packet) -> Packet:
        """Clip the poisoned rows of a batch's packet; return other packets unchanged."""
        if self._batch is None or packet.leg is not Leg.SMASHED:
            return packet
        (poisoned, clean_of_target), self._batch = self._batch, None
        payload, *others = packet.tensors
        if len(payload) != len(poisoned) or not payload.is_floating_point():
            raise ScenarioError(
                self.where,
                f"needs payloads with one row of floats per sample, got {list(payload.shape)} of "
                f"{payload.dtype} for {len(poisoned)} samples",
            )
        # clean samples first: this batch's already count for the spread that it is clipped to
        self._target.add(payload[clean_of_target])
        self._any.add(payload[~poisoned])
        usual = next((each for each in (self._target, self._any) if each.count >= FEWEST), None)
        if usual is None:
            return packet
        payload = payload.clone()
        payload[poisoned] = usual.clip(payload[poisoned], self.deviations)
        return packet.with_tensors((payload, *others))

    def state(self) -> dict[str, Tensor]:
        """Return the statistics of clean samples."""
        spreads = (("target", self._target), ("any", self._any))
        return {f"{name}.{k}": v for name, each in spreads for k, v in each.sums.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        self._target.sums = select_below(state, "target.")
        self._any.sums = select_below(state, "any.")


class _Spread:
    """Running mean and standard deviation of rows; recent rows weigh more."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    @property
    def count(self) -> float:
        return float(self.sums["count"]) if self.sums else 0.0

    def add(self, rows: Tensor) -> None:
        rows = rows.detach().float()
        new = {
            "count": rows.new_tensor(float(len(rows))),
            "total": rows.sum(0),
            "squares": rows.square().sum(0),
        }
        # what a resumed run has kept lies on the CPU
        before = {name: value.to(rows.device) for name, value in self.sums.items()}
        self.sums = {
            name: value + KEPT * before[name] if before else value for name, value in new.items()
        }

    def clip(self, rows: Tensor, deviations: float) -> Tensor:
        mean = self.sums["total"] / self.count
        variance = self.sums["squares"] / self.count - mean.square()
        reach = deviations * variance.clamp_min(0).sqrt()
        return rows.float().clamp(mean - reach, mean + reach).to(rows.dtype)
