"""The gallery has each scenario under a question; notebooks are pages with what they showed."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from planted_boards import measure_at, plant

from simsplit.scenario.shipped import list_names

ROOT = Path(__file__).parents[2]


@pytest.fixture
def making(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    yield lambda name: import_module(f"making.{name}")
    assert "making" in sys.modules


def test_each_scenario_answers_one_question(making):
    placed = [name for names in making("gallery").QUESTIONS.values() for name in names]
    assert sorted(placed) == [name for name in sorted(list_names()) if "/" not in name]


def test_pictures_of_the_gallery_are_of_scenarios_small_and_of_letters():
    files = list((ROOT / "docs/gallery").iterdir())
    assert {file.stem for file in files} <= set(list_names())
    assert {file.suffix for file in files} == {".svg"}
    # a page of 38 pictures loads within a second on a phone's link
    assert 0 < sum(file.stat().st_size for file in files) < 1_000_000
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "</text>" in text, f"{file.name}: letters are outlines, which no zoom makes readable"
        assert "<script" not in text
        assert len(text) < 60_000


def test_an_entry_of_the_gallery_has_time_and_command_and_no_picture_that_is_not_there(
    making, tmp_path, monkeypatch
):
    gallery = making("gallery")
    monkeypatch.setattr(gallery, "PICTURES", tmp_path)
    (tmp_path / "quickstart.svg").write_text("<svg/>")
    entry, page = gallery.page().split("### quickstart", 1)[1], gallery.page()
    entry = entry.partition("###")[0]
    assert page.count("](gallery/") == entry.count("](gallery/quickstart.svg)") == 1
    assert "![Results of quickstart: Ten clients" in entry
    assert "simsplit run quickstart" in entry
    assert "Takes " in entry


def test_a_boards_tables_carry_the_command_of_their_cells(making):
    """The script adds what a row and a column say; without it the list of commands stands below."""
    boards = making("boards")
    rows = {name: measure_at(90, leak) for name, leak in {"none": 1.0, "mix-2": 0.2}.items()}
    page = "\n".join(boards._write_page(plant({name: [name] for name in rows}, rows)))
    command = "simsplit board planted --tier quick --seeds 0 --only"
    assert page.count(f'<div class="commands" data-command="{command}" data-threats=""') == 2
    assert all(f"{command} defence={name}\n" in page for name in rows)
    track = SimpleNamespace(threats={"late": {}, "clipped": {}})
    marked = boards._offer_commands(SimpleNamespace(name="b", tier="small", track=track), "| a |")
    assert 'data-threats="late,clipped" markdown>\n\n| a |\n\n</div>' in marked


def test_the_side_bar_has_25_entries_with_any_section_open(making, monkeypatch):
    pytest.importorskip("mkdocs", reason="no mkdocs here: pip install '.[docs]'")
    for part in ("papers", "boards", "notebooks"):  # one folded entry each, and dear to write
        monkeypatch.setattr(making(part), "pages", lambda: [("page.md", "")])
    config = SimpleNamespace(**yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    nav = import_module("hooks").on_config(config).nav
    for name, inside in (pair for entry in nav for pair in entry.items()):
        assert len(nav) + (len(inside) if isinstance(inside, list) else 0) <= 25, name


@pytest.mark.parametrize("name", ["sorting", "commands"])
def test_scripts_of_the_site_ask_nobody(name):
    text = (ROOT / f"docs/styles/{name}.js").read_text(encoding="utf-8")
    assert not re.search(r"https?:|fetch\(|import\b|XMLHttp", text)
    assert f"styles/{name}.js" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_a_notebooks_page_has_its_figures_tables_and_print(making, tmp_path, monkeypatch):
    """Run once: the second page is made of what was kept."""
    notebooks = making("notebooks")
    new = nbformat.v4
    code = "import pandas as pd\nprint('printed')\npd.DataFrame({'column': [7]})"
    cells = [new.new_markdown_cell("# Title"), new.new_code_cell(code)]
    source = tmp_path / "source"
    source.mkdir()
    nbformat.write(new.new_notebook(cells=cells), source / "01_small.ipynb")
    monkeypatch.setattr(notebooks, "SOURCE", source)
    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "cache"))
    ((path, before),) = notebooks.pages()
    assert path == "notebooks/01_small.md"
    assert "did not run" in before
    kept = notebooks._find_kept(source / "01_small.ipynb")
    kept.parent.mkdir(parents=True)
    cells[1].outputs = [
        new.new_output("stream", name="stdout", text="printed\n"),
        new.new_output("execute_result", {"text/html": "<style>x</style><table>7</table>"}),
        new.new_output("display_data", {"image/png": "aGk="}),
        new.new_output("execute_result", {"text/markdown": "| 8 |", "text/plain": "<object>"}),
    ]
    nbformat.write(new.new_notebook(cells=cells), kept)
    notebooks._load.cache_clear()
    ((_, after),) = notebooks.pages()
    assert "did not run" not in after
    assert "```text\nprinted\n```" in after
    assert "<table>7</table>" in after
    assert "x</style>" not in after
    assert after.endswith("\n\n| 8 |")
    assert "(01_small-1-2.png)" in after
    assert dict(notebooks.pictures()) == {"notebooks/01_small-1-2.png": b"hi"}


@pytest.mark.notebook
def test_a_notebook_is_run_once_and_its_file_stays_clean(making, tmp_path, monkeypatch):
    notebooks, new = making("notebooks"), nbformat.v4
    file = tmp_path / "01_small.ipynb"
    nbformat.write(new.new_notebook(cells=[new.new_code_cell("print(6 * 7)")]), file)
    before = file.read_bytes()
    monkeypatch.setattr(notebooks, "SOURCE", tmp_path)
    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(notebooks.VARIABLE, "run")
    ((_, text),) = notebooks.pages()
    assert "42" in text
    assert file.read_bytes() == before
