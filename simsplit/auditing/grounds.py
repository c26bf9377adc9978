"""The ground of an audit: a scenario that describes a recorded wire, its targets, and their truth.

A foreign wire gets a scenario from what was recorded and from what the server knows. The recording
of a run has that run's own scenario, its server's parts and its public data.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from simsplit.assembly import Assembler, Assembly
from simsplit.assembly.state import restore
from simsplit.attacks import Knows, Sees
from simsplit.auditing.client_networks import ClientNetwork
from simsplit.data import Prepared
from simsplit.data.given_texts import TextGiven
from simsplit.data.passed_objects import GivenSource
from simsplit.data.preparing import build_vocabulary
from simsplit.data.samples import DataInfo, Samples
from simsplit.data.tasks import LAYOUTS
from simsplit.engine.pool import Pool
from simsplit.errors import SimsplitError
from simsplit.legs import ClientId, Leg
from simsplit.machine import find_device
from simsplit.models.fresh import SplitConfig
from simsplit.models.language import CausalLM
from simsplit.models.split_model import SplitModel, hold_model
from simsplit.results import SCENARIO, Run
from simsplit.scenario import Scenario, load_scenario
from simsplit.scenario.loading import parse
from simsplit.topologies import TOPOLOGIES

_OF_RUN = frozenset(
    {
        *(Knows.SHAPE, Knows.ARCHITECTURE, Knows.METHODS, Knows.SECRETS, Knows.HEAD),
        *(Knows.CAUSAL_HEAD, Knows.TAIL, Knows.MODEL, Knows.NOISE, Knows.OPTIMIZER),
        Knows.DISGUISES,
    }
)
"""What the server of a run knows of it."""
_OF_HEAD = frozenset({Knows.HEAD, Knows.CAUSAL_HEAD, Knows.METHODS})
_OF_MODEL = frozenset({*_OF_HEAD, Knows.TAIL, Knows.MODEL})
"""What a server knows by the public model, where nothing else is done to what is sent."""


@dataclass(frozen=True)
class Ground:
    """What all attacks on one transcript share."""

    scenario: Scenario
    """The setting, without attacks."""
    data: Prepared
    """The targets' truth as training samples, and public data."""
    parts: Assembly
    """The server's parts."""
    things: frozenset[Knows | Sees]
    """What attackers have, of all that not every transcript offers."""
    pairs: Samples | None = None
    """The inputs that an attacker knows, in the order of their packets."""
    notes: Sequence[str] = ()
    """What a reader of the figures should know."""
    number: int = 1
    """The round after which attacks are judged."""
    cut: tuple[int, ...] = ()
    """The shape of one sample's smashed data."""
    head: Mapping[str, Tensor] = field(default_factory=dict)
    """The weights of the client's head, for upper bounds that know them."""


@dataclass(frozen=True)
class Shapes:
    """The shapes of one sample's tensors, as they crossed."""

    cut: tuple[int, ...]
    features: tuple[int, ...] | None
    batch: int
    """Rows of the largest packet."""
    legs: frozenset[Leg]


class Stranger(nn.Module):
    """A part whose layers and weights are not known: outputs are zeros of the recorded shape.

    No attack that needs such a part is tried, so nothing is computed with one but shapes.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), *self.shape, device=x.device)

    def extra_repr(self) -> str:
        return str(self.shape)


def lay_ground(
    name: str,
    shapes: Shapes,
    truth: Samples,
    known: CausalLM | ClientNetwork | None,
    rounds: int,
    *,
    public: Samples | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    seed: int = 0,
    device: str = "cpu",
) -> Ground:
    """Lay the ground of a foreign wire.

    `truth` are the targets, and `public` what attackers have like them. `known` is the public model
    that texts were encoded with, or the client's network. `mean` was subtracted from each channel
    of images, which was then divided by `std`.
    """
    network, model = (known, None) if isinstance(known, ClientNetwork) else (None, known)
    labels = truth.groups
    classes = max(2, int(labels.max()) + 1) if len(labels) else 2
    source: Any
    made: SplitConfig
    if model is None:
        shape = tuple(truth.inputs.shape[1:])
        source = GivenSource(digest="", shape=shape, classes=classes, images=truth.images)
        head = None if network is None else _check_network(network, shapes, shape)
        rest = Stranger(shapes.features or shapes.cut), Stranger((classes,))
        start = Stranger(shapes.cut) if head is None else head
        # Fresh: an attacker that knows layers alone must not start from the client's weights.
        made = hold_model(SplitModel(start, *rest, fresh=True))
    else:
        source = TextGiven(digest="", length=truth.inputs.shape[1], task=LAYOUTS["language"])
        made = model
        _refuse_other_width(model, shapes)
    scenario = parse(
        {
            "name": name,
            "seed": seed,
            "data": {"source": source},
            "model": made,
            "topology": _choose_topology(shapes.legs),
            "clients": {"count": 1},
            "train": {"batch_size": shapes.batch},
            "schedule": {"kind": "round_robin", "rounds": max(1, rounds)},
            "targets": {"count": len(truth), "order": "data"},
            "device": device,
        }
    )
    data = Prepared(
        name=name,
        info=DataInfo(tuple(truth.inputs.shape[1:]), classes, texts=truth.texts is not None),
        train=truth,
        validation=None,
        auxiliary=public,
        test=truth,
        parts=(np.arange(len(truth)),),
        mean=mean,
        std=std,
        vocabulary=None if model is None else build_vocabulary(source, model.make_reader()),
        class_names=tuple(map(str, range(classes))),
    )
    return Ground(
        scenario=scenario,
        data=data,
        parts=Assembler(scenario, data, find_device(device)).assemble(),
        things=frozenset(_list_things(known, has_public=public is not None)),
        number=max(1, rounds),
        cut=shapes.cut,
        head=network.weights if network is not None and network.has_weights else {},
    )


def _list_things(
    known: CausalLM | ClientNetwork | None, *, has_public: bool
) -> Iterator[Knows | Sees]:
    """Yield what attackers have, of all that not every transcript offers."""
    yield Knows.SHAPE
    if has_public:
        yield Knows.PUBLIC
    if isinstance(known, ClientNetwork):
        yield from [Knows.WEIGHTS] if known.has_weights else []
        yield from [Knows.ARCHITECTURE] if known.can_be_drawn else []
    elif known is not None:
        yield from _OF_HEAD if known.trunk == "skipped" else _OF_MODEL


def _check_network(network: ClientNetwork, shapes: Shapes, shape: tuple[int, ...]) -> nn.Module:
    """Return the client's network; raise SimsplitError if it cannot have sent what was recorded."""
    try:
        with torch.no_grad():
            sent = network.head(torch.zeros(2, *shape))
    except Exception as error:  # noqa: BLE001 - layers of a user
        raise SimsplitError(
            f"--knows: the client's network cannot be applied to inputs of shape {list(shape)}: "
            f"{str(error).splitlines()[0]}"
        ) from None
    got = tuple(sent.shape[1:]) if isinstance(sent, Tensor) else type(sent).__name__
    if got != shapes.cut:
        raise SimsplitError(
            f"--knows: the client's network sends {got} for a sample, and the recorded packets "
            f"have {shapes.cut}; name its part at the client: --knows module=NAME"
        )
    return network.head


def _refuse_other_width(model: CausalLM, shapes: Shapes) -> None:
    """Raise SimsplitError if a public model cannot have sent what was recorded."""
    if len(shapes.cut) != 2:
        raise SimsplitError(
            "packets of texts must be texts x tokens x width, got "
            f"{' x '.join(map(str, ('texts', *shapes.cut)))}"
        )
    width = model.get_sizes()[0]
    if shapes.cut[-1] != width:
        raise SimsplitError(
            f"--knows: model {model.name} has {width} values for each token, and the recorded "
            f"packets have {shapes.cut[-1]}; name the model that the texts were encoded with"
        )


def lay_ground_of_run(path: Path, client: ClientId, device: str) -> tuple[Ground, Pool]:
    """Lay the ground of a run that was recorded; return it with the run's clients, for judges."""
    run = Run.load(path)
    original = load_scenario(run.path / SCENARIO, {"device": device})
    data = original.prepare_data()
    scenario = BaseModel.model_copy(original, update={"attacks": ()})
    scenario = BaseModel.model_copy(
        scenario, update={"targets": original.aims.model_copy(update={"client": client})}
    )
    _, parts, done = restore(run.path, original, data, client, original)
    things: set[Knows | Sees] = {*_OF_RUN, Knows.CLASSES, Knows.LABELS}
    things |= set() if data.auxiliary is None else {Knows.PUBLIC}
    things |= set() if "trunk" in original.model.learning else {Sees.TRUNK}
    return Ground(scenario, data, parts, frozenset(things), number=done.round), parts.pool


def _choose_topology(legs: Collection[Leg]) -> str:
    """Return the plain topology whose labels are where a wire has them: they cross, or stay."""
    stay = Leg.LABELS not in legs
    return next(
        name
        for name, each in TOPOLOGIES.items()
        if not (each.whole_model or each.joint) and each.tail_with_client is stay
    )
