"""What changes the digest of a part, and what does not, on a package of a few lines."""

import subprocess
import sys

import pytest

from simsplit.attacks import ATTACKS
from simsplit.detectors import DETECTORS
from simsplit.evidence import code_sources
from simsplit.evidence.code_definitions import ModuleCode, read_module
from simsplit.evidence.code_graph import CENTRE, READING, CodeGraph, room_of
from simsplit.evidence.row_code import list_parts
from simsplit.methods import METHODS
from simsplit.models import MODELS
from simsplit.poisons import POISONS

SOURCES = {
    "simsplit": "",
    "simsplit.config": "class Config:\n    pass\n",
    "simsplit.experiment": (
        "from simsplit.attacks import ATTACKS\n"
        "from simsplit.report import draw\n"
        "from simsplit.wire import carry\n"
        "def run(scenario):\n"
        "    for each in scenario.attacks:\n"
        "        carry(ATTACKS[each])\n"
        "    draw()\n"
    ),
    "simsplit.wire": "def carry(packet):\n    return packet * 1\n\ndef unused():\n    return 1\n",
    "simsplit.report": "def draw():\n    return 'red'\n",
    "simsplit.report.numbers": (
        "from simsplit.report.halves import halve\n"
        "def measure(runs):\n"
        "    return [halve(run.value) for run in runs]\n"
    ),
    "simsplit.report.halves": "def halve(value):\n    return value / 2\n",
    "simsplit.results.run": "class Run:\n    value = 3\n",
    "simsplit.attacking": "",
    "simsplit.detection": "",
    "simsplit.attacks": (
        "from simsplit.attacks.near import NearConfig\n"
        "from simsplit.attacks.far import FarConfig\n"
        "ATTACKS = {'near': NearConfig, 'far': FarConfig}\n"
    ),
    "simsplit.attacks.start": "START = 0.5\n\ndef begin():\n    return START\n",
    "simsplit.attacks.near": (
        "from typing import Literal\n"
        "from simsplit.attacks.start import begin\n"
        "from simsplit.config import Config\n"
        "class NearConfig(Config):\n"
        "    '''An attack.'''\n"
        "    kind: Literal['near'] = 'near'\n"
        "    steps: int = 10\n"
        "    def read(self, image):\n"
        "        # the image starts in the middle\n"
        "        if image is None:\n"
        "            raise ValueError('no image')\n"
        "        return begin() + image\n"
    ),
    "simsplit.attacks.far": (
        "from typing import Literal\n"
        "from simsplit.config import Config\n"
        "class FarConfig(Config):\n"
        "    kind: Literal['far'] = 'far'\n"
        "    def read(self, image):\n"
        "        return image\n"
    ),
}
NEAR, FAR = "attacks.near", "attacks.far"


def read(sources):
    return CodeGraph(frozenset(sources), lambda name: read_module(sources[name].encode()))


def find_changed(sources):
    """Return which digests differ from those of the sources above."""
    before, now = read(SOURCES), read(sources)
    return {
        part
        for part in (CENTRE, READING, NEAR, FAR)
        if before.digest_part(part) != now.digest_part(part)
    }


def edit(module, old, new):
    assert old in SOURCES[module]
    return {**SOURCES, module: SOURCES[module].replace(old, new)}


@pytest.mark.parametrize(
    ("module", "old", "new", "changed"),
    [
        ("attacks.start", "0.5", "0.4", {NEAR}),
        ("attacks.near", "+ image", "- image", {NEAR}),
        ("attacks.far", "return image", "return -image", {FAR}),
        ("wire", "* 1", "* 2", {CENTRE}),
        ("attacks.near", "middle", "corner", set()),
        ("attacks.near", "An attack", "The attack", set()),
        ("attacks.near", "image):", "image: float) -> float:", set()),
        ("attacks.near", "no image", "there is no image", set()),
        ("attacks.near", "steps: int = 10", "steps: int = 20", set()),  # the scenario has it
        ("report", "red", "blue", set()),
        ("report.halves", "/ 2", "/ 3", {READING}),
        ("results.run", "3", "4", {READING}),
        ("wire", "return 1\n", "return 2\n", set()),
    ],
)
def test_only_what_a_run_does_counts(module, old, new, changed):
    assert find_changed(edit(f"simsplit.{module}", old, new)) == changed


def test_another_attack_changes_nothing():
    other = SOURCES["simsplit.attacks.far"].replace("far", "new").replace("Far", "New")
    listed = SOURCES["simsplit.attacks"].replace("'far': FarConfig", "'far': FarConfig, 'new': N")
    sources = {
        **SOURCES,
        "simsplit.attacks.new": other,
        "simsplit.attacks": f"from simsplit.attacks.new import NewConfig as N\n{listed}",
    }
    assert find_changed(sources) == set()
    assert ("attacks", "new") in read(sources).parts


def test_code_that_moves_changes_nothing_but_another_function_of_that_name_does():
    moved = dict(SOURCES)
    moved["simsplit.attacks.openings"] = moved.pop("simsplit.attacks.start")
    near = moved["simsplit.attacks.near"]
    moved["simsplit.attacks.near"] = near.replace("attacks.start", "attacks.openings")
    assert find_changed(moved) == set()
    swapped = {**moved, "simsplit.attacks.start": "def begin():\n    return 0.1\n"}
    assert find_changed({**swapped, "simsplit.attacks.near": near}) == {NEAR}


def test_a_class_that_the_centre_asks_for_is_no_part_of_it():
    asks = SOURCES["simsplit.experiment"].replace(
        "    draw()\n", "    return isinstance(scenario, FarConfig)\n"
    )
    sources = {
        **SOURCES,
        "simsplit.experiment": f"from simsplit.attacks.far import FarConfig\n{asks}",
    }
    before = read(sources)
    later = read(
        {
            **sources,
            "simsplit.attacks.far": edit("simsplit.attacks.far", "return image", "return -image")[
                "simsplit.attacks.far"
            ],
        }
    )
    assert before.digest_part(CENTRE) == later.digest_part(CENTRE)
    assert before.digest_part(FAR) != later.digest_part(FAR)


def test_each_shipped_kind_is_a_part_with_code_of_its_own():
    graph = code_sources.read_package()
    for room, kinds in {
        "attacks": ATTACKS,
        "methods": METHODS,
        "detectors": DETECTORS,
        "poisons": POISONS,
        "models": MODELS,
    }.items():
        for kind in kinds:
            assert graph.parts[room, kind] in graph.reach(f"{room}.{kind}")


def test_the_centre_has_what_trains_and_nothing_that_shows():
    reached = code_sources.read_package().reach(CENTRE)
    names = {f"{module.removeprefix('simsplit.')}.{name}" for module, name in reached}
    assert {
        "schedules.exchange.Exchange",
        "parties.optimizers.AdamConfig",
        "parties.server.Server",
        "scenario.model.Scenario",
        "wire.Wire",
    } <= names
    rooms = {room_of(module) for module, _ in reached}
    assert rooms.isdisjoint({"report", "terminal", "commands", "forecasting", "attacking"})


def test_a_scenario_names_its_parts():
    values = {
        "attacks": [{"kind": "sdar"}],
        "method": [{"kind": "noise"}],
        "data": {"source": {"kind": "digits"}},
        "topology": "u_shaped",
        "detectors": [],
    }
    assert list_parts(values, code_sources.read_package()) == (
        "attacking",
        "attacks.sdar",
        "centre",
        "data.digits",
        "methods.noise",
        "reading",
        "topologies.u_shaped",
    )


def test_digests_are_made_without_torch():
    program = (
        "import sys; from simsplit.evidence import code_sources as c;"
        "c.read_package().digest_part('centre'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_changed_file_is_parsed_again(tmp_path):
    file, kept = tmp_path / "part.py", tmp_path / "cache" / "code"
    file.write_text("X = 1\n")

    def open_cache(make=lambda path: read_module(path.read_bytes())):
        return code_sources.KeptFiles(kept, ModuleCode, make)

    modules = open_cache()
    before = modules.read(file)
    modules.write()
    assert open_cache(None).read(file) == before
    file.write_text("X = 22\n")
    assert open_cache().read(file) != before
    kept.write_text("no json")
    assert open_cache().read(file) != before
