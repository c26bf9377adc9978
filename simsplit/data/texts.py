"""Texts as data: where their rows lie, and how they become tokens, targets and batches.

The label at a position is what the model should predict there: the next token, or the class (at
the last token, for an encoder at the first). Elsewhere nothing is learned. So one loss serves all
tasks.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.data.readable import refuse_other_than_texts
from simsplit.data.samples import IGNORED, DataInfo, DataSet, Samples, TextInfo, Vocabulary
from simsplit.data.splits import Limit, held_out
from simsplit.data.stored import hub_table, parquet_columns, parquet_files, parquet_table
from simsplit.data.tasks import LAYOUTS, AnyTask, Classification, Piece, Record, Task, task_of
from simsplit.errors import DataError, ScenarioError, near
from simsplit.models.tokens import Reader
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    import pyarrow as pa


FEWEST = 20
"""Sentences of a topic."""


class TextTable(Config):
    """What all sources of texts have in common."""

    modality: ClassVar[Literal["texts"]] = "texts"
    task: Task
    """What is learned; a bare word such as `sst2` names the task of that data set."""
    length: int = Field(default=64, ge=2)
    """Maximum tokens of a text: prompts are cut at their beginning, answers at their end."""
    learns: Literal["answer", "all"] = "answer"
    """Whether a causal model learns the tokens of the answer only, or those of the prompt too."""
    topic: str | None = None
    """Column by which partitions divide texts; null: the class, if there are classes."""
    client: str | None = None
    """Column of the training texts that says whose each is, for `partition: natural`."""
    rows: int | None = Field(default=None, ge=1)
    """How many rows of each split to read at most, the first ones; null: all."""
    padding: Literal["right", "left"] = "right"
    """On which side shorter texts are padded; on the left a mask must cross the cut as well."""

    @field_validator("task", mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return task_of(value) if isinstance(value, str) else value

    def describe(self) -> DataInfo | None:
        """Shape and classes, known before anything is loaded."""
        return DataInfo((self.length,), len(self.class_names), texts=True)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The task's classes; a single name where it has none."""
        return self.task.names if isinstance(self.task, Classification) else ("text",)

    @abstractmethod
    def table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        """A split's rows, and their origin for messages."""

    def load(self, reader: Reader, limit: Limit | None = None) -> DataSet:
        """Both splits as tokens of a model's tokenizer."""
        train, test = (self.read(split, reader, limit) for split in ("train", "test"))
        return DataSet(self._name(), train, test, self.class_names)

    def read(
        self,
        split: Literal["train", "test"],
        reader: Reader,
        limit: Limit | None = None,
        *,
        public: bool = False,
    ) -> Samples:
        """One split; of public texts a classifier is told no class, be they of its task or not."""
        table, where = self.table(split)
        task = self._learned()
        client = self.client if split == "train" and not public else None
        wanted = self._wanted(client, table.column_names, where)
        refuse_other_than_texts(table, task, where)
        records = task.readable(table.select(wanted).slice(0, self.rows).to_pylist())
        pieces = task.pieces(records, where)
        if not pieces:
            raise DataError(f"data.source: {where} has no rows")
        groups = _numbered(records, self.topic)
        if groups is None:
            groups = np.array([piece.label for piece in pieces], dtype=np.int64)
        owners = _numbered(records, client)
        rows = None if limit is None else limit.rows(groups, split)
        if rows is not None:
            pieces, groups = [pieces[row] for row in rows], groups[rows]
            owners = None if owners is None else owners[rows]
        samples = encoded(pieces, groups, self, reader, public=public)
        return replace(samples, owners=owners)

    def _wanted(self, client: str | None, columns: Sequence[str], where: str) -> list[str]:
        """The columns to read; DataError where one is not there."""
        wanted = sorted(self._learned().columns | set(filter(None, (self.topic, client))))
        for name in wanted:
            if name not in columns:
                raise DataError(
                    f"data.source.task: {where} has no column '{name}'"
                    f"{near(name, columns) or ','} it has: {', '.join(columns)}"
                )
        return wanted

    def _learned(self) -> AnyTask:
        """The task in all its parts."""
        return self.task

    @abstractmethod
    def _name(self) -> str: ...


class PythonDocs(TextTable):
    """Docstrings of Python's standard library: sentences, their module as topic; no download."""

    kind: Literal["python_docs"] = "python_docs"
    topics: tuple[str, ...] = ("asyncio", "email", "importlib", "logging", "unittest", "xml")
    """Modules or packages; each is a class."""
    task: Task = Field(default=LAYOUTS["python_docs"])
    """What is learned; a bare word such as `language` names the kind of task."""

    def table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        """Four fifths to train on, stratified, the same in every run."""
        import pyarrow as pa

        from simsplit.pretrain.corpus import sentences_of

        found = {topic: sentences_of(topic) for topic in self.topics}
        for topic, sentences in found.items():
            if len(sentences) < FEWEST:
                raise DataError(
                    f"data.source.topics: {topic} documents itself in {len(sentences)} sentences, "
                    f"{FEWEST} are needed; choose larger packages of the standard library"
                )
        rows = [
            {"text": text, "label": label, "topic": topic}
            for label, (topic, sentences) in enumerate(found.items())
            for text in sentences
        ]
        labels = np.array([row["label"] for row in rows])
        kept, out = held_out(labels, 0.2, numpy_rng_for(0, "python_docs", "test"))
        table = pa.Table.from_pylist(rows).take(kept if split == "train" else out)
        return table, f"python_docs ({split})"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The topics; of other tasks than classification one name alone."""
        return self.topics if isinstance(self.task, Classification) else ("text",)

    def _learned(self) -> AnyTask:
        if isinstance(self.task, Classification):
            return self.task.model_copy(update={"names": self.topics})
        return self.task

    def _name(self) -> str:
        return "python_docs"


class TextParquet(TextTable):
    """A folder of parquet files as downloaded from the Hugging Face hub."""

    kind: Literal["text_parquet"] = "text_parquet"
    path: Path
    """Folder with train.parquet and test.parquet or validation.parquet, or shards
    (train-*.parquet)."""

    def describe(self) -> DataInfo | None:
        """As of all texts; where the files are there already, their columns must be, too."""
        if self.path.is_dir():
            first, *_ = parquet_files(self.path, ("train",))
            self._wanted(self.client, parquet_columns(first), f"{self.path} (train)")
        return super().describe()

    def table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        """Read from its files."""
        names = ("train",) if split == "train" else ("test", "validation")
        return parquet_table(parquet_files(self.path, names)), f"{self.path} ({split})"

    def _name(self) -> str:
        return self.path.name


class TextHub(TextTable):
    """A data set of the Hugging Face hub, or a local folder laid out like one."""

    kind: Literal["text_hub"] = "text_hub"
    name: str
    """Name on the hub, such as `stanfordnlp/sst2`."""
    config: str | None = None
    """The data set's configuration, if it has several (`sst2` of `nyu-mll/glue`)."""
    revision: str | None = None
    """Branch, tag or commit; set one for reproducible data."""
    train_split: str = "train"
    """The split to train on."""
    test_split: str = "test"
    """The split to test on; some data sets call it `validation`."""

    def table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        """Fetched, or found in the hub's cache."""
        wanted = self.train_split if split == "train" else self.test_split
        table = hub_table(self.name, self.config, self.revision, wanted)
        return table, f"{self.name} ({wanted})"

    def _name(self) -> str:
        return self.name.rsplit("/", 1)[-1]


def _numbered(records: Sequence[Record], column: str | None) -> np.ndarray | None:
    """The values of a column as numbers from 0 on, in the order of their names."""
    if column is None:
        return None
    values = [str(record[column]) for record in records]
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def encoded(
    pieces: Sequence[Piece],
    groups: np.ndarray,
    source: TextTable,
    reader: Reader,
    *,
    public: bool = False,
) -> Samples:
    """Pieces of text as tokens and labels."""
    task, length = source.task, source.length
    if reader.classifies and not public and not isinstance(task, Classification):
        raise ScenarioError(
            "model.kind",
            f"got sequence_classifier, but a {task.kind} task has no classes: use causal_lm",
        )
    begin = [] if reader.begin is None else [reader.begin]
    if reader.classifies and not isinstance(task, Classification):
        # all of it is there to be read: a classifier has no answers that could be tokens
        pieces = [Piece(piece.prompt + piece.answer, "") for piece in pieces]
    prompts = reader.encode([piece.prompt for piece in pieces])
    close = [] if reader.close is None else [reader.close]
    shown, learned = _cut(prompts, pieces, reader, length - len(begin) - len(close))
    around = len(begin) + len(close)
    lengths = [around + len(one) + len(other) for one, other in zip(shown, learned, strict=True)]
    inputs = torch.full((len(pieces), length), reader.pad)
    labels = torch.full((len(pieces), length), IGNORED)
    left = source.padding == "left"
    for row, (prompt, answer) in enumerate(zip(shown, learned, strict=True)):
        tokens = torch.tensor([*begin, *prompt, *answer, *close])
        start = length - len(tokens) if left else 0
        inputs[row, start : start + len(tokens)] = tokens
        if not (reader.classifies and public):
            targets = _targets(tokens, len(begin) + len(prompt), pieces[row], source.learns, reader)
            labels[row, start : start + len(tokens)] = targets
    info = TextInfo(
        torch.tensor(lengths),
        torch.tensor([len(begin) + len(prompt) for prompt in shown]),
        torch.from_numpy(groups),
        left,
        reader.both_ways,
    )
    return Samples(inputs, labels, info)


def _cut(
    prompts: list[list[int]], pieces: Sequence[Piece], reader: Reader, room: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and answers that fit together: at least a quarter of the room is the prompt's."""
    if reader.classifies:
        return [prompt[:room] for prompt in prompts], [[] for _ in prompts]
    answers = [[*answer, reader.end] for answer in reader.encode([p.answer for p in pieces])]
    shown, learned = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        cut = answer[: max(1, room - min(len(prompt), room // 4))]
        shown.append(prompt[max(0, len(prompt) + len(cut) - room) :])
        learned.append(cut)
    return shown, learned


def _targets(tokens: Tensor, prompt: int, piece: Piece, learns: str, reader: Reader) -> Tensor:
    """At each position, what is to come out there."""
    targets = torch.full_like(tokens, IGNORED)
    if reader.classifies:
        targets[0 if reader.both_ways else -1] = piece.label
        return targets
    first = 0 if learns == "all" else max(0, prompt - 1)
    targets[first:-1] = tokens[first + 1 :]
    return targets


class TextBatcher:
    """Batches of texts, as long as the longest among them."""

    augments = False

    def __init__(self, samples: Samples, device: torch.device | str = "cpu") -> None:
        assert samples.texts is not None, "made for no images"
        self.device = torch.device(device)
        self._inputs = samples.inputs.to(self.device)
        self._labels = samples.labels.to(self.device)
        self._texts = samples.texts

    def lengths(self, rows: Tensor) -> Tensor:
        """The number of tokens of each row."""
        return self._texts.lengths[rows.cpu()]

    def batch(self, indices: Tensor, rng: torch.Generator | None = None, epoch: int = 0) -> Batch:
        """The rows `indices`; texts are never augmented."""
        del rng, epoch
        lengths = self._texts.lengths[indices.cpu()]
        longest = int(lengths.max())
        rows = indices.to(self.device, non_blocking=True)
        kept = slice(-longest, None) if self._texts.left else slice(longest)
        inputs = self._inputs.index_select(0, rows)[:, kept]
        labels = self._labels.index_select(0, rows)[:, kept]
        mask = None
        if self._texts.left:
            mask = (torch.arange(longest) >= longest - lengths[:, None]).to(self.device)
        elif self._texts.masked:
            mask = (torch.arange(longest) < lengths[:, None]).to(self.device)
        there = lengths.to(self.device)
        return Batch(inputs.contiguous(), labels.contiguous(), indices, mask, there)


class TextStock:
    """What clients may add to their texts: public texts, and tokens."""

    def __init__(self, batcher: TextBatcher, size: int, vocabulary: Vocabulary) -> None:
        self._batcher, self.size = batcher, size
        self.vocabulary, self.pad = vocabulary.size, vocabulary.pad

    def support(self, count: int, rows: int, rng: torch.Generator) -> list[Batch]:
        """So many batches of so many public texts, drawn alike."""
        drawn = torch.randint(self.size, (count, rows), generator=rng)
        return [self.texts(each) for each in drawn]

    def texts(self, rows: Tensor) -> Batch:
        """The public texts of these numbers."""
        return self._batcher.batch(rows)
