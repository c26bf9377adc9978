"""This module turns rows of a table into prompts and the answers that a text client learns.

A task says which columns make up the prompt and the answer. Tasks of some well-known data sets are
defined by name, for the columns that these have on the hub.
"""

from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator

from simsplit.config import Config
from simsplit.errors import DataError, suggest

if TYPE_CHECKING:
    import pyarrow as pa


Record = Mapping[str, Any]


class Piece(NamedTuple):
    """A row as text: prompt, answer and class."""

    prompt: str
    answer: str
    label: int = 0
    """Number of the class; 0 unless the task is classification."""


def list_columns(template: str) -> list[str]:
    """Return the column names that a template has in braces."""
    return [name for _, name, _, _ in Formatter().parse(template) if name]


class _Prompted(Config):
    prompt: str
    """Template of the prompt, with columns in braces: `Question: {question}`."""

    def select_records(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records to learn from: all of them."""
        return records

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str) -> str:
        if not list_columns(prompt):
            raise ValueError("must name a column in braces, such as {text}")
        return prompt


class Classification(_Prompted):
    """Classification of texts: a classifier predicts the class, a causal model its name."""

    kind: Literal["classification"] = "classification"
    label: str = "label"
    """Column of labels: numbers from 0 on, or names that are in `names`."""
    names: tuple[str, ...] = Field(min_length=2)
    """Names of the classes, in the order of their numbers."""

    @property
    def columns(self) -> set[str]:
        """Names of the columns that a table must have."""
        return {*list_columns(self.prompt), self.label}

    def make_pieces(self, records: Iterable[Record], where: str) -> list[Piece]:
        return [
            self._make_piece(record, f"{where}, row {row}") for row, record in enumerate(records)
        ]

    def _make_piece(self, record: Record, where: str) -> Piece:
        given = record[self.label]
        label = self.names.index(given) if given in self.names else given
        # a data frame keeps a column of whole numbers with gaps as floats
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if not isinstance(label, int) or not 0 <= label < len(self.names):
            words = ", ".join(self.names)
            raise DataError(
                f"data.source.task.label: {where}: must be 0 to {len(self.names) - 1}, or one of "
                f"{words}; got {given!r}"
            )
        return Piece(_fill(self.prompt, record), f" {self.names[label]}", int(label))


class Generation(_Prompted):
    """Generation of an answer to each prompt."""

    kind: Literal["generation"] = "generation"
    answer: str = " {answer}"
    """Template of the answer, with columns in braces."""

    @property
    def columns(self) -> set[str]:
        return {*list_columns(self.prompt), *list_columns(self.answer)}

    def make_pieces(self, records: Iterable[Record], where: str) -> list[Piece]:
        return [Piece(_fill(self.prompt, record), _fill(self.answer, record)) for record in records]


class Language(Config):
    """Language modelling: every token of a text is learned."""

    kind: Literal["language"] = "language"
    text: str = "text"
    """Column of texts."""

    @property
    def columns(self) -> set[str]:
        return {self.text}

    def select_records(self, records: Sequence[Record]) -> Sequence[Record]:
        return [record for record in records if self._to_text(record)]

    def make_pieces(self, records: Iterable[Record], where: str) -> list[Piece]:
        return [Piece("", self._to_text(record)) for record in records]

    def _to_text(self, record: Record) -> str:
        return str(record[self.text] or "").strip()


AnyTask = Classification | Generation | Language
Task = Annotated[AnyTask, Field(discriminator="kind")]

LAYOUTS: Mapping[str, AnyTask] = {
    "sst2": Classification(prompt="{sentence} It was", names=("negative", "positive")),
    "cola": Classification(
        prompt="{sentence} Is this acceptable?", label="label", names=("no", "yes")
    ),
    "rte": Classification(
        prompt="{sentence1} Does it follow that {sentence2}", names=("yes", "no")
    ),
    "mrpc": Classification(prompt="{sentence1} The same as {sentence2}", names=("no", "yes")),
    "qqp": Classification(prompt="{question1} The same as {question2}", names=("no", "yes")),
    "gsm8k": Generation(prompt="Question: {question}\nAnswer:", answer=" {answer}"),
    "codealpaca": Generation(
        prompt="Instruction: {instruction}\nInput: {input}\nOutput:", answer="\n{output}"
    ),
    "samsum": Generation(prompt="Dialogue: {dialogue}\nSummary:", answer=" {summary}"),
    "webnlg": Generation(prompt="Facts: {input}\nText:", answer=" {target}"),
    "python_docs": Classification(prompt="{text} This is about", names=("asyncio", "email")),
    "language": Language(),
}
"""Tasks by name."""


def find_task(word: str) -> AnyTask:
    """Return the task of this name; raise ValueError if there is none."""
    if word not in LAYOUTS:
        allowed = ", ".join(LAYOUTS)
        raise ValueError(f"unknown '{word}'{suggest(word, LAYOUTS) or ','} allowed: {allowed}")
    return LAYOUTS[word]


def _fill(template: str, record: Record) -> str:
    values = {name: _to_text(record[name]) for name in list_columns(template)}
    return template.format_map(values)


def _to_text(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return "" if value is None else str(value).strip()


def refuse_other_than_texts(table: "pa.Table", task: AnyTask, where: str) -> None:
    """Raise DataError if a column that the task reads is empty, or if none of them holds texts."""
    if not table.num_rows:
        return
    names = [task.text] if isinstance(task, Language) else list_columns(task.prompt)
    for name in names:
        if table[name].null_count == table.num_rows:
            raise DataError(f"data.source.task: {where}: column '{name}' is empty in every row")
    kinds = {name: table.schema.field(name).type for name in names}
    if not any(map(_is_text, kinds.values())):
        types = ", ".join(f"'{name}' holds {kind}" for name, kind in kinds.items())
        raise DataError(f"data.source.task: {where}: {types}, not texts; name a column of texts")


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow.types as kinds

    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))
