"""Imports modules that the user named: the only way in for foreign code.

A plugin is a module's name or a .py file, given by `--plugin` or in a Python call, and never
because a scenario or a run directory names it. Where one came from travels to hosts and workers,
which import the same and refuse a file that has changed meanwhile.
"""

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from simsplit.errors import SimsplitError

Plugin = str | Path | ModuleType | Mapping[str, Any]
"""A module by name, a .py file, a module, or the dicts that a module would export."""


@dataclass(frozen=True)
class Origin:
    """Where a plugin came from."""

    name: str
    """As the user gave it."""
    module: str | None
    """What it is called among this process's modules; None where it is none."""
    file: str | None
    digest: str | None
    """Of the file's content, as it was when the plugin was loaded."""

    @property
    def portable(self) -> bool:
        """Whether another process could import it: no dicts, and no script or notebook."""
        return self.module not in (None, "__main__")

    @property
    def by_file(self) -> bool:
        """Whether it was named by its file."""
        return self.module is not None and self.name != self.module


def loaded(plugin: Plugin) -> tuple[Origin, Mapping[str, Any]]:
    """Where it is from, and all that it has; SimsplitError where it cannot be imported."""
    if isinstance(plugin, Mapping):
        return Origin("(dicts)", None, None, None), plugin
    if isinstance(plugin, ModuleType):
        return _origin(plugin.__name__, plugin), vars(plugin)
    name = str(plugin)
    module = _by_file(Path(plugin)) if _names_a_file(plugin) else _by_name(name)
    return _origin(name, module), vars(module)


def again(origin: Origin) -> ModuleType:
    """In another process, the same module; SimsplitError where its file is another by now."""
    assert origin.module is not None, "only what can be imported is asked for again"
    if origin.file is not None and _digest(_read(Path(origin.file), origin.name)) != origin.digest:
        raise SimsplitError(
            f"plugin {origin.name}: {origin.file} has changed since the run loaded it; leave it as "
            "it is while a run lasts, then go on with --resume"
        )
    return _by_file(Path(str(origin.file))) if origin.by_file else _by_name(origin.module)


def _names_a_file(plugin: str | Path) -> bool:
    text = str(plugin)
    return isinstance(plugin, Path) or text.endswith(".py") or "/" in text or "\\" in text


def _by_name(name: str) -> ModuleType:
    with _explained(name), _importable(Path.cwd()):
        return import_module(name)


def _by_file(path: Path) -> ModuleType:
    """A file as a module, called after its place and content: a changed file is another module."""
    file = path.absolute()
    if file.is_dir():
        raise SimsplitError(f"plugin {path}: is a folder; name a module or a .py file")
    content = _read(file, str(path))
    tag = _digest(str(file).encode() + content)[:12]
    name = f"simsplit_plugin_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_{tag}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    if spec is None:
        raise SimsplitError(f"plugin {path}: is no .py file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        with _explained(str(path)), _importable(file.parent):
            # not by the loader, which may take an older file's bytecode for this one's
            exec(compile(content, str(file), "exec"), vars(module))
    except SimsplitError:
        del sys.modules[name]
        raise
    return module


def _origin(name: str, module: ModuleType) -> Origin:
    file = getattr(module, "__file__", None)
    if file is None:
        return Origin(name, module.__name__, None, None)
    path = Path(file).absolute()
    digest = _digest(path.read_bytes()) if path.is_file() else None
    return Origin(name, module.__name__, str(path), digest)


def _read(file: Path, name: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SimsplitError(f"plugin {name}: cannot be read ({error.strerror})") from None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a module raises
        wrong = f"{type(error).__name__}: {error}"
        raise SimsplitError(f"plugin {name}: cannot be imported ({wrong})") from None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """A block that imports from a folder as well."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
