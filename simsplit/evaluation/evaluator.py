"""The evaluator scores a run on held-out data, through the same wire as training.

If the head is shared, one model is scored: that of the client which trained last. If heads are per
client, each client is scored on the whole split with its own head and tail, and the figure is the
mean. An attack's success is then the mean over honest clients, whom the backdoor must reach through
the trunk. The mean over all clients, which includes the attackers' own heads, is reported too.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from simsplit.config import MOST_PARTS, Config
from simsplit.data.images import Views
from simsplit.data.samples import IGNORED, Choices, Samples
from simsplit.errors import ProtocolError
from simsplit.evaluation.generation import GENERATION_METRICS, Generator, Scorer
from simsplit.evaluation.writing import Sampling, Writer
from simsplit.legs import ClientId
from simsplit.metrics.classification import ClassMetric, accuracy
from simsplit.models.tokenizers import Reader
from simsplit.parties.calls import Assess, Probe
from simsplit.schedules.exchange import Exchange
from simsplit.seeds import numpy_rng_for

Split = Literal["test", "validation"]
AnyMetric = Literal[
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "top5",
    "loss",
    "perplexity",
    "answers",
    "exact_answers",
    "rouge_l",
    "meteor",
    "bleu",
    "code_bleu",
]
TRIGGERED = "triggered"
"""The name of the split with the triggered test samples, which measure a backdoor's success."""
ATTACK_SUCCESS = "attack_success"
ATTACK_SUCCESS_ALL = "attack_success_all"
"""The success over all clients, including malicious ones; only with per-client heads."""


class EvaluateConfig(Config):
    """When, on which splits and by which metrics a run is evaluated."""

    every: int = Field(default=1, ge=0)
    """Rounds between evaluations; the last round is always evaluated; 0: only the last."""
    on: tuple[Split, ...] | None = None
    """Which splits; null: test, and validation if `data.validation` is above 0."""
    clients: int | None = Field(default=None, ge=1)
    """With per-client heads: how many clients to evaluate at most, drawn by the seed; null: all."""
    metrics: tuple[AnyMetric, ...] | None = Field(default=None, max_length=MOST_PARTS)
    """What to report; null: accuracy, balanced_accuracy and loss of classes; loss, perplexity and
    accuracy of tokens; answers too where a causal model classifies. The last five score texts that
    the model generates from prompts, which takes long."""
    controls: tuple[str, ...] = Field(default=(), max_length=MOST_PARTS)
    """The same weights scored in other ways, each in columns of its own: without_trunk (features
    are what the client sent, so no server is needed), and the ones that methods offer (mixguard:
    plain, calibrated, mixed). `model.trunk: skipped` trains without the trunk as well."""
    generated_texts: int = Field(default=32, ge=1)
    """For how many texts of a split, the first ones, the model generates."""
    max_new_tokens: int = Field(default=64, ge=1)
    """How many tokens are generated for each prompt, at most."""
    sampling: Sampling | None = None
    """How tokens are drawn in generation, by the seed; null: always the likeliest one."""
    sessions: bool | None = None
    """Whether generation sends each token once, and both sides keep what they computed of it;
    false: whole texts in every pass. Null: where methods can treat tokens one by one."""
    batch_size: int = Field(default=500, ge=1)
    """Samples per evaluation batch."""
    mirrored: bool = False
    """Of images: each is scored by the mean output of itself and its mirror image (test-time
    flip)."""
    shifted: bool = False
    """Of images: each is scored together with itself moved by a pixel, up and left and down and
    right, which count half as much."""

    @property
    def views(self) -> Views:
        """The views of an image whose outputs are averaged."""
        return Views(self.mirrored, self.shifted)

    def due(self, round_number: int, rounds: int) -> bool:
        """Return whether this round is evaluated."""
        return round_number == rounds or (self.every > 0 and round_number % self.every == 0)

    def count_due(self, rounds: int) -> int:
        """Count the rounds that are evaluated; the last one always is, be it round 0."""
        return 1 if not (self.every and rounds) else -(-rounds // self.every)


class Evaluator:
    """The scorer of a run's models on its splits."""

    def __init__(
        self,
        config: EvaluateConfig,
        exchange: Exchange,
        splits: Mapping[Split, Samples],
        clients: Sequence[ClientId] | None,
        seed: int,
        *,
        metrics: Sequence[str],
        wanted: Tensor | None = None,
        choices: Choices | None = None,
        reader: Reader | None = None,
        writer: Writer | None = None,
        own: Mapping[str, ClassMetric] | None = None,
        malicious: Collection[ClientId] = (),
    ) -> None:
        """Take what the evaluation needs, and choose the clients that are scored.

        `clients` have models of their own; None: the model is shared. `wanted` are the labels that
        a backdoor wants for the triggered samples, and `malicious` clients are left out when its
        success is measured. `choices` are the answers of a causal model that classifies, `own`
        plugins' metrics; `reader` and `writer` are those of generated texts.
        """
        self.config, self.metrics = config, metrics
        of_splits: dict[str, Samples] = {split: splits[split] for split in splits}
        self.scorer = Scorer(of_splits, metrics, config.batch_size, choices=choices, own=own)
        self.exchange = exchange
        self.generator = None
        if reader is not None and writer is not None:
            sizes = {"texts": config.generated_texts, "tokens": config.max_new_tokens}
            self.generator = Generator(writer, reader, **sizes)
            for metric in set(metrics) & GENERATION_METRICS.keys():
                GENERATION_METRICS[metric](["x"], ["x"])  # a missing package raises now
        self.splits = splits
        self.wanted = wanted
        self.malicious = frozenset(malicious)
        self._left_out: set[ClientId] = set()
        self._able = list(clients or ())
        self.clients = None if clients is None else choose(clients, config.clients, seed)
        # Without an honest client among the chosen ones, a backdoor's success has no mean.
        if wanted is not None and self.clients is not None and not self._honest:
            honest = [client for client in clients or () if client not in self.malicious]
            self.clients = choose(honest, config.clients, seed)

    def leave_out(self, clients: Collection[ClientId]) -> None:
        """Exclude these clients from further evaluations; others take their places."""
        self._left_out.update(clients)
        if self.clients is not None:
            stay = [client for client in self.clients if client not in self._left_out]
            others = [c for c in self._able if c not in self._left_out and c not in stay]
            if self.wanted is not None:  # a backdoor's success is that on honest clients
                others.sort(key=self.malicious.__contains__)
            self.clients = sorted([*stay, *others[: len(self.clients) - len(stay)]])

    @property
    def clients_to_score(self) -> list[ClientId]:
        """The clients whose heads and tails are scored; for shared ones, the client with them."""
        if self.clients is not None:
            return self.clients
        holder = self.exchange.holder
        if holder is None:  # any client can get what is shared
            holder = next(client for client in count() if client not in self._left_out)
        return [holder]

    @property
    def _honest(self) -> list[ClientId]:
        return [client for client in self.clients or () if client not in self.malicious]

    def evaluate(
        self, round_number: int
    ) -> tuple[dict[str, float], dict[ClientId, dict[str, float]]]:
        """Return the round's figures, and those of each client that has its own model."""
        rows = {client: self._score(client, round_number) for client in self.clients_to_score}
        means = {column: _average(rows.values(), column) for column in next(iter(rows.values()))}
        if self.wanted is not None and self.clients:
            honest = [rows[client] for client in self._honest]
            means[ATTACK_SUCCESS_ALL] = means[ATTACK_SUCCESS]
            means[ATTACK_SUCCESS] = _average(honest, ATTACK_SUCCESS) if honest else math.nan
        return means, rows if self.clients is not None else {}

    def _score(self, client: ClientId, round_number: int) -> dict[str, float]:
        row: dict[str, float] = {}
        for split, samples in self.splits.items():
            for control in ("", *self.config.controls):
                with self.exchange.use_reading(control):
                    figures = self._score_split(client, split, round_number, samples)
                row |= {_name_column(split, name, control): each for name, each in figures.items()}
        if self.wanted is not None:
            outputs = self._predict(client, TRIGGERED, round_number, len(self.wanted))
            row[ATTACK_SUCCESS] = accuracy(outputs, self.wanted)
        return row

    def _score_split(
        self, client: ClientId, split: str, round_number: int, samples: Samples
    ) -> dict[str, float]:
        """Return a split's figures, scored here or by a remote client, which keeps its labels."""
        batches = range(math.ceil(len(samples) / self.config.batch_size))
        probes = [Probe(split, round_number, number) for number in batches]
        if self.exchange.pool.remote:
            for probe in probes:
                self.exchange.note(client, probe)
            if any(name in GENERATION_METRICS for name in self.metrics):
                self.exchange.write(client, split, round_number)
            figures = self.exchange.pool.ask(client, Assess(split, self.exchange.reading))
            with self.exchange.pool.work_on({client: ()}):
                # Clients that withhold their scores answer with none.
                if figures and figures.keys() != set(self.metrics):
                    raise ProtocolError("figures that the scenario does not ask for")
                if not all(map(math.isfinite, figures.values())):
                    raise ProtocolError("figures that are not finite")
            return figures
        for probe in probes:
            self.scorer.add(split, self.exchange.predict(client, probe))
        figures = self.scorer.figures(split)
        if self.generator is not None:
            figures |= self.generator.figures(client, samples, round_number, self.metrics)
        return figures

    def find_hits(self, split: str, round_number: int) -> Tensor | None:
        """Return for each sample of a split the share of the scored models that get it right.

        Return None where a sample has several labels, or a text's answer is judged otherwise.
        """
        labels = self.splits[cast("Split", split)].labels
        own = labels[labels != IGNORED]
        if self.scorer.choices is not None or len(own) != len(labels):
            return None
        hits = [
            self._predict(client, split, round_number, len(own)).argmax(-1) == own
            for client in self.clients_to_score
        ]
        return torch.stack(hits).double().mean(0)

    def _predict(self, client: ClientId, split: str, round_number: int, num_samples: int) -> Tensor:
        batches = range(math.ceil(num_samples / self.config.batch_size))
        outputs = [
            self.exchange.predict(client, Probe(split, round_number, each)) for each in batches
        ]
        return torch.cat(outputs).cpu()


def list_success_columns(*, aimed: bool, own: bool) -> list[str]:
    """List the columns of a backdoor's success; with own models, honest clients and all differ."""
    names = [ATTACK_SUCCESS, *([ATTACK_SUCCESS_ALL] if own else [])]
    return names if aimed else []


def _average(rows: Collection[Mapping[str, float]], column: str) -> float:
    return sum(row[column] for row in rows) / len(rows)


def list_figure_columns(
    splits: Sequence[str], metrics: Sequence[str], controls: Sequence[str]
) -> list[str]:
    """List the columns of an evaluation; those of controls are last."""
    return [
        _name_column(split, metric, control)
        for control in ("", *controls)
        for split in splits
        for metric in metrics
    ]


def _name_column(split: str, metric: str, control: str) -> str:
    return "_".join(filter(None, (split, metric, control)))


def choose(clients: Sequence[ClientId], at_most: int | None, seed: int) -> list[ClientId]:
    """Choose at most `at_most` of the clients by the seed, in order; None chooses all."""
    if at_most is None or at_most >= len(clients):
        return list(clients)
    chosen = numpy_rng_for(seed, "evaluate").choice(len(clients), at_most, replace=False)
    return [clients[index] for index in sorted(chosen)]
