"""The measured ratios, and the plain PyTorch loop they are measured against."""

from collections.abc import Callable, Iterator, Mapping

from simsplit.bench.attacking import attacking
from simsplit.bench.deploying import deploying
from simsplit.bench.language import language
from simsplit.bench.overhead import overhead
from simsplit.bench.own import own
from simsplit.bench.scale import scale
from simsplit.bench.watching import watching
from simsplit.errors import ScenarioError, SimsplitError, near
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.report.tables import Table

Bench = Callable[[str, bool, Callable[[str], None]], Iterator[tuple[Table, dict[str, object]]]]

BENCHES: Mapping[str, Bench] = {
    "overhead": overhead,
    "scale": scale,
    "detectors": watching,
    "attacks": attacking,
    "language": language,
    "deploy": deploying,
}


def benches(
    name: str | None,
    *,
    device: str,
    quick: bool,
    say: Callable[[str], None],
    plugins: Plugins = NO_PLUGINS,
) -> Iterator[tuple[str, Table, dict[str, object]]]:
    """Run one bench, or all: its name, and each of its tables with the figures behind it.

    With plugins, `overhead` is that of their methods and models.
    """
    if name is not None and name not in BENCHES:
        known = ", ".join(BENCHES)
        raise ScenarioError("", f"no bench '{name}'{near(name, BENCHES) or ','} allowed: {known}")
    if plugins.origins:
        if name not in (None, "overhead"):
            raise SimsplitError(f"bench {name} measures no plugins; bench overhead does")
        for table, figures in own(device, quick, say, plugins):
            yield "overhead", table, figures
        return
    for each in BENCHES if name is None else [name]:
        for table, figures in BENCHES[each](device, quick, say):
            yield each, table, figures
