"""This module reads texts and turns them into tokens, labels and batches.

The label at a position is what the model should predict there: the next token, or the class (at
the last token, for an encoder at the first). At other positions nothing is learned. So one loss
serves all tasks.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from simsplit.client_names import name_owners
from simsplit.config import Config
from simsplit.data.batches import Batch, Batches
from simsplit.data.cached_sets import (
    count_rows,
    find_parquet_files,
    load_hub_table,
    read_parquet,
    read_parquet_columns,
)
from simsplit.data.samples import (
    IGNORED,
    DataInfo,
    DataSet,
    Samples,
    SplitSizes,
    TextInfo,
    Vocabulary,
)
from simsplit.data.splits import Limit, hold_out
from simsplit.data.tasks import (
    LAYOUTS,
    AnyTask,
    Classification,
    Piece,
    Record,
    Task,
    find_task,
    list_columns,
    refuse_other_than_texts,
)
from simsplit.errors import DataError, ScenarioError, suggest
from simsplit.models.tokenizers import Reader
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    import pyarrow as pa


Fields = Sequence[Sequence[str]]
"""The columns of each party's text."""
FEWEST = 20
"""Smallest number of sentences of a topic."""


class TextTable(Config):
    """The base of all sources of texts."""

    modality: ClassVar[Literal["texts"]] = "texts"
    task: Task
    """Task to learn; a bare word such as `sst2` names the task of that data set."""
    length: int = Field(default=64, ge=2)
    """Largest number of tokens of a text; prompts are cut at their beginning, answers at their
    end."""
    learns: Literal["answer", "all"] = "answer"
    """Whether a causal model learns only the tokens of the answer, or also those of the prompt."""
    topic: str | None = None
    """Column by which partitions divide texts; null: the class, if the task has classes."""
    client: str | None = None
    """Column that names the client of each training text, for `partition: natural`; null: texts
    belong to no client."""
    rows: int | None = Field(default=None, ge=1)
    """Largest number of rows to read of each split, from the first on; null: all."""
    padding: Literal["right", "left"] = "right"
    """Side on which shorter texts are padded; with `left`, a mask must cross the cut too."""

    @field_validator("task", mode="before")
    @classmethod
    def _expand_task(cls, value: object) -> object:
        return find_task(value) if isinstance(value, str) else value

    def describe(self) -> DataInfo | None:
        """Return shape and classes, which are known without reading the data."""
        return DataInfo((self.length,), len(self.class_names), texts=True)

    def count_samples(self) -> SplitSizes | None:
        """Return the number of texts without reading them; None if it cannot be known yet."""
        return None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the task's classes; a single name if it has none."""
        task = self._complete_task()
        return task.names if isinstance(task, Classification) else ("text",)

    @abstractmethod
    def read_table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        """Read a split's rows; return them with their origin, for messages."""

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """The columns that the task's prompt names, which parties can have."""
        task = self._complete_task()
        named = list_columns(task.prompt) if isinstance(task, Classification) else ()
        return tuple(dict.fromkeys(named))

    def load(self, reader: Reader, limit: Limit | None = None, fields: Fields = ()) -> DataSet:
        """Read both splits as tokens of a model's tokenizer.

        With `fields` a row is a text for each party, of that party's columns alone.
        """
        train, names = self._read("train", reader, limit, fields)
        test, _ = self._read("test", reader, limit, fields)
        return DataSet(self._get_name(), train, test, self.class_names, owner_names=names)

    def read_public(self, reader: Reader) -> Samples:
        """Read the training texts as public ones, without labels if the model is a classifier."""
        return self._read("train", reader, public=True)[0]

    def _read(
        self,
        split: Literal["train", "test"],
        reader: Reader,
        limit: Limit | None = None,
        fields: Fields = (),
        *,
        public: bool = False,
    ) -> tuple[Samples, tuple[str, ...]]:
        """Read one split as tokens, and the names of the clients that texts belong to."""
        table, where = self.read_table(split)
        task = self._complete_task()
        client = self.client if split == "train" and not public else None
        wanted = self._choose_columns(client, table.column_names, where)
        refuse_other_than_texts(table, task, where)
        records = task.select_records(table.select(wanted).slice(0, self.rows).to_pylist())
        pieces = task.make_pieces(records, where)
        if not pieces:
            raise DataError(f"data.source: {where} has no rows")
        groups = _number_values(records, self.topic)
        if groups is None:
            groups = np.array([piece.label for piece in pieces], dtype=np.int64)
        owners = _number_values(records, client)
        named = sorted({str(record[client]) for record in records}) if client else []
        rows = None if limit is None else limit.choose_rows(groups, split)
        if rows is not None:
            pieces, groups = [pieces[row] for row in rows], groups[rows]
            records = [records[row] for row in rows]
            owners = None if owners is None else owners[rows]
        encode = partial(encode_pieces, groups=groups, source=self, reader=reader, public=public)
        texts = [
            [
                piece._replace(prompt=" ".join(str(record[column]) for column in columns))
                for piece, record in zip(pieces, records, strict=True)
            ]
            for columns in fields
        ]
        samples = join_fields([*map(encode, texts)]) if fields else encode(pieces)
        return replace(samples, owners=owners), name_owners(client, named)

    def _choose_columns(self, client: str | None, columns: Sequence[str], where: str) -> list[str]:
        """Return the columns to read; raise DataError if the table lacks one."""
        wanted = sorted(self._complete_task().columns | set(filter(None, (self.topic, client))))
        for name in wanted:
            if name not in columns:
                raise DataError(
                    f"data.source.task: {where} has no column '{name}'"
                    f"{suggest(name, columns) or ','} it has: {', '.join(columns)}"
                )
        return wanted

    def _complete_task(self) -> AnyTask:
        """Return the task, with all its fields known."""
        return self.task

    @abstractmethod
    def _get_name(self) -> str: ...


class PythonDocs(TextTable):
    """Sentences from docstrings of Python's standard library; nothing is downloaded."""

    kind: Literal["python_docs"] = "python_docs"
    topics: tuple[str, ...] = ("asyncio", "email", "importlib", "logging", "unittest", "xml")
    """Modules or packages of the standard library; each is a class."""
    task: Task = Field(default=LAYOUTS["python_docs"])
    """Task to learn; a bare word such as `language` names the kind of task."""

    def read_table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        """Return four fifths as training rows, the rest as test rows, the same in every run."""
        import pyarrow as pa

        from simsplit.pretrain.corpus import read_sentences

        by_topic = {topic: read_sentences(topic) for topic in self.topics}
        for topic, sentences in by_topic.items():
            if len(sentences) < FEWEST:
                raise DataError(
                    f"data.source.topics: the docstrings of {topic} must have {FEWEST} sentences "
                    f"or more, got {len(sentences)}; choose larger packages"
                )
        rows = [
            {"text": text, "label": label, "topic": topic}
            for label, (topic, sentences) in enumerate(by_topic.items())
            for text in sentences
        ]
        labels = np.array([row["label"] for row in rows])
        kept, out = hold_out(labels, 0.2, numpy_rng_for(0, "python_docs", "test"))
        table = pa.Table.from_pylist(rows).take(kept if split == "train" else out)
        return table, f"python_docs ({split})"

    def _complete_task(self) -> AnyTask:
        if isinstance(self.task, Classification):
            return self.task.model_copy(update={"names": self.topics})
        return self.task

    def _get_name(self) -> str:
        return "python_docs"


class TextParquet(TextTable):
    """A folder of parquet files of texts, as downloaded from the Hugging Face hub."""

    kind: Literal["text_parquet"] = "text_parquet"
    path: Path
    """Folder with train.parquet and test.parquet or validation.parquet, or shards
    (train-*.parquet)."""

    def describe(self) -> DataInfo | None:
        """Return shape and classes; raise DataError if the files exist but lack a column."""
        if self.path.is_dir():
            first, *_ = find_parquet_files(self.path, "train")
            self._choose_columns(self.client, read_parquet_columns(first), f"{self.path} (train)")
        return super().describe()

    def count_samples(self) -> SplitSizes | None:
        """Count the rows; a task may leave some of them out. None if there is no folder."""
        if not self.path.is_dir():
            return None
        return SplitSizes(*(min(count, self.rows or count) for count in count_rows(self.path)))

    def read_table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        return read_parquet(find_parquet_files(self.path, split)), f"{self.path} ({split})"

    def _get_name(self) -> str:
        return self.path.name


class TextHub(TextTable):
    """A data set of texts on the Hugging Face hub, or a local folder laid out like one."""

    kind: Literal["text_hub"] = "text_hub"
    name: str
    """Name on the hub, such as `stanfordnlp/sst2`."""
    config: str | None = None
    """Configuration of the data set, if it has several (`sst2` of `nyu-mll/glue`); null: the only
    one."""
    revision: str | None = None
    """Branch, tag or commit; set one for reproducible data. null: the newest."""
    train_split: str = "train"
    """Split to train on."""
    test_split: str = "test"
    """Split to test on; some data sets call it `validation`."""

    def read_table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        wanted = self.train_split if split == "train" else self.test_split
        table = load_hub_table(self.name, self.config, self.revision, wanted)
        return table, f"{self.name} ({wanted})"

    def _get_name(self) -> str:
        return self.name.rsplit("/", 1)[-1]


def _number_values(records: Sequence[Record], column: str | None) -> np.ndarray | None:
    """Return the values of a column as numbers from 0 on, in the order of their names."""
    if column is None:
        return None
    values = [str(record[column]) for record in records]
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def join_fields(parts: Sequence[Samples]) -> Samples:
    """Lay the texts of all parties beside each other, each with its own padding.

    A row's class is at the first of all tokens.
    """
    first, *others = [each.labels for each in parts]
    infos = [each.texts for each in parts if each.texts is not None]
    lengths = torch.stack([each.lengths for each in infos], 1)
    return Samples(
        torch.cat([each.inputs for each in parts], 1),
        torch.cat([first, *(torch.full_like(each, IGNORED) for each in others)], 1),
        replace(infos[0], lengths=lengths.sum(1), fields=lengths),
    )


def encode_pieces(
    pieces: Sequence[Piece],
    groups: np.ndarray,
    source: TextTable,
    reader: Reader,
    *,
    public: bool = False,
) -> Samples:
    """Tokenize pieces of text, and set the label of each position."""
    task, length = source.task, source.length
    if reader.classifies and not public and not isinstance(task, Classification):
        raise ScenarioError(
            "model.kind",
            f"must be causal_lm, since a {task.kind} task has no classes, got sequence_classifier",
        )
    begin = [] if reader.begin is None else [reader.begin]
    if reader.classifies and not isinstance(task, Classification):
        # public texts of another task: a classifier predicts no tokens, so it reads the answer too
        pieces = [Piece(piece.prompt + piece.answer, "") for piece in pieces]
    prompts = reader.encode([piece.prompt for piece in pieces])
    close = [] if reader.close is None else [reader.close]
    shown, learned = _cut_to_fit(prompts, pieces, reader, length - len(begin) - len(close))
    inputs = torch.full((len(pieces), length), reader.pad)
    labels = torch.full((len(pieces), length), IGNORED)
    lengths, left = [], source.padding == "left"
    for row, (prompt, answer) in enumerate(zip(shown, learned, strict=True)):
        tokens = torch.tensor([*begin, *prompt, *answer, *close])
        place = slice(length - len(tokens), None) if left else slice(len(tokens))
        inputs[row, place] = tokens
        if not (reader.classifies and public):
            asked = len(begin) + len(prompt)
            labels[row, place] = _build_targets(tokens, asked, pieces[row], source.learns, reader)
        lengths.append(len(tokens))
    info = TextInfo(
        torch.tensor(lengths),
        torch.tensor([len(begin) + len(prompt) for prompt in shown]),
        torch.from_numpy(groups),
        left,
        reader.both_ways,
    )
    return Samples(inputs, labels, info)


def _cut_to_fit(
    prompts: list[list[int]], pieces: Sequence[Piece], reader: Reader, room: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Cut prompts and answers to `room` tokens; the prompt keeps up to a quarter of it."""
    if reader.classifies:
        return [prompt[:room] for prompt in prompts], [[] for _ in prompts]
    answers = [[*answer, reader.end] for answer in reader.encode([p.answer for p in pieces])]
    shown, learned = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        cut = answer[: max(1, room - min(len(prompt), room // 4))]
        # keep the end of the prompt, which the answer continues
        shown.append(prompt[max(0, len(prompt) + len(cut) - room) :])
        learned.append(cut)
    return shown, learned


def _build_targets(
    tokens: Tensor, prompt: int, piece: Piece, learns: str, reader: Reader
) -> Tensor:
    """Return the label of each position: the next token, the class, or nothing."""
    targets = torch.full_like(tokens, IGNORED)
    if reader.classifies:
        targets[0 if reader.both_ways else -1] = piece.label
        return targets
    first = 0 if learns == "all" else max(0, prompt - 1)
    targets[first:-1] = tokens[first + 1 :]
    return targets


class TextBatcher(Batches):
    """Batches of texts, each as long as its longest text."""

    def __init__(self, samples: Samples, device: torch.device | str = "cpu") -> None:
        assert samples.texts is not None, "only texts are batched here"
        super().__init__(samples, device)
        self._texts = samples.texts

    def get_lengths(self, rows: Tensor) -> Tensor:
        return self._texts.lengths[rows.cpu()]

    def batch(self, indices: Tensor, rng: torch.Generator | None = None, epoch: int = 0) -> Batch:
        """Return the rows `indices`, cut to the longest of them; texts are never augmented."""
        lengths = self.get_lengths(indices)
        longest = int(lengths.max())
        rows = indices.to(self.device, non_blocking=True)
        # padding beyond the longest text would be computed, and would cross the cut
        kept = slice(-longest, None) if self._texts.left else slice(longest)
        inputs = self._inputs.index_select(0, rows)[:, kept]
        labels = self.labels.index_select(0, rows)[:, kept]
        mask = None
        if self._texts.left:
            mask = (torch.arange(longest) >= longest - lengths[:, None]).to(self.device)
        elif self._texts.masked:
            mask = (torch.arange(longest) < lengths[:, None]).to(self.device)
        lengths = lengths.to(self.device)
        return Batch(inputs.contiguous(), labels.contiguous(), indices, mask, lengths)


class TextStock:
    """What clients may mix with their texts: support texts, and tokens of the vocabulary."""

    def __init__(self, batcher: TextBatcher, size: int, vocabulary: Vocabulary) -> None:
        self._batcher, self.size = batcher, size
        self.vocabulary, self.pad = vocabulary.size, vocabulary.pad

    def draw_support(self, count: int, rows: int, rng: torch.Generator) -> list[Batch]:
        """Draw `count` batches of `rows` support texts each, uniformly and with replacement."""
        drawn = torch.randint(self.size, (count, rows), generator=rng)
        return [self.get_texts(each) for each in drawn]

    def get_texts(self, rows: Tensor) -> Batch:
        """Return the support texts `rows` as a batch."""
        return self._batcher.batch(rows)
