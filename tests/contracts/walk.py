"""Every shipped part in a scenario that is as small as can be, on every axis; and what it changes.

Parts come from their registries, with one variant for each value of a field that says what of the
cut they are about, so a new part is walked without another line.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from builders import TINY, enter_round
from texts import TINY as TINY_TEXTS
from texts import reviews

from simsplit.assembly.state import collect_state
from simsplit.attacks import ATTACKS, fora, fsha, sdar
from simsplit.config import Config
from simsplit.data import Prepared
from simsplit.detectors import DETECTORS
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.methods import METHODS, Method
from simsplit.methods.method import IMAGES, TEXTS
from simsplit.methods.stack import Stack
from simsplit.poisons import POISONS
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.topologies import TOPOLOGIES as REGISTRY

Axes = tuple[str, str, str, str]
TOPOLOGIES = tuple(REGISTRY)
HEADS: dict[str, dict[str, str]] = {
    "shared": {"heads": "shared"},
    "own": {"heads": "per_client"},
    "own, one tail": {"heads": "per_client", "tail": "shared"},
}
SCHEDULES = ("round_robin", "per_client", "parallel", "asynchronous")
AGGREGATIONS = ("none", "splitfed_v1", "splitfed_v2", "fused")
PRODUCT: list[Axes] = list(itertools.product(TOPOLOGIES, HEADS, SCHEDULES, AGGREGATIONS))
PLAIN: Axes = ("u_shaped", "own", "round_robin", "none")
CLIENTS, MALICIOUS = 3, 1

SMALL: dict[str, dict[str, Any]] = {
    "splitguard": {"after": 0, "probability": 1.0},
    "gradients_scrutinizer": {"after": 0},
    "c3sl": {"ratio": 2},
    "mixguard": {"tokens": 2, "warm_up": 1},
    "snd": {"warm_up": 1, "heads": 2, "layers": 1},
    "within_class": {"classes": 2, "fewest": 2},
    "root_cosine": {"threshold": {"kind": "fixed"}},
    "root_class": {
        "classes": 2,
        "directions": 1,
        "since": 1,
        "window": 1,
        "fewest": 2,
        "fewest_root": 2,
    },
    "mislabelled": {"classes": 2, "directions": 1, "fewest_others": 2},
    "activation_clustering": {"classes": 2, "fewest": 2, "fewest_others": 2},
    "spectral_signatures": {"classes": 2, "fewest": 2, "fewest_others": 2},
    "strip": {"classes": 2, "fewest": 2, "fewest_others": 2},
    "beatrix": {"classes": 2, "fewest": 2, "fewest_others": 2},
    "whitebox": {"iterations": 1, "pairs": 8},
    "pcat": {"iterations": 1, "refinement": 1},
    "unsplit": {"outer": 1, "inner": 1},
    "lamp": {"permutations": 2, "every": 1},
    "bisr": {"gradient_steps": 1, "smashed_steps": 1},
    "adaptive_offline": {"unmixing": 1},
    "custext": {"epsilon": 1.0},
    "rantext": {"epsilon": 1.0},
    "admi": {"warm_up": 1, "heads": 2},
    "dualguard": {"warm_up": 1, "inverter_rounds": 1, "hidden": 8},
    "span_search": {"inverter": "gaussian", "starts": 2, "refinements": 1},
    "probe": {"trees": 2},
    "canaries": {"count": 2, "exposures": 1},
    "cae": {"steps": 20},
    "mc_trained": {"epochs": 1},
    "known_pairs": {"sessions": 4},
    "vmi": {"steps": 1},
    "rmi": {"steps": 1},
    "pmi": {"patch_steps": 1, "joint_steps": 1},
    "pidi": {"patch_steps": 1, "joint_steps": 1},
    "replace": {"how": "sign"},
    "semantic": {"share": 0.5},
}
"""So that a part acts in a step or two; and not for long."""
VARIED = ("legs", "signal", "leg", "objective", "denoise")
"""Fields that say what of the cut a part is about."""
TWO_CLASSES = {
    "data": {"source": {"kind": "sklearn", "name": "breast_cancer"}},
    "model": {"kind": "mlp", "widths": [8, 8, 8], "head": 1, "tail": 1},
}
OF_LABELS = {"pslf": TWO_CLASSES, "marvell": TWO_CLASSES}
"""The data that methods for two classes are for; those of texts are refused for their tokens."""
OF_LABELS_READ = (
    *("spectral", "norm", "kmeans", "probe"),
    *("singular_direction", "direction_scoring", "model_completion", "exploit"),
)
"""Attacks on labels, which need targets of two classes."""
FEW = {"targets": {"count": 6, "per_class": 3}}
KNOWN = {"model": {"sizes": {"public": True}}}
BESIDE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(OF_LABELS_READ, FEW),
    **dict.fromkeys(("admi", "dualguard"), KNOWN),
    "handed_weights": {"model": {"kind": "mlp", "widths": [32, 32, 32], "head": 1, "tail": 1}},
    "private_backprop": {"model": {"learns": ["head", "tail"]}},
    "adaptive_online": {"method": [{"kind": "mixguard", **SMALL["mixguard"]}]},
    "optimizer_inversion": {"schedule": {"rounds": 2}},  # it compares a step with the one before
}
"""What else a part must be given by other parts, or by the model."""


@dataclass(frozen=True)
class Part:
    """One part of a scenario, where it stands and what stands around it."""

    where: str
    kind: str
    config: type[Config]
    fields: Mapping[str, Any] = field(default_factory=dict)
    texts: bool = False

    def __str__(self) -> str:
        return f"{self.where}:{self.kind}{dict(self.fields) if self.fields else ''}"

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of a scenario by which it has the part."""
        short = {n: 1 for n in ("iterations", "hidden") if n in self.config.model_fields}
        short |= {"rate": 1.0} if "rate" in self.config.model_fields else {}
        own = {"kind": self.kind, **short, **SMALL.get(self.kind, {}), **self.fields}
        if self.where == "clients.malicious.poison.0":
            return {"clients": {"malicious": {"ids": [MALICIOUS], "poison": [own]}}}
        return {**self.around, self.where.split(".")[0]: [own]}

    @property
    def around(self) -> dict[str, Any]:
        """The fields of a scenario that the part needs beside it."""
        return BESIDE.get(self.kind, {} if self.texts else OF_LABELS.get(self.kind, {}))


def variants(where: str, registry: Mapping[str, type[Config]]) -> Iterator[Part]:
    """Yield the parts of a registry: on images, on texts, and in each way to treat the cut."""
    for kind, config in registry.items():
        varied = [name for name in VARIED if name in config.model_fields]
        ways: list[dict[str, Any]] = [
            {name: each} for name in varied for each in _ways(config, name)
        ]
        modalities = getattr(config, "modalities", IMAGES)
        for way in ways or [{}]:
            for modality in modalities:
                yield Part(where, kind, config, way, texts={modality} <= TEXTS)


def _ways(config: type[Config], name: str) -> list[Any]:
    annotation = config.model_fields[name].annotation
    if annotation is bool:
        return [True, False]
    if name == "legs":
        return [["smashed"], ["features"]]
    return list(get_args(annotation))


METHOD_PARTS = list(variants("method.0", METHODS))
OTHER_PARTS = [
    *variants("detectors.0", DETECTORS),
    *variants("clients.malicious.poison.0", POISONS),
    *variants("attacks.0", ATTACKS),
]
EVERY_PART = [*METHOD_PARTS, *OTHER_PARTS]


def axes_of(axes: Axes) -> dict[str, Any]:
    """Return a scenario's fields for one place on the axes."""
    topology, heads, schedule, aggregation = axes
    return {
        "topology": topology,
        "clients": dict(HEADS[heads]),
        "schedule": {"kind": schedule, "rounds": 1, "local_steps": 1},
        "aggregation": {"kind": aggregation},
        "network": {"device": "phone", "link": "lte"},
    }


def values_of(axes: Axes, changes: Mapping[str, Any], *, texts: bool) -> dict[str, Any]:
    """Return a whole scenario of three clients."""
    least: dict[str, Any] = {
        "clients": {"count": CLIENTS},
        "train": {"batch_size": 8},
        "checkpoint": {"every": 0},
        "evaluate": {"every": 0, "metrics": ["loss"]},
        "data": {"auxiliary": 0.3},
        "targets": {"count": 2},
    }
    if texts:
        words = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
        source = {"path": "nowhere", "length": 24}
        if REGISTRY[axes[0]].whole_model:
            words = {"kind": "adapted_classifier", "sizes": {"width": 16, "layers": 2}}
        least |= {"model": words, "data": {"auxiliary": 0.3, "source": source}}
    values = merge(merge(TINY_TEXTS if texts else TINY, least), axes_of(axes))
    return merge(values, changes)


def refusal(axes: Axes, changes: Mapping[str, Any], *, texts: bool) -> ScenarioError | None:
    """Return why a scenario is refused when it is read, or None."""
    try:
        parse(values_of(axes, changes, texts=texts))
    except ScenarioError as error:
        return error
    return None


@dataclass
class Seen:
    """What came of a run: each client's packets of training by leg, weights, and all its parts."""

    packets: dict[tuple[int, Leg], list[bytes]]
    weights: dict[str, torch.Tensor]
    made: Experiment
    reports: dict[int, dict[str, float]]
    """Of the last round."""
    idle: set[str]
    """Hooks that a method overrides and nobody called."""


class _Tap:
    def __init__(self, made: Experiment) -> None:
        self.made = made
        self.packets: dict[tuple[int, Leg], list[bytes]] = {}

    def observe(self, packet: Any) -> None:
        if self.made.parts.wire.moment.counted_phase != "train" or not packet.round:
            return
        raw = b"".join(
            t.detach().contiguous().view(torch.uint8).numpy().tobytes() for t in _flat(packet)
        )
        self.packets.setdefault((packet.client, packet.leg), []).append(raw)


def _flat(packet: Any) -> list[torch.Tensor]:
    return [tensor.reshape(-1) for tensor in packet.tensors]


class Walker:
    """Runs tiny scenarios; what many of them have in common is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = itertools.count()
        self._texts = reviews(folder / "reviews", 24)
        self._prepared: dict[str, Prepared] = {}
        self._twins: dict[str, Seen] = {}

    def scenario(self, axes: Axes, changes: Mapping[str, Any], *, texts: bool) -> Scenario:
        values = values_of(axes, changes, texts=texts)
        if texts:
            values["data"]["source"]["path"] = str(self._texts)
        return parse(values)

    def observe_run(self, axes: Axes, changes: Mapping[str, Any], *, texts: bool) -> Seen:
        """Run a scenario and return what it did; tables, which take as long, are left out."""
        given = self.scenario(axes, changes, texts=texts)
        idle: set[str] = set()
        folder = self.folder / str(next(self._count))
        with watched_hooks(idle):
            made = Experiment(given, folder, (), self._data(given))
            tap = _Tap(made)
            made.parts.wire.taps.append(tap)
            made.parts.exchange.announce(made.clients, counted=True)
            for number in range(1, made.live.program.rounds + 1):
                done = made.parts.course.run(enter_round(made, number), lambda done, total: None)
        state = collect_state(made.parts).items()
        weights = {n: t.clone() for n, t in state if {"head", "trunk", "tail"} & set(n.split("."))}
        learned = {n: t for n, t in weights.items() if "optimizer" not in n}
        return Seen(tap.packets, learned, made, done.reports, idle)

    def twin(self, axes: Axes, changes: Mapping[str, Any], *, texts: bool) -> Seen:
        """Return what is seen of these changes; all callers share one run."""
        key = repr((axes, sorted(changes.items()), texts))
        if key not in self._twins:
            self._twins[key] = self.observe_run(axes, changes, texts=texts)
        return self._twins[key]

    def _data(self, given: Scenario) -> Prepared:
        """Make eight private samples for each client, of two classes."""
        key = f"{given.model.kind} {given.data.model_dump_json()}"
        if key not in self._prepared:
            data = given.model_copy(update={"attacks": []}).prepare_data()  # none plants in it
            of_two = (data.train.groups < 2).nonzero()[0]
            rows = np.resize(of_two, 8 * CLIENTS)
            parts = [rows[8 * client : 8 * client + 8] for client in range(CLIENTS)]
            self._prepared[key] = replace(data, parts=parts)
        return given.plant(self._prepared[key])


@functools.cache
def _overridden(kind: type[Method]) -> frozenset[str]:
    hooks = {name for name, hook in vars(Method).items() if callable(hook)}
    own = {name for each in kind.__mro__ if each is not Method for name in vars(each)}
    return frozenset(hooks & own - {"get_own_tokens"})  # which is the judge's


class watched_hooks:  # noqa: N801 - a context
    """A context in which methods' hooks are watched; behind it `idle` says which were not called.

    Of a method that has two sides, or two legs, it is enough that one of its objects is asked.
    """

    def __init__(self, idle: set[str]) -> None:
        self.idle, self.there, self.called = idle, set(), set()
        self.before = Stack.__init__

    def __enter__(self) -> None:
        def build_and_watch(stack: Stack, smashed: Any, features: Any, *more: Any) -> None:
            for method in (*smashed, *features):
                for hook in _overridden(type(method)):
                    self._watch(method, hook)
            self.before(stack, smashed, features, *more)

        Stack.__init__ = build_and_watch  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        Stack.__init__ = self.before  # type: ignore[method-assign]
        self.idle |= {f"{kind}.{hook}" for kind, hook in self.there - self.called}

    def _watch(self, method: Method, hook: str) -> None:
        name, inner = (type(method).__name__, hook), getattr(method, hook)
        self.there.add(name)

        def call_inner(*args: Any) -> Any:
            self.called.add(name)
            return inner(*args)

        setattr(method, hook, call_inner)


def assert_no(wrong: list[str]) -> None:
    """Assert that there are no problems, and show all of them at once."""
    assert not wrong, "\n".join(["", *wrong])


def small_judges(monkeypatch: Any) -> None:
    """Replace the published discriminators, of millions of weights, by small ones."""

    def small(channels: int, cut: tuple[int, ...]) -> torch.nn.Module:
        convolution = torch.nn.Conv2d(channels, 2, 3, padding=1)
        layers = torch.nn.Flatten(), torch.nn.Linear(2 * cut[1] * cut[2], 1)
        return torch.nn.Sequential(convolution, torch.nn.LeakyReLU(0.2), *layers)

    for module in (fora, fsha):
        monkeypatch.setattr(module, "critic", lambda cut, image, **_: small(cut[0], cut))
    for judge in ("feature_discriminator", "image_discriminator"):
        monkeypatch.setattr(sdar, judge, small)
