"""Scenario files: safe YAML with `extends`, and the overrides of `--set`, read as plain values.

Unquoted values mean what YAML 1.2 says. PyYAML follows 1.1 and would read `on:` as true
(`evaluate.on` is a field), 1e-3 as text, 010 as 8 and 2024-01-01 as a date.
"""

import copy
import os
import re
from collections.abc import Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from simsplit.errors import ScenarioError, suggest
from simsplit.foreign import MOST_YAML, read_text, refuse_huge_yaml
from simsplit.scenario.cells import sweep_over
from simsplit.scenario.shipped import find_folder, list_names, locate

if TYPE_CHECKING:
    from yaml import SafeDumper as _CDumper
    from yaml import SafeLoader as _CLoader
else:  # libyaml is four times as fast, if PyYAML was built with it
    _CLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    _CDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

Values = dict[str, Any]

_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}


class _Loader(yaml.SafeLoader):
    """Loader of plain values; a field's name is text and occurs once in its mapping."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - as PyYAML declares it; filled below

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _locate_problem("a field's name must be plain text", key)
            # `<<` is no field: PyYAML puts the fields of another mapping in its place.
            if key.tag.endswith(":merge"):
                continue
            if key.value in seen:
                raise _locate_problem(f"the field '{key.value}' occurs twice", key)
            seen.add(key.value)
            # A name such as 1 or null would otherwise be read as another type.
            key.tag = "tag:yaml.org,2002:str"
        # Not super(), as `_Fast` borrows this function and has other bases.
        return yaml.constructor.SafeConstructor.construct_mapping(self, node, deep)


class _Fast(_CLoader):
    """The same loader by libyaml, whose messages about mistakes are less exact."""

    yaml_implicit_resolvers = {}  # noqa: RUF012
    construct_mapping = _Loader.construct_mapping


class _Dumper(_CDumper):
    """Dumper that quotes texts which YAML 1.1 or 1.2 would read as another type."""


def _locate_problem(problem: str, node: yaml.Node) -> yaml.YAMLError:
    """Return an error that names the line and column of a node."""
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _tag, (_pattern, _first) in _PLAIN.items():
    _whole = re.compile(f"^(?:{_pattern})$")
    for _side in (_Loader, _Fast, _Dumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, _first)


def read(path: Path, overrides: Mapping[str, Any], *, whole: bool = True) -> Values:
    """Return a file's values over those of the file that it extends, with overrides over both.

    Where there is no such file, the shipped scenario of that name is read.
    An override that is text is parsed as YAML; other values are used unchanged.
    Without `whole`, values of an extended file that does not ship are left out; `extends` names it.
    """
    values = _read_with_parents(locate(path), (), whole=whole)
    for field, given in overrides.items():
        value = _parse(given, field, f"'{given}'") if isinstance(given, str) else given
        if field.startswith("sweep."):
            sweep_over(values, field.removeprefix("sweep."), value)
        else:
            assign(values, field, value)
    return values


def dump(values: Values) -> str:
    """Return the values as YAML, in the order of the fields."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def merge(base: Values, changes: Mapping[str, Any]) -> Values:
    """Return the values with changes: mappings of one kind merge key by key, others replace."""
    merged = dict(base)
    for key, change in changes.items():
        below, value = _spell_out(merged.get(key), change)
        same_kind = (
            isinstance(below, dict)
            and isinstance(value, Mapping)
            and ("kind" not in value or value["kind"] == below.get("kind"))
        )
        merged[key] = merge(below, value) if same_kind else value
    return merged


def assign(values: Values, field: str, value: Any) -> None:  # noqa: ANN401 - any YAML value
    """Set a dotted field (`method.0.ratio`) in place; create mappings and lists on its path."""
    keys = field.split(".")
    here: Any = values
    for index, key in enumerate(keys[:-1]):
        here = _descend(here, key, keys[index + 1], ".".join(keys[: index + 1]))
    if isinstance(here, list):
        position = _parse_position(here, keys[-1], field)
        # A slice, so that the position behind the last one appends.
        here[position : position + 1] = [value]
    else:
        here[keys[-1]] = value


def _spell_out(below: Any, value: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Return both values, a bare kind spelled out: `cifar10` is short for `{kind: cifar10}`."""
    if isinstance(below, str) and isinstance(value, Mapping):
        return {"kind": below}, value
    if isinstance(value, str) and isinstance(below, dict) and "kind" in below:
        return below, {"kind": value}
    return below, value


def _descend(here: Any, key: str, following: str, field: str) -> Any:  # noqa: ANN401
    """Return the mapping or list under a key, a new one if `following` needs it."""
    if isinstance(here, list):
        position: int | str = _parse_position(here, key, field)
        below = here[int(position)] if int(position) < len(here) else None
        here[int(position) : int(position) + 1] = [below]
    else:
        position, below = key, here.get(key)
    if isinstance(below, str):
        below = {"kind": below}
    elif isinstance(below, dict | list):
        below = copy.copy(below)  # an alias (`*name`) elsewhere keeps what it had
    else:
        below = [] if following.isdecimal() else {}
    here[position] = below
    return below


def _parse_position(here: list[Any], key: str, field: str) -> int:
    """Return a key as a position in a list; raise ScenarioError if it is beyond its end."""
    if not key.isdecimal() or int(key) > len(here):
        raise ScenarioError(
            field,
            f"'{key}' is no position in a list of {len(here)}; allowed: 0 to {len(here)} (the last "
            "appends)",
        )
    return int(key)


def is_foreign(path: Path) -> bool:
    """Return whether a file that a scenario extends is of others: none that ships.

    Its name is the scenario's author's, and it may be any YAML file of the user's, with secrets.
    """
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(find_folder()))


def _read_with_parents(path: Path, children: tuple[Path, ...], *, whole: bool = True) -> Values:
    """Return a file's values merged over those of the files that it extends."""
    if len(children) > MOST_EXTENDED:
        raise ScenarioError("extends", f"leads to more than {MOST_EXTENDED} files")
    # `Path.resolve` would raise for links that go in a circle; reading them is an error anyway.
    if os.path.realpath(path) in map(os.path.realpath, children):
        chain = " -> ".join(file.name for file in (*children, path))
        raise ScenarioError("extends", f"goes in a circle: {chain}")
    values = _load(path, children)
    parent = values.pop("extends", None)
    if parent is None:
        return values
    if not isinstance(parent, str) or "\0" in parent:
        got = "" if children else f", got {parent!r}"
        raise ScenarioError("extends", f"must be the path of a YAML file{got} in {path}")
    beside = path.parent / parent
    shipped = locate(Path(parent))
    # Where there is neither, the error names the path beside the child.
    source = beside if beside.exists() or shipped == Path(parent) else shipped
    if not whole and is_foreign(source):
        return {**values, "extends": parent}
    return merge(_read_with_parents(source, (*children, path), whole=whole), values)


def _load(path: Path, children: tuple[Path, ...]) -> Values:
    """Return the values of one file; raise ScenarioError if it cannot be read."""
    field = "extends" if children else ""
    file, hint = str(path), path
    where = f"{path} (named in {children[-1]})" if children else file
    if len(children) > 1 and is_foreign(children[-1]):  # the path is a value of another's file
        where = file = f"the file that {children[-1]} extends"
        hint = Path()
    try:
        text = _read_text(path, extended=bool(children))
    except UnicodeDecodeError as error:
        raise ScenarioError(
            field, f"{where} is not UTF-8 text, from byte {error.start} on"
        ) from None
    except OSError as error:
        raise ScenarioError(
            field, f"cannot read {where}: {error.strerror}{_suggest_file(hint)}"
        ) from None
    except ValueError as error:
        raise ScenarioError(field, f"cannot read {where}: {error}") from None
    _refuse_table(path, field)
    shown = _is_named_as_yaml(path) and not (children and is_foreign(path))
    values = _parse(text, field, file, shown=shown)
    if values is None:
        return {}
    if not isinstance(values, dict):
        kinds = ((list, "a list"), (str, "text"), (object, "a value"))
        kind = next(word for kind, word in kinds if isinstance(values, kind))
        raise ScenarioError(field, f"{where} must hold a mapping of fields, got {kind}")
    if (children or not shown) and not all(map(_FIELD.fullmatch, values)):
        raise ScenarioError(field, f"{where} is no scenario: it has names that no field has")
    return values


def _refuse_table(path: Path, field: str) -> None:
    """Refuse a file of data in a scenario's place, and say where it goes."""
    if path.suffix.lower() in TABLES and path.is_file():
        source = f"data.source={{kind: table, path: {path}, target: COLUMN}}"
        raise ScenarioError(
            field,
            f"{path} is a table of data; a scenario trains on it: "
            f"simsplit run quickstart --set '{source}' --set model=mlp",
        )


def _read_text(path: Path, *, extended: bool) -> str:
    """Return a file's text; raise OSError or ValueError if it cannot be a scenario's.

    The user may name /dev/stdin, or what a shell makes of <(command). A file that a scenario
    extends is named by the scenario's author: it must have a YAML file's name, also where links
    end.
    """
    if not extended and path.is_relative_to("/dev") and not path.is_file():
        with path.open("rb") as opened:
            content = opened.read(MOST_YAML + 1)
        if len(content) > MOST_YAML:
            raise ValueError(f"it has more than {MOST_YAML:,} bytes")
        return content.decode("utf-8")
    if extended and path.exists() and not _is_named_as_yaml(path):
        raise ValueError(f"it is no scenario; its name must end with {' or '.join(_SUFFIXES)}")
    return read_text(path, MOST_YAML)


def _is_named_as_yaml(path: Path) -> bool:
    """Return whether a file, where its links end, is named as one of YAML."""
    return os.path.realpath(path).endswith(_SUFFIXES)


def _suggest_file(path: Path) -> str:
    """Return a hint at a file or a shipped scenario with a similar name."""
    if (path / _OF_A_RUN).is_file():
        return f"; the scenario of this run is {path / _OF_A_RUN}"
    # It is there and cannot be read, so another name is no help.
    if path.exists():
        return ""
    folder = path.parent
    beside = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    known = [name for name in beside if name.endswith(_SUFFIXES)]
    wanted = str(path) if path.suffix in _SUFFIXES else path.name
    return suggest(path.name, known) or suggest(wanted, list_names()) or _NO_SUCH_NAME


MOST_EXTENDED = 16
"""Files that extend one another, at most."""
_SUFFIXES = (".yaml", ".yml")
_OF_A_RUN = "scenario.yaml"
"""The file in a run directory that holds its scenario."""
TABLES = (".csv", ".tsv", ".parquet")
_FIELD = re.compile(r"[a-z_]{1,20}")
"""How fields of a scenario are named; other names may be secrets of a file that is none."""
_SHORT = 2**16
"""Characters of a text that the slow loader reads, at most."""
_NO_SUCH_NAME = "; simsplit list scenarios lists the shipped ones"


def _load_yaml(text: str) -> Any:  # noqa: ANN401 - any YAML value
    # The slow loader reads a text again only if it is wrong, for its better messages.
    with suppress(yaml.YAMLError, ValueError):
        return yaml.load(text, Loader=_Fast)
    return yaml.load(text, Loader=_Loader if len(text) < _SHORT else _Fast)


def _has_nul(value: object) -> bool:
    """Return whether a text in a value, or a name, has a NUL."""
    if isinstance(value, dict):
        return any(map(_has_nul, (*value, *value.values())))
    if isinstance(value, list):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value


def _parse(text: str, field: str, source: str, *, shown: bool = True) -> Any:  # noqa: ANN401 - any
    """Return the value of a YAML text; raise ScenarioError, with line and column, if it is none.

    Unless `shown`, the error says nothing of what the text holds.
    """
    try:
        refuse_huge_yaml(text)
        value = _load_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        more = f": {problem}" if shown else ""
        raise ScenarioError(field, f"{source}{where} is not valid YAML{more}") from None
    except RecursionError:
        raise ScenarioError(field, f"{source} is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        more = f": {error}" if shown else ""
        raise ScenarioError(field, f"{source} is not valid YAML{more}") from None
    # Only an escape can make such a character, which no path and no name may have.
    if "\\" in text and _has_nul(value):
        raise ScenarioError(field, f"{source} has a NUL character in a value")
    return value
