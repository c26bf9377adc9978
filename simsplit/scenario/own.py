"""Data and networks of one's own in a scenario: overrides that name them by their digests."""

from typing import Any

from simsplit.data.given import GivenSource, given_source
from simsplit.data.given_texts import TextGiven, given_texts, is_texts
from simsplit.held import held
from simsplit.models.own import GivenModel, given_model


def own(data: Any = None, model: Any = None, **columns: Any) -> dict[str, Any]:  # noqa: ANN401
    """Overrides for `load_scenario` or `load_sweep`, and for `run` of a dict.

    Args:
        data: Arrays, tensors, texts, a Dataset, a frame; two splits of it; or a list, one for each
            client.
        model: A `SplitModel`, or three modules.
        columns: Of a frame: target, categories, drop, client; of texts: task, length, learns, ...;
            see `simsplit list data table` and `text_given`.

    >>> load_sweep("scenarios/quickstart.yaml", own(data=(x, y)))  # doctest: +SKIP
    """
    changes: dict[str, Any] = {}
    if data is not None:
        source = (given_texts if is_texts(data, columns) else given_source)(data, **columns)
        changes["data.source"] = source.model_dump(mode="json")
        if source.owners:
            changes["data.partition"] = {"kind": "natural"}
            changes["clients.count"] = source.owners
    if model is not None:
        changes["model"] = given_model(model).model_dump(mode="json")
    return changes


def held_by(*parts: object) -> dict[str, object]:
    """What a scenario's data source or model was passed, by digest: for other processes."""
    kinds = GivenSource | TextGiven | GivenModel
    digests = [part.digest for part in parts if isinstance(part, kinds)]
    return {digest: thing for digest in digests if (thing := held(digest)) is not None}
