"""Recovered rows of numbers are scored beside a guess that needs no attack: the mean public row."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from simsplit.attacking.attack_judge import KindScores
from simsplit.attacking.input_scorer import InputScorer, find_nearest_others
from simsplit.attacks.attack import Guesses
from simsplit.data import Prepared
from simsplit.results.leak_table import ATTACK, FLOOR, ORIGINALS, list_leaks
from simsplit.results.recovered_files import ROWS
from simsplit.scenario import Scenario

MEAN = "mean_row"


class RowScorer(InputScorer):
    """The scorer of rows, by mean squared error; standardised columns have a variance of one."""

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        self.targets, self.data = scenario.aims, data

    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        del own
        samples, rows = self.targets.choose(self.data)
        truth = samples.inputs[rows].flatten(1)
        # Without public data it is the mean of the clients' rows, which no attacker could know.
        mean = (self.data.auxiliary or self.data.train).inputs.flatten(1).mean(0)
        made = {
            name: self.put_in_order(each, truth).cpu().flatten(1)
            for name, each in recovered.items()
        }
        made |= find_nearest_others(recovered, self.data.test.inputs.flatten(1), truth)
        made[MEAN] = mean.expand_as(truth)
        scores = KindScores(files={ROWS: _encode({ORIGINALS: truth, **made})})
        for name, guess in made.items():
            errors = (guess - truth).square().mean(1).tolist()
            role = ATTACK if name in recovered else FLOOR
            place = {"round": number, "kind": "rows", "attack": name, "role": role}
            for row, error in enumerate(errors):
                target = {"target": row, "label": int(samples.labels[rows[row]])}
                scores.rows += list_leaks({**place, **target}, {"mse": error})
        return scores


def _encode(rows: Mapping[str, Tensor]) -> bytes:
    """Encode rows by attack as CSV."""
    tables = [
        pd.DataFrame(values.numpy()).assign(attack=name, row=torch.arange(len(values)).numpy())
        for name, values in rows.items()
    ]
    return pd.concat(tables).to_csv(index=False).encode()
