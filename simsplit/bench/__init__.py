"""The measured ratios, and the plain PyTorch loop they are measured against."""

from collections.abc import Callable, Iterator, Mapping

from simsplit.bench.attacking import attacking
from simsplit.bench.language import language
from simsplit.bench.overhead import overhead
from simsplit.bench.scale import scale
from simsplit.bench.watching import watching
from simsplit.errors import ScenarioError, near
from simsplit.report.tables import Table

Bench = Callable[[str, bool, Callable[[str], None]], Iterator[tuple[Table, dict[str, object]]]]

BENCHES: Mapping[str, Bench] = {
    "overhead": overhead,
    "scale": scale,
    "detectors": watching,
    "attacks": attacking,
    "language": language,
}


def benches(
    name: str | None, *, device: str, quick: bool, say: Callable[[str], None]
) -> Iterator[tuple[str, Table, dict[str, object]]]:
    """Run one bench, or all: its name, and each of its tables with the figures behind it."""
    if name is not None and name not in BENCHES:
        known = ", ".join(BENCHES)
        raise ScenarioError("", f"no bench '{name}'{near(name, BENCHES) or ','} allowed: {known}")
    for each in BENCHES if name is None else [name]:
        for table, figures in BENCHES[each](device, quick, say):
            yield each, table, figures
