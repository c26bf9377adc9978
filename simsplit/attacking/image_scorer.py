"""Recovered images are scored beside two guesses that need no attack: a black image, and the mean
of the auxiliary images (or, without these, of the clients' own, which no attacker could know).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from simsplit.attacking.attack_judge import KindScores
from simsplit.attacking.input_scorer import InputScorer, find_nearest_others
from simsplit.attacks.attack import Guesses
from simsplit.data import Prepared
from simsplit.metrics.image_scores import load_lpips, score_images
from simsplit.results.leak_table import ATTACK, FLOOR, ORIGINALS, list_leaks
from simsplit.results.recovered_files import IMAGES, encode_images
from simsplit.scenario import Scenario

LABEL_ACCURACY = "label_accuracy"
"""1 if the attack names the image's class, else 0; for attacks that simulate a client."""
BLACK, MEAN = "black", "mean_image"


class ImageScorer(InputScorer):
    """The scorer of images, by MSE, PSNR, SSIM and LPIPS."""

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        self.targets, self.data = scenario.aims, data
        weights = self.targets.lpips
        self._lpips = None if weights is None else load_lpips(weights, "targets.lpips")

    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        del own
        samples, rows = self.targets.choose(self.data)
        truth = samples.inputs[rows].float() / 255
        made = {name: self.put_in_order(each, truth) for name, each in recovered.items()}
        images = {ORIGINALS: truth, **made}
        images |= {BLACK: torch.zeros_like(truth), MEAN: self._compute_mean().expand_as(truth)}
        images |= find_nearest_others(recovered, self.data.test.inputs.float() / 255, truth)
        scores = KindScores(files={IMAGES: encode_images(images)})
        # The originals come first: they are saved beside the guesses, but not scored.
        for name, guess in list(images.items())[1:]:
            named = recovered[name].labels if name in recovered else None
            role = ATTACK if name in recovered else FLOOR
            place = {"round": number, "kind": "images", "attack": name, "role": role}
            for index, figures in enumerate(score_images(guess, truth, self._lpips)):
                label = int(samples.labels[rows[index]])
                right = {} if named is None else {LABEL_ACCURACY: float(named[index] == label)}
                target = {"target": index, "label": label}
                scores.rows += list_leaks({**place, **target}, figures | right)
        return scores

    def _compute_mean(self) -> Tensor:
        known = self.data.auxiliary or self.data.train
        return known.inputs.float().mean(0) / 255
