"""This module recognises the forms in which a Python call may pass data."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from simsplit.config import Config
from simsplit.errors import DataError
from simsplit.objects_by_digest import get_held

_Config = TypeVar("_Config", bound=Config)

FORMS = (
    "(inputs, labels); a pair of such pairs, or {'train': ..., 'test': ...}; a torch Dataset; a "
    "pandas DataFrame; a datasets.Dataset or DatasetDict; a list of texts; or a list of any of "
    "these, one for each client"
)


def get_splits(data: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Return the training data that were passed, and the test data or None."""
    if isinstance(data, Mapping):
        if "train" not in data:
            raise DataError(f"data: a mapping needs 'train', got {', '.join(map(str, data))}")
        other = next((name for name in ("test", "validation") if name in data), None)
        return data["train"], data[other] if other else None
    if isinstance(data, tuple) and len(data) == 2 and all(map(is_pair, data)):
        return data
    return data, None


def is_pair(data: object) -> bool:
    """Return whether `data` is a pair: inputs and labels, or two splits."""
    return isinstance(data, tuple) and len(data) == 2


def is_frame(data: object) -> bool:
    """Return whether `data` is a pandas DataFrame."""
    # by its module's name, so that pandas is imported only if data are of it
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns")


def is_hub(data: object) -> bool:
    """Return whether `data` is a Dataset of the library `datasets`."""
    return type(data).__module__.split(".")[0] == "datasets"


def to_arrow(dataset: Any) -> Any:  # noqa: ANN401
    """Convert a Dataset of the library `datasets` to an Arrow table."""
    schema = dataset.features.arrow_schema
    return dataset.with_format("arrow")[:].replace_schema_metadata(schema.metadata)


def build_options(config: type[_Config], options: Mapping[str, Any]) -> _Config:
    """Build a config from the keywords passed beside `data`; raise DataError if one is invalid."""
    try:
        return config(**options)
    except ValidationError as error:
        first = error.errors()[0]
        known = config.model_fields.keys() - {"kind", "digest"}
        raise DataError(
            f"data: {first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}; "
            f"options beside data: {', '.join(sorted(known))}"
        ) from None


def get_passed(digest: str) -> Any:  # noqa: ANN401
    """Return the data passed to this process; raise DataError if none with this digest were."""
    if (data := get_held(digest)) is None:
        raise DataError(
            f"data.source: the data with digest {digest} were passed from Python, not to this "
            "process; pass them again: run('RUN/scenario.yaml', 'RUN', resume=True, data=...)"
        )
    return data
