"""The gallery: every scenario that ships, from what its file says."""

from pathlib import Path

from making.markup import code, fence, fold, plain, table
from simsplit.scenario import has_sweep
from simsplit.scenario.shipped import SUFFIX, Shipped, describe_all, find_folder

PICTURES = Path(__file__).parents[1] / "gallery"

_HEAD = """\
# Gallery

Each scenario ships with the package and is found by its name. `simsplit list scenarios` prints
the same list, and `simsplit new mine.yaml --from quickstart` writes a copy to change.
"""
_PAPERS = """\
## Tables and figures of papers

Full size, and in `small/` for two CPU cores. Data sets are yours to give:
[A paper's table](howto/papers.md).
"""


def page() -> str:
    """Make an entry per scenario, and a table of the ones that repeat papers."""
    described = list(describe_all())
    entries = [_entry(each) for each in described if "/" not in each.name]
    papers = [(code(each.name), plain(each.shows)) for each in described if "/" in each.name]
    return "\n\n".join([_HEAD, *entries, _PAPERS, table(("scenario", "what it shows"), papers)])


def _entry(shipped: Shipped) -> str:
    text = (find_folder() / f"{shipped.name}{SUFFIX}").read_text(encoding="utf-8")
    command = "sweep" if has_sweep(Path(shipped.name)) else "run"  # `extends` may bring one
    parts = [
        f"## {shipped.name}",
        plain(shipped.shows),
        f"Takes {plain(shipped.takes)}." if shipped.takes else "",
        fence(f"simsplit {command} {shipped.name}"),
        _picture(shipped.name),
        fold(f"{shipped.name}{SUFFIX}", fence(text, "yaml")),
    ]
    return "\n\n".join(part for part in parts if part)


def _picture(name: str) -> str:
    lies = (PICTURES / f"{name}.png").is_file()
    return f"![What {name} shows](gallery/{name}.png)" if lies else ""
