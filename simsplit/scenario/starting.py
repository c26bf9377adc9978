"""`simsplit new` copies a shipped scenario, with the schema by which editors complete fields."""

import json
import re
from pathlib import Path

from simsplit.errors import SimsplitError
from simsplit.results.directory import replace
from simsplit.scenario.files import read
from simsplit.scenario.schema import file_schema
from simsplit.scenario.shipped import SUFFIX, find_folder, locate

SCHEMA = "scenario.schema.json"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def start_file(name: str, source: str, into: Path) -> Path:
    """Write NAME.yaml and the schema beside it; raise SimsplitError if NAME.yaml exists."""
    name = name.removesuffix(SUFFIX)
    if not re.fullmatch(_NAME, name):
        raise SimsplitError(
            f"new: '{name}' is not allowed as a name; use letters, digits, dots, dashes and "
            "underscores, with a letter or digit first"
        )
    file, original = into / f"{name}{SUFFIX}", locate(Path(source))
    if file.exists():
        raise SimsplitError(f"new: {file} exists already; choose another name")
    read(original, {})  # raises ScenarioError if the original is no valid file
    # As text, since a dump of its values would lose the comments.
    text = original.read_text(encoding="utf-8")
    text = re.sub(r"^name:\s*\S+", f"name: {name}", text, count=1, flags=re.MULTILINE)
    if not re.search(r"^name:", text, flags=re.MULTILINE):
        text = f"name: {name}\n{text}"
    text = _rename_commands(text, original.stem, file.name)
    text = re.sub(
        r"^extends:\s*(\S+)", lambda m: _move_extends(m[1], original), text, flags=re.MULTILINE
    )
    replace(file, f"# yaml-language-server: $schema={SCHEMA}\n{text}".encode())
    schema = json.dumps(file_schema(), indent=2)
    replace(into / SCHEMA, f"{schema}\n".encode())
    return file


def _rename_commands(text: str, old: str, new: str) -> str:
    """Return the text with the new file's name in the commands of its comments."""
    named = rf"(?:scenarios/)?(?:[\w/]+/)?{re.escape(old)}(?:\{SUFFIX})?(?=\s|$)"
    return re.sub(
        rf"^(#.*simsplit (?:run|sweep) ){named}", rf"\g<1>{new}", text, flags=re.MULTILINE
    )


def _move_extends(parent: str, child: Path) -> str:
    """Return the line `extends` that names the same parent from another folder."""
    path = (child.parent / parent).resolve()
    if path.is_relative_to(find_folder()):
        # By name, since the package lies elsewhere on another machine.
        return f"extends: {path.relative_to(find_folder()).with_suffix('').as_posix()}"
    return f"extends: {path}"
