"""An attack: answer with the auxiliary image whose payload is nearest. No training."""

from typing import Literal

import torch

from simsplit.attacks import Attack, AttackConfig
from simsplit.attacks.attack import payloads


class NearestConfig(AttackConfig):
    """The auxiliary image whose payload is nearest to the target's: a ceiling without a decoder."""

    kind: Literal["nearest"] = "nearest"

    @property
    def queries(self):  # how many auxiliary images it has a client encode
        return 500

    def build(self, known):
        return Nearest(known)


class Nearest(Attack):
    def study(self, queries):  # (packet, pixels) of auxiliary images
        self.seen = torch.cat([self.known.lift_smashed(packet).flatten(1) for packet, _ in queries])
        self.pixels = torch.cat([pixels for _, pixels in queries])

    def work(self, targets):  # packets of the images to recover
        sent = torch.cat(
            [self.known.lift_smashed(packet).flatten(1) for packet in payloads(targets)]
        )
        self.nearest = torch.cdist(sent, self.seen).argmin(1)
        yield 1, 1  # one of one pieces of work is done

    @property
    def recovered(self):
        return self.pixels[self.nearest]


ATTACKS = {"nearest": NearestConfig}
