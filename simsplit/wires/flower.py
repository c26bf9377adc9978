"""A mod of a Flower client app keeps what its messages carry across a cut.

Messages are used by their attributes, so that Flower itself is not imported here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simsplit.errors import RunError
from simsplit.legs import Leg
from simsplit.wires.facts import FACTS, Content, Modality
from simsplit.wires.transcribing import describe_samples
from simsplit.wires.transcript import Transcript
from simsplit.wires.transcript_writer import TranscriptWriter, parse_size

LEGS = ("smashed", "features", "features_grad", "smashed_grad", "labels")
Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
TakeSamples = Callable[[Any], tuple[Sequence[int], Tensor | None, Tensor | None]]
"""A function from a context to the samples that were just sent: ids, inputs and labels."""


def transcribe_messages(
    folder: Path | str,
    *,
    legs: Mapping[str, str] | None = None,
    samples: TakeSamples | None = None,
    modality: Modality | None = None,
    content: Mapping[str, Content] | None = None,
    most: int | str = "2 GiB",
) -> Mod:
    """Return a mod that keeps arrays of a client app's messages, in a transcript for each node.

    An array is kept if its name in an `ArrayRecord`, or the record's own name if it has one array,
    is a leg's; `legs` translates other names, such as `{"activations": "smashed"}`. What a node
    receives comes before what it answers. Smashed data begin a step, to which labels beside them
    belong, and `samples(context)` returns the ids, inputs and labels of what is sent (None: not
    known). Features and gradients are of the step that began last, also where their message or its
    answer brings the next smashed data.

    >>> app = ClientApp(mods=[transcribe_messages("wires")])  # doctest: +SKIP
    """
    names = {**dict(zip(LEGS, LEGS, strict=True)), **(legs or {})}
    for leg in names.values():
        if leg not in LEGS:
            raise RunError(f"legs: '{leg}' is no leg; allowed: {', '.join(LEGS)}")
    describe = partial(
        describe_samples,
        "transcribe_messages",
        legs=list(dict.fromkeys(names.values())),
        recorder="simsplit.wires.flower",
        content=dict(content or {}),  # copied, as each message reads it
    )
    kind = None if modality == "images" else modality  # of images, the size is lacking
    plain, size = describe(inputs=None, modality=kind), parse_size(most)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:  # noqa: ANN401
        answer = call_next(message, context)
        crossed = [*_list_arrays(message, names), *_list_arrays(answer, names)]
        if not crossed:
            return answer
        begins = Leg.SMASHED in dict(crossed)
        numbers, inputs, labels = samples(context) if samples and begins else ((), None, None)
        ids = [*map(int, numbers)]  # which may be a tensor's
        # Each message may be handled by another process, so the transcript is opened anew.
        path = Path(folder, f"node-{int(context.node_id)}")
        facts = Transcript.open(path).facts if (path / FACTS).is_file() else plain
        if inputs is not None:
            facts = describe(inputs=inputs, modality=modality)
        writer = TranscriptWriter(path, facts, size, append=True)
        client = int(context.node_config.get("partition-id", 0))
        _add_crossed(writer, crossed, client, ids)
        if inputs is not None or labels is not None:
            writer.add_truth(ids, inputs, labels)
        writer.close()
        return answer

    return mod


def _add_crossed(
    writer: TranscriptWriter,
    crossed: Sequence[tuple[Leg, Tensor]],
    client: int,
    ids: Sequence[int],
) -> None:
    """Add arrays to the last step and, from the smashed data on, to the next, which has `ids`."""
    step, of_step = max(0, writer.next_step - 1), list[int]()
    for leg, array in crossed:
        if leg is Leg.SMASHED:
            step, of_step = writer.next_step, [*ids]
        writer.add(leg, [array], client=client, step=step, ids=of_step, copy=False)


def _is_of_new_step(crossed: tuple[Leg, Tensor]) -> tuple[bool, bool]:
    """Sort gradients of the step before first, and then the smashed data that begin the next."""
    leg, _ = crossed
    return leg in (Leg.SMASHED, Leg.LABELS), leg is not Leg.SMASHED


def _list_arrays(message: Any, names: Mapping[str, str]) -> list[tuple[Leg, Tensor]]:  # noqa: ANN401
    """List the arrays of a message whose names are legs, those of the step before first."""
    if not message.has_content():
        return []
    return sorted(_find_arrays(message.content, names), key=_is_of_new_step)


def _find_arrays(content: Any, names: Mapping[str, str]) -> Iterator[tuple[Leg, Tensor]]:  # noqa: ANN401
    for record_name, record in content.array_records.items():
        for name, array in record.items():
            own = name if name in names else record_name if len(record) == 1 else ""
            if own in names:
                yield Leg(names[own]), torch.from_numpy(np.array(array.numpy()))
