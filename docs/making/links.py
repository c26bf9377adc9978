"""Links between Markdown files of the repository, rewritten to links between pages of the site."""

import posixpath
import re

TOP = {
    "README.md": "index.md",
    "RESULTS.md": "results/index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files of the top level, and the pages that they are in the site."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_OUTSIDE = re.compile(r"\w+:")


def page_of(file: str) -> str | None:
    """Return the page that a file of the repository is in the site, if it is one."""
    return file.removeprefix("docs/") if file.startswith("docs/") else TOP.get(file)


def rewrite(text: str, file: str) -> str:
    """Return a file's text with its links as they hold in the site.

    A link to a file that is no page there, such as a source file, becomes plain text.
    """
    page = page_of(file)
    assert page is not None

    def to_page(link: re.Match[str]) -> str:
        mark, words, target, anchor = link.groups()
        if _OUTSIDE.match(target):
            return link[0]
        there = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(file), target)))
        if there is None:
            return words
        path = posixpath.relpath(there, posixpath.dirname(page) or ".")
        return f"{mark}[{words}]({path}{anchor or ''})"

    return _LINK.sub(to_page, text)
