import json
import threading
import time

import pytest
import torch
from filelock import FileLock
from gists import says

from simsplit import caching, load_sweep, run, run_sweep
from simsplit.errors import RunError, SimsplitError
from simsplit.machine import pin_threads
from simsplit.pretrain import cache, fetch_pretrained
from simsplit.pretrain.tiers import change_tier, find_named
from simsplit.progress import SweepObserver

CI = find_named("ci@7")
"""A small model that does not ship."""
WITH_CI = {
    "model": {"kind": "causal_lm", "name": "simsplit/ci@7", "head": 1, "tail": 1},
    "data": {"source": "python_docs"},
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def trainings(monkeypatch):
    """Counts trainings, which take a moment and do nothing."""
    begun = []

    def pretend(config, out, watch, device):
        begun.append(config)
        time.sleep(0.3)
        out.mkdir()
        (out / "pretraining.json").touch()

    monkeypatch.setattr(cache, "pretrain", pretend)
    return begun


def test_a_model_is_trained_once_and_kept(tiny, place):
    lines = []
    folder = fetch_pretrained(tiny, lines.append)
    assert folder.parent == place
    assert folder.name.startswith("own-")
    assert str(folder.parent) in lines[0]
    assert len(lines) == 3
    assert lines[-1].startswith("step 20/20  loss ")
    assert fetch_pretrained(tiny, lines.append) == folder
    assert len(lines) == 3


def test_another_config_or_text_is_another_model(tiny, tmp_path):
    first = cache.find_cached(tiny)
    assert cache.find_cached(tiny.model_copy(update={"steps": 21})) != first
    copied, other = tmp_path / "copied.txt", tmp_path / "other.txt"
    copied.write_bytes(tiny.text.read_bytes())
    other.write_text("something else")
    assert cache.find_cached(tiny.model_copy(update={"text": copied})) == first
    assert cache.find_cached(tiny.model_copy(update={"text": other})) != first


def test_a_tier_goes_by_its_name(trainings):
    lines = []
    folder = fetch_pretrained("ci@7", lines.append)
    assert folder.name.startswith("ci-")
    assert fetch_pretrained(CI, lines.append) == folder
    assert trainings == [CI]


def test_a_model_is_pretrained_with_all_threads_of_a_pinned_run(monkeypatch):
    def pretend(config, out, watch, device):
        raise RunError(f"{torch.get_num_threads()} threads")

    monkeypatch.setattr(cache, "pretrain", pretend)
    monkeypatch.setattr(cache, "ALL_THREADS", 3)
    with pin_threads(1), pytest.raises(RunError, match="3 threads"):
        fetch_pretrained("ci@7", lambda line: None)
    with pin_threads(1), pytest.raises(RunError, match="3 threads"):
        run(WITH_CI)


def test_a_sweep_makes_its_model_before_its_cells_begin(trainings, tmp_path, capsys):
    class Watch(SweepObserver):
        def begin(self, path, cells, jobs):
            assert trainings == [CI]
            assert "ci-" in capsys.readouterr().err
            raise KeyboardInterrupt

    file = tmp_path / "two.yaml"
    file.write_text(json.dumps({**WITH_CI, "sweep": {"seed": [0, 1]}}))
    with pytest.raises(KeyboardInterrupt):
        run_sweep(load_sweep(file), tmp_path / "out", jobs=2, watch=Watch())


def test_of_two_that_want_it_at_once_one_trains(tiny, trainings):
    lines, got = [], []
    both = [
        threading.Thread(target=lambda: got.append(fetch_pretrained(tiny, lines.append)))
        for _ in "ab"
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert got[0] == got[1]
    assert len(trainings) == 1
    assert any("waiting" in line for line in lines)


def test_the_lock_of_a_process_that_died_stops_nobody(tiny, place, trainings):
    place.mkdir(parents=True)
    lock = FileLock(place / f"{cache.find_cached(tiny).name}.lock")
    lock.acquire()
    lock.release()
    (place / f"{cache.find_cached(tiny).name}.lock").touch()
    assert fetch_pretrained(tiny, lambda line: None).is_dir()


def test_a_failed_training_leaves_room_for_the_next(tiny, monkeypatch, trainings):
    def fail(config, out, watch, device):
        raise RunError("no")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "pretrain", fail)
        with pytest.raises(RunError):
            fetch_pretrained(tiny, lambda line: None)
    assert fetch_pretrained(tiny, lambda line: None).is_dir()


def test_progress_goes_to_stderr_by_default(tiny, trainings, capsys):
    fetch_pretrained(tiny)
    output = capsys.readouterr()
    assert output.out == ""
    assert "pretrained" in output.err


def test_a_cache_that_cannot_be_written_says_what_to_do(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match=r"SIMSPLIT_CACHE.*folder"):
        fetch_pretrained(tiny, lambda line: None)


def test_without_the_variable_it_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("SIMSPLIT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert caching.get_cache_folder() == tmp_path / ".cache" / "simsplit"


def test_an_unknown_tier_is_named():
    with pytest.raises(SimsplitError, match=r"'dmo'.*'demo'"):
        fetch_pretrained("dmo", lambda line: None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": 0}, "--steps: ... 1 ... 0"),
        ({"batch_size": 0}, "--batch-size: ... 1 ... 0"),
        ({"vocabulary": 100}, "--vocabulary: ... 259"),
        ({"lr": 1.0}, "--lr: ... 1 ... 1.0"),
        ({"width": 100, "heads": 3}, "width 100 ... 3 heads"),
        ({"length": 600}, "length 600 ... 512"),
    ],
)
def test_fields_that_do_not_fit_are_named(changes, reason):
    with pytest.raises(SimsplitError) as caught:
        change_tier("demo", changes)
    assert says(str(caught.value), reason)
