"""A scenario file to start from: a shipped one's text, and the line that editors look for."""

import json
import re
from pathlib import Path

from simsplit.errors import SimsplitError
from simsplit.scenario.files import read
from simsplit.scenario.schema import file_schema
from simsplit.scenario.shipped import SUFFIX, folder, located

SCHEMA = "scenario.schema.json"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def begin(name: str, source: str, into: Path) -> Path:
    """Write NAME.yaml and the schema beside it; SimsplitError where that would overwrite a file."""
    name = name.removesuffix(SUFFIX)
    if not re.fullmatch(_NAME, name):
        raise SimsplitError(
            f"new: '{name}' is no name; use letters, digits, dots, dashes and underscores"
        )
    file, found = into / f"{name}{SUFFIX}", located(Path(source))
    if file.exists():
        raise SimsplitError(f"new: {file} is there already; choose another name")
    read(found, {})  # says what is wrong with it, if anything is
    text = found.read_text(encoding="utf-8")
    text = re.sub(r"^name:\s*\S+", f"name: {name}", text, count=1, flags=re.MULTILINE)
    if not re.search(r"^name:", text, flags=re.MULTILINE):
        text = f"name: {name}\n{text}"
    text = _commands(text, found.stem, file.name)
    text = re.sub(r"^extends:\s*(\S+)", lambda m: _extended(m[1], found), text, flags=re.MULTILINE)
    file.write_text(f"# yaml-language-server: $schema={SCHEMA}\n{text}", encoding="utf-8")
    schema = json.dumps(file_schema(), indent=2)
    (into / SCHEMA).write_text(f"{schema}\n", encoding="utf-8")
    return file


def _commands(text: str, old: str, new: str) -> str:
    """The commands in comments, of the new file."""
    named = rf"(?:scenarios/)?(?:[\w/]+/)?{re.escape(old)}(?:\{SUFFIX})?(?=\s|$)"
    return re.sub(
        rf"^(#.*simsplit (?:run|sweep) ){named}", rf"\g<1>{new}", text, flags=re.MULTILINE
    )


def _extended(parent: str, child: Path) -> str:
    """The same parent, as a file elsewhere names it."""
    path = (child.parent / parent).resolve()
    if path.is_relative_to(folder()):
        return f"extends: {path.relative_to(folder()).with_suffix('').as_posix()}"
    return f"extends: {path}"
