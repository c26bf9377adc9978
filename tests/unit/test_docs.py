"""The documentation site builds without a warning, and its pages name what there is."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import FrameType

import pytest
from builders import TINY
from pages import Page, hand_written

import simsplit
from simsplit.catalogue import collect_groups, tabulate_catalogue
from simsplit.data.sources import DigitsSource
from simsplit.errors import ScenarioError
from simsplit.plugins.parts import EXPORTS
from simsplit.scenario import load_scenario
from simsplit.scenario.shipped import list_names
from simsplit.schedules.exchange import Exchange

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
Pages = dict[str, Page]


class Fetched(HTMLParser):
    """What a browser would fetch to show a page: not what a reader may click on."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") != "canonical":
            self.links.append(given.get("href") or "")
        self.links.append(given.get("src") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="no mkdocs-material here: pip install '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize("group", collect_groups())
def test_every_part_of_a_group_is_in_the_reference(site: Path, group: str) -> None:
    page = (site / "reference" / group / "index.html").read_text(encoding="utf-8")
    titles = " ".join(re.findall(r"<h2[^>]*>(.*?)<a", page, re.DOTALL))
    assert not [part for part in collect_groups()[group] if not re.search(rf"\b{part}\b", titles)]


@pytest.mark.slow
def test_every_shipped_scenario_is_in_the_gallery(site: Path) -> None:
    page = (site / "gallery" / "index.html").read_text(encoding="utf-8")
    shown = [
        rf'id="{name}"' if "/" not in name else f"<code>{name}</code>" for name in list_names()
    ]
    assert not [mark for mark in shown if mark not in page]


@pytest.mark.slow
def test_every_command_is_on_its_page_with_its_options(site: Path) -> None:
    from simsplit.__main__ import app

    page = (site / "reference" / "command-line" / "index.html").read_text(encoding="utf-8")
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {
        f"{group.name}-{command.name or command.callback.__name__}"
        for group in app.registered_groups
        for command in group.typer_instance.registered_commands
    }
    assert "deploy-keys" in known
    assert not [name for name in known if f'id="{name.rstrip("_")}"' not in page]
    assert "--resume" in page


@pytest.mark.slow
@pytest.mark.parametrize(("page", "word"), [("method", "SignConfig"), ("attack", "NearestConfig")])
def test_the_examples_are_on_their_pages(site: Path, page: str, word: str) -> None:
    assert word in (site / "howto" / f"own-{page}" / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_page_fetches_nothing_from_another_host(site: Path) -> None:
    outside = {}
    for page in site.rglob("*.html"):
        reader = Fetched()
        reader.feed(page.read_text(encoding="utf-8"))
        if results := [url for url in reader.links if re.match(r"(https?:)?//", url)]:
            outside[page.name] = results
    assert not outside


@pytest.mark.parametrize("group", ["attacks", "methods", "poisons", "detectors"])
def test_the_threat_models_name_every_part_once(group: str) -> None:
    page = (DOCS / "threats.md").read_text(encoding="utf-8")
    (head,) = re.findall(rf"^\| {group.removesuffix('s')} \|.*?(?:\n\n|\Z)", page, re.M | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|", head, re.MULTILINE)
    parts = set(collect_groups()[group]) - {"malicious"}  # what names poisons, and is none
    assert len(rows) == len(set(rows))
    lacking = f"docs/threats.md lacks rows of {sorted(parts - {*rows})}"
    assert set(rows) == parts, f"{lacking}: python docs/made_blocks.py --only threats"


def test_the_table_of_hostile_parties_names_tests_that_exist() -> None:
    page = (DOCS / "howto" / "deploy.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| who may be hostile \|.*?(?:\n\n|\Z)", page, re.M | re.DOTALL)
    rows = [[cell.strip() for cell in row.split(" | ")] for row in table.splitlines()[2:]]
    assert not [row for row in rows if len(row) != 4]
    unheld = [row for row in rows if row[3] in ("", "|") and not row[2].startswith("nothing")]
    assert not unheld, "rows that promise something, and name no test"
    named = re.findall(r"`(tests/[^`]*)`", table)
    assert len(named) > 40
    missing = []
    for each in named:
        file, _, name = each.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""
        if not re.search(rf"^(def|class) {name}\b" if name else ".", text, re.MULTILINE):
            missing.append(each)
    assert not missing


def test_every_dict_that_a_plugin_may_export_is_in_the_reference(every_page: Pages) -> None:
    text = every_page["docs/reference/plugins.md"].text
    assert not [name for name in EXPORTS if f"| `{name}` |" not in text]


def test_every_public_name_is_in_the_reference_with_its_signature(every_page: Pages) -> None:
    text = every_page["docs/reference/python.md"].text
    assert not [name for name in simsplit.__all__ if f"\n## {name}\n" not in text]
    assert re.search(r"```py\nload_scenario\(\n? *path: str \| Path,", text)


def test_the_table_of_parts_is_what_the_command_prints(every_page: Pages) -> None:
    (table,) = tabulate_catalogue("compatibility")
    page = every_page["docs/reference/compatibility.md"].text
    lines = page.replace("\\_", "_").splitlines()
    assert not [row for row in table.rows if f"| {' | '.join(row)} |" not in lines]


def test_every_variable_that_is_explained_is_read(every_page: Pages) -> None:
    text = every_page["docs/reference/command-line.md"].text
    rows = text.split("## Environment variables")[1].split("\n\n")[1]
    assert "SIMSPLIT_CACHE" in rows
    read = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "simsplit").rglob("*.py"))
    assert not [name for name in re.findall(r"^\| `(\w+)`", rows, re.M) if f'"{name}"' not in read]


def test_every_file_of_a_run_directory_is_explained() -> None:
    written = set()
    for file in (ROOT / "simsplit" / "results").rglob("*.py"):
        named = r'^[A-Z_]+ = "(\w+\.(?:csv|json|yaml|html|txt))"'
        written |= set(re.findall(named, file.read_text(encoding="utf-8"), re.M))
    page = (DOCS / "reference" / "run-directory.md").read_text(encoding="utf-8")
    assert {"scenario.yaml", "summary.json"} <= written
    assert not [name for name in written if f"`{name}`" not in page]


def test_a_mini_batch_goes_the_way_that_the_architecture_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way: list[tuple[str, str]] = []

    def keep(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "simsplit" in frame.f_code.co_filename:
            file = Path(frame.f_code.co_filename)
            way.append((f"{file.parent.name}/{file.name}", frame.f_code.co_name))

    def step(exchange: Exchange, client: int) -> None:
        sys.setprofile(keep if not way else None)
        try:
            original(exchange, client)
        finally:
            sys.setprofile(None)

    original = Exchange.step
    monkeypatch.setattr(Exchange, "step", step)
    scenario = {**TINY, "schedule": {"kind": "round_robin", "rounds": 1}}
    simsplit.run(scenario, tmp_path / "run")
    page = hand_written()["docs/architecture.md"].text
    section = page.split("## One mini-batch")[1].split("\n## ")[0]
    rows = re.findall(r"^\|.*`simsplit/(\w+/\w+\.py)::(\w+)` \|$", section, re.MULTILINE)
    assert len(rows) > 8
    rest = iter(way)
    assert not [row for row in rows if row not in rest], "they are in this order"


@pytest.mark.parametrize(
    "changes",
    [
        {"method.0.kind": "lightsplt"},
        {"train_samples": "5"},
        {"method.0.ratio": "8192"},
        {"attacks": "[{kind: sdar}]"},
        {"method": "[{kind: mixguard}]"},
        {"detectors": "[{kind: cosine_mad}]", "clients.count": "2"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_errors_that_are_explained_are_the_ones_that_are_raised(
    changes: dict[str, str],
) -> None:
    explained = re.findall(r"^\*\*`error: (.*?)`\*\*", (DOCS / "faq.md").read_text(), re.MULTILINE)
    with pytest.raises(ScenarioError) as error:
        load_scenario("quickstart", changes).shapes(DigitsSource().describe())
    made = str(error.value)
    parts = [[part for part in each.split("...") if part] for each in explained]
    assert any(made.startswith(first) and all(p in made for p in rest) for first, *rest in parts)
