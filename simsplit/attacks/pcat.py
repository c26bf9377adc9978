"""PCAT (Gao and Zhang, USENIX Security 2023): a pseudo-client, and a decoder that inverts it.

During training, the server's own pseudo-client learns the task through the live trunk at each step.
Under a vanilla cut its public samples have the labels that the client has just sent (the paper's
label alignment). Under a U shape labels stay hidden, so samples are drawn at random, as in the
paper. Afterwards a decoder learns to invert the pseudo-client on public samples. Its images of the
client's smashed data are then refined until the pseudo-client would send the same.

This follows the paper's text, since its authors published no code that we know. The paper gives
neither rates nor numbers of steps for decoder and refinement, and shows the decoder in figures
only; here it is SDAR's. Code by others, in SecretFlow's examples, has a decoder of two transposed
convolutions, learned after training or along with it by Adam at 1e-5, and no refinement. The paper
does not need the head's architecture; here the pseudo-client has it, which worked best in the paper
too. If public data lack a class, any samples replace it.

Nothing but the shared trunk makes the pseudo-client's features those of the client. In
scenarios/papers/lightsplit/small/convergence.yaml it reads MNIST on ten seeds of ten (a correlation
with the truth of .59 to .90, the mean image has .51 to .56). On the few digits of the scenario
`convergence` some seeds end with features that mirror the client's, and read as negatives; how
well a seed reads changes with the processor.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from simsplit.attacks.attack import Done, Following, SimulatingConfig, descend, payloads
from simsplit.attacks.epoch_averages import average_epochs
from simsplit.attacks.knowledge import Knowledge, inference
from simsplit.attacks.networks import glorot, sdar_decoder
from simsplit.attacks.threat import Knows, Sees, Threat, When
from simsplit.data.batches import Batch, Batcher
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolate, rng_for


class PcatConfig(SimulatingConfig):
    """A pseudo-client trained on aligned labels, and a decoder of it, whose images are refined."""

    kind: Literal["pcat"] = "pcat"
    threat: ClassVar[Threat] = Threat(
        knows=(Knows.ARCHITECTURE, Knows.PUBLIC),
        sees=(Sees.SMASHED, Sees.TRUNK),
        when=When.TRAINING,
    )
    start: int = Field(default=0, ge=0)
    """Number of training steps to skip first, the paper's late start; 100 in its example."""
    lr_client: float = Field(default=1e-3, gt=0)
    """Adam's learning rate for the pseudo-client."""
    iterations: int = Field(default=500, ge=1)
    """Training steps of the decoder, after the pseudo-client is trained."""
    lr_decoder: float = Field(default=1e-3, gt=0)
    """Adam's learning rate for the decoder."""
    refinement: int = Field(default=100, ge=0)
    """Number of steps that refine the decoder's images."""
    lr_images: float = Field(default=1e-3, gt=0)
    """Adam's learning rate for the images."""

    def build(self, known: Knowledge) -> "Pcat":
        return Pcat(self, known)


class Pcat(Following):
    """An attack that trains a pseudo-client during training, and a decoder when it is scored."""

    config: PcatConfig

    def __init__(self, config: PcatConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.client = known.surrogate("pcat")
        tail = {"tail": self.client.tail} if known.tail is None else {}
        rate = AdamConfig(lr=config.lr_client)
        self.add_learner("client", {**self.client.modules, **tail}, rate)
        self.aligned = Aligned(known)

    def iterate(self, smashed: Tensor, labels: Tensor | None) -> None:
        del smashed
        if self.iteration < self.config.start:
            return
        known, number = self.known, self.iteration
        batch = known.public(number) if labels is None else self.aligned.batch(labels, number)
        with isolate(known.seed, "pcat", number, device=known.device):  # dropout's draws
            simulated, term = known.simulate_with_losses(
                self.client, batch, number, wanted=self.config.method_losses
            )
            outputs = known.outputs(self.client, simulated, number)
            loss = cross_entropy(outputs, batch.labels)
            if term is not None:
                loss = loss + term
            descend(self.learners["client"], loss)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Train a decoder, decode the targets, and refine the images."""
        total = self.config.iterations + self.config.refinement
        smashed = torch.cat([*average_epochs(payloads(targets), self.known.lift_smashed)])
        self.learners["client"].train(False)
        # A new one for each scoring, since the pseudo-client has learned since the last.
        with isolate(self.known.seed, "pcat", "decoder"):
            cut = self.known.shapes[0]
            decoder = glorot(sdar_decoder(cut[0], cut, self.known.image)).to(self.known.device)
        rate = Learner({"decoder": decoder}, AdamConfig(lr=self.config.lr_decoder))
        for number in range(self.config.iterations):
            batch = self.known.public(number)
            with torch.no_grad():
                simulated = self.known.simulate(self.client, batch, number)
            descend(rate, mse_loss(decoder(simulated), self.known.pixels(batch.inputs)))
            yield number + 1, total
        self._decoder = decoder
        with torch.no_grad():
            self._recovered = self.invert(smashed, None)
            self._named = self.name_classes(smashed)
        for step in self._refine(smashed):
            yield self.config.iterations + step, total

    def invert(self, smashed: Tensor, labels: Tensor | None) -> Tensor:
        """Decode smashed data into images, before they are refined."""
        del labels
        with inference(self._decoder):
            out: Tensor = self._decoder(smashed)
        return out

    def name_classes(self, smashed: Tensor) -> Tensor | None:
        return self.known.name_classes(self.client, smashed, self.iteration)

    def _refine(self, smashed: Tensor) -> Iterator[int]:
        """Optimize the images until the pseudo-client would send the client's payload."""
        images = nn.ParameterList([self._recovered.clone()])
        learner = Learner({"images": images}, AdamConfig(lr=self.config.lr_images))
        unknown = torch.zeros(len(smashed), dtype=torch.long, device=smashed.device)
        for step in range(self.config.refinement):
            batch = Batch(self.known.normalise(images[0]), unknown, unknown)
            sent = self.known.simulate(self.client, batch, step)
            # a mean over each image, summed over images: each image moves as if it were alone
            descend(learner, mse_loss(sent, smashed) * len(smashed))
            yield step + 1
        self._recovered = images[0].detach()


class Aligned:
    """A source of public samples with given labels."""

    def __init__(self, known: Knowledge) -> None:
        assert known.auxiliary is not None, "refused without when the scenario is read"
        batcher = known.auxiliary.batcher
        assert isinstance(batcher, Batcher), "texts are refused"
        labels = batcher.labels[known.auxiliary.part.to(batcher.device)]
        self.batcher, self.seed = batcher, known.seed
        self.rows = known.auxiliary.part.to(batcher.device)[labels.argsort(stable=True)]
        self.counts = labels.bincount(minlength=known.classes)
        self.firsts = self.counts.cumsum(0) - self.counts

    def batch(self, labels: Tensor, number: int) -> Batch:
        """Draw a public sample for each of these labels, at step `number`."""
        rng = rng_for(self.seed, "pcat", "aligned", number)
        share = torch.rand(len(labels), generator=rng).to(labels.device)
        counts, firsts = self.counts[labels], self.firsts[labels]
        anywhere = counts == 0  # public data may lack a class
        counts = torch.where(anywhere, len(self.rows), counts)
        # A share just below 1 can round up to the whole count.
        place = torch.where(anywhere, 0, firsts) + (share * counts).long().clamp(max=counts - 1)
        return self.batcher.batch(self.rows[place])
