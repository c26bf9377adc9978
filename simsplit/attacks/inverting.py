"""The base class of attacks that read tokens from a head's output with an inverter.

A language model's pretrained weights are public, so the server starts from the same head and tail
as the clients. The inverter learns from that head's levelled outputs for public texts. Messages are
levelled before they are read, since their scale is unknown; where their sign is unknown too, both
signs are tried.
"""

import copy
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from simsplit.attacks.attack import AttackConfig, Done
from simsplit.attacks.inverters import NOTHING, InverterConfig, build_inverter, divide_by_level
from simsplit.attacks.knowledge import Knowledge, is_mixed
from simsplit.attacks.text_attack import (
    Read,
    TextAttack,
    count_messages,
    pick_surer,
)
from simsplit.data.batches import Batch
from simsplit.methods import Step
from simsplit.models.encoders import EncoderHead
from simsplit.models.transformer import Head
from simsplit.packets import Packet
from simsplit.parties.feed import Feed
from simsplit.parties.learner import Learner
from simsplit.seeds import isolate, rng_for

HELD_OUT = 10
"""If training may stop early, one public text in this many is held out; published: 10."""

SHORTENED = 4
"""One public text in this many is also learned shortened, by inverters that read padding."""


class Inverting(TextAttack):
    """An attack that reads tokens from a head's output with an inverter."""

    def __init__(self, config: InverterConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        head = known.pretrained.segment("head")
        assert isinstance(head, Head | EncoderHead), "language models have no other heads"
        self.head, self.embeddings_VE = head, known.pretrained.embeddings
        with isolate(known.seed, "inverter"):
            built = build_inverter(
                known.shapes[0][-1],
                self.embeddings_VE,
                self.vocabulary.pad,
                config,
                self._list_seen() if config.words == "seen" else None,
            )
        self.inverter = built.to(known.device)
        self.learners["inverter"] = Learner({"inverter": self.inverter}, built.optimizer)
        self._divide_texts()
        self.simulated = known.client_stack("inverter") if config.aware and known.methods else None

    def _list_seen(self) -> Tensor:
        """Return the tokens of the public texts, in order."""
        public = self.known.auxiliary
        assert public is not None, "refused without when the scenario is read"
        tokens_RL: Tensor = public.batcher.batch(public.part).inputs
        seen_K: Tensor = tokens_RL.unique()
        return seen_K

    def _divide_texts(self) -> None:
        """Divide public texts into training texts and texts that decide when to stop."""
        public, config = self.known.auxiliary, self.config
        assert public is not None, "refused without when the scenario is read"
        rows = public.part
        out = torch.arange(len(rows)) % HELD_OUT == 0
        self.held = rows[out] if config.patience else rows[:0]
        size = config.batch_size or public.batch_size
        self.feed = Feed(
            public.batcher,
            rows[~out] if config.patience else rows,
            batch_size=size,
            seed=public.seed,
            client=public.client,
            drop_last=True,
        )
        self.best = _Best(self.inverter)
        if config.patience:
            self.learners["best"] = Learner({"best": self.best}, self.inverter.optimizer)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Train the inverter, or reuse an equal one of another attack, then recover the targets."""
        key, learning = self._get_training_key(), self.learning
        if self.iteration < learning and key in self.known.learned:
            self.inverter.load_state_dict(self.known.learned[key])
            self.iteration = learning
        for done, total in super().work(targets):
            if done == learning:
                trained = self.inverter.state_dict()
                self.known.learned[key] = {name: w.clone() for name, w in trained.items()}
            yield done, total

    def _get_training_key(self) -> Hashable:
        """Return all fields that the inverter's training depends on."""
        # Neither an attack's name nor what it does with the readings changes its inverter.
        names = InverterConfig.model_fields.keys() - AttackConfig.model_fields.keys()
        return tuple(getattr(self.config, name) for name in sorted(names))

    @property
    def learning(self) -> int:
        """Maximum number of training steps of the inverter."""
        epochs = 1 if self.config.inverter == "gaussian" else self.config.epochs
        return self.config.iterations or epochs * self.feed.steps_per_epoch

    @property
    def steps(self) -> int:
        return self.learning

    def learn(self, number: int) -> None:
        patience = self.config.patience
        # The remaining steps still count, without work: checkpoints and progress go by their
        # number.
        if patience and int(self.best.stale) >= patience:
            return
        batch = self.feed.batch(number)
        if self.inverter.reads_padding and batch.mask is None:
            batch = self._add_shortened(batch, number)
        labels = self._labels(batch)
        hidden = divide_by_level(self.compute_hidden(batch, number))
        with isolate(self.known.seed, "dropout", number, device=self.known.device):
            self.inverter.learn(hidden, labels, self.learners["inverter"])
        last = number + 1 == self.learning
        if patience and (last or (number + 1) % self.feed.steps_per_epoch == 0):
            self.best.update(self.inverter, self._accuracy())
            if last or int(self.best.stale) >= patience:
                self.inverter.load_state_dict(self.best.inverter.state_dict())

    def compute_hidden(self, batch: Batch, number: int) -> Tensor:
        """Compute the trunk's input for a public batch, as if its rows were not mixed."""
        with torch.no_grad():
            if self.simulated is None:
                plain: Tensor = self.head(batch.inputs, *batch.context)
                return plain
            # Its own draws of noise: the clients' are not known.
            step = Step(-1, 0, number, self.known.seed, labels=batch.labels)
            with self.simulated.embedding(self.head, step):
                made = self.head(batch.inputs, *batch.context)
            sent = self.simulated.encode(made, step)
            return self.known.stack.lift(sent, step)

    def read(self, x_MBLD: Tensor, *, both: bool | None = None) -> Read:
        """Read the likeliest tokens of each message's rows, with the sign that reads surer.

        `both` is whether both signs are tried; None: if methods may flip them.
        """
        return pick_surer(*self._read_signs(x_MBLD, is_mixed(self.known) if both is None else both))

    def signs(self, x_MBLD: Tensor, both: bool) -> Tensor:
        """Return each row's sign that reads surer; rows that share a secret share a sign."""
        one, other = self._read_signs(x_MBLD, both)
        return torch.where(one.sureness >= other.sureness, 1.0, -1.0)

    def _read_signs(self, x_MBLD: Tensor, both: bool) -> tuple[Read, Read]:
        """Read messages as sent and with the sign flipped; without `both`, as sent twice."""
        one = self._read_unflipped(x_MBLD)
        return one, self._read_unflipped(-x_MBLD) if both else one

    def _read_unflipped(self, x_MBLD: Tensor) -> Read:
        """Read the likeliest tokens of each message's rows, without flipping signs."""
        with torch.no_grad():
            features = self.inverter.eval().features(divide_by_level(x_MBLD.flatten(0, 1)))
            scores = self.inverter.scores(features)
            sure_R = self.inverter.sure(features, scores)
        return Read(scores.argmax(-1), self.together(sure_R, len(x_MBLD)))

    @property
    def messages(self) -> int:
        """Number of messages that a client sends for each text."""
        return count_messages(self.known)

    def _add_shortened(self, batch: Batch, number: int) -> Batch:
        """Append some of the texts to the batch, cut at a random length and padded.

        Texts that are mixed or sent with longer ones are padded, so the inverter must know padding.
        """
        rng = rng_for(self.known.seed, "shortened", number)
        some = slice(None, None, SHORTENED)
        inputs, labels = batch.inputs[some], batch.labels[some]
        rows, length = inputs.shape
        kept = torch.randint(max(1, length // 4), length + 1, (rows, 1), generator=rng)
        out = (torch.arange(length) >= kept).to(inputs.device)
        short = inputs.masked_fill(out, self.vocabulary.pad)
        return replace(
            batch, inputs=torch.cat([batch.inputs, short]), labels=torch.cat([batch.labels, labels])
        )

    def _labels(self, batch: Batch) -> Tensor:
        """Return the batch's tokens, with NOTHING for padding."""
        return batch.inputs.masked_fill(batch.inputs == self.vocabulary.pad, NOTHING)

    def _accuracy(self) -> float:
        """Compute the share of held-out public tokens that the inverter reads right."""
        right = total = 0
        for rows in self.held.split(self.feed.batch_size):
            batch = self.feed.batcher.batch(rows)
            labels = self._labels(batch)
            # One step number for all epochs, so that they are compared under the same noise.
            read = self._read_unflipped(self.compute_hidden(batch, -1)[None]).tokens
            right += int((read == labels).sum())
            total += int((labels != NOTHING).sum())
        return right / max(1, total)


class _Best(nn.Module):
    """The best inverter so far, and epochs without a better one: a module for checkpoints."""

    accuracy: Tensor
    stale: Tensor

    def __init__(self, inverter: nn.Module) -> None:
        super().__init__()
        self.inverter = copy.deepcopy(inverter)
        self.register_buffer("accuracy", torch.tensor(-1.0))
        self.register_buffer("stale", torch.tensor(0))

    def update(self, inverter: nn.Module, accuracy: float) -> None:
        """Keep this inverter if it is more accurate than the best so far."""
        if accuracy > float(self.accuracy):
            self.inverter.load_state_dict(inverter.state_dict())
            self.accuracy.fill_(accuracy)
            self.stale.zero_()
        else:
            self.stale += 1
