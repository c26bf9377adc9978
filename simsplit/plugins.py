"""The methods of modules that the user named with `--plugin`: the only way in for foreign code."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from simsplit.errors import SimsplitError
from simsplit.methods import METHODS, MethodConfig


def methods_of(modules: Sequence[str]) -> dict[str, type[MethodConfig]]:
    """The METHODS dicts of all the modules together; SimsplitError at what is no such dict."""
    methods: dict[str, type[MethodConfig]] = {}
    for name in modules:
        methods |= _methods_of(name)
    return methods


def _methods_of(name: str) -> dict[str, type[MethodConfig]]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(name), "METHODS", None)
    except Exception as error:  # noqa: BLE001 - whatever a module of the user's raises
        wrong = f"{type(error).__name__}: {error}"
        raise SimsplitError(f"--plugin {name}: cannot be imported ({wrong})") from None
    finally:
        sys.path.remove(str(Path.cwd()))
    if not isinstance(found, dict):
        raise SimsplitError(f"--plugin {name}: has no METHODS dict of kind -> MethodConfig")
    for kind, config in found.items():
        _refuse_misfit(name, kind, config)
    return found


def _refuse_misfit(name: str, kind: str, config: object) -> None:
    if not (isinstance(config, type) and issubclass(config, MethodConfig)):
        raise SimsplitError(f"--plugin {name}: METHODS['{kind}'] is no MethodConfig class")
    said = getattr(config.model_fields.get("kind"), "default", None)
    if said != kind:
        raise SimsplitError(
            f"--plugin {name}: METHODS['{kind}'] needs `kind: Literal['{kind}'] = '{kind}'`, "
            f"got {said!r}"
        )
    if kind in METHODS:
        raise SimsplitError(f"--plugin {name}: '{kind}' is a method already; choose another")
