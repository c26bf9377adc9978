"""Benches measure what the simulator costs, as ratios to plain work on the same machine."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from simsplit.bench.attacking import attacks_on, measure_attacks
from simsplit.bench.deploying import measure_deployment
from simsplit.bench.detecting import measure_detectors
from simsplit.bench.language import language, language_of
from simsplit.bench.memory import measure_memory
from simsplit.bench.overhead import overhead, own
from simsplit.bench.scale import scale
from simsplit.bench.sides import Figures, Say
from simsplit.errors import SimsplitError, suggest
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.report.tables import Table

Bench = Callable[[str, bool, Say], Iterator[tuple[Table, Figures]]]

BENCHES: Mapping[str, Bench] = {
    "overhead": overhead,
    "scale": scale,
    "detectors": measure_detectors,
    "attacks": measure_attacks,
    "language": language,
    "deploy": measure_deployment,
    "memory": measure_memory,
}

OF_MODELS: Mapping[str, Callable[..., Iterator[tuple[Table, Figures]]]] = {
    "language": language_of,
    "attacks": attacks_on,
}
"""The benches that measure a given model."""


def benches(
    name: str | None,
    *,
    device: str,
    quick: bool,
    say: Say,
    plugins: Plugins = NO_PLUGINS,
    model: str | None = None,
) -> Iterator[tuple[str, Table, Figures]]:
    """Run one bench or all; yield its name, and each table with its figures.

    With plugins, `overhead` measures their methods and models. With a model, `language` measures
    generation through its cut, and defences of its ends; `attacks` measures attacks on texts.
    """
    for each, bench in _choose_benches(name, plugins, model):
        for table, figures in bench(device, quick, say):
            yield each, table, figures


def _choose_benches(
    name: str | None, plugins: Plugins, model: str | None
) -> Iterator[tuple[str, Bench]]:
    if name is not None and name not in BENCHES:
        known = ", ".join(BENCHES)
        raise SimsplitError(f"no bench '{name}'{suggest(name, BENCHES) or ','} allowed: {known}")
    if plugins.origins:
        if name not in (None, "overhead"):
            raise SimsplitError(f"bench {name} measures no plugins; bench overhead does")
        yield "overhead", partial(own, plugins=plugins)
    elif model is not None:
        if name not in (None, *OF_MODELS):
            does = " and ".join(f"bench {each}" for each in OF_MODELS)
            raise SimsplitError(f"bench {name} measures no model of yours; {does} do")
        chosen = OF_MODELS if name is None else (name,)
        yield from ((each, partial(OF_MODELS[each], model=model)) for each in chosen)
    else:
        yield from BENCHES.items() if name is None else [(name, BENCHES[name])]
