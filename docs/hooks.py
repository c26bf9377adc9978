"""What `mkdocs build` calls: pages written from the package, so that they cannot fall behind it."""

from collections.abc import Iterator

from making import commands, fields, gallery, links, top
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the groups of the reference behind the pages that `nav` names there."""
    (reference,) = (part["Reference"] for part in config.nav or () if "Reference" in part)
    reference.extend(f"reference/{group}.md" for group, _ in fields.listed())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those that lie in the folder."""
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite a hand-written page's links to files of the repository."""
    path = page.file.src_uri
    return markdown if page.file.generated_by else links.rewrite(markdown, f"docs/{path}")


def pages() -> Iterator[tuple[str, str]]:
    """Each generated page: its path, and its Markdown."""
    yield "gallery.md", gallery.page()
    yield "reference/command-line.md", commands.page()
    yield from fields.pages()
    yield from top.pages()
