"""This module runs all detectors of a run on a round's readings, and builds their rows of tables.

The truth about clients is used last, to score the detectors; no detector gets it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from simsplit.detectors.detector import DetectorConfig, RoundView, TrunkTurn
from simsplit.detectors.readings import Readings, Signal
from simsplit.detectors.thresholds import format_window
from simsplit.legs import ClientId
from simsplit.metrics.detection_rates import score_detection
from simsplit.rows import DetectionRow
from simsplit.states import select_below


@dataclass(frozen=True)
class Findings:
    """The results of all detectors for one round."""

    clients: dict[ClientId, dict[str, float]] = field(default_factory=dict)
    """Columns of the `clients` table by client."""
    detections: list[DetectionRow] = field(default_factory=list)
    """Rows of the `detections` table."""
    flagged: dict[str, set[ClientId]] = field(default_factory=dict)
    """Flagged clients by detector."""


class Watch:
    """All detectors of a run."""

    def __init__(
        self,
        configs: Sequence[DetectorConfig],
        malicious: Collection[ClientId],
        num_classes: int,
    ) -> None:
        self.configs = configs
        self.detectors = [config.build() for config in configs]
        self.malicious = frozenset(malicious)
        self.num_classes = num_classes

    @staticmethod
    def list_columns(configs: Sequence[DetectorConfig]) -> tuple[str, ...]:
        """Return the columns that detectors add to the `clients` table."""
        if not configs:
            return ()
        norms = [f"{signal}_norm" for signal in list_signals(configs)]
        each = [f"{config.title}{end}" for config in configs for end in ("", "_z", "_flagged")]
        return (*norms, *each)

    def judge_round(
        self, number: int, readings: Readings, turns: Sequence[TrunkTurn] = ()
    ) -> Findings:
        """Let every detector judge a round by its readings, and return their findings."""
        view = RoundView(number, readings, self.num_classes, turns)
        findings = Findings()
        for signal in list_signals(self.configs):
            for client, norm in readings.compute_norms(signal).items():
                findings.clients.setdefault(client, {})[f"{signal}_norm"] = norm
        for detector in self.detectors:
            config, verdicts = detector.config, detector.judge(view)
            for client, verdict in verdicts.items():
                row = findings.clients.setdefault(client, {})
                row |= {config.title: verdict.score, f"{config.title}_z": verdict.z}
                row[f"{config.title}_flagged"] = int(verdict.flagged)
            flagged = {client for client, verdict in verdicts.items() if verdict.flagged}
            findings.flagged[config.title] = flagged
            # trusted clients are known to be honest: they would only flatter a detector's figures
            judged = {c: v.suspicion for c, v in verdicts.items() if c not in config.trusted}
            cells = {
                "round": number,
                "detector": config.title,
                "window": format_window(config.window),
                "threshold": config.threshold.description,
                **score_detection(judged, flagged, self.malicious),
            }
            findings.detections.append(DetectionRow.of(cells))
        return findings

    def state(self) -> dict[str, Tensor]:
        """Return what the detectors remember between rounds."""
        return {
            f"{index}/{name}": tensor
            for index, detector in enumerate(self.detectors)
            for name, tensor in detector.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        for index, detector in enumerate(self.detectors):
            detector.load(select_below(state, f"{index}/"))


def list_signals(configs: Sequence[DetectorConfig]) -> list[Signal]:
    """Return the signals whose sums a detector uses."""
    return list(dict.fromkeys(signal for config in configs for signal in config.signals))


def list_sketched(configs: Sequence[DetectorConfig]) -> list[Signal]:
    """Return the signals of which a detector uses single samples."""
    return list(dict.fromkeys(signal for config in configs for signal in config.sketched_signals))
