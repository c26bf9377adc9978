"""Short runs' losses and bytes, as they were: a change to one needs a line in CHANGELOG.md.

To write the files anew: `python -m pytest tests/golden --golden`.
"""

from pathlib import Path
from typing import Any

import pytest
from builders import run_to_end, scenario

from simsplit.results import Run

HERE = Path(__file__).parent
CASES: dict[str, dict[str, Any]] = {
    "raw": {},
    "lightsplit-f-wcc": {"method": [{"kind": "lightsplit", "ratio": 8}, {"kind": "wcc"}]},
    "lightsplit-l-per-client": {
        "method": [{"kind": "lightsplit", "ratio": 16, "lift": "learned", "hidden": 32}],
        "clients": {"heads": "per_client"},
    },
    "hadamard-int8": {
        "method": [
            {"kind": "lightsplit", "ratio": 8, "projection": "hadamard"},
            {"kind": "cast", "to": "int8"},
        ]
    },
    "learned1x1-vanilla": {"method": [{"kind": "learned1x1"}], "topology": "vanilla"},
}


def lines(path: Path) -> list[str]:
    """Return a line for each round: loss, test accuracy, bytes by direction."""
    rounds = Run.load(path).rounds
    return [
        f"round {row.round}  loss {row.train_loss:.6f}  accuracy {row.test_accuracy:.4f}  "
        f"up {row.bytes_up}  down {row.bytes_down}"
        for row in rounds.itertuples()
    ]


def parse_line(line: str) -> dict[str, float]:
    words = line.split()
    return dict(zip(words[::2], map(float, words[1::2]), strict=True))


@pytest.mark.always
@pytest.mark.parametrize("case", CASES)
def test_short_runs_are_what_they_were(case: str, tmp_path: Path, request: Any) -> None:
    run_to_end(scenario(**CASES[case]), tmp_path / "run")
    now = lines(tmp_path / "run")
    file = HERE / f"{case}.txt"
    if request.config.getoption("--golden"):
        file.write_text("\n".join(now) + "\n")
    before = file.read_text().splitlines()
    assert len(now) == len(before)
    for new, old in zip(map(parse_line, now), map(parse_line, before), strict=True):
        assert (new["up"], new["down"]) == (old["up"], old["down"])
        # processors differ in the last bits of a sum, and training carries them on
        assert new["loss"] == pytest.approx(old["loss"], rel=1e-3)
        assert new["accuracy"] == pytest.approx(old["accuracy"], abs=0.051)
