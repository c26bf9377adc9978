"""What a transcript of a run says beside its packets: facts, and the truth that a simulator has."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.data import Prepared
from simsplit.packets import Packet
from simsplit.parties.calls import RowsOf
from simsplit.parties.feed import TARGETS
from simsplit.scenario import Scenario
from simsplit.wire import SampleRows

_MODALITIES = {"images": "images", "texts": "texts", "tables": "table"}


def describe_wire(
    scenario: Scenario, parts: Assembly, data: Prepared
) -> tuple[Mapping[str, object], SampleRows | None]:
    """Return the facts of a run's transcript and, unless clients are remote, its samples' rows."""
    modality = _MODALITIES[scenario.data.source.modality]
    facts: dict[str, object] = {
        "modality": modality,
        "legs": tuple(scenario.crossings.training.legs),
        "classes": None if data.info.texts else data.info.classes,
        "recorder": "simsplit run",
    }
    if modality == "images":
        channels, *size = data.info.shape
        facts["image"] = {
            "channels": channels,
            "size": size,
            "mean": list(data.mean),
            "std": list(data.std),
        }
    return facts, None if parts.pool.remote else _SimulatedRows(scenario, parts, data)


class _SimulatedRows:
    """The samples of a simulated run's packets: training's first, and then those held out."""

    def __init__(self, scenario: Scenario, parts: Assembly, data: Prepared) -> None:
        self.pool, self.moment, self.data = parts.pool, parts.wire.moment, data
        self._targets: tuple[Tensor, ...] = ()
        if scenario.attacks:
            samples, rows = scenario.aims.choose(data)
            after = len(data.train) if samples is data.test else 0
            size = scenario.targets.choose_batch_size(scenario.train.batch_size)
            self._targets = (rows + after).split(size)

    def find(self, packet: Packet, exposed: str) -> tuple[int, ...]:
        if exposed:
            return tuple(self._targets[packet.step].tolist()) if exposed == TARGETS else ()
        # Interleaved steps of a private phase have public samples.
        phase = self.moment.phase
        if phase.source != "private" or self.moment.counted_phase != phase.name:
            return ()
        return tuple(self.pool.ask(packet.client, RowsOf(packet.step)).tolist())

    def take(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        train, test = self.data.train, self.data.test
        count = len(train)
        places = [(train, row) if row < count else (test, row - count) for row in rows]
        inputs = torch.stack([samples.inputs[place] for samples, place in places])
        return inputs, torch.stack([samples.labels[place] for samples, place in places])
