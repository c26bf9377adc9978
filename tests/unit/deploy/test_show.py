"""`show` prints what a deployed run's wire counted, and what really crossed."""

from pathlib import Path

from builders import TINY, run_to_end
from direct import Sites

from simsplit.report.run_tables import FRAMES_TITLE, show
from simsplit.results import Run
from simsplit.scenario import parse
from simsplit.scenario.files import merge

GIVEN = parse(merge(TINY, {"clients": {"count": 2}}))


def test_both_are_printed(tmp_path: Path) -> None:
    sites = Sites(GIVEN, tmp_path)
    made = sites.experiment()
    made.run(resume=False)
    (tmp_path / "socket.csv").rename(made.path / "socket.csv")
    (table,) = [each for each in show(Run.load(made.path)) if each.title == FRAMES_TITLE]
    rows = {row[:2]: row[2:] for row in table.rows}
    assert rows["Proceed", "features"][0] == "12"
    assert list(rows)[-1] == ("all", "")
    steps = [row for row in table.rows if row[0] == "Begin"]
    assert steps[0][4] == "12"


def test_a_simulated_run_has_no_such_table(tmp_path: Path) -> None:
    made = run_to_end(GIVEN, tmp_path / "run")
    assert FRAMES_TITLE not in [each.title for each in show(Run.load(made.path))]
