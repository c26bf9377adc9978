"""This module reads texts passed from Python: lists of strings, frames or the hub's Datasets.

They may be passed as a whole or as a part for each client. Rows stay texts until a model's
tokenizer reads them, like rows of files.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from simsplit.client_names import DEALT
from simsplit.data.arrays import find_class_names, number_labels, to_array
from simsplit.data.forms import (
    build_options,
    get_passed,
    get_splits,
    is_frame,
    is_hub,
    is_pair,
    to_arrow,
)
from simsplit.data.splits import hold_out
from simsplit.data.tasks import LAYOUTS, Classification, Language, Task
from simsplit.data.texts import TextTable
from simsplit.errors import DataError
from simsplit.objects_by_digest import hold
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _LABEL = "text", "label"
_LABELS = "data (labels)"
_TEST_FRACTION = 0.2


class TextGiven(TextTable):
    """Texts passed from Python: `run(scenario, data=...)`. Do not write it by hand."""

    kind: Literal["text_given"] = "text_given"
    digest: str = ""
    """Digest of the texts; the same texts must be passed again to resume the run."""
    task: Task = LAYOUTS["language"]
    """Task to learn; a bare word such as `sst2` names the task of that data set."""

    def read_table(self, split: Literal["train", "test"]) -> tuple["pa.Table", str]:
        tables = cast("Mapping[str, pa.Table]", get_passed(self.digest))
        return tables[split], f"data ({split})"

    @property
    def owners(self) -> int:
        """Number of clients for which parts were passed; 0 if the texts were passed as a whole."""
        return 0 if self.client is None else len(self.read_table("train")[0][self.client].unique())

    def _get_name(self) -> str:
        return "given"


def is_texts(data: Any, options: Mapping[str, Any]) -> bool:  # noqa: ANN401 - many forms
    """Return whether texts were passed: strings, a column `text`, or rows with a `task` option."""
    parts, _ = _get_parts(get_splits(data)[0])
    part: Any = parts[0] if parts else None
    if is_hub(part) and any(type(kind).__name__ == "Image" for kind in part.features.values()):
        return False
    if is_frame(part) or is_hub(part):
        columns = part.column_names if is_hub(part) else part.columns
        return "task" in options or _TEXT in map(str, columns)
    return _are_texts(part[0] if is_pair(part) else part)


def build_given_texts(data: Any, **options: Any) -> TextGiven:  # noqa: ANN401
    """Build the source of texts that were passed, and keep the texts in this process.

    Without test data a fifth of every class becomes test data, the same in every run.
    """
    import pyarrow as pa

    train, test = get_splits(data)
    parts, dealt = _get_parts(train)
    tables = [_to_table(part) for part in parts]
    whole, other = pa.concat_tables(tables), None if test is None else _to_table(test)
    if "task" not in options:
        names, renames = _find_classes(parts[0], whole)
        if renames:
            whole = _name_labels(whole, names)
            other = None if other is None else _name_labels(other, names)
        options["task"] = Language(text=_TEXT)
        if names:
            prompt = f"{{{_TEXT}}}"
            options["task"] = Classification(prompt=prompt, label=_LABEL, names=names)
    if dealt:
        owners = np.repeat([f"{n:06d}" for n in range(len(parts))], [*map(len, tables)])
        whole = whole.append_column(DEALT, pa.array(owners))
        options |= {"client": DEALT}
    source = build_options(TextGiven, options)
    made = _split_off_test(whole, source) if other is None else {"train": whole, "test": other}
    digest = _compute_digest(made)
    hold({digest: made})
    return source.model_copy(update={"digest": digest})


def _get_parts(train: Any) -> tuple[list[Any], bool]:  # noqa: ANN401
    """Return the clients' parts and True, or the whole as one part and False."""
    dealt = isinstance(train, list) and not _are_texts(train)
    return (train, True) if dealt else ([train], False)


def _are_texts(items: Any) -> bool:  # noqa: ANN401
    """Return whether the items are texts, or pairs of a text and its label."""
    if isinstance(items, str) or not hasattr(items, "__len__") or not len(items):
        return False
    first = next(iter(items))
    return isinstance(first[0] if is_pair(first) else first, str)


def _to_table(part: Any) -> "pa.Table":  # noqa: ANN401
    """Convert one part to a table with the columns `text` and, if labels were passed, `label`."""
    import pyarrow as pa

    if is_hub(part):
        return to_arrow(part)
    if is_frame(part):
        return pa.Table.from_pandas(part, preserve_index=False)
    if not is_pair(part) and is_pair(part[0]):  # a torch Dataset's items
        part = tuple(zip(*(part[row] for row in range(len(part))), strict=True))
    texts, labels = part if is_pair(part) else (part, None)
    if strange := [type(text).__name__ for text in texts if not isinstance(text, str)]:
        raise DataError(f"data: every text must be a str, got {strange[0]}")
    columns = {_TEXT: pa.array([*texts])}
    if labels is not None:
        columns[_LABEL] = pa.array(to_array(labels))
        if len(columns[_LABEL]) != len(texts):
            raise DataError(f"data: {len(texts)} texts, but {len(columns[_LABEL])} labels")
    return pa.table(columns)


def _find_classes(part: Any, table: "pa.Table") -> tuple[tuple[str, ...], bool]:  # noqa: ANN401
    """Return the classes of the column `label`, and whether labels must be replaced by names.

    Labels of a hub Dataset with named classes are numbers of those names already. Without the
    column there are no classes.
    """
    if _LABEL not in table.column_names:
        return (), False
    names = getattr(part.features[_LABEL], "names", None) if is_hub(part) else None
    if names:
        return tuple(names), False
    return find_class_names(table[_LABEL].to_numpy(), _LABELS), True


def _name_labels(table: "pa.Table", names: Sequence[str]) -> "pa.Table":
    """Replace labels by names of classes: a label such as 1 could be read as another's number."""
    import pyarrow as pa

    if _LABEL not in table.column_names:
        raise DataError(f"{_LABELS}: training texts have labels, test texts have none; pass both")
    numbers = number_labels(table[_LABEL].to_numpy(), names, _LABELS)
    column = pa.array([names[number] for number in numbers])
    return table.set_column(table.column_names.index(_LABEL), _LABEL, column)


def _split_off_test(table: "pa.Table", source: TextGiven) -> dict[str, "pa.Table"]:
    """Split rows into four fifths to train on and the rest to test on, stratified by class."""
    column = source.task.label if isinstance(source.task, Classification) else None
    labels = np.zeros(len(table), dtype=np.int64)
    if column in table.column_names:
        labels = np.unique(table[column].to_numpy().astype(str), return_inverse=True)[1]
    kept, out = hold_out(labels, _TEST_FRACTION, numpy_rng_for(0, "given", "test"))
    return {"train": table.take(kept), "test": table.take(out)}


def _compute_digest(tables: Mapping[str, "pa.Table"]) -> str:
    """Return a digest of all rows, independent of the form in which they were passed."""
    hasher = hashlib.blake2b(digest_size=8)
    for table in tables.values():
        hasher.update(json.dumps(table.to_pylist(), default=str, sort_keys=True).encode())
    return hasher.hexdigest()
