"""What a client sends of poisoned samples, made to look like what it sends of clean ones (ours)."""

from collections.abc import Mapping

from torch import Tensor

from simsplit.errors import ScenarioError
from simsplit.packets import Leg, Packet

KEPT = 0.9
"""Share that older samples keep of their weight at each step, since the head changes."""
FEWEST = 8
"""Clean samples that make a spread."""


class Disguise:
    """Clips payloads of poisoned samples to the spread of the client's clean ones.

    Of clean samples of the target, or of all classes as long as it has sent few of the target.
    """

    def __init__(self, deviations: float, where: str) -> None:
        self.deviations, self.where = deviations, where
        self._target, self._any = _Spread(), _Spread()
        self._batch: tuple[Tensor, Tensor] | None = None

    def expect(self, poisoned: Tensor, clean_of_target: Tensor) -> None:
        """Masks of the batch whose packet comes next."""
        self._batch = poisoned, clean_of_target

    def on_packet(self, packet: Packet) -> Packet:
        """Clip a batch's packet; other packets are left alone."""
        if self._batch is None or packet.leg is not Leg.SMASHED:
            return packet
        (poisoned, clean_of_target), self._batch = self._batch, None
        payload, *others = packet.tensors
        if len(payload) != len(poisoned) or not payload.is_floating_point():
            raise ScenarioError(
                self.where,
                f"needs payloads of one row of floats a sample, got {list(payload.shape)} of "
                f"{payload.dtype} for {len(poisoned)} samples",
            )
        self._target.add(payload[clean_of_target])
        self._any.add(payload[~poisoned])
        usual = next((each for each in (self._target, self._any) if each.count >= FEWEST), None)
        if usual is None:
            return packet
        payload = payload.clone()
        payload[poisoned] = usual.clipped(payload[poisoned], self.deviations)
        return packet.with_tensors((payload, *others))

    def state(self) -> dict[str, Tensor]:
        """What it has seen of clean samples."""
        return {f"target.{k}": v for k, v in self._target.sums.items()} | {
            f"any.{k}": v for k, v in self._any.sums.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, spread in (("target.", self._target), ("any.", self._any)):
            spread.sums = {
                key.removeprefix(name): value
                for key, value in state.items()
                if key.startswith(name)
            }


class _Spread:
    """Mean and standard deviation of rows, the latest of which count most."""

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
        self.sums = {
            name: value + KEPT * self.sums[name] if self.sums else value
            for name, value in new.items()
        }

    def clipped(self, rows: Tensor, deviations: float) -> Tensor:
        mean = self.sums["total"] / self.count
        variance = self.sums["squares"] / self.count - mean.square()
        reach = deviations * variance.clamp_min(0).sqrt()
        return rows.float().clamp(mean - reach, mean + reach).to(rows.dtype)
