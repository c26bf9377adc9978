"""All that the pages have one type holds: commands, scenarios, Python, links, names of files."""

import re
from pathlib import Path

import pytest
from pages import (
    DOCS,
    HISTORY,
    ROOT,
    Page,
    PageError,
    Reader,
    command_lines,
    hand_written,
    list_pictures,
    make_pages,
)

HAND_WRITTEN = [*hand_written()]
TYPED = [name for name, page in hand_written().items() if page.is_checked]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(
    r"\b((?:scenarios|examples|docs|tests|tools|simsplit|deploy|notebooks)/[\w/.-]+\.(?:yaml|py|png|md|ipynb|toml))"
    r"(?:::(\w+)(?:::(\w+))?)?"
)


@pytest.mark.parametrize("name", TYPED)
def test_a_page_can_be_followed(name: str, tmp_path: Path) -> None:
    Reader(tmp_path, hand_written()[name]).follow()


def test_pages_that_are_made_can_be_followed(every_page: dict[str, Page], tmp_path: Path) -> None:
    # one test for all: to make them takes seconds, and each worker collects every test
    typed = [
        page for name, page in every_page.items() if name not in HAND_WRITTEN and page.is_checked
    ]
    assert typed
    for number, page in enumerate(typed):
        (folder := tmp_path / str(number)).mkdir()
        Reader(folder, page).follow()


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("```\nsimsplit run quikstart\n```", "quikstart"),
        ("```\nsimsplit rum quickstart\n```", "rum"),
        ("```\nsimsplit run quickstart --ouut runs/a\n```", "--ouut"),
        ("```\nsimsplit run quickstart --set trainn.batch_size=3\n```", "trainn"),
        ("```\nsimsplit run quickstart --set method.0.ratio=8192\n```", "8192"),
        ("```\nsimsplit run caught-root\n```", "simsplit sweep"),
        ("```\nsimsplit sweep quickstart\n```", "none"),
        ("```\nsimsplit show runs/nowhere\n```", "runs/nowhere"),
        ("```\nsimsplit run quickstart --out a\nsimsplit run quickstart --out a\n```", "a already"),
        ("```\nsimsplit run quickstart --out a\nsimsplit attack a --kind krum\n```", "krum"),
        ("```\nsimsplit validate mine.yaml\n```", "mine.yaml"),
        ("```\nsimsplit list metods\n```", "metods"),
        ("```\nsimsplit deploy chekc HOST:1\n```", "chekc"),
        ("```\nsimsplit join H:1 --client 0 --keys k --approve backdoor\n```", "sweep"),
        ("```\nsimplit run quickstart\n```", "simplit"),
        ("```\npip install '.[extra]'\n```", "extra"),
        ("```\npip install simsplit\n```", "no release"),
        ("```\nmake all\n```", "demo"),
        ("```\npython docs/none.py\n```", "docs/none.py"),
        ("```\nsimsplit show 'a\n```", "quotation"),
        ("```yaml\nmethod: [{kind: lightsplt}]\n```", "lightsplt"),
        ("```yaml\nname: mine\nclients: {count: 0}\n```", "clients.count"),
        ("```python\nfrom simsplit import runn\n```", "runn"),
        ("```python\nfrom simsplit import load_sweep\nload_sweep('a', outt='b')\n```", "outt"),
        ("```python\ndef (\n```", "invalid syntax"),
        ("```pycon\n>>> load_sweep('a', outt='b')\n```", "outt"),
        ("```ruby\nputs 1\n```", "ruby"),
        ("One types `simsplit sweep table --jbos 2` then.", "--jbos"),
        ("One types `simsplit run none-such` then.", "none-such"),
    ],
)
def test_a_planted_mistake_is_noticed(block: str, reason: str, tmp_path: Path) -> None:
    page = Page("planted.md", f"# A page\n\n{block}\n")
    with pytest.raises(PageError, match=re.escape(reason)):
        Reader(tmp_path, page).follow()


def test_a_good_page_has_no_mistake(tmp_path: Path) -> None:
    text = """\
```
NO_COLOR=1 simsplit new mine --from quickstart   # a comment
simsplit run mine.yaml \\
    --set seed=3; simsplit show runs/mine
```

`simsplit chat RUN --prompt "..."`, `simsplit run FILE --set seed=S`, `simsplit attack`.
"""
    Reader(tmp_path, Page("good.md", text)).follow()
    assert (tmp_path / "runs" / "mine" / "scenario.yaml").exists()


def test_commands_are_cut_where_a_shell_cuts_them() -> None:
    lines = [
        *command_lines("A=1 one 'two # three' # four\nfive \\\n  six; seven && eight\n\n# nine")
    ]
    assert lines == [["one", "two # three"], ["five", "six"], ["seven"], ["eight"]]


@pytest.mark.usefixtures("every_page")
def test_links_lead_somewhere() -> None:
    known = {f"docs/{path}" for path, _ in make_pages()}
    known |= {f"docs/{path}" for path in list_pictures()}
    lost = [
        (name, target)
        for name in HAND_WRITTEN
        for target in _LINK.findall(hand_written()[name].text)
        if not re.match(r"\w+:", target) and not _leads_somewhere(ROOT / name, target, known)
    ]
    assert not lost


def _leads_somewhere(file: Path, target: str, known: set[str]) -> bool:
    path, _, anchor = target.partition("#")
    there = (file.parent / path).resolve() if path else file
    if not there.exists():
        return there.relative_to(ROOT).as_posix() in known
    return not anchor or there.suffix != ".md" or anchor in _anchors(there)


def _anchors(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles)
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


@pytest.mark.parametrize("target", ["docs/none.md", "docs/faq.md#none", "docs/gallery.md#x", "#no"])
def test_a_lost_link_is_noticed(target: str) -> None:
    assert not _leads_somewhere(ROOT / "README.md", target, set())


def test_files_and_tests_that_are_named_exist() -> None:
    named = [
        (name, *result)
        for name in HAND_WRITTEN
        for result in _FILE.findall(hand_written()[name].text)
    ]
    assert len(named) > 50
    lost = [n for n in named if "/NAME" not in n[1] and not _exists(ROOT / n[1], n[2:])]
    assert not lost


def _exists(file: Path, members: tuple[str, ...]) -> bool:
    if not file.exists():
        return False
    text = file.read_text(encoding="utf-8") if any(members) else ""
    result = (re.search(rf"^\s*(?:def|class) {each}\b", text, re.M) for each in members if each)
    return all(result)


@pytest.mark.usefixtures("every_page")
def test_pages_that_are_made_lie_in_no_file() -> None:
    paths = {path for path, _ in make_pages()}
    assert not [path for path in paths if (DOCS / path).exists()]
    assert set(HISTORY) <= paths
