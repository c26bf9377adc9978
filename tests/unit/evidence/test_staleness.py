"""Rows become stale with the code of their parts, and equal commits carry them over."""

import json
import subprocess
from dataclasses import replace

import pytest
from gists import says

from simsplit.data.image_tables import ParquetSource
from simsplit.data.samples import DataInfo
from simsplit.errors import RunError
from simsplit.evidence import cell_uses, code_sources
from simsplit.evidence.cell_uses import UNKNOWN, CellUses, find_changed_parts, list_folders
from simsplit.evidence.code_graph import CENTRE, READING, CodeGraph
from simsplit.evidence.digests import digest_of, dump_fields
from simsplit.evidence.equal_code import NAME, Carried, EqualCode, add_line, read_lines
from simsplit.evidence.evidence_tables import build_table
from simsplit.evidence.measurements import Measurement, add, read
from simsplit.evidence.papers import find_table
from simsplit.evidence.placing import place_data
from simsplit.evidence.row_code import digest_parts, write_code
from simsplit.evidence.selecting import select
from simsplit.scenario.files import merge

FACTS = {
    "version": "1",
    "commit": "c" * 40,
    "command": "x",
    "machine": "m",
    "threads": 1,
    "minutes": 3.0,
    "date": "2026-01-01",
}


def table_here():
    return build_table(find_table("tiny/table1"), "small")


def row_of(cell):
    return Measurement(
        setting=cell.setting,
        seed=cell.seed,
        figure="accuracy",
        value=80.0,
        digest=cell.digests["accuracy"],
        code=write_code({**cell.uses.code, **cell.uses.files}),
        **FACTS,
    )


@pytest.fixture
def rows(paper):
    """Rows of all cells, with today's code."""
    rows = [row_of(cell) for cell in table_here().cells]
    add(paper.rows, rows)
    return rows


@pytest.fixture
def edit(monkeypatch):
    """Change the source of one module of the package, as the digests see it."""
    real = code_sources.read_package()

    def change(module, old, new):
        folder = code_sources.FOLDER.parent
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        source = path.read_text(encoding="utf-8")
        assert old in source
        changed = code_sources.read_module(source.replace(old, new).encode())
        graph = CodeGraph(real.names, lambda name: changed if name == module else real.load(name))
        monkeypatch.setattr(code_sources, "read_package", lambda: graph)
        cell_uses.digest_here.cache_clear()

    yield change
    cell_uses.digest_here.cache_clear()


NOISE = ("simsplit.methods.noise", "= config.sigma", "= 1.5 * config.sigma")


def test_rows_with_todays_code_count(rows):
    built = table_here()
    assert (len(built.fresh), built.stale, built.lacking) == (4, [], [])


def test_a_changed_constant_makes_stale_what_uses_it_alone(rows, edit, simsplit):
    edit(*NOISE)
    built = table_here()
    assert {row.axes["method"] for row in built.stale} == {"noise-50"}
    assert {row.axes["method"] for row in built.fresh} == {"raw"}
    assert {*built.changed.values()} == {("methods.noise",)}
    assert {cell.axes["method"] for cell in built.lacking} == {"noise-50"}
    code, out, _ = simsplit("papers", "--stale", "--json")
    (found,) = json.loads(out)
    assert (code, found["table"], found["rows"], found["minutes"]) == (0, "tiny/table1.small", 2, 6)
    assert "methods.noise" in found["why"]
    assert says(simsplit("papers", "--stale")[1], "tiny/table1.small ... 2 ... methods.noise")


def test_a_comment_or_a_message_makes_nothing_stale(rows, edit):
    edit("simsplit.methods.noise", "class Noise", "# a comment\nclass Noise")
    assert table_here().stale == []


def test_rows_with_changes_that_no_commit_has_count_and_are_named(rows, paper, simsplit):
    add(paper.rows, [replace(row, commit=f"{row.commit}-dirty") for row in rows[:1]])
    (found,) = json.loads(simsplit("papers", "--stale", "--json")[1])
    assert (found["rows"], found["counts"], found["minutes"]) == (1, True, 3)
    assert says(simsplit("papers", "--stale")[1], "0 measurements stale")


def test_where_nothing_is_stale_no_table_is_listed(rows, simsplit):
    code, out, _ = simsplit("papers", "--stale")
    assert (code, "tiny" in out) == (0, False)
    assert json.loads(simsplit("papers", "--stale", "--json")[1]) == []


def test_a_row_whose_code_is_not_known_is_stale(paper):
    add(paper.rows, [replace(row_of(cell), code="") for cell in table_here().cells])
    built = table_here()
    assert len(built.stale) == 4
    assert {*built.changed.values()} == {(UNKNOWN,)}


def test_a_changed_default_makes_rows_stale(paper):
    """A scenario's digest has the values that it leaves to defaults."""
    cell = next(cell for cell in table_here().cells if cell.axes["method"] == "raw")
    train = cell.base.train
    default = train.client.model_copy(update={"lr": 2 * train.client.lr})
    other = cell.base.model_copy(update={"train": train.model_copy(update={"client": default})})
    assert digest_of(other) != cell.digest


def test_a_changed_data_file_makes_rows_stale(tmp_path, paper):
    file = tmp_path / "data" / "mine.npz"
    file.parent.mkdir()
    file.write_bytes(b"1")
    fields = {"data": {"source": {"kind": "npz", "path": str(file)}}, "model": {"name": None}}
    uses = CellUses(("data.npz",), list_folders(fields))
    code = {**uses.code, **uses.files}
    row = replace(row_of(table_here().cells[0]), code=write_code(code))
    assert find_changed_parts(row, uses, Carried()) == ()
    file.write_bytes(b"22")
    assert find_changed_parts(row, uses, Carried()) == ("files.mine.npz",)
    file.unlink()  # nobody says that data which are elsewhere have changed
    assert find_changed_parts(row, uses, Carried()) == ()


def test_a_model_is_the_same_wherever_it_was_saved(tmp_path, monkeypatch):
    """Its settings name the folder and the version that saved it; its weights and sizes count."""
    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "cache"))
    cell_uses._keep_digests.cache_clear()

    def digest(name, *, weights=b"1", hidden=False, **settings):
        folder = tmp_path / name / "model"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text(json.dumps({"hidden_size": 8, **settings}))
        if hidden:
            (folder / ".cache").mkdir()
            (folder / ".cache" / "downloaded").write_text("today")
        return cell_uses.CellUses((), (("files.model", str(folder)),)).files["files.model"]

    here = digest("a", _name_or_path="/tmp/a", transformers_version="5.1")
    assert digest("b", _name_or_path="/tmp/b", transformers_version="5.2") == here
    assert digest("c", hidden=True, _name_or_path="") == here
    assert digest("d", _name_or_path="", hidden_size=9) != here
    assert digest("e", _name_or_path="", weights=b"2") != here
    blobs, links = tmp_path / "a" / "model", tmp_path / "f" / "model"
    links.mkdir(parents=True)
    for at, file in enumerate(sorted(blobs.iterdir())):  # as a hub's cache links to its blobs
        file.rename(blobs / f"{at:064x}")
        (links / file.name).symlink_to(blobs / f"{at:064x}")
    assert CellUses((), (("files.model", str(links)),)).files["files.model"] == here
    cell_uses._keep_digests.cache_clear()


def test_rows_name_the_data_that_they_were_measured_with(tmp_path, paper, monkeypatch):
    monkeypatch.setattr(ParquetSource, "describe", lambda self: DataInfo((1, 28, 28), 10))
    sweep = merge(paper.SWEEP, {"data": {"source": {"kind": "parquet", "path": "data/mine"}}})
    paper.write(sweep=sweep)
    folder = tmp_path / "elsewhere" / "mine"
    folder.mkdir(parents=True)
    (folder / "train.parquet").write_bytes(b"1")
    selection = place_data(select([table_here()]), tmp_path / "elsewhere")
    assert selection.cells
    assert all([*chosen.cell.uses.files] == ["files.mine"] for chosen in selection.cells)


def line(before, now, *, names=None, cases="all"):
    names = names or [*before]
    return EqualCode("a", "b", cases, "m", {name: (before[name], now[name]) for name in names})


OLD = {CENTRE: "c1", "attacks.sdar": "s1"}
MID = {CENTRE: "c2", "attacks.sdar": "s1"}
NEW = {CENTRE: "c3", "attacks.sdar": "s2"}


def test_equal_commits_carry_rows_over_by_a_chain():
    first, second = line(OLD, MID), line(MID, NEW)
    assert Carried([]).find_changed(OLD, NEW) == (CENTRE, "attacks.sdar")
    assert Carried([first]).find_changed(OLD, NEW) == (CENTRE, "attacks.sdar")
    assert Carried([second, first]).find_changed(OLD, NEW) == ()
    assert Carried([second, first]).find_changed(MID, NEW) == ()
    assert Carried([first, second]).find_changed(NEW, OLD) != ()  # a chain has a direction


def test_a_line_carries_no_part_that_it_does_not_name_and_no_other_code():
    assert Carried([line(OLD, NEW, names=[CENTRE])]).find_changed(OLD, NEW) != ()
    other = {**OLD, "attacks.sdar": "s0"}
    assert Carried([line(OLD, NEW)]).find_changed(other, NEW) != ()
    with_files = {**OLD, "files.cifar10": "f1"}
    carried = Carried([line(OLD, NEW)])
    assert carried.find_changed(with_files, {**NEW, "files.cifar10": "f1"}) == ()
    assert carried.find_changed(with_files, {**NEW, "files.cifar10": "f2"}) == ("files.cifar10",)


def test_rows_of_before_reading_was_noted_need_a_line_that_says_so():
    old, new = {**OLD, READING: "r1"}, {**NEW, READING: "r1"}
    silent, both = line(OLD, NEW), line({**NEW, READING: ""}, new)
    assert Carried([silent]).find_changed(old, new) == ()
    assert Carried([silent]).find_changed(OLD, new) == (READING,)
    assert Carried([silent, both]).find_changed(OLD, new) == ()
    assert Carried([silent, both]).find_changed(old, {**new, READING: "r2"}) == (READING,)


def test_lines_are_kept_in_a_file_and_carry_rows_of_a_table(rows, edit, paper):
    before = {cell.setting: dict(cell.uses.code) for cell in table_here().cells}
    edit(*NOISE)
    parts = {
        name: (digest, now.get(name, ""))
        for cell in table_here().cells
        for now in [cell.uses.code]
        for name, digest in before[cell.setting].items()
    }
    file = paper.rows.parents[1] / NAME
    add_line(file, EqualCode("a" * 40, "b" * 40, "all", "m, torch 2", parts))
    assert read_lines(file)[0].parts == parts
    assert len(table_here().fresh) == 4
    add_line(file, replace(read_lines(file)[0], machine="n"))
    assert [each.machine for each in read_lines(file)] == ["n"]
    file.write_text("from,to,cases,machine,parts\na,b,all,m,centre\n")
    with pytest.raises(RunError, match=r"line 2.*centre"):
        table_here()


def test_a_broken_code_is_named_by_its_line(paper, rows):
    paper.rows.write_text(paper.rows.read_text().replace("centre=", "centre ", 1))
    with pytest.raises(RunError, match=r"line 2.*centre"):
        read(paper.rows)


def test_rows_are_refused_from_a_checkout_with_changes(
    paper, simsplit, tmp_path, monkeypatch, clean_checkout
):
    checkout = tmp_path / "checkout"
    (checkout / "simsplit").mkdir(parents=True)
    (checkout / "simsplit" / "a.py").write_text("A = 1\n")
    git = ["git", "-C", str(checkout), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    code_sources.read_package()  # of the true folder
    monkeypatch.setattr(code_sources, "FOLDER", checkout / "simsplit")
    assert len(clean_checkout()) == 40
    (checkout / "notes.md").write_text("moves no figure")
    assert len(clean_checkout()) == 40
    (checkout / "simsplit" / "a.py").write_text("A = 2\n")
    monkeypatch.setattr(code_sources, "find_commit", clean_checkout)
    code, _, err = simsplit("reproduce", "tiny/table1", "--jobs", 1)
    assert code == 2
    assert says(err, "simsplit/a.py ... commit")
    assert not paper.rows.exists()


def test_the_code_of_a_commit_is_read_from_git():
    head = code_sources.read_commit("HEAD")
    if head is None:
        pytest.skip("the package lies in no checkout")
    assert digest_parts([CENTRE, "attacks.sdar"], head).keys() == {CENTRE, "attacks.sdar"}
    assert code_sources.read_commit("no such commit") is None
    assert digest_parts(["attacks.no"], head) == {}


def test_a_scenario_names_its_folders(paper):
    cell = table_here().cells[0]
    assert list_folders(dump_fields(cell.base)) == ()
