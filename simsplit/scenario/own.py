"""Data and networks that a user passes from Python: overrides name them by their digests."""

from typing import Any

from simsplit.data.given import GivenSource, build_given_source
from simsplit.data.given_texts import TextGiven, build_given_texts, is_texts
from simsplit.held import get_held
from simsplit.models.split_model import GivenModel, hold_model


def own(data: Any = None, model: Any = None, **columns: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return overrides with your data and model, for `load_scenario`, `load_sweep` or `run`.

    Args:
        data: Arrays, tensors, texts, a Dataset or a frame; or two splits of it; or a list with one
            entry for each client.
        model: A `SplitModel`, or three modules.
        columns: Options of the data: target, categories, drop and client for a frame; task, length,
            learns and others for texts. `simsplit list data table` and `text_given` list them.

    >>> load_sweep("scenarios/quickstart.yaml", own(data=(x, y)))  # doctest: +SKIP
    """
    changes: dict[str, Any] = {}
    if data is not None:
        source = (build_given_texts if is_texts(data, columns) else build_given_source)(
            data, **columns
        )
        changes["data.source"] = source.model_dump(mode="json")
        # Data that are given client by client stay with these clients.
        if source.owners:
            changes["data.partition"] = {"kind": "natural"}
            changes["clients.count"] = source.owners
    if model is not None:
        changes["model"] = hold_model(model).model_dump(mode="json")
    return changes


def collect_held(*parts: object) -> dict[str, object]:
    """Return the passed objects that a data source or model refers to, by digest.

    Other processes need them beside the scenario.
    """
    kinds = GivenSource | TextGiven | GivenModel
    digests = [part.digest for part in parts if isinstance(part, kinds)]
    return {digest: thing for digest in digests if (thing := get_held(digest)) is not None}
