"""Files of the top level, and sections of the README, that are pages of the site too."""

from collections.abc import Iterator
from pathlib import Path

from making.links import TOP, rewrite

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "howto/detectors.md": "Malicious clients and detectors",
    "howto/labels.md": "Labels' privacy",
    "howto/noise.md": "What noise guarantees",
    "howto/deploy.md": "On real machines",
    "reference/run-directory.md": "The run directory",
}
"""Pages that are a section of the README, by their paths."""


def pages() -> Iterator[tuple[str, str]]:
    """Results, changes, and sections of the README."""
    for file in ("RESULTS.md", "CHANGELOG.md"):
        yield TOP[file], rewrite((ROOT / file).read_text(encoding="utf-8"), file)
    for path, title in SECTIONS.items():
        section = _read("README.md", "../").split(f"## {title}\n")[1].split("\n## ")[0]
        yield path, f"# {title}\n{section}"


def _read(name: str, up: str = "") -> str:
    """A file, its links as they are from within the site, or from a folder there."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return text.replace("](docs/", f"]({up}").replace("](RESULTS.md", f"]({up}results/index.md")
