"""Shipped scenarios by name, and files that start from them."""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from commands import Command
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from simsplit.__main__ import app
from simsplit.errors import ScenarioError, SimsplitError
from simsplit.pretrain.pretraining import FACTS
from simsplit.pretrain.tiers import DRAWS
from simsplit.scenario import load_scenario, load_sweep
from simsplit.scenario.files import read
from simsplit.scenario.schema import SCHEMA_FILE, start_file
from simsplit.scenario.shipped import describe, describe_all, find_folder, list_names, locate


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_shipped_scenario_is_loaded_by_name(empty: Path) -> None:
    del empty
    expected = load_scenario(find_folder() / "quickstart.yaml")
    for name in ("quickstart", "quickstart.yaml", "scenarios/quickstart.yaml"):
        assert load_scenario(name) == expected
    assert len(load_sweep("papers/mixguard/small/sst2").cells) == 18  # and what it extends


def test_a_file_in_the_folder_comes_first(empty: Path) -> None:
    (empty / "quickstart").write_text("{name: own}")
    assert load_scenario("quickstart").name == "own"


def test_extends_takes_shipped_ones_too(empty: Path) -> None:
    (empty / "mine.yaml").write_text("{extends: quickstart, seed: 5}")
    mine = load_scenario("mine.yaml")
    assert mine.seed == 5
    assert mine.schedule == load_scenario("quickstart").schedule
    (empty / "other.yaml").write_text("extends: quikstart")
    with pytest.raises(ScenarioError, match="'quickstart'"):
        load_scenario("other.yaml")


def test_a_misspelt_name_is_refused_with_what_is_near(empty: Path) -> None:
    del empty
    with pytest.raises(ScenarioError, match="'quickstart'"):
        load_scenario("quikstart")
    with pytest.raises(ScenarioError, match="simsplit list scenarios"):
        load_scenario("xyzzy")


def test_no_name_leads_out_of_the_folder(empty: Path) -> None:
    del empty
    assert locate(Path("../pyproject.toml")) == Path("../pyproject.toml")
    assert locate(Path("papers/../../README")) == Path("papers/../../README")


def test_every_scenario_says_what_it_shows() -> None:
    shown = {each.name: each for each in describe_all()}
    assert list(shown) == list_names()
    assert not [name for name, each in shown.items() if len(each.shows) < 10]
    missing = [name for name, each in shown.items() if "/" not in name and not each.takes]
    assert not missing, "at the top each says how long it takes"


def test_a_comment_is_read_as_prose() -> None:
    text = "# Ten clients, e.g. phones. More.\n#   simsplit run x\n# Takes 5 min on two cores.\n"
    assert describe("x", text)[1:] == ("Ten clients, e.g. phones.", "5 min on two cores")


@pytest.mark.parametrize("source", ["quickstart", "papers/mixguard/small/sst2", "backdoor"])
def test_a_new_file_is_its_source_under_another_name(empty: Path, source: str) -> None:
    file = start_file("mine", source, empty)
    values, original = read(file, {}), read(Path(source), {})
    assert values | {"name": 0} == original | {"name": 0}
    assert values["name"] == "mine"
    first, *rest = file.read_text().splitlines()
    assert first == f"# yaml-language-server: $schema={SCHEMA_FILE}"
    assert not [line for line in rest if "simsplit run scenarios/" in line]
    schema = json.loads((empty / SCHEMA_FILE).read_text())
    Draft202012Validator(schema).validate(yaml.safe_load(file.read_text()))
    with pytest.raises(SimsplitError, match="exists already"):
        start_file("mine", source, empty)


def test_new_refuses_what_is_no_name(empty: Path) -> None:
    with pytest.raises(SimsplitError, match="as a name"):
        start_file("../mine", "quickstart", empty)
    with pytest.raises(ScenarioError, match="'quickstart'"):
        start_file("mine", "quickstrt", empty)


def test_the_command_tells_what_to_do_next(empty: Path) -> None:
    describe_all = CliRunner().invoke(app, ["new", "mine"])
    assert describe_all.exit_code == 0
    assert "simsplit validate mine.yaml" in describe_all.output
    assert (empty / "mine.yaml").is_file()


@pytest.mark.slow
def test_a_wheel_carries_them(tmp_path: Path) -> None:
    """Built and unpacked in an empty folder, away from any checkout."""
    root = Path(__file__).parents[2]
    built = Command(tmp_path, ("pip", "wheel", "--no-deps", "--no-build-isolation", "-q"))
    code, _, err = built.run(str(root), "-w", str(tmp_path))
    if "hatchling" in err:
        pytest.skip("hatchling is not installed, which builds the wheel")
    assert code == 0, err
    (wheel,) = tmp_path.glob("simsplit-*.whl")
    for tier, draws in DRAWS.items():
        for draw in range(draws):
            folder = f"simsplit/pretrain/models/{tier}-{draw}"
            listed = {Path(name).name for name in ZipFile(wheel).namelist() if folder in name}
            assert {"config.json", "model.safetensors", FACTS, "tokenizer.json"} < listed
    assert wheel.stat().st_size < 16 * 2**20
    (tmp_path / "site").mkdir()
    Command(tmp_path / "site", ("zipfile", "-e")).run(str(wheel), ".")
    (tmp_path / "file").touch()
    where = {"PYTHONPATH": str(tmp_path / "site"), "SIMSPLIT_CACHE": str(tmp_path / "file")}
    run = Command(tmp_path, environment=where).run
    code, _, err = run("quickstart", "--set", "schedule.rounds=1", "--out", "first", "-q")
    assert code == 0, err
    assert (tmp_path / "first" / "summary.json").is_file()
    small = ("--set", "model.name=simsplit/ci", "--set", "model.head=1", "--set", "model.tail=1")
    small += ("--set", "attacks=[]", "--set", "schedule.rounds=0", "--set", "method=[]")
    code, _, err = run("mixguard", *small, "--out", "second", "-q")
    assert code == 0, err  # with a cache that cannot be written
    papers = Command(tmp_path, ("simsplit",), environment={"PYTHONPATH": str(tmp_path / "site")})
    code, out, err = papers.run("papers", "lightsplit/table9", "--json")
    assert code == 0, err
    assert json.loads(out)[0]["seeds"] >= 1


P3EFT = {  # its Tables 5 and 6: powers of the root of ten, for P3EFT and for distance correlation
    "deberta-sst2": (1, 0),
    "deberta-qnli": (1, -1),
    "deberta-mnli": (1, None),
    "t5-sst2": (-1, 2),
    "t5-qnli": (1, -1),
    "t5-mnli": (1, 0),
    "llama-sst2": (0, -1),
    "llama-qnli": (0, -1),
}


@pytest.mark.parametrize(("name", "powers"), P3EFT.items())
def test_p3efts_strengths_are_the_papers(name: str, powers: tuple[int, int | None]) -> None:
    cells = load_sweep(f"papers/p3eft/{name}", {"sweep.grid": "{seed: [0]}"}).cells
    alphas = {cell.name.partition(",")[2]: cell.scenario.method for cell in cells}
    alphas = {row: method[0].alpha for row, method in alphas.items() if method}
    p3eft, correlation = powers
    assert alphas["p3eft"] == alphas["regulariser-alone"] == pytest.approx(10 ** (p3eft / 2), 1e-3)
    assert alphas["mixing-alone"] == 0
    if correlation is None:
        assert "dc" not in alphas
    else:
        assert alphas["dc"] == pytest.approx(10 ** (correlation / 2), 1e-3)
