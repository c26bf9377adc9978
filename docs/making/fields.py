"""The reference of fields: a page per group of `simsplit list`."""

import inspect
from collections.abc import Iterator

from making.markup import code, fence, fold, plain, table
from simsplit.catalogue import collect_groups, tabulate_catalogue
from simsplit.report.tables import Table

_TOLD_BY_MODULE = ("methods", "attacks", "detectors", "poisons")
"""Groups whose parts have a file each, with a docstring that says how they work."""
_NOT_HERE = ("scenarios", "compatibility", "rules", "threats")
"""Groups that have pages of their own: the gallery, and the table of parts."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of each group, and the index of all."""
    yield "reference/index.md", _index()
    for group, _ in list_groups():
        yield f"reference/{group}.md", _page(group)


def list_groups() -> list[tuple[str, str]]:
    """List what `simsplit list` knows: each group, and the words of its parts."""
    (index,) = tabulate_catalogue(None)
    return [(group, words) for group, words in index.rows if group not in _NOT_HERE]


def _index() -> str:
    rows = [(f"[{group}]({group}.md)", _words(words)) for group, words in list_groups()]
    text = (
        "# Reference\n\nWritten from the code at each build. `simsplit list` prints the same in a"
        " terminal, with the parts of your plugins; `simsplit schema` writes a JSON Schema.\n\n"
        "Beside the groups: [command line](command-line.md), [run directory](run-directory.md), [columns of tables](columns.md),"
        " [transcripts](transcript.md),"
        " [Python](python.md), [plugins](plugins.md),"
        " [which part works with what](compatibility.md).\n"
    )
    return f"{text}\n{table(('group', 'parts'), rows)}"


def _words(words: str) -> str:
    return ", ".join(code(word) for word in words.split(", "))


def _page(group: str) -> str:
    head = f"# {group}\n\nThe same in a terminal: `simsplit list {group}`."
    descriptions = _by_module(group)
    return "\n\n".join(
        [head, *(_section(each, descriptions) for each in tabulate_catalogue(group))]
    )


def _section(part: Table, descriptions: dict[str, str]) -> str:
    kinds, _, meaning = part.title.partition(": ")
    rows = [(code(row[0]), *(plain(cell) for cell in row[1:])) for row in part.rows]
    how = descriptions.get(kinds.split(", ")[0], "")
    parts = [
        f"## {kinds}",
        plain(meaning),
        fold("How it works, from the code", fence(how, "text")) if how else "",
        _lay_out(part, table(part.columns, rows)),
    ]
    return "\n\n".join(text for text in parts if text)


def _lay_out(part: Table, text: str) -> str:
    """Mark a table of fields, which the style sheet stacks on narrow screens."""
    is_of_fields = part.columns[0] == "field"
    return f'<div class="fields" markdown>\n\n{text}\n\n</div>' if is_of_fields else text


def _by_module(group: str) -> dict[str, str]:
    """Return what the file of each part says of it; nothing where a group's parts share files."""
    if group not in _TOLD_BY_MODULE:
        return {}
    modules = {kind: inspect.getmodule(config) for kind, config in collect_groups()[group].items()}
    return {kind: inspect.getdoc(module) or "" for kind, module in modules.items()}
