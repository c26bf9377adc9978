"""Audits of a stranger's PyTorch loop: a planted leak is read, and what says nothing is not."""

import json
from pathlib import Path

import pandas as pd
import pytest
from gists import says
from plain_wires import Constant, record_digits
from torch import nn

import simsplit
from simsplit.auditing.audits import Audit
from simsplit.results import Run
from simsplit.results.leak_table import CEILING
from simsplit.results.recovered_files import load_images

ATTACKS = ["ridge", "spectral", "norm", "kmeans"]


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wires")
    encoders = {"identity": nn.Identity, "constant": Constant}
    return {name: record_digits(folder / name, make) for name, make in encoders.items()}


@pytest.fixture(scope="module")
def audits(wires: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Audit]:
    out = tmp_path_factory.mktemp("audits")
    return {
        name: simsplit.audit(wire, out / name, attacks=ATTACKS, targets=40, budget=1e9)
        for name, wire in wires.items()
    }


def test_an_encoder_that_hides_nothing_is_read_to_the_pixel(audits: dict[str, Audit]) -> None:
    (ridge,) = [each for each in audits["identity"].findings if each.attack == "ridge"]
    assert (ridge.kind, ridge.metric, ridge.role) == ("images", "ssim", CEILING)
    assert ridge.low > 0.995
    assert ridge.is_above_guess
    assert ridge.floor < 0.6


def test_an_encoder_that_says_nothing_gives_the_guess(audits: dict[str, Audit]) -> None:
    made = audits["constant"]
    (ridge,) = [each for each in made.findings if each.attack == "ridge"]
    assert ridge.value == pytest.approx(ridge.floor, abs=0.01)
    assert not ridge.is_above_guess
    assert ridge in made.in_vain


def test_targets_are_no_known_inputs(wires: dict[str, Path], audits: dict[str, Audit]) -> None:
    """Of 160 samples, 40 are attacked, and the others are known to the upper bound."""
    facts = audits["identity"].facts
    assert (facts["samples"], facts["targets"], facts["pairs"]) == (160, 40, 120)
    originals = load_images(audits["identity"].run.path / "attacks/ridge")["originals"]
    assert originals.shape == (40, 1, 12, 12)


def test_an_audit_is_a_run_directory_like_any_other(audits: dict[str, Audit]) -> None:
    run = Run.load(audits["identity"].run.path)
    assert run.summary["status"] == "finished"
    sent = run.wire.set_index("leg")
    assert sent.loc["smashed", "packets"] == 8
    assert sent.loc["smashed", "bytes"] == 160 * 144 * 4
    assert {"ridge", "spectral", "norm", "kmeans"} >= {*run.leaks["attack"]} - {
        *("black", "mean_image", "majority", "chance"),
    }
    kept = json.loads((run.path / "audit.json").read_text())
    assert kept["verdict"] == audits["identity"].verdict
    assert (run.path / "figures/best-and-worst.png").stat().st_size > 1000


def test_figures_are_the_same_each_time(wires: dict[str, Path], tmp_path: Path) -> None:
    tables = []
    for name in ("one", "two"):
        made = simsplit.audit(wires["identity"], tmp_path / name, attacks=["ridge"], targets=40)
        tables.append(made.table.drop(columns=["sentence"]))
    pd.testing.assert_frame_equal(*tables)


def test_a_reader_of_runs_shows_compares_and_reports_it(simsplit, audits) -> None:  # type: ignore[no-untyped-def]
    path = audits["identity"].run.path
    for command in ("show", "compare", "report"):
        code, out, err = simsplit(command, path)
        assert code == 0, err
        assert "ridge" in out or command == "report"


def test_exit_codes_of_the_command(simsplit, wires, tmp_path) -> None:  # type: ignore[no-untyped-def]
    words = ("audit", wires["constant"], "--targets", 40, "--attack", "kmeans", "-q")
    assert simsplit(*words, "--out", tmp_path / "a")[0] == 0
    code, out, err = simsplit(
        *("audit", wires["identity"], "--targets", 40, "--attack", "kmeans", "--json"),
        *("--out", tmp_path / "b", "--fail-above", 0, "--html", tmp_path / "page.html"),
    )
    assert code == 3
    assert json.loads(out)["share"] > 0
    assert "--fail-above" in err
    assert "<h2" in (tmp_path / "page.html").read_text()
    spent = ("--budget", "0.001s", "--fail-above", 0.9, "--out", tmp_path / "c")
    code, _, err = simsplit("audit", wires["identity"], *spent)
    assert (code, says(err, "no attack ... end")) == (3, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--attack", "rigde"), "ridge"),
        (("--attack", "sip"), "images"),
        (("--attack", "unsplit"), "unsplit"),
        (("--knows", "modle=x"), "model"),
        (("--knows", "model"), "NAME=VALUE"),
        (("--knows", "pairs=many"), "many"),
        (("--client", "7"), "--client"),
        (("--public", "nowhere"), "--public"),
        (("--budget", "soon"), "--budget"),
        (("--html", "page.pdf"), ".html"),
    ],
)
def test_mistakes_are_named(simsplit, wires, tmp_path, words, named) -> None:  # type: ignore[no-untyped-def]
    out = ("--out", tmp_path / "out")
    code, _, err = simsplit("audit", wires["identity"], *out, *words)
    assert code == 2, err
    assert named in err
    assert not (tmp_path / "out").exists(), "a mistake leaves nothing behind"


def test_the_audited_wire_is_refused_as_known_inputs(simsplit, wires, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """An attack would learn from what it is to read, and read all of it."""
    wire = wires["identity"]
    knows = ("--knows", f"pairs={wire / '..' / wire.name}")
    code, _, err = simsplit("audit", wire, "--out", tmp_path / "out", *knows)
    assert code == 2, err
    assert "--knows: pairs" in err


def test_a_folder_that_is_none_is_named(simsplit, tmp_path) -> None:  # type: ignore[no-untyped-def]
    code, _, err = simsplit("audit", tmp_path / "nothing")
    assert code == 2
    assert "nothing" in err
