"""Attacks that read tokens off what a head puts out: SIP's inverter, and what it is taught by.

A language model's pretrained weights are public, so the server starts from the very head and tail
that clients started from. The inverter learns what that head puts out for public texts, levelled:
messages of unknown size are levelled too before they are read, and where their sign is unknown
both are tried.
"""

import copy
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from simsplit.attacks.base import AttackConfig, Done
from simsplit.attacks.inverters import NOTHING, InverterConfig, inverter_of, levelled
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import (
    Read,
    TextAttack,
    count_messages,
    has_shared_secrets,
    has_unknown_sign,
)
from simsplit.data.batches import Batch
from simsplit.methods import Step
from simsplit.models.encoders import EncoderHead
from simsplit.models.transformer import Head
from simsplit.packets import Packet
from simsplit.parties.feed import Feed
from simsplit.parties.learner import Learner
from simsplit.seeds import isolated, rng_for

HELD_OUT = 10
"""One in so many public texts is held out where training may stop early; published: a tenth."""

SHORTENED = 4
"""One in so many public texts is read shortened too, by inverters that read padding."""


class Inverting(TextAttack):
    """An attack that reads tokens off a head's output."""

    def __init__(self, config: InverterConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        head = known.pretrained.segment("head")
        assert isinstance(head, Head | EncoderHead), "what language models begin with"
        self.head, self.embeddings_VE = head, known.pretrained.embeddings
        with isolated(known.seed, "inverter"):
            made = inverter_of(known.shapes[0][-1], self.embeddings_VE, self.vocabulary.pad, config)
        self.inverter = made.to(known.device)
        self.learners["inverter"] = Learner({"inverter": self.inverter}, made.optimizer)
        self._set_texts_aside()
        self.simulated = known.client_stack("inverter") if config.aware and known.methods else None

    def _set_texts_aside(self) -> None:
        """The public texts to learn from, and those to tell by when to stop."""
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
        """Reuse an equal inverter that another attack of the run has trained, if there is one."""
        alike, learning = self._alike(), self.learning
        if self.iteration < learning and alike in self.known.learned:
            self.inverter.load_state_dict(self.known.learned[alike])
            self.iteration = learning
        for done, total in super().work(targets):
            if done == learning:
                trained = self.inverter.state_dict()
                self.known.learned[alike] = {name: w.clone() for name, w in trained.items()}
            yield done, total

    def _alike(self) -> Hashable:
        """All that its training depends on."""
        names = InverterConfig.model_fields.keys() - AttackConfig.model_fields.keys()
        return tuple(getattr(self.config, name) for name in sorted(names))

    @property
    def learning(self) -> int:
        """How many learning steps the inverter takes at most."""
        epochs = 1 if self.config.inverter == "gaussian" else self.config.epochs
        return self.config.iterations or epochs * self.feed.steps_per_epoch

    @property
    def steps(self) -> int:
        """How many learning steps there are."""
        return self.learning

    def learn(self, number: int) -> None:
        """Train on a public batch: tokens from the pretrained head's output."""
        patience = self.config.patience
        if patience and int(self.best.stale) >= patience:
            return
        batch = self.feed.batch(number)
        if self.inverter.reads_padding and batch.mask is None:
            batch = self._and_shortened(batch, number)
        told = self._told(batch)
        hidden = levelled(self.hidden(batch, number))
        self.inverter.learn(hidden, told, self.learners["inverter"])
        last = number + 1 == self.learning
        if patience and (last or (number + 1) % self.feed.steps_per_epoch == 0):
            self.best.weigh(self.inverter, self._accuracy())
            if last or int(self.best.stale) >= patience:
                self.inverter.load_state_dict(self.best.inverter.state_dict())

    def hidden(self, batch: Batch, number: int) -> Tensor:
        """What would reach the server of a public batch, were its rows not mixed."""
        with torch.no_grad():
            plain: Tensor = self.head(batch.inputs, *batch.context)
            if self.simulated is None:
                return plain
            step = Step(-1, 0, number, self.known.seed, labels=batch.labels)
            sent = self.simulated.encode(plain, step)
            return self.known.stack.lift(sent, step)

    def read(self, x_MBLD: Tensor, *, both: bool | None = None) -> Read:
        """The likeliest tokens of each message's rows, of the sign that reads surer."""
        one, other = self._reads(x_MBLD, has_unknown_sign(self.known) if both is None else both)
        tokens = torch.where(_surer(one, other)[:, None], one.tokens, other.tokens)
        return Read(tokens, torch.maximum(one.sureness, other.sureness))

    def signs(self, x_MBLD: Tensor, both: bool) -> Tensor:
        """Each row's sign: the one that reads surer, and one for all rows with one secret."""
        return torch.where(_surer(*self._reads(x_MBLD, both)), 1.0, -1.0)

    def _reads(self, x_MBLD: Tensor, both: bool) -> tuple[Read, Read]:
        """What messages read as, as they are and (or the same again) with signs flipped."""
        one = self._as_sent(x_MBLD)
        return one, self._as_sent(-x_MBLD) if both else one

    def _as_sent(self, x_MBLD: Tensor) -> Read:
        with torch.no_grad():
            features = self.inverter.eval().features(levelled(x_MBLD.flatten(0, 1)))
            scores = self.inverter.scores(features)
            sure_R = self.inverter.sure(features, scores)
        return Read(scores.argmax(-1), self.together(sure_R, len(x_MBLD)))

    def together(self, sure_R: Tensor, messages: int) -> Tensor:
        """Sureness of a message rather than of its rows, where these have one secret."""
        if not (has_unknown_sign(self.known) and has_shared_secrets(self.known)):
            return sure_R
        sure_MB = sure_R.view(messages, -1)
        return sure_MB.mean(1, keepdim=True).expand_as(sure_MB).flatten()

    @property
    def messages(self) -> int:
        """How many messages a client sends for each text."""
        return count_messages(self.known)

    def _and_shortened(self, batch: Batch, number: int) -> Batch:
        """The texts, and some of them cut and padded again, as texts are that cross, or are mixed,
        with longer ones.
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

    def _told(self, batch: Batch) -> Tensor:
        return batch.inputs.masked_fill(batch.inputs == self.vocabulary.pad, NOTHING)

    def _accuracy(self) -> float:
        """The share of held-out public tokens that the inverter reads right."""
        right = total = 0
        for rows in self.held.split(self.feed.batch_size):
            batch = self.feed.batcher.batch(rows)
            told = self._told(batch)
            read = self._as_sent(self.hidden(batch, -1)[None]).tokens
            right += int((read == told).sum())
            total += int((told != NOTHING).sum())
        return right / max(1, total)


def _surer(one: Read, other: Read) -> Tensor:
    return one.sureness >= other.sureness


class _Best(nn.Module):
    """The best inverter so far, and for how many epochs it has been."""

    accuracy: Tensor
    stale: Tensor

    def __init__(self, inverter: nn.Module) -> None:
        super().__init__()
        self.inverter = copy.deepcopy(inverter)
        self.register_buffer("accuracy", torch.tensor(-1.0))
        self.register_buffer("stale", torch.tensor(0))

    def weigh(self, inverter: nn.Module, accuracy: float) -> None:
        """Keep an inverter that is better."""
        if accuracy > float(self.accuracy):
            self.inverter.load_state_dict(inverter.state_dict())
            self.accuracy.fill_(accuracy)
            self.stale.zero_()
        else:
            self.stale += 1
