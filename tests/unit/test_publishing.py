"""`simsplit push` and `pull`: what goes out, and what is believed of what comes in."""

import csv
import json
import shutil
import sys
from types import ModuleType

import pytest
import torch
from builders import TINY

from simsplit import Run, compare, load_sweep, run, run_sweep
from simsplit.errors import RunError, SimsplitError
from simsplit.publishing import manifest, pull, push
from simsplit.publishing.manifest import is_publishable, write_manifest
from simsplit.report.input_tables import tabulate_texts
from simsplit.results.leak_table import COLUMNS
from simsplit.scenario.files import dump, merge
from simsplit.wires.facts import TranscriptFacts
from simsplit.wires.transcript_writer import TranscriptWriter

SMALL = {
    "name": "published",
    "data": {"train_samples": 40, "test_samples": 20},
    "clients": {"count": 2},
    "schedule": {"rounds": 1},
    "output": {"figures": False},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run(merge(TINY, SMALL), tmp_path_factory.mktemp("runs") / "made")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "s.yaml").write_text(dump(merge(TINY, {**SMALL, "sweep": {"seed": [0, 1]}})))
    return run_sweep(load_sweep(folder / "s.yaml"), folder / "swept", jobs=1).path


@pytest.fixture
def published(made, tmp_path):
    push(made.path, str(tmp_path / "there"))
    return tmp_path / "there"


def test_what_is_fetched_has_the_tables_that_were_published(made, published, tmp_path):
    fetched = Run.load(pull(str(published), tmp_path / "here"))
    assert fetched.rounds.equals(made.rounds)
    assert fetched.wire.equals(made.wire)
    assert fetched.summary == made.summary


def test_neither_weights_nor_the_session_are_published(made, published):
    assert (made.path / "checkpoints").is_dir()
    assert not list(published.rglob("*.safetensors"))
    environment = json.loads((published / "environment.json").read_text())
    assert {"process", "command", "resumed"}.isdisjoint(environment)
    assert "torch" in environment["packages"]


def test_a_run_with_recovered_texts_is_published_without_them(made, tmp_path):
    run = shutil.copytree(made.path, tmp_path / "run")
    leak = {"round": 1, "attack": "tag", "kind": "texts", "role": "attack"}
    leak |= {"target": 0, "view": "smashed", "metric": "rouge_l", "value": 0.5}
    with (run / "leaks.csv").open("w", encoding="utf-8") as leaks:
        rows = csv.DictWriter(leaks, COLUMNS, restval="")
        rows.writeheader()
        rows.writerow(leak)
    (run / "recovered").mkdir(exist_ok=True)
    text = {"text": 0, "attack": "tag", "private": "Anna is ill", "recovered": "Anna is"}
    (run / "recovered" / "round-000001.jsonl").write_text(json.dumps(text) + "\n")
    assert "Anna is ill" in str(tabulate_texts(Run.load(run)).rows)
    push(run, str(tmp_path / "there"))
    assert "Anna" not in "".join(file.read_text() for file in (tmp_path / "there").glob("*.*"))
    assert not tabulate_texts(Run.load(pull(str(tmp_path / "there"), tmp_path / "here"))).rows


def test_no_transcript_is_published(made, tmp_path):
    """It has what clients sent, and may have the truth."""
    shutil.copytree(made.path, tmp_path / "run")
    writer = TranscriptWriter(tmp_path / "run" / "wire", TranscriptFacts())
    writer.add("smashed", [torch.zeros(2, 3)], ids=[0, 1])
    writer.add_truth([0, 1], torch.ones(2, 3))
    writer.close()
    push(tmp_path / "run", str(tmp_path / "there"))
    assert (tmp_path / "there" / "rounds.csv").is_file()
    assert not (tmp_path / "there" / "wire").exists()


def test_a_published_scenario_does_not_say_whose_folder_its_data_lay_in(
    made, tmp_path, monkeypatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    with (copy / "scenario.yaml").open("a") as file:
        file.write(f"# data: {tmp_path}/home/ada/images\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "ada"))
    push(copy, str(tmp_path / "there"))
    for file in ("scenario.yaml", "README.md"):
        text = (tmp_path / "there" / file).read_text()
        assert "~/images" in text
        assert "ada" not in text
    pull(str(tmp_path / "there"), tmp_path / "here")


def test_no_more_is_left_out_than_a_home_folder(made, tmp_path, monkeypatch) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    with (copy / "scenario.yaml").open("a") as file:
        file.write("# data: /rootdata/images and /root/images\n")
    for number, (home, kept) in enumerate(
        {"/": "/rootdata/images and /root/", "/root": "/rootdata/images and ~/"}.items()
    ):
        monkeypatch.setenv("HOME", home)
        push(copy, str(tmp_path / f"there{number}"))
        assert kept in (tmp_path / f"there{number}" / "scenario.yaml").read_text()


def test_what_could_not_be_fetched_is_not_sent(made, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(manifest, "_MOST_FILES", 5)
    with pytest.raises(RunError, match="at most 5"):
        push(made.path, str(tmp_path / "there"))


def test_the_card_has_scenario_tables_and_commands(published):
    card = (published / "README.md").read_text()
    assert card.startswith("---\ntags:\n- simsplit\n")
    assert "| test accuracy |" in card
    assert "```yaml\nname: published" in card
    assert "simsplit pull FOLDER" in card


def test_a_sweep_is_published_with_its_cells(swept, tmp_path):
    push(swept, str(tmp_path / "there"))
    fetched = pull(str(tmp_path / "there"), tmp_path / "here")
    assert compare(fetched)["seeds"].tolist() == [2]
    assert "process" not in json.loads((fetched / "sweep.json").read_text())
    assert "A sweep of 2 runs" in (tmp_path / "there" / "README.md").read_text()


@pytest.mark.parametrize("secret", ["sEcReT-of-this-machine", "hf_" + "a" * 34])
def test_a_secret_ends_the_command_before_anything_is_sent(made, tmp_path, monkeypatch, secret):
    monkeypatch.setenv("WANDB_API_KEY", "sEcReT-of-this-machine")
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps({**summary, "note": secret}))
    with pytest.raises(RunError, match=r"summary\.json"):
        push(copy, str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def change_table(there):
    with (there / "rounds.csv").open("a") as file:
        file.write("2,train,1,1,1,1,2\n")


def drop_table(there):
    (there / "wire.csv").unlink()


def drop_manifest(there):
    (there / "manifest.json").unlink()


def climb(there):
    (there.parent / "outside.csv").write_text("a\n1\n")
    rename_in_manifest(there, "../outside.csv")


def name_pickle(there):
    (there / "weights.pkl").write_bytes(b"x")
    rename_in_manifest(there, "weights.pkl")


def rename_in_manifest(there, name):
    files = json.loads((there / "manifest.json").read_text())["files"]
    files[name] = files.pop("holdings.csv")
    (there / "manifest.json").write_text(json.dumps({"files": files}))


def break_shape(there):
    (there / "summary.json").write_text('{"status": 3}')
    write_manifest(there)


def break_cells(there):
    text = (there / "rounds.csv").read_text()
    (there / "rounds.csv").write_text(text.replace("train", "train,").replace("1,", "x,", 1))
    write_manifest(there)


HARMS = (change_table, drop_table, drop_manifest, climb, name_pickle, break_shape, break_cells)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_what_is_not_as_published_is_not_believed(published, tmp_path, harm):
    harm(published)
    with pytest.raises(RunError):
        pull(str(published), tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_files_that_the_manifest_does_not_list_stay_behind(published, tmp_path):
    (published / "notes.csv").write_text("a\n1\n")
    (published / "evil.py").write_text("raise SystemExit\n")
    fetched = pull(str(published), tmp_path / "here")
    assert not (fetched / "notes.csv").exists()
    assert not (fetched / "evil.py").exists()


@pytest.mark.parametrize(
    "name", ["a/../b.csv", "/b.csv", ".b.csv", "b.pkl", "a\\b.csv", "checkpoints/b.json", "b.pt"]
)
def test_names_that_no_run_has_are_refused(name):
    assert not is_publishable(name)


def test_nothing_is_overwritten(made, published, tmp_path):
    for act in (lambda: push(made.path, str(published)), lambda: pull(str(published), tmp_path)):
        with pytest.raises(RunError, match="exists already"):
            act()


def test_what_is_no_repository_is_asked_about(made):
    for name in ("published", "a/b/c", "https://huggingface.co/a/b"):
        with pytest.raises(SimsplitError, match="OWNER/NAME"):
            push(made.path, name)


class Hub:
    """Stands for the hub: keeps what is uploaded in a folder."""

    kept = None
    asked = None

    def create_repo(self, name, *, repo_type, private, exist_ok):
        self.asked.append((name, (repo_type, private, exist_ok)))

    def upload_folder(self, *, repo_id, repo_type, folder_path, commit_message, delete_patterns):
        shutil.copytree(folder_path, self.kept)

    def snapshot_download(self, name, *, repo_type, local_dir, allow_patterns):
        if name != "me/published":
            raise OSError("404 Client Error\nhf_token in a second line")
        shutil.copytree(self.kept, local_dir)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    fake = ModuleType("huggingface_hub")
    fake.HfApi = Hub
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.setattr(Hub, "kept", tmp_path / "hub")
    monkeypatch.setattr(Hub, "asked", [])
    return Hub


def test_the_hub_is_given_a_data_set_and_gives_it_back(made, hub, tmp_path):
    assert push(made.path, "me/published", private=True).endswith("/datasets/me/published")
    assert hub.asked == [("me/published", ("dataset", True, True))]
    fetched = Run.load(pull("me/published", tmp_path / "here"))
    assert fetched.rounds.equals(made.rounds)


def test_what_the_hub_refuses_is_one_line(hub, tmp_path):
    with pytest.raises(RunError, match="404 Client Error") as refused:
        pull("me/nothing", tmp_path / "here")
    assert "second line" not in str(refused.value)


def test_the_commands_say_where_it_is(made, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from simsplit.__main__ import app

    monkeypatch.chdir(tmp_path)
    pushed = CliRunner().invoke(app, ["push", str(made.path), "./there", "--json"])
    assert json.loads(pushed.stdout) == {"published": "there"}
    pulled = CliRunner().invoke(app, ["pull", "./there"])
    assert pulled.exit_code == 0
    assert (tmp_path / "runs" / "there" / "summary.json").is_file()
