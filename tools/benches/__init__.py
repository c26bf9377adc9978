"""Benches of what those who change simsplit ask: of hosts, detectors, attacks, deployments."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from simsplit.bench import Bench, overhead
from simsplit.errors import SimsplitError, suggest

HOMES: Mapping[str, tuple[str, str]] = {
    "scale": ("benches.scale", "scale"),
    "detectors": ("benches.detecting", "measure_detectors"),
    "attacks": ("benches.attacking", "measure_attacks"),
    "language": ("benches.language", "language"),
    "deploy": ("benches.deploying", "measure_deployment"),
    "memory": ("benches.memory", "measure_memory"),
    "recording": ("benches.recording", "measure_recording"),
    "private": ("benches.private", "measure_private"),
    "crowds": ("benches.stacked", "crowds"),
}
"""Name of a bench -> its module and function; each is imported when it is asked for."""
OF_MODELS: Mapping[str, tuple[str, str]] = {
    "language": ("benches.language", "language_of"),
    "attacks": ("benches.attacking", "attacks_on"),
}
"""The benches that measure a given model."""


def choose_benches(names: list[str], model: str | None) -> dict[str, Bench]:
    """Return the benches with these names, or all; with a model those that measure it."""
    known = [*OF_MODELS] if model else ["overhead", *HOMES]
    for name in names:
        if name not in known:
            allowed = ", ".join(known)
            raise SimsplitError(
                f"no bench '{name}'{suggest(name, known) or ','} allowed: {allowed}"
            )
    return {name: _load(name, model) for name in names or known}


def _load(name: str, model: str | None) -> Bench:
    if name == "overhead":
        return overhead
    module, function = (OF_MODELS if model else HOMES)[name]
    found: Callable[..., object] = getattr(import_module(module), function)
    return partial(found, model=model) if model else found  # type: ignore[return-value, arg-type]
