"""This bench compares rounds with and without detectors, including their verdicts."""

from collections.abc import Iterator

import torch

from simsplit.bench.bench_scenarios import Rounds, random_images, scenario
from simsplit.bench.sides import BenchLines, Figures, Say, time_in_turns
from simsplit.data import Prepared
from simsplit.detection import Detection
from simsplit.report.tables import Table
from simsplit.scenario import Scenario

TARGET = 1.03
CASES: dict[str, list[dict[str, str]]] = {
    "cosine_mad on payloads": [{"kind": "cosine_mad"}],
    "cosine_mad on payloads and features": [
        {"kind": "cosine_mad"},
        {"kind": "cosine_mad", "signal": "features"},
    ],
    "within_class": [{"kind": "within_class"}],
}


def measure_detectors(device: str, quick: bool, say: Say) -> Iterator[tuple[Table, Figures]]:
    """Measure each set of detectors in a row, on the CPU only."""
    threads, lines = torch.get_num_threads(), BenchLines()
    for name, detectors in CASES.items():
        say(f"detectors: {name} ...")
        plain = scenario("resnet18", 64, {"count": 4})
        watched = scenario("resnet18", 64, {"count": 4}, detectors=detectors)
        data = random_images(plain, 6400)
        sides = (_WatchedRounds(watched, data, 4), Rounds(plain, data, 4))
        measured = time_in_turns(sides[0].seconds, sides[1].seconds, 2 if quick else 9)
        figures = vars(measured) | {"threads": threads, "target": TARGET}
        lines.add(name, figures, (name, *measured.cells, f"{TARGET}"))
    title = f"watched rounds against unwatched ones, ResNet-18, batch 64, {threads} threads"
    columns = ("detectors", "ratio", "quartiles", "s per round", "against", "target")
    yield lines.table(title, columns)


class _WatchedRounds(Rounds):
    """Rounds that end with verdicts."""

    def __init__(self, given: Scenario, data: Prepared, steps: int) -> None:
        super().__init__(given, data, steps)
        self.detection = Detection(given, self.parts, num_classes=10)

    def after(self) -> None:
        """Let the detectors judge the round."""
        self.detection.judge_round(self.number)
