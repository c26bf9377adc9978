"""Runs that between them have everything that a page can show."""

import json

import pytest
import torch
from builders import run_to_end, scenario
from written_leaks import write_leaks

from simsplit.report.grouping import Entry
from simsplit.report.page import Subject, write_page
from simsplit.results import Run
from simsplit.results.recovered_files import IMAGES, TEXTS, encode_images, encode_lines


@pytest.fixture(scope="session")
def watched(tmp_path_factory):
    """A run in which a detector looked at five clients, of whom one is malicious."""
    path = tmp_path_factory.mktemp("page") / "watched"
    poison = [{"kind": "tamper", "how": "sign"}, {"kind": "badnets"}]
    given = scenario(
        name="watched",
        data={"validation": 0.2},
        clients={"count": 5, "malicious": {"fraction": 0.2, "poison": poison}},
        method=[{"kind": "lightsplit", "ratio": 8}],
        detectors=[{"kind": "cosine_mad"}, {"kind": "krum"}],
        schedule={"rounds": 3},
    )
    run_to_end(given, path)
    return Run.load(path)


@pytest.fixture
def with_images(variant):
    """A run whose images an attack recovered, by tables written by hand."""

    def make(name="images", seed=0, **fields):
        run = variant(name, {"seed": seed, **fields})
        rows = [
            {"round": 1, "attack": attack, "target": image, "mse": mse, "ssim": 0.5}
            for attack, mse in (("unsplit", 0.1), ("black", 0.4), ("mean_image", 0.3))
            for image in range(3)
        ]
        write_leaks(run.path, "images", rows)
        images = {name: torch.rand(3, 1, 8, 8) for name in ("originals", "unsplit", "mean_image")}
        IMAGES.save(run.path, 1, encode_images(images))
        return Run.load(run.path)

    return make


@pytest.fixture
def with_texts(variant):
    """A run whose texts an attack read; the private one may be anything."""

    def make(private="the cat sat on the mat", read="a cat sat on mat", name="texts", **fields):
        run = variant(name, fields)
        read_by = (("sip", 0.8), ("random_tokens", 0.1))
        place = {"round": 1, "target": 0}
        write_leaks(run.path, "texts", [{**place, "attack": a, "rouge_l": r} for a, r in read_by])
        row = {"text": 0, "message": 0, "rouge_l": 0.8, "private": private}
        rows = [{"attack": "sip", **row, "recovered": read}]
        TEXTS.save(run.path, 1, encode_lines(rows))
        return Run.load(run.path)

    return make


@pytest.fixture
def retold():
    """A run whose summary or environment says something else."""

    def make(run, file, **values):
        document = json.loads((run.path / file).read_text())
        (run.path / file).write_text(json.dumps(document | values))
        return Run.load(run.path)

    return make


@pytest.fixture
def page():
    def make(*runs):
        return write_page(Subject([Entry(run) for run in runs]))

    return make
