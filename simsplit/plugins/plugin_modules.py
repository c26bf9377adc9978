"""Plugins are imported here, and only if the user names them: no other foreign code is run.

A plugin is a module's name or a .py file, given by `--plugin` or in a Python call. A name in a
scenario or a run directory never imports one. A plugin's origin is sent to hosts and workers, which
import the same module and refuse a file that has changed since.
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
from simsplit.plugins.tracing import FAILURES, note_file

Plugin = str | Path | ModuleType | Mapping[str, Any]
"""A module by name, a .py file, a module, or the dicts that a module would export."""


@dataclass(frozen=True)
class Origin:
    """The origin of a plugin."""

    name: str
    """The name or file that the user gave."""
    module: str | None
    """The module's name in this process; None if the plugin is not a module."""
    file: str | None
    digest: str | None
    """A digest of the file's content at the time of loading."""

    @property
    def portable(self) -> bool:
        """Whether another process can import it; dicts, scripts and notebooks it cannot."""
        return self.module not in (None, "__main__")

    @property
    def by_file(self) -> bool:
        """Whether the user named the plugin by its file."""
        return self.module is not None and self.name != self.module


def load_plugin(plugin: Plugin) -> tuple[Origin, Mapping[str, Any]]:
    """Import a plugin; return its origin and its names; raise SimsplitError if it cannot be."""
    if isinstance(plugin, Mapping):
        return Origin("(dicts)", None, None, None), plugin
    if isinstance(plugin, ModuleType):
        return _describe_origin(plugin.__name__, plugin), vars(plugin)
    name = str(plugin)
    is_file = isinstance(plugin, Path) or name.endswith(".py") or "/" in name or "\\" in name
    module = _import_file(Path(plugin)) if is_file else _import_name(name)
    return _describe_origin(name, module), vars(module)


def load_again(origin: Origin) -> ModuleType:
    """Import the same module in another process; raise SimsplitError if its file has changed."""
    assert origin.module is not None, "callers pass portable origins only"
    if origin.file is not None and _hash(_read(Path(origin.file), origin.name)) != origin.digest:
        raise SimsplitError(
            f"plugin {origin.name}: {origin.file} has changed since the run loaded it; leave it as "
            "it is while a run lasts, then go on with --resume"
        )
    if origin.file is not None:
        note_file(origin.name, Path(origin.file))
    if origin.by_file:
        return _import_file(Path(str(origin.file)))
    return _import_name(origin.module)


def _import_name(name: str) -> ModuleType:
    with _explain_errors(name), _extend_import_path(Path.cwd()):
        return import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module named by its path and content: a changed file is a new module."""
    file = path.absolute()
    if file.is_dir():
        raise SimsplitError(f"plugin {path}: is a folder; name a module or a .py file")
    content = _read(file, str(path))
    tag = _hash(str(file).encode() + content)[:12]
    name = f"simsplit_plugin_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_{tag}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    if spec is None:
        raise SimsplitError(f"plugin {path}: is no .py file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        with _explain_errors(str(path)), _extend_import_path(file.parent):
            # The usual loader might take the bytecode of an older version of the file.
            exec(compile(content, str(file), "exec"), vars(module))
    except SimsplitError:
        del sys.modules[name]
        raise
    return module


def _describe_origin(name: str, module: ModuleType) -> Origin:
    file = getattr(module, "__file__", None)
    if file is None:
        return Origin(name, module.__name__, None, None)
    path = Path(file).absolute()
    note_file(name, path)
    digest = _hash(path.read_bytes()) if path.is_file() else None
    return Origin(name, module.__name__, str(path), digest)


def _read(file: Path, name: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SimsplitError(f"plugin {name}: cannot be read ({error.strerror})") from None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@contextmanager
def _explain_errors(name: str) -> Iterator[None]:
    """Open a context that raises a SimsplitError in place of any error of a module."""
    try:
        yield
    except FAILURES as error:
        wrong = f"{type(error).__name__}: {error}"
        raise SimsplitError(f"plugin {name}: cannot be imported ({wrong})") from None


@contextmanager
def _extend_import_path(folder: Path) -> Iterator[None]:
    """Open a context in which modules of a folder can be imported."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
