"""Recovered images are scored beside two guesses that need no attack: a black image, and the mean
of the auxiliary images (or, without these, of the clients' own, which no attacker could know).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from simsplit.attacking.input_scorer import InputScorer
from simsplit.attacking.judging import KindScores
from simsplit.attacks.attack import Guesses
from simsplit.data import Prepared
from simsplit.metrics.images import FIGURES, LPIPS, load_lpips, score_images
from simsplit.results.input_results import ORIGINALS
from simsplit.results.kept import IMAGES, encode_images
from simsplit.scenario import Scenario

COLUMNS = ("round", "attack", "image", "label", *FIGURES)
LABEL_ACCURACY = "label_accuracy"
"""1 if the attack names the image's class, else 0; for attacks that simulate a client."""
BLACK, MEAN = "black", "mean_image"


class ImageScorer(InputScorer):
    """The scorer of images, by MSE, PSNR, SSIM and LPIPS."""

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        self.targets, self.data = scenario.aims, data
        weights = self.targets.lpips
        self._lpips = None if weights is None else load_lpips(weights, "targets.lpips")

    @staticmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """Return the columns of the `recovered` table; LPIPS only if its weights are given."""
        lpips = LPIPS if scenario.targets.lpips is not None else ()
        named = (LABEL_ACCURACY,) if any(each.simulates for each in scenario.attacks) else ()
        return (*COLUMNS, *lpips, *named)

    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        """Return a row for each attack and image, and the images."""
        del own
        samples, rows = self.targets.choose(self.data)
        truth = samples.inputs[rows].float() / 255
        images = {ORIGINALS: truth, **{name: each.rows for name, each in recovered.items()}}
        images |= {BLACK: torch.zeros_like(truth), MEAN: self._compute_mean().expand_as(truth)}
        scores = KindScores(files={IMAGES: encode_images(images)})
        # The originals come first: they are saved beside the guesses, but not scored.
        for name, made in list(images.items())[1:]:
            named = recovered[name].labels if name in recovered else None
            for index, figures in enumerate(score_images(made, truth, self._lpips)):
                label = int(samples.labels[rows[index]])
                place = {"round": number, "attack": name, "image": index, "label": label}
                right = {} if named is None else {LABEL_ACCURACY: float(named[index] == label)}
                scores.rows.append({**place, **figures, **right})
        return scores

    def _compute_mean(self) -> Tensor:
        known = self.data.auxiliary or self.data.train
        return known.inputs.float().mean(0) / 255
