"""What `mkdocs build` calls: pages made from the package, and links of the repository."""

from making import boards, fields, links, machine_readable, notebooks, pages, papers, pictures
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the reference's groups and the papers' tables among the pages that `nav` names."""
    (reference,) = (part["Reference"] for part in config.nav or () if "Reference" in part)
    groups = [f"reference/{group}.md" for group, _ in fields.list_groups()]
    reference.append({"Kinds and their fields": groups})
    (results,) = (part["Results"] for part in config.nav or () if "Results" in part)
    results.insert(1, {"Tables of the papers": [path for path, _ in papers.pages()]})
    results.insert(2, {"Boards": [path for path, _ in boards.pages()]})
    (guides,) = (part["How to"] for part in config.nav or () if "How to" in part)
    guides.append({"Notebooks": [path for path, _ in notebooks.pages()]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made to the ones in the folder."""
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    for path, content in pictures():
        files.append(File.generated(config, path, content=content))
    about = config.site_description or ""
    text = machine_readable.list_pages(config.nav or [], about)
    files.append(File.generated(config, machine_readable.FILE, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite a hand-written page's links to files of the repository."""
    path = page.file.src_uri
    return markdown if page.file.generated_by else links.rewrite(markdown, f"docs/{path}")
