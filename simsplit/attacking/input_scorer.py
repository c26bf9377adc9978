"""A scorer compares recovered inputs of one kind of data with the truth, for the judge.

Images are scored beside two guesses that need no attack, a black image and the mean of the
auxiliary images, and rows of numbers beside the mean row. Without auxiliary data it is the mean of
the clients' own, which no attacker could know.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from simsplit.attacking.attack_judge import KindScores
from simsplit.attacks.attack import Guesses
from simsplit.data import Prepared
from simsplit.metrics.image_scores import load_lpips, score_images
from simsplit.results.leak_table import ATTACK, FLOOR, ORIGINALS, Row, list_leaks
from simsplit.results.recovered_files import IMAGES, ROWS, encode_images
from simsplit.scenario import Scenario

NEAREST = "nearest_other"
"""The floor of attacks with candidates in no order: the nearest of as many held-out samples."""
LABEL_ACCURACY = "label_accuracy"
"""1 if the attack names the image's class, else 0; for attacks that simulate a client."""


class InputScorer(ABC):
    """Base class of scorers, which compare recovered inputs with the targets."""

    kind: ClassVar[str]
    """The kind of its rows in the table of leaks."""

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        """Take from a scenario which samples are targets, and how they are scored."""
        self.targets, self.data = scenario.aims, data

    @abstractmethod
    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        """Return the scores of a round; `own` masks the targets' own tokens, batch by batch."""

    def list_rows(
        self,
        number: int,
        name: str,
        figures: Iterable[tuple[int, Mapping[str, object]]],
        *,
        floor: bool,
    ) -> Iterator[Row]:
        """Yield the rows of an attack or a floor, by the label and the figures of each target."""
        role = FLOOR if floor else ATTACK
        place = {"round": number, "kind": self.kind, "attack": name, "role": role}
        for target, (label, each) in enumerate(figures):
            yield from list_leaks({**place, "target": target, "label": label}, each)


class ImageScorer(InputScorer):
    """The scorer of images, by MSE, PSNR, SSIM and LPIPS."""

    kind = "images"

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        super().__init__(scenario, data)
        weights = self.targets.lpips
        self._lpips = None if weights is None else load_lpips(weights, "targets.lpips")

    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        del own
        samples, rows = self.targets.choose(self.data)
        truth, labels = samples.inputs[rows].float() / 255, samples.labels[rows].tolist()
        mean = (self.data.auxiliary or self.data.train).inputs.float().mean(0) / 255
        guesses = {name: put_in_order(each, truth) for name, each in recovered.items()}
        guesses |= {"black": torch.zeros_like(truth), "mean_image": mean.expand_as(truth)}
        guesses |= find_nearest_others(recovered, self.data.test.inputs.float() / 255, truth)
        scores = KindScores(files={IMAGES: encode_images({ORIGINALS: truth, **guesses})})
        for name, guess in guesses.items():
            figures = score_images(guess, truth, self._lpips)
            named = recovered[name].labels if name in recovered else None
            if named is not None:
                for each, one, label in zip(figures, named, labels, strict=True):
                    each[LABEL_ACCURACY] = float(one == label)
            pairs = zip(labels, figures, strict=True)
            scores.rows += self.list_rows(number, name, pairs, floor=name not in recovered)
        return scores


class RowScorer(InputScorer):
    """The scorer of rows, by mean squared error; standardised columns have a variance of one."""

    kind = "rows"

    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        del own
        samples, rows = self.targets.choose(self.data)
        truth, labels = samples.inputs[rows].flatten(1), samples.labels[rows].tolist()
        mean = (self.data.auxiliary or self.data.train).inputs.flatten(1).mean(0)
        guesses = {
            name: put_in_order(each, truth).cpu().flatten(1) for name, each in recovered.items()
        }
        guesses |= find_nearest_others(recovered, self.data.test.inputs.flatten(1), truth)
        guesses["mean_row"] = mean.expand_as(truth)
        scores = KindScores(files={ROWS: _encode({ORIGINALS: truth, **guesses})})
        for name, guess in guesses.items():
            errors = (guess - truth).square().mean(1).tolist()
            pairs = zip(labels, ({"mse": error} for error in errors), strict=True)
            scores.rows += self.list_rows(number, name, pairs, floor=name not in recovered)
        return scores


def _encode(rows: Mapping[str, Tensor]) -> bytes:
    """Encode rows by attack as CSV."""
    tables = [
        pd.DataFrame(values.numpy()).assign(attack=name, row=torch.arange(len(values)).numpy())
        for name, values in rows.items()
    ]
    return pd.concat(tables).to_csv(index=False).encode()


def put_in_order(guesses: Guesses, truth: Tensor) -> Tensor:
    """Return a row for each target; of candidates in no order, the nearest to each of them."""
    return find_nearest(guesses.rows, truth) if guesses.unordered else guesses.rows


def find_nearest(candidates: Tensor, truth: Tensor) -> Tensor:
    """Return the candidate with the smallest squared error of each row of the truth, or zeros."""
    if not len(candidates):
        return torch.zeros_like(truth)
    distances = torch.cdist(truth.flatten(1).float(), candidates.flatten(1).float())
    return candidates[distances.argmin(1)].view_as(truth)


def find_nearest_others(
    recovered: Mapping[str, Guesses], others: Tensor, truth: Tensor
) -> dict[str, Tensor]:
    """Return the floor of attacks whose guesses are in no order: the nearest of as many others."""
    counts = [len(each.rows) for each in recovered.values() if each.unordered]
    return {NEAREST: find_nearest(others[: max(counts)], truth)} if counts else {}
