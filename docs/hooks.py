"""What `mkdocs build` calls: pages made from the package, and links of the repository."""

from making import fields, links, pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the groups of the reference behind the pages that `nav` names there."""
    (reference,) = (part["Reference"] for part in config.nav or () if "Reference" in part)
    reference.extend(f"reference/{group}.md" for group, _ in fields.listed())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made to those that lie in the folder."""
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite a hand-written page's links to files of the repository."""
    path = page.file.src_uri
    return markdown if page.file.generated_by else links.rewrite(markdown, f"docs/{path}")
