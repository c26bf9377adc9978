"""What detectors cost: rounds that are watched against rounds that are not, verdicts included."""

from collections.abc import Callable, Iterator

import torch

from simsplit.bench.rounds import Rounds, noise_for, scenario
from simsplit.bench.sides import interleaved
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


def watching(
    device: str, quick: bool, say: Callable[[str], None]
) -> Iterator[tuple[Table, dict[str, object]]]:
    """A row per set of detectors; on the CPU alone."""
    del device
    threads = torch.get_num_threads()
    rows, figures = [], {}
    for name, detectors in CASES.items():
        say(f"detectors: {name} ...")
        plain = scenario("resnet18", 64, {"count": 4})
        watched = scenario("resnet18", 64, {"count": 4}, detectors=detectors)
        data = noise_for(plain, total=6400)
        sides = (_Watched(watched, data, 4), Rounds(plain, data, 4))
        measured = interleaved(sides[0].seconds, sides[1].seconds, 2 if quick else 9)
        figures[name] = vars(measured) | {"threads": threads, "target": TARGET}
        spread = f"{measured.low:.3f}-{measured.high:.3f}"
        seconds = (f"{measured.first_s:.2f}", f"{measured.other_s:.2f}")
        rows.append((name, f"{measured.ratio:.3f}", spread, *seconds, f"{TARGET}"))
    title = f"watched rounds against unwatched ones, ResNet-18, batch 64, {threads} threads"
    columns = ("detectors", "ratio", "quartiles", "s per round", "against", "target")
    yield Table(title, columns, rows), dict(figures)


class _Watched(Rounds):
    """Rounds that end with verdicts."""

    def __init__(self, given: Scenario, data: Prepared, steps: int) -> None:
        super().__init__(given, data, steps)
        self.detection = Detection(given, self.parts, num_classes=10)

    def after(self) -> None:
        """Let the detectors judge the round."""
        self.detection.look(self.number)
