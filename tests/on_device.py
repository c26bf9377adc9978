"""Copies and waits of a training step on the pretended accelerator."""

from pathlib import Path

import pretend
from builders import run_to_end, scenario
from golden.cases import Values, merge_values

from simsplit.results import Run


def count_per_step(values: Values, folder: Path) -> dict[str, float]:
    """Count copies and waits of a training step, by the function of simsplit that makes them.

    Two runs of one round differ in their number of steps alone, so that what is done once a run or
    a round is not counted.
    """
    found = []
    for samples in (60, 120):
        given = scenario(
            **merge_values(BUDGETED, merge_values(values, {"data": {"train_samples": samples}}))
        )
        with pretend.counting() as made:
            ran = run_to_end(given, folder / str(samples))
        found.append((int(Run.load(ran.path).clients["steps"].sum()), made))
    (fewer, before), (more, after) = found
    places = sorted(before.keys() | after.keys())
    rates = {
        f"{what}, {place}": round((after[what, place] - before[what, place]) / (more - fewer), 2)
        for what, place in places
    }
    return {place: rate for place, rate in rates.items() if rate}


BUDGETED: Values = {
    "device": "auto",
    "clients": {"count": 2},
    "schedule": {"rounds": 1},
    "train": {"batch_size": 10},
}
