"""Tables are measured by a command: rows as cells end, what fits a budget, one writer at a time."""

import csv
import json
import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from gists import says
from PIL import Image

from simsplit import __version__ as simsplit_version
from simsplit import papers
from simsplit.errors import RunError, SimsplitError
from simsplit.evidence import reading_runs
from simsplit.evidence.evidence_rows import Known
from simsplit.evidence.evidence_tables import build_table, judge_table, read_known_rows
from simsplit.evidence.measurements import add, hold_alone, read
from simsplit.evidence.papers import find_table, load_papers
from simsplit.evidence.reading_runs import find_runs
from simsplit.evidence.reproducing import CheckedFigure
from simsplit.evidence.selecting import estimate, parse_minutes, parse_seeds, select
from simsplit.evidence.verdicts import ClaimVerdict
from simsplit.results import Run, checkpoints
from simsplit.results.environment import describe_environment
from simsplit.scenario import load_sweep
from simsplit.scenario.files import merge
from simsplit.sweep import Cluster, run_sweep

OF_FACES: dict[str, Any] = {
    "data": {"source": {"kind": "folder", "path": "faces", "size": 28, "channels": 1}},
}
"""Parts of a scenario whose data are files."""


def paint(folder: Path, draws: np.random.Generator) -> None:
    """Write images of noise, in place of those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(30):
        pixels = draws.integers(0, 256, (28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def table_here():
    return build_table(find_table("tiny/table1"), "small")


def keys(rows):
    return {(row.axes["method"], row.seed) for row in rows}


@pytest.fixture
def measured(paper, simsplit):
    """The paper, all of its cells measured."""
    code, _, err = simsplit("reproduce", "tiny/table1", "--jobs", 1)
    assert code == 0, err
    return paper


def test_what_is_missing_is_measured_and_shown(measured, simsplit):
    rows = read(measured.rows)
    assert keys(rows) == {("raw", 0), ("raw", 1), ("noise-50", 0), ("noise-50", 1)}
    row = rows[0]
    assert row.figure == "accuracy"
    assert 0 <= row.value <= 100
    assert (row.threads, len(row.digest), row.version) == (1, 16, simsplit_version)
    assert row.command.startswith("simsplit reproduce tiny/table1 --tier small --seeds 0")
    code, out, _ = simsplit("papers", "tiny/table1", "--json")
    (table,) = json.loads(out)
    assert (code, table["missing"], table["stale"], table["seeds"]) == (0, 0, 0, 2)
    assert table["rows"][0]["printed"] == {"accuracy": 90.0}
    assert set(table["rows"][0]["measured"]["accuracy"]["by_seed"]) == {"0", "1"}
    code, out, _ = simsplit("papers")
    assert code == 0
    assert all(name in out for name in ("tiny/table1", "tiny/table2", "out of reach", "no claim"))
    frame = papers("tiny/table1")
    assert list(frame["accuracy_paper"]) == [90.0, 20.5]
    assert frame["accuracy_low"].le(frame["accuracy"]).all()
    assert list(papers()["table"]) == ["table1", "table2", "table3"]


def test_a_table_with_scenarios_may_be_out_of_reach(paper):
    assert judge_table(find_table("tiny/table1"), read_known_rows())[0] == ClaimVerdict.NOT_MEASURED
    paper.write(out_of_reach="needs a GPU")
    assert judge_table(find_table("tiny/table1"), read_known_rows())[0] == ClaimVerdict.OUT_OF_REACH


def test_cells_compute_on_the_device_that_is_asked_for(paper, simsplit, monkeypatch):
    words = ("reproduce", "tiny/table1", "--jobs", 1, "--seeds", 0)
    code, _, err = simsplit(*words, "--device", "cuda:97")
    assert code == 2
    assert says(err, "device: got 'cuda:97', but torch sees")
    code, _, err = simsplit(*words, "--device", "cpu", "--cluster", "auto")
    assert code == 2
    assert says(err, "--device: names ... --gpus-per-cell")
    assert not paper.rows.exists()
    monkeypatch.setattr("simsplit.machine.find_accelerator", lambda: None)
    code, _, err = simsplit(*words, "--device", "auto")
    assert code == 0, err
    rows = read(paper.rows)
    assert all("--device auto --tier small" in row.command for row in rows)
    saved = [yaml.safe_load(file.read_text()) for file in paper.root.rglob("scenario.yaml")]
    assert {each["device"] for each in saved} == {"auto"}
    assert not table_here().stale


@pytest.mark.slow
def test_nothing_is_measured_twice(measured, simsplit):
    before = measured.rows.read_bytes()
    code, _, err = simsplit("reproduce", "tiny/table1", "--jobs", 1)
    assert (code, measured.rows.read_bytes()) == (0, before)
    assert says(err, "nothing to measure")


def test_what_was_interrupted_goes_on_from_the_rows_that_are_there(measured, simsplit):
    whole = measured.rows.read_text()
    lines = whole.splitlines(keepends=True)
    measured.rows.write_text("".join(lines[:3]))
    kept = {row.key: row for row in read(measured.rows)}
    assert len(table_here().lacking) == 2
    code, _, _ = simsplit("reproduce", "tiny/table1", "--jobs", 1)
    again = {row.key: row for row in read(measured.rows)}
    assert code == 0
    assert again.items() >= kept.items()
    assert {key: row.value for key, row in again.items()} == {
        (line["setting"], int(line["seed"]), line["figure"]): float(line["value"])
        for line in csv.DictReader(whole.splitlines())
    }


def test_a_finished_run_without_a_figure_that_a_table_came_to_ask_for_is_done_again(
    measured, simsplit
):
    whole = {row.key: row.value for row in read(measured.rows)}
    measured.rows.unlink()
    for table in (measured.root / "runs").rglob("rounds.csv"):
        frame = pd.read_csv(table)
        frame.drop(columns="test_accuracy").to_csv(table, index=False)
    code, _, err = simsplit("reproduce", "tiny/table1", "--jobs", 1)
    assert code == 0, err
    assert {row.key: row.value for row in read(measured.rows)} == whole


def test_tables_that_ask_for_the_same_run_share_it(measured, simsplit):
    claims = measured.folder / "claims.yaml"
    fields = yaml.safe_load(claims.read_text())
    fields["tables"]["table4"] = {
        **fields["tables"]["table1"],
        "figures": {"loss": {"is": "test_loss", "at": "last", "better": "less"}},
        "printed": "method, loss\nraw, 0.1\nnoise-50, 2.5\n",
        "holds": [{"that": "raw < noise-50", "in": "loss"}],
    }
    claims.write_text(yaml.safe_dump(fields))
    load_papers.cache_clear()
    code, _, err = simsplit("reproduce", "tiny/table4", "--jobs", 1, "--seeds", 1)
    assert code == 0, err
    runs = measured.root / "runs" / "reproduce" / "tiny"
    made, shared = (
        {path.parent.name: path.read_bytes() for path in (runs / name).rglob("environment.json")}
        for name in ("table1.small", "table4.small")
    )
    assert len(shared) == 2
    assert made.items() >= shared.items()
    rows = read(measured.rows.with_name("table4.small.csv"))
    assert {(row.figure, row.seed) for row in rows} == {("loss", 1)}


def test_an_interrupted_run_of_an_older_version_starts_again(measured, simsplit):
    """Its checkpoint is of a scenario without the fields that came since."""
    whole = {row.key: row.value for row in read(measured.rows)}
    measured.rows.unlink()
    folder = next((measured.root / "runs").rglob("rounds.csv")).parent
    (folder / "summary.json").write_text(json.dumps({"status": "interrupted"}))
    write_checkpoint(folder / "checkpoints", "of another version")
    code, _, err = simsplit("reproduce", "tiny/table1", "--jobs", 1)
    assert code == 0, err
    assert {row.key: row.value for row in read(measured.rows)} == whole


def write_checkpoint(folder, identity):
    at = checkpoints.Progress(round=1)
    digest = checkpoints.compute_digest(identity)
    checkpoints.save(folder, {"a": torch.zeros(1)}, at, digest, keep=1)


def test_a_run_on_other_data_is_no_row_of_today(paper, simsplit):
    """Its folder is found again, and its figures are of the data that were there before."""
    draws = np.random.default_rng(0)
    for name in ("a", "b"):
        paint(paper.root / "faces" / name, draws)
    paper.write(sweep=merge(paper.SWEEP, OF_FACES))
    words = ("reproduce", "tiny/table1", "--jobs", 1, "--only", "method=raw", "--seeds", 0)
    code, _, err = simsplit(*words)
    assert code == 0, err
    (before,) = read(paper.rows)
    assert simsplit(*words)[0] == 0
    assert read(paper.rows) == [before]
    paint(paper.root / "faces" / "a", draws)
    code, _, err = simsplit(*words)
    assert code == 0, err
    (after,) = read(paper.rows)
    assert after.code != before.code
    assert len([*paper.root.rglob("*seed=*/environment.json")]) == 2


def test_a_figure_that_is_no_number_fails_its_cell(measured, simsplit, monkeypatch):
    """A perplexity of infinity, say, would end every command that reads the file."""
    measured.rows.unlink()
    monkeypatch.setattr(reading_runs, "measure", lambda _, at: {"test_accuracy": [math.nan]})
    words = ("reproduce", "tiny/table1", "--jobs", 1, "--seeds", 0, "--only", "method=raw")
    code, _, err = simsplit(*words)
    assert code == 1
    assert says(err, "figure 'accuracy' ... is nan")
    assert not measured.rows.exists()


def test_a_run_that_was_resumed_with_other_code_is_no_row(measured, simsplit):
    sweep = measured.root / "runs" / "reproduce" / "tiny" / "table1.small"
    for file in sweep.rglob("environment.json"):
        facts = json.loads(file.read_text())
        other = {name: facts[name] for name in ("started", "packages")} | {"commit": "0" * 40}
        file.write_text(json.dumps({**facts, "resumed": [other]}))
    measured.rows.unlink()
    code, _, err = simsplit("reproduce", "tiny/table1", "--from", sweep)
    assert code == 2
    assert says(err, f"commit ... {'0' * 40}")


def test_a_figure_that_no_run_has_fails_its_cells_and_says_which(paper, simsplit):
    paper.write(figures={"accuracy": {"is": "test_acuracy", "at": "last", "better": "more"}})
    code, _, err = simsplit("reproduce", "tiny/table1", "--jobs", 1)
    assert code == 1
    assert says(err, "4 cells failed")
    assert says(err, "test_acuracy ... did you mean 'test_accuracy'")
    assert not paper.rows.exists()


def test_a_row_names_every_kind_of_machine_that_trained_its_run(measured, simsplit):
    """A run can begin here and go on on a node of a cluster."""
    (here,) = {row.machine for row in read(measured.rows)}
    measured.rows.unlink()
    for place, file in enumerate(sorted((measured.root / "runs").rglob("environment.json"))):
        facts = json.loads(file.read_text())
        other = {**facts, "gpu": "H100"} if place == 0 else facts
        file.write_text(json.dumps({**facts, "resumed": [{"started": "before"}, other]}))
    assert simsplit("reproduce", "tiny/table1", "--jobs", 1)[0] == 0
    first, *others = [row.machine.split("; then ") for row in read(measured.rows)]
    assert first[0] == here
    assert ", H100, torch" in first[1]
    assert others == [[here]] * 3


def test_a_run_of_a_checkout_that_is_not_installed_has_its_version(monkeypatch):
    def lack(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr("simsplit.results.environment.version", lack)
    assert describe_environment(torch.device("cpu"))["packages"]["simsplit"] == simsplit_version


@pytest.mark.slow
def test_rows_are_written_as_cells_end(paper, simsplit, monkeypatch):
    """A cell that ends the command takes none of the rows before it down."""
    from simsplit.evidence import reproducing

    original, calls = reproducing.read_run, []

    def interrupt(run, cell, *others):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(cell.key)
        return original(run, cell, *others)

    monkeypatch.setattr(reproducing, "read_run", interrupt)
    code, _, err = simsplit("reproduce", "tiny/table1", "--jobs", 1)
    assert code == 130
    assert says(err, "go on with: simsplit reproduce tiny/table1")
    assert len(read(paper.rows)) == 2
    monkeypatch.setattr(reproducing, "read_run", original)
    assert simsplit("reproduce", "tiny/table1", "--jobs", 1)[0] == 0
    assert len(read(paper.rows)) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"sweep": {"train": {"batch_size": 32}}},
        {"figures": {"accuracy": {"is": "test_accuracy", "at": "best_on_test", "times": 100}}},
    ],
    ids=["scenario", "figure"],
)
def test_a_change_makes_rows_stale(measured, simsplit, changes):

    assert not table_here().stale
    if "sweep" in changes:
        changes = {"sweep": merge(measured.SWEEP, changes["sweep"])}
    measured.write(**changes)
    table = table_here()
    assert (len(table.stale), len(table.fresh), table.verdict) == (4, 0, ClaimVerdict.NOT_MEASURED)
    code, out, _ = simsplit("papers", "--stale", "--json")
    assert (code, [each["table"] for each in json.loads(out)]) == (0, ["tiny/table1.small"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"seed": 7}, {"threads": 2}, {"name": "other"}, {"checkpoint": {"every": 2}}]
)
def test_what_changes_no_figure_makes_nothing_stale(simsplit, measured, changes):

    measured.write(sweep=merge(measured.SWEEP, changes))
    assert (len(table_here().stale), len(table_here().fresh)) == (0, 4)
    code, out, _ = simsplit("papers", "--stale")
    assert (code, says(out, "stale")) == (0, True)


@pytest.mark.slow
def test_rows_are_taken_from_a_finished_sweep(paper, simsplit):
    sweep = load_sweep(paper.folder / "small" / "table1.yaml", {"name": "mine", "threads": "1"})
    run_sweep(sweep, "mine", jobs=1)
    code, _, err = simsplit("reproduce", "tiny/table1", "--from", "mine")
    assert (code, len(read(paper.rows))) == (0, 4), err
    assert not table_here().lacking
    before = paper.rows.read_bytes()
    assert simsplit("reproduce", "tiny/table1", "--from", "mine")[0] == 0
    assert paper.rows.read_bytes() == before
    other = load_sweep(paper.folder / "small" / "table1.yaml", {"train.batch_size": "8"})
    run_sweep(other, "other", jobs=1)
    code, _, err = simsplit("reproduce", "tiny/table1", "--from", "other")
    assert (code, paper.rows.read_bytes()) == (2, before)
    assert says(err, "none of its 4 finished runs")
    assert all(isinstance(run, Run) for _, run in find_runs(paper.root / "mine"))


@pytest.mark.slow
def test_a_check_measures_again_and_says_whether_it_agrees(measured, simsplit):
    before = measured.rows.read_bytes()
    code, out, err = simsplit("reproduce", "tiny/table1", "--check", 0.5, "--lot", 1, "--jobs", 1)
    assert (code, out.count("agrees")) == (0, 2), err
    assert measured.rows.read_bytes() == before
    forged = before.replace(b",accuracy,", b",accuracy,9")
    measured.rows.write_bytes(forged)
    code, out, _ = simsplit("reproduce", "tiny/table1", "--check", 0.5, "--lot", 1, "--jobs", 1)
    assert (code, out.count("DIFFERS")) == (1, 2)
    assert measured.rows.read_bytes() == forged


def test_a_check_keeps_to_its_budget_and_measures_nothing_when_dry(measured, simsplit):
    check = ("reproduce", "tiny/table1", "--check", 0.5, "--lot", 1, "--dry")
    assert simsplit(*check)[:2] == (0, "")
    minutes = sum(estimate(table_here()).values()) / 4
    code, out, err = simsplit(*check, "--budget", f"{minutes}m")
    assert (code, out) == (0, "")
    assert says(err, "1 cell more")


def test_a_budget_takes_what_fits_and_says_what_does_not(paper, simsplit):
    code, _, err = simsplit("reproduce", "--missing", "--budget", "4m", "--dry")
    assert code == 0
    assert says(err, "2 cells of 1 table")
    assert says(err, "2 cells more")
    assert not paper.rows.exists()


def test_open_verdicts_and_cheap_cells_come_first(paper):
    selection = select([table_here()])
    assert len(selection.cells) == 4
    assert selection.minutes == 8
    assert [len(selection.within(minutes, 1).cells) for minutes in (2, 5, 99)] == [1, 2, 4]
    assert len(selection.within(4, 2).cells) == 4
    with pytest.raises(RunError, match="cheapest"):
        selection.within(1, 1)


def test_minutes_are_those_that_such_a_machine_took_for_the_same_figures(measured):
    """A GPU's minutes, or those of a scenario with other figures, say nothing of a cell."""
    rows = read(measured.rows)
    gpu = rows[0].machine.replace(", torch", ", NVIDIA H200, torch")
    add(measured.rows, [replace(row, minutes=7.0) for row in rows])
    assert set(estimate(table_here()).values()) == {7.0}
    add(measured.rows, [replace(row, minutes=1.0, machine=gpu) for row in rows if row.seed == 0])
    assert set(estimate(table_here()).values()) == {7.0}
    assert set(estimate(table_here(), on_gpu=True).values()) == {1.0}
    add(measured.rows, [replace(row, minutes=1.0, machine=gpu) for row in rows])
    assert set(estimate(table_here()).values()) == {2.0}
    add(measured.rows, [replace(row, minutes=7.0, digest="another's") for row in rows])
    assert set(estimate(table_here()).values()) == {2.0}


REFUSED = {
    "an unknown table": (("papers", "tiny/tabel1"), "did you mean 'tiny/table1'?"),
    "a table without its paper": (("papers", "table1"), "did you mean tiny/table1?"),
    "an unknown paper": (("papers", "--paper", "tinny"), "did you mean 'tiny'?"),
    "a tier that it lacks": (("reproduce", "tiny/table1", "--tier", "full"), "it has: small"),
    "a table out of reach": (("reproduce", "tiny/table2"), "needs a GPU"),
    "a budget too small": (("reproduce", "tiny/table1", "--budget", "30s"), "2m or more"),
    "a budget that is none": (("reproduce", "tiny/table1", "--budget", "soon"), "1h30m"),
    "seeds that are none": (("reproduce", "tiny/table1", "--seeds", "x"), "0-2"),
    "an unknown axis": (("reproduce", "tiny/table1", "--only", "metod=raw"), "'method'"),
    "an unknown row": (("reproduce", "tiny/table1", "--only", "method=rav"), "'raw'"),
    "neither table nor --missing": (("reproduce",), "--missing"),
    "nothing to check": (("reproduce", "tiny/table1", "--check", "1"), "no measurement"),
    "no runs": (("reproduce", "tiny/table1", "--from", "nowhere"), "nowhere"),
}


@pytest.mark.parametrize(("words", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_a_sentence(paper, simsplit, words, reason):
    code, _, err = simsplit(*words)
    assert code == 2
    assert says(err, reason)
    assert not paper.rows.exists()


def test_data_that_are_not_at_hand_are_named(paper, simsplit):

    source = {"kind": "parquet", "path": "data/cifar10"}
    paper.write(sweep=merge(paper.SWEEP, {"data": {"source": source}}))
    code, _, err = simsplit("reproduce", "tiny/table1")
    assert code == 2
    assert says(err, "data/cifar10")
    assert says(err, "uoft-cs/cifar10")
    code, _, err = simsplit("reproduce", "--missing")
    assert code == 0
    assert says(err, "tiny/table1 is left out")


def test_where_data_lie_is_not_in_the_digest_but_which_they_are(paper):

    def digests(path):
        source = {"kind": "parquet", "path": path}
        paper.write(sweep=merge(paper.SWEEP, {"data": {"source": source}}))
        return {cell.digest for cell in table_here().cells}

    assert digests("data/cifar10") == digests("/elsewhere/cifar10")
    assert digests("data/cifar10").isdisjoint(digests("data/cifar100"))


def test_a_field_that_comes_later_changes_no_digest_while_all_is_as_before(paper, monkeypatch):
    from simsplit.evidence import digests

    known = digests.ADDED
    sweep = merge(paper.SWEEP, {"sweep": {"method": [[{"kind": "noise", "sigma": 50}]]}})
    paper.write(sweep=sweep)
    (cell, *_) = table_here().cells
    before = digests.digest_of(cell.base)
    monkeypatch.setattr(digests, "ADDED", {**known, "method.*.unit": "value"})
    later = digests.digest_of(cell.base)
    assert later != before  # rows of before there was the field have this one
    method = [{"kind": "noise", "sigma": 50, "unit": "batch_std"}]
    other = cell.base.model_copy(update={"method": method})
    assert digests.digest_of(other) != later
    monkeypatch.setattr(digests, "ADDED", {**known, "method.*.unit": "batch_std"})
    assert digests.digest_of(cell.base) == before


def test_two_writers_are_refused(paper, simsplit):
    with hold_alone(["tiny/table1.small"]):
        code, _, err = simsplit("reproduce", "tiny/table1")
    assert code == 2
    assert says(err, "tiny/table1.small")
    assert not paper.rows.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("accuracy,", "accuracy,x", 1), "line 2"),
        (lambda text: text + text.splitlines(keepends=True)[-1], "twice"),
        (lambda text: text.replace("setting,", "sting,", 1), "columns"),
    ],
    ids=["no number", "twice", "no header"],
)
def test_a_row_by_hand_that_is_none_is_refused_by_its_line(measured, simsplit, change, reason):
    broken = change(measured.rows.read_text())
    measured.rows.write_text(broken)
    for words in (("papers",), ("reproduce", "tiny/table1")):
        code, _, err = simsplit(*words)
        assert code == 2
        assert says(err, reason)
    assert measured.rows.read_text() == broken


@pytest.mark.slow
def test_a_row_by_hand_whose_digest_does_not_fit_counts_for_nothing(measured, simsplit):
    rows = read(measured.rows)
    text = measured.rows.read_text().replace(rows[0].digest, "0123456789abcdef")
    measured.rows.write_text(text)
    assert (len(table_here().stale), len(table_here().fresh)) == (2, 2)
    code, out, _ = simsplit("papers", "tiny/table1")
    assert code == 0
    assert says(out, "stale")


def test_durations_and_seeds():
    assert [parse_minutes(text) for text in ("2h", "90m", "1h30m", "30s")] == [120, 90, 90, 0.5]
    assert parse_seeds("0-2,5") == (0, 1, 2, 5)
    with pytest.raises(SimsplitError):
        parse_minutes("2 days")


class RayHere:
    """A cluster of one node, whose tasks run in this process when they are waited for."""

    exceptions = SimpleNamespace(RayTaskError=RuntimeError, RayError=RuntimeError)

    def __init__(self) -> None:
        self.tasks: dict[object, tuple[Any, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        self.most_at_once, self.left = 0, 99

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}}]

    def remote(self, function):
        return SimpleNamespace(
            options=lambda **asked: SimpleNamespace(
                remote=lambda **order: self._give_out(function, order, asked)
            )
        )

    def _give_out(self, function, order, asked):
        task = object()
        self.tasks[task] = function, order
        self.asked.append(asked)
        self.most_at_once = max(self.most_at_once, len(self.tasks))
        return task

    def wait(self, tasks, timeout):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return tasks[:1], tasks[1:]

    def get(self, task):
        function, order = self.tasks.pop(task)
        return function(**order)

    def cancel(self, task, *, force):
        del self.tasks[task]


@pytest.fixture
def ray_here(monkeypatch):
    made = RayHere()
    for module in ("simsplit.sweep.nodes", "simsplit.engine.cluster"):
        monkeypatch.setattr(f"{module}.import_module", lambda _: made)
    monkeypatch.setattr(Cluster, "join", lambda _: nullcontext())
    return made


@pytest.mark.slow
def test_cells_on_a_cluster_become_rows_as_they_come_home(paper, simsplit, ray_here):
    words = ("reproduce", "tiny/table1", "--cluster", "auto", "--gpus-per-cell", 0.5)
    ray_here.left = 2
    code, _, err = simsplit(*words, "--budget", "4m")
    assert code == 130
    assert says(err, "4 cells ... 2 at a time")
    assert (len(ray_here.asked), ray_here.most_at_once, ray_here.tasks) == (4, 2, {})
    assert {(each["num_cpus"], each["num_gpus"]) for each in ray_here.asked} == {(1, 0.5)}
    kept = read(paper.rows)
    assert len(kept) == 2
    ray_here.left = 99
    code, _, err = simsplit(*words)
    assert code == 0, err
    there = read(paper.rows)
    assert {row.key: row for row in there}.items() >= {row.key: row for row in kept}.items()
    saved = [yaml.safe_load(file.read_text()) for file in paper.root.rglob("scenario.yaml")]
    assert [each["device"] for each in saved] == ["auto"] * 4
    paper.rows.unlink()
    shutil.rmtree(paper.root / "runs")
    assert simsplit("reproduce", "tiny/table1", "--jobs", 1)[0] == 0
    assert [(row.key, row.value) for row in read(paper.rows)] == [
        (row.key, row.value) for row in there
    ]


@pytest.mark.parametrize(
    ("now", "agrees"),
    [(90.0, True), (90.1, True), (80.2, True), (85.0, True), (93.0, False), (71.0, False)],
)
def test_a_seed_far_from_the_mean_is_held_against_what_it_gave_before(now, agrees):
    # nine seeds lie near 79 and one at 90, which need not come nearer to the mean than it was
    seeds = {**{seed: 79 + 0.1 * seed for seed in range(9)}, 9: 90.0}
    known = Known(seeds)
    assert known.half_of_one_more < 90.0 - known.mean
    assert CheckedFigure(None, "accuracy", before=90.0, now=now, known=known).agrees is agrees


def test_seeds_drawn_anew_lie_where_one_more_seed_would():
    draws = np.random.default_rng(5).normal(0.0, 1.0, (4000, 14))
    inside = [
        abs(more - known.mean) <= known.half_of_one_more
        for *seeds, more in draws
        for known in [Known(dict(enumerate(seeds)))]
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)
