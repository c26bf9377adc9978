"""Columns that are to be read as texts, and hold some."""

from typing import TYPE_CHECKING

from simsplit.data.tasks import AnyTask, Language, columns_in
from simsplit.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def refuse_other_than_texts(table: "pa.Table", task: AnyTask, where: str) -> None:
    """DataError where what a task reads is empty throughout, or none of it is text."""
    if not table.num_rows:
        return
    names = [task.text] if isinstance(task, Language) else columns_in(task.prompt)
    for name in names:
        if table[name].null_count == table.num_rows:
            raise DataError(f"data.source.task: {where}: column '{name}' is empty in every row")
    kinds = {name: table.schema.field(name).type for name in names}
    if not any(map(_is_text, kinds.values())):
        held = ", ".join(f"'{name}' holds {kind}" for name, kind in kinds.items())
        raise DataError(f"data.source.task: {where}: {held}, not texts; name a column of texts")


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow.types as kinds

    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))
