"""A paper of its own for tests of evidence, in a folder without other claims or measurements."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from builders import TINY

from simsplit.evidence import evidence_tables, measurements, papers
from simsplit.scenario.files import dump, merge
from simsplit.scenario.shipped import CLAIMS

TABLE = {
    "title": "Table I",
    "says": "raw learns more than noise",
    "figures": {"accuracy": {"is": "test_accuracy", "at": "last", "times": 100, "unit": "%"}},
    "printed": "method, accuracy\nraw, 90.0\nnoise-50, 20.5\n",
    "measured": {"small": [{"scenario": "small/table1.yaml", "takes_min": 2}]},
    "holds": [{"that": "raw > noise-50", "in": "accuracy"}],
}
OTHERS = {
    "table2": {**TABLE, "title": "Table II", "measured": {}, "out_of_reach": "needs a GPU"},
    "table3": {
        "title": "Table III",
        "says": "lists symbols",
        "describes": "symbols",
    },
}
SWEEP = merge(
    TINY,
    {
        "name": "table1",
        "schedule": {"rounds": 1},
        "sweep": {"method": [[], [{"kind": "noise", "sigma": 50}]], "seed": [0, 1]},
    },
)


class Paper:
    """A paper with a table that takes a second, whose files a test may change."""

    SWEEP = SWEEP

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "shipped" / "papers" / "tiny"
        self.rows = root / "results" / "tiny" / "table1.small.csv"
        self.write()

    def write(self, *, sweep: object = SWEEP, **changes: object) -> None:
        claims = {
            "paper": "Tiny",
            "cites": "A",
            "tables": {"table1": {**TABLE, **changes}, **OTHERS},
        }
        (self.folder / "small").mkdir(parents=True, exist_ok=True)
        (self.folder / CLAIMS).write_text(yaml.safe_dump(claims), encoding="utf-8")
        (self.folder / "small" / "table1.yaml").write_text(dump(sweep), encoding="utf-8")
        papers.load_papers.cache_clear()


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Paper]:
    """The paper as the only one that ships, in a folder to work in."""
    monkeypatch.chdir(tmp_path)
    # no answer is kept that another test has printed, with other code
    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(papers, "find_folder", lambda: tmp_path / "shipped")
    monkeypatch.setattr(measurements, "find_shipped_results", lambda: tmp_path / "none")
    monkeypatch.setattr(evidence_tables, "find_shipped_results", lambda: tmp_path / "none")
    yield Paper(tmp_path)
    papers.load_papers.cache_clear()
