"""What a text client learns: rows of a table as a prompt and what is to come after it.

A task says which columns make up the prompt and the answer. Some data sets are known by name, in
the columns that they have on the hub.
"""

from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator

from simsplit.config import Config
from simsplit.errors import DataError, near

Record = Mapping[str, Any]


class Piece(NamedTuple):
    """One row as text: prompt, answer and class."""

    prompt: str
    answer: str
    label: int = 0
    """Only of classification."""


def columns_in(template: str) -> list[str]:
    """The column names in braces."""
    return [name for _, name, _, _ in Formatter().parse(template) if name]


class _Prompted(Config):
    prompt: str
    """Template of the prompt, columns in braces: `Question: {question}`."""

    def readable(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records that say something: all of them."""
        return records

    @field_validator("prompt")
    @classmethod
    def _names_columns(cls, prompt: str) -> str:
        if not columns_in(prompt):
            raise ValueError("must name a column in braces, such as {text}")
        return prompt


class Classification(_Prompted):
    """Texts with a label: a class for a classifier, a token for a causal model."""

    kind: Literal["classification"] = "classification"
    label: str = "label"
    """Column of labels: numbers from 0 on, or words that are among `names`."""
    names: tuple[str, ...] = Field(min_length=2)
    """Names of the classes."""

    @property
    def columns(self) -> set[str]:
        """Columns that a table must have."""
        return {*columns_in(self.prompt), self.label}

    def pieces(self, records: Iterable[Record], where: str) -> list[Piece]:
        """Each record as a prompt, and its class by name and number."""
        return [self._piece(record, f"{where}, row {row}") for row, record in enumerate(records)]

    def _piece(self, record: Record, where: str) -> Piece:
        given = record[self.label]
        label = self.names.index(given) if given in self.names else given
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if not isinstance(label, int) or not 0 <= label < len(self.names):
            words = ", ".join(self.names)
            raise DataError(
                f"data.source.task.label: {where}: must be 0 to {len(self.names) - 1}, or one of "
                f"{words}; got {given!r}"
            )
        return Piece(_filled(self.prompt, record), f" {self.names[label]}", int(label))


class Generation(_Prompted):
    """Prompts with an answer to generate."""

    kind: Literal["generation"] = "generation"
    answer: str = " {answer}"
    """Template of the answer, columns in braces."""

    @property
    def columns(self) -> set[str]:
        return {*columns_in(self.prompt), *columns_in(self.answer)}

    def pieces(self, records: Iterable[Record], where: str) -> list[Piece]:
        """Each record as a prompt and the answer to generate."""
        del where
        return [
            Piece(_filled(self.prompt, record), _filled(self.answer, record)) for record in records
        ]


class Language(Config):
    """Language modelling: every token is learned."""

    kind: Literal["language"] = "language"
    text: str = "text"
    """Column of texts."""

    @property
    def columns(self) -> set[str]:
        return {self.text}

    def readable(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records whose text is not empty."""
        return [record for record in records if self._text(record)]

    def pieces(self, records: Iterable[Record], where: str) -> list[Piece]:
        """Each text as an answer without prompt."""
        del where
        return [Piece("", self._text(record)) for record in records]

    def _text(self, record: Record) -> str:
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


def task_of(word: str) -> AnyTask:
    """The task with this name; ValueError if there is none."""
    if word not in LAYOUTS:
        allowed = ", ".join(LAYOUTS)
        raise ValueError(f"unknown '{word}'{near(word, LAYOUTS) or ','} allowed: {allowed}")
    return LAYOUTS[word]


def _filled(template: str, record: Record) -> str:
    values = {name: _text(record[name]) for name in columns_in(template)}
    return template.format_map(values)


def _text(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return "" if value is None else str(value).strip()
