"""Pages of the site that are made from the package, so that they cannot fall behind it."""

from collections.abc import Iterator

from making import (
    api,
    boards,
    columns,
    commands,
    compatibility,
    errors,
    families,
    fields,
    gallery,
    notebooks,
    papers,
    plugins,
    top,
    transcripts,
)


def pages() -> Iterator[tuple[str, str]]:
    """Yield each page that is made: its path in the site, and its Markdown."""
    yield "gallery.md", gallery.page()
    yield "reference/command-line.md", commands.page()
    yield "reference/columns.md", columns.page()
    yield "reference/python.md", api.page()
    yield "reference/plugins.md", plugins.page()
    yield "reference/compatibility.md", compatibility.page()
    yield "reference/rules.md", compatibility.rules()
    yield "reference/errors.md", errors.page()
    yield "reference/transcript.md", transcripts.page()
    yield "reference/families.md", families.page()
    yield from fields.pages()
    yield from papers.pages()
    yield from boards.pages()
    yield from notebooks.pages()
    yield from top.pages()


def pictures() -> Iterator[tuple[str, bytes]]:
    """Yield each picture that is made: its path in the site, and its content."""
    yield from papers.pictures()
    yield from boards.pictures()
    yield from notebooks.pictures()


def list_pictures() -> Iterator[str]:
    """Yield the path of each picture that is made."""
    for path, *_ in (*papers.list_pictures(), *boards.list_pictures(), *notebooks.pictures()):
        yield path
