"""All clients of a run must have data of one form: the same classes, scale and held-out splits.

What the scenario describes is decided by the scenario. The rest is decided by the majority of the
clients, once all of them are here. Who greets first decides nothing, so a client that describes
other data keeps no honest one out.

A server plans a run by the form and the number of samples that its clients hold. The samples
themselves never leave the clients, so the server works with blank stand-ins.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from simsplit.client_names import NO_NAMES, ClientNames
from simsplit.data import DataConfig, DataInfo, Prepared, Samples
from simsplit.data.samples import TextInfo
from simsplit.errors import ProtocolError, RunFailedError, format_list
from simsplit.legs import ClientId
from simsplit.scenario import Scenario

Form = Mapping[str, Any]
"""A client's description of its data, which `terms.describe_data` makes."""
PARTS = "parts"
"""The field of a run's form with the shape of each party's portion of a sample."""
_OWN_OF_PARTIES = ("sample", "classes", PARTS)
"""The fields in which the data of parties may differ."""
FIELDS: dict[str, type] = {
    "sample": list,
    "classes": list,
    "texts": bool,
    "images": bool,
    "mean": list,
    "std": list,
    "held_out": dict,
}
"""The fields of a form, and their types."""
MOST_SAMPLES = 2**31
"""Most samples that a client may claim to hold."""
MOST_VALUES = 2**26
"""Most values of one sample."""
MOST_CLASSES = 2**16
MOST_DIGEST = 64
"""Most characters of a digest of ids."""


def refuse_undescribed(form: Form, scenario: Scenario, info: DataInfo | None) -> None:
    """Raise ProtocolError if a client's data are not those that the scenario describes.

    `info` is what the scenario's source says of them; None where it says nothing.
    """
    data, held_out = scenario.data, form["held_out"]
    known = _describe_known(data, info)
    refuse_other({name: form[name] for name in known}, known, "the scenario's")
    if info is not None and len(form["classes"]) != info.classes:
        raise ProtocolError(f"its data have {len(form['classes'])} classes, not {info.classes}")
    counts = _count_held_out(data)
    if held_out.keys() != _list_splits(data) or not counts.items() <= held_out.items():
        raise ProtocolError("its data differ from the scenario's in: held_out")


def refuse_other(form: Form, known: Form, whose: str) -> None:
    """Raise ProtocolError, with the fields that differ, if two descriptions of data differ."""
    if names := list_differences(form, known):
        raise ProtocolError(f"its data differ from {whose} in: {', '.join(names)}")


def list_differences(form: Form, known: Form) -> list[str]:
    """List the fields in which a description of data differs from a known one."""
    own = _OWN_OF_PARTIES if PARTS in known else ()
    return [n for n, each in known.items() if n not in own and each != form.get(n)]


def join_forms(forms: Mapping[ClientId, Form], reader: ClientId, count: int) -> Form:
    """Return the form of parties' data: that of the party with the labels, and each one's shape.

    What the portions of all have in common, such as the number of test samples, is compared with
    that party's: what it alone knows decides nothing else.
    """
    if reader not in forms:
        raise RunFailedError(f"client {reader} has the labels, and is not here")
    known = forms[reader]
    return {**known, PARTS: [forms.get(n, known)["sample"] for n in range(count)]}


def choose_form(forms: Mapping[ClientId, Form]) -> Form:
    """Return the form that more than half of the clients describe; RunFailedError if none is."""
    groups: dict[str, list[ClientId]] = defaultdict(list)
    for client, form in forms.items():
        groups[json.dumps(form, sort_keys=True)].append(client)
    largest = max(groups.values(), key=len)
    if 2 * len(largest) > len(forms):
        return forms[largest[0]]
    one, *others = (forms[clients[0]] for clients in groups.values())
    names = sorted({name for other in others for name in list_differences(other, one)})
    raise RunFailedError(
        f"the clients' data differ in: {', '.join(names)}, and no more than half of the clients "
        f"agree (clients {'; '.join(map(format_list, groups.values()))}); compare the owners' data "
        "and start again"
    )


def _describe_known(data: DataConfig, info: DataInfo | None) -> dict[str, Any]:
    """Return the fields of the form that follow from a scenario."""
    known: dict[str, Any] = {}
    if data.classes is not None:
        known["classes"] = list(data.classes)
    if info is None:
        return known
    images = data.source.modality == "images"
    known |= {"sample": list(info.shape), "texts": info.texts, "images": images}
    scale = {"unit": (0.0, 1.0), "symmetric": (0.5, 0.5)}.get(data.normalise)
    if not images:
        known |= {"mean": [], "std": []}
    elif scale is not None:
        known |= {"mean": [scale[0]] * info.shape[0], "std": [scale[1]] * info.shape[0]}
    return known


def _list_splits(data: DataConfig) -> set[str]:
    """List the held-out splits that a scenario has."""
    has_public = bool(data.auxiliary) or data.public is not None
    splits = {"test": True, "validation": data.validation, "auxiliary": has_public}
    return {name for name, is_there in splits.items() if is_there}


def _count_held_out(data: DataConfig) -> dict[str, int]:
    """Count the held-out samples, where no owner can bring data of another size."""
    source = data.source
    if "path" in type(source).model_fields or source.modality == "texts" or data.classes:
        return {}
    if (sizes := source.count_samples()) is None:
        return {}
    train, test = (
        count if most is None else min(count, most)
        for count, most in zip(sizes, (data.train_samples, data.test_samples), strict=True)
    )
    shares = {"validation": data.validation, "auxiliary": data.auxiliary}
    return {"test": test} | {name: round(share * train) for name, share in shares.items() if share}


def check_form(form: object) -> dict[str, Any]:
    """Return a client's description of its data; raise ProtocolError unless it is well formed.

    `terms.describe_data` makes it. The bounds keep a hostile client from sizing the server's
    tensors.
    """
    good = (
        isinstance(form, dict)
        and form.keys() - {"ids"} == FIELDS.keys()
        and isinstance(form.get("ids", ""), str)
        and len(form.get("ids", "")) <= MOST_DIGEST
        and all(isinstance(form[name], kind) for name, kind in FIELDS.items())
        and 0 < len(form["sample"]) <= 4
        and all(is_count(size) and 0 < size < 2**20 for size in form["sample"])
        and math.prod(form["sample"]) <= MOST_VALUES
        and 0 < len(form["classes"]) <= MOST_CLASSES
        and all(isinstance(name, str) for name in form["classes"])
        and all(isinstance(each, float) for each in (*form["mean"], *form["std"]))
        # JSON as Python reads it has NaN and Infinity.
        and all(math.isfinite(each) for each in (*form["mean"], *form["std"]))
        and form["held_out"].keys() <= {"test", "validation", "auxiliary"}
        and "test" in form["held_out"]
        and all(is_count(count) for count in form["held_out"].values())
    )
    if not good:
        raise ProtocolError("a description of its data that is not well formed")
    return dict(form)  # type: ignore[call-overload, no-any-return]


def make_remote_data(
    name: str,
    form: Mapping[str, Any],
    samples: Sequence[int],
    client_names: ClientNames = NO_NAMES,
) -> Prepared:
    """Make stand-ins for the clients' data: the right form and counts, without any sample.

    `samples` holds each client's number of training samples. The server's own scenario may name
    them; nothing that a client sends does.
    """
    held_out = {
        split: _make_blank_samples(form, count) for split, count in form["held_out"].items()
    }
    return Prepared(
        name=name,
        info=read_info(form),
        train=_make_blank_samples(form, sum(samples)),
        validation=held_out.get("validation"),
        auxiliary=held_out.get("auxiliary"),
        test=held_out["test"],
        # A view of one number: what a client claims to hold must cost no memory.
        parts=[np.broadcast_to(np.int64(0), (count,)) for count in samples],
        mean=tuple(form["mean"]),
        std=tuple(form["std"]),
        class_names=tuple(form["classes"]),
        has_samples=False,
        client_names=client_names,
    )


def read_info(form: Form) -> DataInfo:
    """Return what a form says of the data."""
    parts = tuple(map(tuple, form.get(PARTS, ())))
    shape, classes = tuple(form["sample"]), len(form["classes"])
    return DataInfo(shape, classes, texts=form["texts"], parts=parts)


def _make_blank_samples(form: Mapping[str, Any], count: int) -> Samples:
    """Make `count` blank samples, which share one zero in memory."""
    shape = tuple(form["sample"])
    kind = torch.uint8 if form["images"] else torch.float32
    inputs = torch.zeros((), dtype=torch.int64 if form["texts"] else kind).expand(count, *shape)
    nothing = torch.zeros((), dtype=torch.int64)
    if not form["texts"]:
        return Samples(inputs, nothing.expand(count))
    counts = nothing.expand(count)
    return Samples(inputs, nothing.expand(count, *shape), TextInfo(counts, counts, counts))


def is_count(value: object) -> bool:
    """Return whether a value is a number of samples that a client may claim to hold."""
    return type(value) is int and 0 <= value < MOST_SAMPLES
