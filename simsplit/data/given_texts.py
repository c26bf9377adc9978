"""Texts that a Python call passes: lists of strings, frames, the hub's Datasets, dealt or not.

Rows stay texts until a model's tokenizer reads them, as those of files do.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from simsplit.data.arrays import class_names_of, numbered
from simsplit.data.forms import (
    arrow,
    as_labels,
    checked,
    is_frame,
    is_hub,
    is_pair,
    not_passed,
    splits_of,
)
from simsplit.data.splits import held_out
from simsplit.data.tasks import LAYOUTS, Classification, Language, Task
from simsplit.data.texts import TextTable
from simsplit.errors import DataError
from simsplit.held import held, hold
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _LABEL, _OWNER = "text", "label", "(client)"
_LABELS = "data (labels)"
_TEST_FRACTION = 0.2


class TextGiven(TextTable):
    """Texts passed from Python: `run(scenario, data=...)`. Not to be written by hand."""

    kind: Literal["text_given"] = "text_given"
    digest: str = ""
    """Of the texts, which a resumed run must be passed again."""
    task: Task = LAYOUTS["language"]
    """What is learned; a bare word such as `sst2` names the task of that data set."""

    def table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        """What was passed in this process."""
        tables = held(self.digest)
        if tables is None:
            raise not_passed(self.digest)
        return cast("Mapping[str, pa.Table]", tables)[split], f"data ({split})"

    @property
    def owners(self) -> int:
        """How many clients they were dealt to; 0 if they were not."""
        return 0 if self.client is None else len(self.table("train")[0][self.client].unique())

    def _name(self) -> str:
        return "given"


def is_texts(data: Any, options: Mapping[str, Any]) -> bool:  # noqa: ANN401 - many forms
    """Whether texts were passed: strings, rows of which a task was named, or a column `text`."""
    parts, _ = _parts_of(splits_of(data)[0])
    part: Any = parts[0] if parts else None
    if is_hub(part) and any(type(kind).__name__ == "Image" for kind in part.features.values()):
        return False
    if is_frame(part) or is_hub(part):
        return "task" in options or _TEXT in _columns(part)
    return _strings(part[0] if is_pair(part) else part)


def given_texts(data: Any, **options: Any) -> TextGiven:  # noqa: ANN401
    """The source of texts that were passed; they are held in this process from now on.

    Without test data a fifth is held out (of every class), the same in every run.
    """
    import pyarrow as pa

    train, test = splits_of(data)
    parts, dealt = _parts_of(train)
    tables = [_table(part) for part in parts]
    whole, other = pa.concat_tables(tables), None if test is None else _table(test)
    if "task" not in options:
        names, words = _names(parts[0], whole)
        if words:
            whole = _in_words(whole, names)
            other = None if other is None else _in_words(other, names)
        options |= {"task": _task(names)}
    if dealt:
        owners = np.repeat([f"{n:06d}" for n in range(len(parts))], [*map(len, tables)])
        whole = whole.append_column(_OWNER, pa.array(owners))
        options |= {"client": _OWNER}
    source = checked(TextGiven, options)
    made = _divided(whole, source) if other is None else {"train": whole, "test": other}
    digest = _digest(made)
    hold({digest: made})
    return source.model_copy(update={"digest": digest})


def _parts_of(train: Any) -> tuple[list[Any], bool]:  # noqa: ANN401
    """The clients' parts, if training data were dealt; else all of them, and False."""
    dealt = isinstance(train, list) and not _strings(train)
    return (train, True) if dealt else ([train], False)


def _strings(items: Any) -> bool:  # noqa: ANN401
    """Whether these are texts, or pairs of a text and its label."""
    if isinstance(items, str) or not hasattr(items, "__len__") or not len(items):
        return False
    first = next(iter(items))
    return isinstance(first[0] if is_pair(first) else first, str)


def _columns(part: Any) -> list[str]:  # noqa: ANN401
    return [*map(str, part.column_names if is_hub(part) else part.columns)]


def _table(part: Any) -> "pa.Table":  # noqa: ANN401
    """One part's rows; a text without a label has none."""
    import pyarrow as pa

    if is_hub(part):
        return arrow(part)
    if is_frame(part):
        return pa.Table.from_pandas(part, preserve_index=False)
    if not is_pair(part) and is_pair(part[0]):  # a torch Dataset's items
        part = tuple(zip(*(part[row] for row in range(len(part))), strict=True))
    texts, labels = part if is_pair(part) else (part, None)
    if strange := [type(text).__name__ for text in texts if not isinstance(text, str)]:
        raise DataError(f"data: every text must be a str, got {strange[0]}")
    columns = {_TEXT: pa.array([*texts])}
    if labels is not None:
        columns[_LABEL] = pa.array(as_labels(labels))
        if len(columns[_LABEL]) != len(texts):
            raise DataError(f"data: {len(texts)} texts, but {len(columns[_LABEL])} labels")
    return pa.table(columns)


def _names(part: Any, table: "pa.Table") -> tuple[tuple[str, ...], bool]:  # noqa: ANN401
    """The classes of the column `label`, and whether labels are to be put into these words: the
    hub's are numbers of its names already. No classes where there is no such column.
    """
    if _LABEL not in table.column_names:
        return (), False
    told = getattr(part.features[_LABEL], "names", None) if is_hub(part) else None
    if told:
        return tuple(told), False
    return class_names_of(table[_LABEL].to_numpy(), _LABELS), True


def _in_words(table: "pa.Table", names: Sequence[str]) -> "pa.Table":
    """Labels as the names of their classes, so that none is taken for the number of another."""
    import pyarrow as pa

    if _LABEL not in table.column_names:
        raise DataError(f"{_LABELS}: training texts have some, test texts have none")
    numbers = numbered(table[_LABEL].to_numpy(), names, _LABELS)
    column = pa.array([names[number] for number in numbers])
    return table.set_column(table.column_names.index(_LABEL), _LABEL, column)


def _task(names: Sequence[str]) -> Classification | Language:
    if not names:
        return Language(text=_TEXT)
    return Classification(prompt=f"{{{_TEXT}}}", label=_LABEL, names=tuple(names))


def _divided(table: "pa.Table", source: TextGiven) -> dict[str, "pa.Table"]:
    """Four fifths to train on, stratified by class."""
    column = source.task.label if isinstance(source.task, Classification) else None
    labels = np.zeros(len(table), dtype=np.int64)
    if column in table.column_names:
        labels = np.unique(table[column].to_numpy().astype(str), return_inverse=True)[1]
    kept, out = held_out(labels, _TEST_FRACTION, numpy_rng_for(0, "given", "test"))
    return {"train": table.take(kept), "test": table.take(out)}


def _digest(tables: Mapping[str, "pa.Table"]) -> str:
    """Of all rows, whatever form they were passed in."""
    hasher = hashlib.blake2b(digest_size=8)
    for table in tables.values():
        hasher.update(json.dumps(table.to_pylist(), default=str, sort_keys=True).encode())
    return hasher.hexdigest()
