"""Recovered rows of numbers are scored beside a guess that needs no attack: the mean public row."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from simsplit.attacking.input_scorer import InputScorer
from simsplit.attacking.judging import KindScores
from simsplit.attacks.attack import Guesses
from simsplit.data import Prepared
from simsplit.results.input_results import ORIGINALS
from simsplit.results.kept import ROWS
from simsplit.scenario import Scenario

COLUMNS = ("round", "attack", "row", "label", "mse")
MEAN = "mean_row"


class RowScorer(InputScorer):
    """The scorer of rows, by mean squared error; standardised columns have a variance of one."""

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        self.targets, self.data = scenario.aims, data

    @staticmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """Return the table's columns, which are the same for every scenario."""
        del scenario
        return COLUMNS

    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        """Return a line for each attack and row, and the rows."""
        del own
        samples, rows = self.targets.choose(self.data)
        truth = samples.inputs[rows].flatten(1)
        # Without public data it is the mean of the clients' rows, which no attacker could know.
        mean = (self.data.auxiliary or self.data.train).inputs.flatten(1).mean(0)
        made = {name: each.rows.cpu().flatten(1) for name, each in recovered.items()}
        made[MEAN] = mean.expand_as(truth)
        scores = KindScores(files={ROWS: _encode({ORIGINALS: truth, **made})})
        for name, guess in made.items():
            errors = (guess - truth).square().mean(1).tolist()
            for row, error in enumerate(errors):
                place = {"round": number, "attack": name, "row": row}
                label = int(samples.labels[rows[row]])
                scores.rows.append({**place, "label": label, "mse": error})
        return scores


def _encode(rows: Mapping[str, Tensor]) -> bytes:
    """Encode rows by attack as CSV."""
    tables = [
        pd.DataFrame(values.numpy()).assign(attack=name, row=torch.arange(len(values)).numpy())
        for name, values in rows.items()
    ]
    return pd.concat(tables).to_csv(index=False).encode()
