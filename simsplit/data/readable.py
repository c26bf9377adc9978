"""This module checks that the columns a task reads hold texts."""

from typing import TYPE_CHECKING

from simsplit.data.tasks import AnyTask, Language, list_columns
from simsplit.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


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
