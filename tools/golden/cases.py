"""Short runs that between them go through every part of a scenario; `against.py` compares them.

Plain values, written as YAML: no code of a tree stands between a case and its scenario. `$TREE` is
the checkout that runs it, `$TEXTS` a folder of made-up texts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

Values = dict[str, Any]

RENAMED: dict[str, str | None] = {}
"""Fields that have another name in the present tree than the cases have (dotted; `*` is any
position in a list), and the ones that it does without (None). The older tree reads cases
unchanged.
"""

ADDED: dict[str, Values] = {}
"""Fields, by the kind of a method, that the present tree needs to do what the older did."""


@dataclass(frozen=True)
class Case:
    """One scenario, and what is done with the finished run."""

    values: Values
    then: Values = field(default_factory=dict)
    """Fields that change before the run is resumed from its last checkpoint."""
    attack: Values = field(default_factory=dict)
    """An attack on the finished run."""

    @property
    def hosted(self) -> bool:
        """Whether clients live on Ray hosts."""
        return self.values.get("engine", {}).get("kind") == "ray"


def merge_values(values: Values, changes: Mapping[str, Any]) -> Values:
    """Merge mappings key by key; replace anything else, and a mapping of another kind too."""
    result = dict(values)
    for name, change in changes.items():
        below = result.get(name)
        alike = isinstance(below, dict) and isinstance(change, Mapping)
        if alike and change.get("kind", below.get("kind")) == below.get("kind"):
            result[name] = merge_values(below, change)
        else:
            result[name] = change
    return result


def rename_fields(values: Values, names: Mapping[str, str | None]) -> Values:
    """Return the values with fields under their new names, or without fields that are gone."""
    values = json.loads(json.dumps(values))
    for old, new in names.items():
        for places in _find_places(values, old.split("."), ()):
            value = _reach(values, places[:-1]).pop(places[-1])
            if new is not None:
                stars = iter(place for place in places if isinstance(place, int))
                path = [next(stars) if word == "*" else word for word in new.split(".")]
                _reach(values, path[:-1])[path[-1]] = value
    return values


def with_added(values: Values) -> Values:
    """Return the values with what their methods need beside."""
    methods = [{**ADDED.get(each["kind"], {}), **each} for each in values.get("method", ())]
    return {**values, "method": methods} if methods else values


def _find_places(here: Any, words: Sequence[str], above: tuple[str | int, ...]) -> list[tuple]:
    """Find where a dotted field is, each place in full."""
    if not words:
        return [above]
    word, *rest = words
    if isinstance(here, list) and word == "*":
        several = enumerate(here)
        return [place for i, each in several for place in _find_places(each, rest, (*above, i))]
    if isinstance(here, dict) and word in here:
        return _find_places(here[word], rest, (*above, word))
    return []


def _reach(values: Any, places: Sequence[str | int]) -> Any:
    """Return the mapping or list at a place; make mappings on the way."""
    for place in places:
        values = values[place] if isinstance(place, int) else values.setdefault(place, {})
    return values


IMAGES: Values = {
    "name": "images",
    "seed": 3,
    "data": {
        "source": {"kind": "digits", "size": 12},
        "train_samples": 90,
        "test_samples": 40,
    },
    "model": {"kind": "resnet20", "width": 4},
    "clients": {"count": 3},
    "schedule": {"kind": "round_robin", "rounds": 2},
    "train": {"batch_size": 12},
    "threads": 1,
}
TEXTS: Values = {
    "name": "texts",
    "seed": 3,
    "data": {
        "source": {
            "kind": "text_parquet",
            "path": "$TEXTS/private",
            "task": "sst2",
            "length": 32,
        },
        "public": {
            "kind": "text_parquet",
            "path": "$TEXTS/public",
            "task": {"kind": "language", "text": "sentence"},
            "length": 32,
        },
    },
    "model": {
        "kind": "causal_lm",
        "sizes": {"width": 16, "layers": 3},
        "head": 1,
        "tail": 1,
    },
    "clients": {"count": 2},
    "schedule": {"kind": "round_robin", "rounds": 2},
    "train": {
        "batch_size": 8,
        "client": {"kind": "adam", "lr": 0.002},
        "server": {"kind": "adam", "lr": 0.002},
    },
    "threads": 1,
}
ADAM: Values = {"client": {"kind": "adam", "lr": 0.002}, "server": {"kind": "adam", "lr": 0.002}}
OWN: Values = {"heads": "per_client"}
VANILLA = "vanilla"
PARALLEL: Values = {"kind": "parallel", "rounds": 2}
ASYNCHRONOUS: Values = {"kind": "asynchronous", "rounds": 2}
TURNS: Values = {"kind": "per_client", "rounds": 2}
SPREAD: Values = {"device": {"phone": 0.5, "laptop": 0.5}, "link": "wifi", "spread": 1.5}
UNEQUAL: Values = {"device": {"edge": 1, "gpu": 1}, "link": "lan"}


def images(then: Values | None = None, attack: Values | None = None, **changes: Any) -> Case:
    """Make a case on handwritten digits."""
    return Case(merge_values(IMAGES, changes), then or {}, attack or {})


def texts(then: Values | None = None, attack: Values | None = None, **changes: Any) -> Case:
    """Make a case on made-up texts."""
    return Case(merge_values(TEXTS, changes), then or {}, attack or {})


def shorten_shipped(name: str, **changes: Any) -> Case:
    """Make a case of a shipped scenario, as the tree at hand has it, shortened."""
    short: Values = {
        "extends": f"$TREE/scenarios/{name}.yaml",
        "sweep": None,
        "data": {"train_samples": 150, "test_samples": 40},
        "threads": 1,
    }
    return Case(merge_values(short, changes))


GENERATES: Values = {
    "kind": "generation",
    "prompt": "{sentence} is",
    "answer": " about a {topic}",
}


SHIPPED = {
    "quickstart": shorten_shipped("quickstart", schedule={"rounds": 2}),
    "convergence": shorten_shipped("convergence", schedule={"rounds": 2}, targets={"count": 8}),
    "labels": shorten_shipped("labels", schedule={"rounds": 2}, targets={"count": 20}),
    "p3eft": shorten_shipped(
        "p3eft",
        model={"name": "simsplit/ci"},
        data={"train_samples": 60, "test_samples": 40},
        schedule={"rounds": 2},
        targets={"count": 40},
    ),
    "splitfed": shorten_shipped("splitfed", schedule={"rounds": 2}, engine={"kind": "inline"}),
    "phones": shorten_shipped(
        "phones",
        clients={"count": 20},
        schedule={"rounds": 5},
        cohort={"deadline_s": 0.15},
    ),
    "asynchronous": shorten_shipped("asynchronous", schedule={"rounds": 2}),
    "backdoor-clean": shorten_shipped(
        "backdoor", schedule={"rounds": 2}, clients={"malicious": {"fraction": 0}}
    ),
    "backdoor-attacked": shorten_shipped(
        "backdoor",
        schedule={"rounds": 2},
        clients={"malicious": {"fraction": 0.1}},
        method=[{"kind": "lightsplit", "ratio": 16, "lift": "fixed"}],
    ),
    "watched-clipped": shorten_shipped(
        "watched",
        schedule={"rounds": 2},
        clients={
            "malicious": {
                "fraction": 0.3,
                "poison": [{"kind": "badnets", "rate": 0.5, "target": 0, "clip": 1}],
            }
        },
    ),
    "reconstruction": shorten_shipped(
        "reconstruction",
        schedule={"rounds": 2},
        attacks=[
            {"kind": "whitebox", "iterations": 3, "pairs": 40},
            {"kind": "unsplit", "outer": 2, "inner": 2, "lr": 0.01, "clones": "batched"},
            {"kind": "pcat"},
        ],
        targets={"count": 5},
        method=[{"kind": "lightsplit", "ratio": 32}],
    ),
    "scaling": shorten_shipped(
        "scaling",
        clients={"count": 25},
        schedule={"epochs": 2},
        method=[{"kind": "lightsplit", "ratio": 8, "lift": "fixed"}],
    ),
    "ten-thousand": shorten_shipped(
        "ten-thousand",
        data={"source": {"kind": "digits", "repeat": 2}},
        clients={"count": 40},
        schedule={"rounds": 2},
        evaluate={"clients": 3},
    ),
    "hospitals": shorten_shipped("hospitals", schedule={"rounds": 2}),
    "crowd": shorten_shipped(
        "crowd",
        clients={"count": 40},
        cohort={"fraction": 0.5},
        schedule={"rounds": 2},
        engine={"stack": 12},  # auto would choose by the machine's speed
    ),
    "cuts": shorten_shipped("cuts", schedule={"rounds": 2}),
    "vit": shorten_shipped("vit", clients={"count": 2}, schedule={"epochs": 1}),
    "million": shorten_shipped(
        "million",
        clients={"count": 20_000},
        cohort={"fraction": 0.0005},
        schedule={"rounds": 2},
    ),
    "hundred-thousand": shorten_shipped(
        "hundred-thousand",
        clients={"count": 20_000},
        cohort={"fraction": 0.002},
        schedule={"rounds": 2},
        evaluate={"clients": 2},
    ),
    "mixguard": shorten_shipped(
        "mixguard",
        data={"train_samples": 48, "test_samples": 24},
        model={
            "name": None,
            "sizes": {"width": 16, "layers": 5},
            "head": 2,
            "tail": 2,
        },
        attacks=[
            {"kind": "sip", "iterations": 4, "lr": 0.004, "hidden": 16},
            {"kind": "tag", "iterations": 4, "lr": 0.3},
            {"kind": "gradient_ratio", "iterations": 4, "lr": 0.004, "hidden": 16},
            {"kind": "span_search", "iterations": 4, "hidden": 16, "starts": 8, "kept": 2},
        ],
        targets={"count": 4},
    ),
    "smollm": shorten_shipped(
        "smollm",
        data={"train_samples": 48, "test_samples": 24},
        model={"name": None, "sizes": {"width": 16, "layers": 5}, "head": 2, "tail": 2},
        targets={"count": 4},
    ),
    "generation-defences": shorten_shipped(
        "generation-defences",
        data={"train_samples": 48, "test_samples": 24},
        model={"name": None, "sizes": {"width": 16, "layers": 5, "public": True}},
        method=[{"kind": "dualguard", "warm_up": 1, "inverter_rounds": 1}],
        schedule={"rounds": 1},
    ),
    "generation": shorten_shipped(
        "generation",
        data={"train_samples": 48, "test_samples": 24},
        model={"name": None, "sizes": {"width": 16, "layers": 5}, "head": 2, "tail": 2},
        attacks=[
            {"kind": "mc"},
            {"kind": "pidi", "inverter": "gaussian", "patch_steps": 3, "joint_steps": 2},
        ],
        targets={"count": 2, "tokens": 4},
    ),
    "smollm-generation": shorten_shipped(
        "smollm-generation",
        data={
            "source": {"kind": "text_parquet", "path": "$TEXTS/private", "task": GENERATES},
            "train_samples": 48,
            "test_samples": 24,
        },
        model={"name": None, "sizes": {"width": 16, "layers": 5}, "head": 2, "tail": 2},
        attacks=[{"kind": "dsi", "inverter": "gaussian"}],
        targets={"count": 2, "tokens": 4},
    ),
    "table": shorten_shipped("table", schedule={"rounds": 2}, targets={"count": 4}),
    "vertical": shorten_shipped("vertical", schedule={"rounds": 2}),
    "vertical-images": shorten_shipped("vertical-images", schedule={"rounds": 1}),
    "parties-away": shorten_shipped(
        "vertical",
        vertical={"labels": "server", "join": "sum", "absent": "last"},
        cohort={"availability": {"period": 2, "window": 1}},
        schedule={"rounds": 4},
    ),
    "digits-table": shorten_shipped(
        "digits-table",
        method=[{"kind": "lightsplit", "ratio": 8}],
        schedule={"rounds": 1},
        targets={"count": 4},
    ),
    **{
        name: shorten_shipped(  # on grey images, so on another network
            name,
            data={"source": "digits"},
            model="simplecnn",
            clients={"count": 3},
            schedule={"rounds": 2, "local_steps": 2},
            evaluate={"every": 1},
        )
        for name in ("cifar10-fast", "cifar10-fast-table", "sixteen-cifar10")
    },
    "sixteen": shorten_shipped(
        "sixteen",
        schedule={"rounds": 2},
        method=[{"kind": "quantise", "bits": 4, "legs": ["smashed", "features"]}],
    ),
    "skewed": shorten_shipped(
        "skewed",
        data={"even": {"samples": 30}},
        schedule={"rounds": 2},
        detectors=[{"kind": "root_class", "since": 1, "fewest": 2, "fewest_root": 2}],
    ),
    "caught": shorten_shipped("caught", schedule={"rounds": 2}),
    "late": shorten_shipped(
        "late",
        clients={
            "malicious": {
                "fraction": 0.3,
                "poison": [{"kind": "badnets", "rate": 0.5, "target": 0, "from_round": 2}],
            }
        },
        schedule={"rounds": 3},
    ),
    "poisons": shorten_shipped("poisons", schedule={"rounds": 2}),
    "caught-samples": shorten_shipped("caught-samples", schedule={"rounds": 2}),
    "caught-root": shorten_shipped(
        "caught-root", data={"even": {"clients": [0], "samples": 30}}, schedule={"rounds": 2}
    ),
    "everything": shorten_shipped(
        "everything",
        data={"source": "digits", "auxiliary": 0.3},
        schedule={"kind": "round_robin", "rounds": 2},
        method=[{"kind": "quantise", "bits": 2}],
        attacks=[{"kind": "ridge", "pairs": 40}],
        targets={"count": 4},
    ),
}

AXES = {
    "raw": images(),
    "image-classifier": images(
        model={
            "kind": "image_classifier",
            "sizes": {"width": 16, "layers": 3, "heads": 2},
            "tail": 1,
            "lora": {"rank": 2},
        },
        train=ADAM,
    ),
    "raw-vanilla": images(topology=VANILLA, method=[{"kind": "raw"}]),
    "own-heads-own-starts": images(
        clients={**OWN, "start": "own"},
        evaluate={"clients": 2, "metrics": ["accuracy", "macro_f1", "top5", "loss"]},
        train=ADAM,
    ),
    "own-heads-vanilla": images(clients=OWN, topology=VANILLA, schedule=PARALLEL),
    "own-heads-one-tail": images(clients={**OWN, "tail": "shared"}, train=ADAM),
    "one-tail-averaged": images(
        clients={**OWN, "tail": "shared"}, schedule=PARALLEL, aggregation={"kind": "splitfed_v2"}
    ),
    "weights-handed-over": images(clients={"handover": "weights"}, train=ADAM),
    "client-by-client": images(
        schedule={**TURNS, "order": "random", "local_steps": 2},
        clients={"count": 4},
        data={"partition": {"kind": "dirichlet", "alpha": 0.5}},
        train=ADAM,
    ),
    "images-of-parquet": images(
        data={"source": {"kind": "parquet", "path": "$TEXTS/pictures", "size": 12}},
        train=ADAM,
    ),
    "main-labels": images(data={"partition": {"kind": "main_label", "rate": 0.6}}, schedule=TURNS),
    "epochs-of-local-steps": images(
        schedule={"kind": "round_robin", "rounds": None, "epochs": 1.5, "local_steps": 1},
        data={"partition": {"kind": "shards"}},
        topology=VANILLA,
    ),
    "parallel-own-heads": images(clients=OWN, schedule=PARALLEL, network=SPREAD),
    "v1-moments-kept": images(
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v1"},
        data={"partition": {"kind": "linear"}},
        train=ADAM,
        network=SPREAD,
    ),
    "v1-moments-kept-vanilla": images(
        topology=VANILLA, schedule=PARALLEL, aggregation={"kind": "splitfed_v1"}, train=ADAM
    ),
    "v1-moments-reset": images(
        schedule=PARALLEL, aggregation={"kind": "splitfed_v1", "moments": "reset"}, train=ADAM
    ),
    "v1-moments-reset-vanilla": images(
        topology=VANILLA,
        aggregation={"kind": "splitfed_v1", "moments": "reset", "strategy": {"kind": "fedavgm"}},
        train=ADAM,
    ),
    "v1-own-heads": images(clients=OWN, schedule=TURNS, aggregation={"kind": "splitfed_v1"}),
    "v2-fedavg": images(
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2"},
        data={"partition": {"kind": "linear"}},
    ),
    "v2-fedavg-vanilla": images(
        topology=VANILLA, schedule=TURNS, aggregation={"kind": "splitfed_v2"}, train=ADAM
    ),
    "v2-fedadam": images(
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2", "strategy": {"kind": "fedadam"}},
        clients={"handover": "weights"},
        train=ADAM,
    ),
    "v2-fedadam-vanilla": images(
        topology=VANILLA,
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2", "strategy": {"kind": "fedadam"}},
    ),
    "v2-in-few-bits": images(
        aggregation={"kind": "splitfed_v2", "bits": 6}, cohort={"fraction": 0.7}
    ),
    "v2-median": images(aggregation={"kind": "splitfed_v2", "strategy": {"kind": "fedmedian"}}),
    "fused": images(
        schedule=PARALLEL,
        aggregation={"kind": "fused"},
        train=ADAM,
        network=SPREAD,
        data={"partition": {"kind": "linear"}},
    ),
    "fused-vanilla": images(
        topology=VANILLA, schedule=PARALLEL, aggregation={"kind": "fused"}, train=ADAM
    ),
    "fused-own-heads": images(clients=OWN, schedule=PARALLEL, aggregation={"kind": "fused"}),
    "asynchronous-own-heads": images(
        clients=OWN, schedule=ASYNCHRONOUS, network=SPREAD, train=ADAM
    ),
    "asynchronous-unbounded": images(
        clients=OWN,
        schedule={**ASYNCHRONOUS, "max_ahead": None},
        network=SPREAD,
        train={"batch_size": 6},
    ),
    "asynchronous-vanilla": images(
        topology=VANILLA, clients=OWN, schedule=ASYNCHRONOUS, network=SPREAD
    ),
    "asynchronous-lockstep-averaged": images(
        schedule={**ASYNCHRONOUS, "max_ahead": 0},
        aggregation={"kind": "splitfed_v2"},
        network={**SPREAD, "server": {"gflops": 1, "slots": 2}},
    ),
    "cohort-v1": images(
        clients={"count": 6},
        schedule={**PARALLEL, "order": "random", "local_steps": 2, "rounds": 4},
        aggregation={"kind": "splitfed_v1"},
        cohort={
            "fraction": 0.6,
            "sampling": "weighted",
            "dropout": 0.4,
            "availability": {"period": 4, "window": 3},
        },
    ),
    "dropout-hand-over": images(cohort={"dropout": 0.6}, train=ADAM),
    "dropout-vanilla-fused": images(
        topology=VANILLA,
        schedule=PARALLEL,
        aggregation={"kind": "fused"},
        cohort={"dropout": 0.6},
        train=ADAM,
    ),
    "dropout-asynchronous": images(
        clients=OWN, schedule=ASYNCHRONOUS, network=SPREAD, cohort={"dropout": 0.6}
    ),
    "dropout-asynchronous-averaged-vanilla": images(
        topology=VANILLA,
        schedule=ASYNCHRONOUS,
        aggregation={"kind": "splitfed_v2"},
        network=SPREAD,
        cohort={"dropout": 0.5},
    ),
    "late-skipped": images(
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2"},
        network=UNEQUAL,
        cohort={"deadline_s": 0.004},
    ),
    "late-skipped-v1": images(
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v1"},
        network=UNEQUAL,
        cohort={"deadline_s": 0.004},
    ),
    "late-skipped-asynchronous": images(
        clients=OWN, schedule=ASYNCHRONOUS, network=UNEQUAL, cohort={"deadline_s": 0.004}
    ),
    "late-awaited-in-turns": images(
        schedule=TURNS,
        network=UNEQUAL,
        cohort={"deadline_s": 0.004, "late": "await"},
    ),
    "trained-otherwise": images(
        method=[{"kind": "lightsplit", "lift": "learned", "hidden": 16}, {"kind": "wcc"}],
        data={"augment": ["crop", "flip"], "validation": 0.2, "normalise": "symmetric"},
        train={
            "precision": "bf16",
            "channels_last": True,
            "clip_norm": 1.0,
            "drop_last": True,
            "lr_schedule": {"kind": "cosine", "warmup": 1},
            "client": {"kind": "adamw", "lr": 0.002},
        },
    ),
    "lookahead": images(
        train={
            "client": {"kind": "sgd", "momentum": 0.9, "lookahead": {"every": 2, "rise": 5}},
            "server": {"kind": "adamw", "lookahead": {"every": 3, "keep": 0.8}},
        },
    ),
    "stopped-early": images(
        data={"validation": 0.2},
        schedule={"rounds": 6},
        stop={"metric": "validation_loss", "patience": 1, "min_delta": 10.0},
        checkpoint={"every": 2},
    ),
}


def make_crossing(*methods: Values, **changes: Any) -> Case:
    """Make a case of what happens at the cut of a small network without normalisation."""
    small = {"source": {"kind": "digits", "size": 28}}
    return images(
        method=list(methods),
        **merge_values({"data": small, "model": {"kind": "mnistnet"}}, changes),
    )


BOTH = ["smashed", "features"]
METHODS = {
    "lightsplit-fixed-wcc": make_crossing(
        {"kind": "lightsplit", "ratio": 8}, {"kind": "wcc", "normalise": True}
    ),
    "lightsplit-learned-v1": make_crossing(
        {"kind": "lightsplit", "lift": "learned", "hidden": 16, "broadcast": "matrix"},
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v1"},
        train=ADAM,
    ),
    "lightsplit-both-legs-int8": make_crossing(
        {"kind": "lightsplit", "projection": "hadamard", "lift": "learned", "legs": BOTH},
        {"kind": "cast", "to": "int8", "legs": BOTH},
        clients=OWN,
        network=SPREAD,
    ),
    "lightsplit-learned-fused": make_crossing(
        {"kind": "lightsplit", "lift": "learned", "hidden": 16},
        {"kind": "wcc"},
        schedule=PARALLEL,
        aggregation={"kind": "fused"},
    ),
    "lightsplit-both-legs-fused": make_crossing(
        {"kind": "lightsplit", "legs": BOTH, "lift": "learned", "hidden": 16},
        schedule=PARALLEL,
        aggregation={"kind": "fused"},
        train=ADAM,
    ),
    "wcc-int8-vanilla-v1": make_crossing(
        {"kind": "wcc"},
        {"kind": "cast", "to": "int8"},
        topology=VANILLA,
        schedule=TURNS,
        aggregation={"kind": "splitfed_v1"},
        cohort={"dropout": 0.5},
    ),
    "cast-fp16-asynchronous": make_crossing(
        {"kind": "cast", "legs": BOTH}, clients=OWN, schedule=ASYNCHRONOUS, network=SPREAD
    ),
    "topk-quantise": make_crossing(
        {"kind": "topk", "ratio": 4, "match": "values", "legs": BOTH}, {"kind": "quantise"}
    ),
    "randtopk-vanilla-v1": make_crossing(
        {"kind": "randtopk"},
        topology=VANILLA,
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v1"},
    ),
    "c3sl-lightsplit": make_crossing({"kind": "c3sl", "ratio": 3}, {"kind": "lightsplit"}),
    "c3sl-v2": make_crossing(
        {"kind": "c3sl", "ratio": 4}, schedule=PARALLEL, aggregation={"kind": "splitfed_v2"}
    ),
    "bottlenet-v1": make_crossing(
        {"kind": "bottlenet"},
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v1", "moments": "reset"},
        clients={"handover": "weights"},
        train=ADAM,
    ),
    "bottlenet-vanilla": make_crossing({"kind": "bottlenet"}, topology=VANILLA, train=ADAM),
    "learned1x1-own-heads": make_crossing(
        {"kind": "learned1x1", "ratio": 2},
        clients={**OWN, "start": "own"},
        schedule=PARALLEL,
        data={"source": {"size": 12}},
        model={"kind": "mobilenet"},
        train=ADAM,
    ),
    "learned1x1-vanilla-v2": make_crossing(
        {"kind": "learned1x1"},
        topology=VANILLA,
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2", "strategy": {"kind": "fedadam"}},
    ),
    "quantise-nearest-vanilla": make_crossing(
        {"kind": "quantise", "bits": 3, "rounding": "nearest"}, topology=VANILLA
    ),
    "rotated-normal-levels": make_crossing(
        {"kind": "lightsplit", "ratio": 1, "projection": "hadamard"},
        {"kind": "quantise", "bits": 3, "gradient_bits": 1, "levels": "normal"},
    ),
    "noise-nopeek": make_crossing(
        {"kind": "nopeek"}, {"kind": "noise", "distribution": "laplace", "unit": "batch_std"}
    ),
    "nopeek-vanilla-dropout": make_crossing(
        {"kind": "nopeek"}, topology=VANILLA, cohort={"dropout": 0.5}
    ),
    "shredder-v2": make_crossing(
        {"kind": "shredder", "tensors": 3}, schedule=PARALLEL, aggregation={"kind": "splitfed_v2"}
    ),
    "shredder-asynchronous": make_crossing(
        {"kind": "shredder", "tensors": 3}, clients=OWN, schedule=ASYNCHRONOUS, network=SPREAD
    ),
    "splitguard": make_crossing({"kind": "splitguard", "after": 2, "probability": 0.5}),
    "splitguard-fused": make_crossing(
        {"kind": "splitguard", "after": 1, "probability": 0.5},
        schedule=PARALLEL,
        aggregation={"kind": "fused"},
    ),
    "splitguard-vanilla-v1": make_crossing(
        {"kind": "splitguard", "after": 1, "probability": 0.5},
        topology=VANILLA,
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v1"},
    ),
    "gradients-scrutinizer": make_crossing({"kind": "gradients_scrutinizer", "after": 1}),
    "gradients-scrutinizer-vanilla-v2": make_crossing(
        {"kind": "gradients_scrutinizer", "after": 1},
        topology=VANILLA,
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2"},
    ),
}

BADNETS: Values = {"kind": "badnets", "rate": 0.5, "target": 1}
LOUD: Values = {"kind": "tamper", "how": "noise", "strength": 30.0}
COSINE: Values = {"kind": "cosine_mad", "threshold": {"kind": "three_sigma", "sigmas": 8}}
GRADIENTS: Values = {"kind": "tamper", "leg": "features_grad", "strength": 50.0}


def make_harmed(*poisons: Values, **changes: Any) -> Case:
    """Make a case in which one of five clients is malicious."""
    clients = {"count": 5, "malicious": {"ids": [2], "poison": list(poisons)}}
    usual = {"clients": clients, "data": {"train_samples": 120}, "schedule": {"rounds": 3}}
    return images(**merge_values(usual, changes))


HARM = {
    "badnets-all-detectors": make_harmed(
        BADNETS,
        detectors=[
            {"kind": "cosine_mad", "consensus": "leave_one_out", "window": "running"},
            {"kind": "cosine_mad", "signal": "features", "threshold": {"kind": "calibrated"}},
            {"kind": "foolsgold"},
            {"kind": "contra"},
            {"kind": "root_cosine", "root": [0, 1]},
            {"kind": "krum", "threshold": {"kind": "sequential"}},
            {"kind": "within_class", "fewest": 2},
            {"kind": "root_class", "since": 1, "fewest": 2, "fewest_root": 2, "directions": 4},
            {"kind": "within_class", "signal": "features", "fewest": 2, "window": "round"},
            {"kind": "mislabelled", "fewest_others": 2, "directions": 4},
            {"kind": "activation_clustering", "fewest": 2, "fewest_others": 2},
            {"kind": "spectral_signatures", "fewest": 2, "fewest_others": 2},
            {"kind": "strip", "fewest": 2, "fewest_others": 2},
            {"kind": "beatrix", "fewest": 2, "fewest_others": 2, "directions": 4},
        ],
    ),
    "badnets-vanilla": make_harmed(
        BADNETS,
        topology=VANILLA,
        detectors=[COSINE, {"kind": "within_class", "fewest": 2}, {"kind": "krum"}],
    ),
    "blended-own-heads": make_harmed(
        {"kind": "blended", "rate": 0.5}, clients=OWN, detectors=[{**COSINE, "window": "running"}]
    ),
    "wanet": make_harmed({"kind": "wanet", "rate": 0.5}, detectors=[COSINE]),
    "sig": make_harmed({"kind": "sig"}, detectors=[COSINE]),
    "semantic-replace-average": make_harmed(
        {"kind": "semantic", "property": "contrast"},
        {"kind": "replace", "how": "boost"},
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2"},
        detectors=[{"kind": "foolsgold"}],
    ),
    "clean-label-fused": make_harmed(
        {"kind": "clean_label", "rate": 0.5},
        schedule=PARALLEL,
        aggregation={"kind": "fused"},
        detectors=[COSINE, {"kind": "within_class", "fewest": 2}],
    ),
    "label-flip-replace-stale": make_harmed(
        {"kind": "label_flip", "rate": 1}, {"kind": "replace", "how": "stale"}, schedule=TURNS
    ),
    "tamper-skip": make_harmed(LOUD, detectors=[{**COSINE, "response": "skip"}], train=ADAM),
    "tamper-skip-asynchronous": make_harmed(
        LOUD,
        clients=OWN,
        schedule={**ASYNCHRONOUS, "rounds": 3},
        network=SPREAD,
        detectors=[{**COSINE, "response": "skip"}],
    ),
    "tamper-downweight": make_harmed(LOUD, detectors=[{**COSINE, "response": "downweight"}]),
    "tamper-downweight-vanilla": make_harmed(
        LOUD, topology=VANILLA, detectors=[{**COSINE, "response": "downweight"}]
    ),
    "tamper-downweight-v1": make_harmed(
        LOUD,
        schedule={**PARALLEL, "rounds": 3},
        aggregation={"kind": "splitfed_v1"},
        detectors=[{**COSINE, "response": "downweight"}],
    ),
    "tamper-downweight-vanilla-fused": make_harmed(
        LOUD,
        topology=VANILLA,
        schedule={**PARALLEL, "rounds": 3},
        aggregation={"kind": "fused"},
        detectors=[{**COSINE, "response": "downweight"}],
    ),
    "tamper-rollback": make_harmed(
        LOUD, detectors=[{**COSINE, "response": "rollback"}], train=ADAM
    ),
    "tamper-rollback-v2": make_harmed(
        LOUD,
        schedule={**PARALLEL, "rounds": 3},
        aggregation={"kind": "splitfed_v2", "strategy": {"kind": "fedadam"}},
        detectors=[{**COSINE, "response": "rollback"}],
    ),
    "safesplit": make_harmed(
        GRADIENTS,
        schedule={**TURNS, "rounds": 3},
        detectors=[{"kind": "safesplit"}],
        train=ADAM,
    ),
    "safesplit-v2": make_harmed(
        GRADIENTS,
        schedule={**TURNS, "rounds": 3},
        aggregation={"kind": "splitfed_v2"},
        detectors=[{"kind": "safesplit"}],
    ),
    "watched-dropout-lightsplit": make_harmed(
        BADNETS,
        method=[{"kind": "lightsplit"}, {"kind": "cast", "to": "bf16"}],
        cohort={"dropout": 0.4, "fraction": 0.8},
        detectors=[COSINE, {"kind": "contra"}],
    ),
}


def read(*attacks: Values, **changes: Any) -> Case:
    """Make a case of attacks on images."""
    usual = {
        "data": {"auxiliary": 0.4, "normalise": "unit"},
        "attacks": list(attacks),
        "targets": {"count": 4, "every": 1},
        "train": {"batch_size": 10},
    }
    return images(**merge_values(usual, changes))


DENSE: Values = {"kind": "mlp", "widths": [32, 16], "head": 1, "tail": 1}
UNSPLIT: Values = {"kind": "unsplit", "outer": 2, "inner": 2}
READ = {
    "sdar-pcat": read(
        {"kind": "sdar"}, {"kind": "pcat"}, schedule={"rounds": 1}, targets={"every": 0}
    ),
    "sdar-pcat-vanilla": read(
        {"kind": "sdar"},
        {"kind": "pcat"},
        topology=VANILLA,
        schedule={"rounds": 1, "local_steps": 2},
        method=[{"kind": "learned1x1", "ratio": 2}, {"kind": "noise"}],
    ),
    "pcat-parallel-own-heads": read(
        {"kind": "pcat"}, clients=OWN, schedule=PARALLEL, targets={"client": 1, "split": "test"}
    ),
    "fora": read({"kind": "fora"}, schedule={"rounds": 1, "local_steps": 1}),
    "fsha": read(
        {"kind": "fsha", "start": 1},
        schedule={"rounds": 1, "local_steps": 1},
        method=[{"kind": "splitguard", "after": 0, "probability": 0.5}],
    ),
    "fsha-asynchronous-vanilla": read(
        {"kind": "fsha", "start": 2},
        topology=VANILLA,
        clients=OWN,
        schedule={**ASYNCHRONOUS, "rounds": 1, "local_steps": 1},
        network=SPREAD,
    ),
    "fsha-as-run-bf16": read(
        {"kind": "fsha", "critic": "as_run", "precision": "bf16", "channels_last": True},
        schedule={"rounds": 1, "local_steps": 1},
    ),
    "pcat-fused": read(
        {"kind": "pcat"},
        schedule={**PARALLEL, "rounds": 1},
        aggregation={"kind": "fused"},
    ),
    "unsplit-whitebox": read(
        UNSPLIT,
        {**UNSPLIT, "name": "adaptive", "objective": "adaptive", "clones": "batched"},
        {"kind": "whitebox", "iterations": 3},
        method=[{"kind": "lightsplit"}],
    ),
    "rmle": read(
        {"kind": "rmle", "iterations": 3},
        {"kind": "rmle", "name": "adaptive", "objective": "adaptive", "iterations": 3},
        method=[{"kind": "learned1x1"}],
    ),
    "rmle-tuned": read(
        {"kind": "rmle", "iterations": 3, "tune": {"tv": [0.01, 1.0]}},
        data={"auxiliary": 0.5},
        targets={"every": 0},
    ),
    "whitebox-v1-vanilla": read(
        {"kind": "whitebox", "iterations": 3, "decoder": "fora"},
        topology=VANILLA,
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v1"},
    ),
    "handed-weights": read(
        {"kind": "handed_weights"},
        model=DENSE,
        schedule={"rounds": 1, "local_steps": 1},
    ),
    "members": read(
        {"kind": "loss_threshold"},
        {"kind": "gradient_norm"},
        {"kind": "lira"},
        {"kind": "canaries", "count": 3},
        {"kind": "loss_threshold", "by": "client 1", "name": "next"},
        schedule={"rounds": 1},
    ),
    "private-audited": read(
        {"kind": "canaries", "count": 3, "differing": "label", "delta": 1e-4},
        method=[
            {"kind": "dp_forward", "epsilon": 4.0, "relative": False},
            {"kind": "dp_sgd", "multiplier": 2.0, "relative": False},
        ],
        model=DENSE,
        train={"dp": {"clip": 0.5, "multiplier": 1.0}},
    ),
    "private-drawn-stopped": images(
        model={**DENSE, "learns": ["head", "tail"]},
        train={"dp": {"epsilon": 6.0, "delta": 1e-3, "sampling": "poisson"}},
        schedule={"rounds": 3},
        stop={"epsilon": 5.0},
    ),
    "attributes-origins": read(
        {"kind": "attribute_probe"},
        {"kind": "site_inference"},
        {"kind": "site_inference", "names": False, "name": "clusters"},
        clients=OWN,
        schedule={"rounds": 1},
    ),
    "party-attacks": read(
        {"kind": "direct_labels"},
        {"kind": "passive_completion", "steps": 8, "known": 1},
        {"kind": "active_completion", "steps": 8, "known": 1},
        {"kind": "kmeans", "by": "party 0"},
        {"kind": "ridge", "pairs": 20, "by": "party 1"},
        model={"kind": "mlp", "widths": [32, 10, 16], "head": 2, "tail": 1},
        topology="vertical",
        clients={"count": 2, "heads": "per_client"},
        data={"partition": {"kind": "parts", "parts": 2}},
        schedule={"rounds": 2},
        targets={"count": 60},
    ),
    "villain": images(
        model={"kind": "mlp", "widths": [32, 10, 16], "head": 2, "tail": 1},
        topology="vertical",
        data={"partition": {"kind": "parts", "parts": 2}},
        clients={
            "count": 2,
            "heads": "per_client",
            "malicious": {"ids": [0], "poison": [{"kind": "villain", "known": 2}]},
        },
        schedule={"rounds": 2},
    ),
    "ridge-reference": read(
        {"kind": "ridge", "pairs": 20},
        {"kind": "fora_reference"},
        {"kind": "naive_sda"},
        schedule={"rounds": 1, "local_steps": 1},
        method=[{"kind": "lightsplit"}],
    ),
    "attacked-afterwards": images(
        attack={"kind": "unsplit", "outer": 2, "inner": 2, "targets.count": 3},
        method=[{"kind": "learned1x1"}],
        train=ADAM,
    ),
}

MIXGUARD: Values = {
    "kind": "mixguard",
    "tokens": 3,
    "warm_up": 1,
    "sampler": "general",
    "condition": 20.0,
}
SND: Values = {"kind": "snd", "warm_up": 1, "heads": 2, "layers": 1}
KNOWN: Values = {"sizes": {"width": 16, "layers": 3, "public": True}}
CLASSIFIER: Values = {
    "kind": "sequence_classifier",
    "sizes": {"width": 16, "layers": 3},
    "head": 1,
    "tail": 1,
}
ADAPTED: Values = {
    "kind": "adapted_classifier",
    "sizes": {"width": 16, "layers": 3},
    "adapters": 2,
    "lora": {"rank": 2},
}
QUICK: Values = {"iterations": 4, "hidden": 16}
MATCHED: Values = {"iterations": 4, "lr": 0.3}


def overheard(*attacks: Values, **changes: Any) -> Case:
    """Make a case of attacks on texts."""
    usual = {
        "data": {"source": {"learns": "all"}},
        "clients": {"count": 1},
        "schedule": {"rounds": 1},
        "attacks": list(attacks),
        "targets": {"count": 6},
    }
    return texts(**merge_values(usual, changes))


WORDS = {
    "texts-classified": texts(model=CLASSIFIER),
    "texts-classified-left-vanilla": texts(
        model={**CLASSIFIER, "sizes": {"family": "gpt2", "width": 16, "layers": 3}},
        topology=VANILLA,
        data={"source": {"padding": "left"}},
    ),
    "texts-written": texts(
        data={"source": {"task": GENERATES, "length": 48}},
        evaluate={
            "metrics": ["loss", "exact_answers", "rouge_l", "meteor", "bleu"],
            "max_new_tokens": 3,
            "generated_texts": 4,
        },
    ),
    "texts-left-own-heads": texts(
        clients=OWN,
        schedule=PARALLEL,
        model={"sizes": {"family": "qwen3"}},
        data={"source": {"padding": "left"}},
        method=[{"kind": "cast", "to": "int8"}],
    ),
    "texts-lora": texts(
        model={"lora": {"rank": 2, "dropout": 0.3}, "learns": ["head", "tail"]},
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2"},
    ),
    "texts-quantise-noise-v1": texts(
        method=[{"kind": "noise"}, {"kind": "quantise"}],
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v1"},
        cohort={"dropout": 0.5},
    ),
    "texts-tampered": texts(
        clients={
            "count": 5,
            "malicious": {"ids": [1], "poison": [{"kind": "tamper", "how": "sign"}]},
        },
        detectors=[{"kind": "cosine_mad", "response": "skip"}],
    ),
    "mixguard-refined": texts(
        method=[{**MIXGUARD, "refine_every": 2}], schedule={"rounds": 3}, clients={"count": 2}
    ),
    "mixguard-affine": texts(
        method=[
            {
                "kind": "mixguard",
                "sampler": "affine",
                "condition": 20.0,
                "messages": 5,
                "inputs": 4,
                "tokens": 0,
                "noise": "fixed",
                "warm_up": 1,
            }
        ],
    ),
    "mixguard-remixed-v2": texts(
        method=[{**MIXGUARD, "gradients": "remixed", "message_noise": 0.1}],
        schedule={**PARALLEL, "rounds": 3},
        aggregation={"kind": "splitfed_v2"},
    ),
    "mixguard-uncalibrated-support": texts(
        method=[
            {
                "kind": "mixguard",
                "sampler": "general",
                "calibrate": False,
                "blind": False,
                "inference": "plain",
            }
        ],
        data={"support": {"kind": "python_docs", "length": 32}},
        clients=OWN,
    ),
    "mixguard-v1-dropout": texts(
        method=[MIXGUARD],
        clients={"count": 3},
        schedule={**PARALLEL, "rounds": 3},
        aggregation={"kind": "splitfed_v1"},
        cohort={"dropout": 0.4},
    ),
    "mixguard-asynchronous": texts(
        method=[MIXGUARD], clients=OWN, schedule=ASYNCHRONOUS, network={"link": "lan"}
    ),
    "mixguard-written": texts(
        method=[{**MIXGUARD, "warm_up": 0}],
        evaluate={"metrics": ["loss", "rouge_l"], "max_new_tokens": 2, "generated_texts": 2},
        schedule=TURNS,
    ),
    "snd": texts(method=[SND], schedule={"rounds": 3}),
    "snd-v1": texts(
        method=[{**SND, "lengths": "element", "clip": None, "noise": 0.5}],
        schedule={**PARALLEL, "rounds": 3},
        aggregation={"kind": "splitfed_v1"},
    ),
    "snd-vanilla": texts(topology=VANILLA, method=[{**SND, "denoise": False}]),
    "dp-forward-vanilla": texts(
        topology=VANILLA, method=[{"kind": "dp_forward", "epsilon": 8.0, "per": "token"}]
    ),
    "dp-sgd": texts(method=[{"kind": "dp_sgd", "noise": "laplace"}], model=CLASSIFIER),
    "santext-sparsify": texts(method=[{"kind": "santext"}, {"kind": "sparsify"}]),
    "custext-mid": texts(method=[{"kind": "custext"}, {"kind": "mid"}]),
    "rantext": texts(method=[{"kind": "rantext"}]),
    "admi": texts(method=[{"kind": "admi", "warm_up": 1}], model=KNOWN, schedule={"rounds": 2}),
    "admi-own-heads-parallel": texts(
        method=[{"kind": "admi", "warm_up": 1, "heads": 2}, {"kind": "cast"}],
        model=KNOWN,
        clients=OWN,
        schedule=PARALLEL,
    ),
    "dualguard": texts(
        method=[{"kind": "dualguard", "warm_up": 1, "inverter_rounds": 1}], model=KNOWN
    ),
    "text-obfuscator": texts(method=[{"kind": "text_obfuscator", "clusters": 10}]),
    "naive-mix": texts(method=[{"kind": "naive_mix", "alpha": 0.2}]),
    "labels-drawn-anew": texts(
        method=[
            {"kind": "randomised_response", "epsilon": 1.0},
            {"kind": "distance_correlation"},
            {"kind": "max_norm"},
        ],
        model=CLASSIFIER,
        attacks=[
            {"kind": "spectral"},
            {"kind": "norm"},
            {"kind": "kmeans"},
            {"kind": "probe", "trees": 2},
        ],
        targets={"count": 12},
    ),
    "pslf": texts(method=[{"kind": "pslf"}], model=CLASSIFIER, clients=OWN),
    "marvell": texts(method=[{"kind": "marvell"}], model=CLASSIFIER),
    "dcae": texts(
        method=[{"kind": "cae", "steps": 200}, {"kind": "discrete_sgd", "bins": 6}],
        model=CLASSIFIER,
    ),
    "grad-perturb": texts(
        method=[{"kind": "grad_perturb", "epsilon": 4.0}], model=CLASSIFIER, clients=OWN
    ),
    "p3eft": texts(
        topology="api",
        method=[{"kind": "p3eft", "messages": 2}],
        model=ADAPTED,
        servers=2,
        clients=OWN,
        attacks=[{"kind": "optimizer_inversion", "directions": 2}],
        targets={"count": 12},
    ),
    "private-backprop": texts(
        method=[{"kind": "private_backprop", "messages": 3}],
        model={**CLASSIFIER, "learns": ["head", "tail"]},
        attacks=[
            {"kind": "singular_direction"},
            {"kind": "direction_scoring"},
            {"kind": "model_completion"},
            {"kind": "exploit", "iterations": 5, "starts": 1},
        ],
        targets={"count": 12},
    ),
    "sessions": overheard(
        {"kind": "mc"},
        {"kind": "mc_trained", "epochs": 1},
        {"kind": "session_sip", **QUICK},
        {"kind": "dsi", **QUICK},
        {"kind": "vmi", "start": "sip", "steps": 4, **QUICK},
        {"kind": "rmi", "steps": 4},
        {"kind": "pmi", "patch": 6, "patch_steps": 3, "joint_steps": 3},
        {"kind": "pidi", "patch": 6, "patch_steps": 3, "joint_steps": 3, **QUICK},
        {"kind": "known_pairs", "sessions": 6},
        data={"source": {"task": GENERATES, "length": 48}},
        targets={"tokens": 5},
        attack={"kind": "pmi", "start": "mc", "patch_steps": 3, "targets.count": 2},
    ),
    "sessions-of-what-is-not-trained": overheard(
        {"kind": "mc"},
        data={"source": {"task": GENERATES, "length": 48}},
        schedule={"rounds": 0},
        evaluate={"sampling": {"temperature": 1.5}},
    ),
    "sip-tag-lamp-bisr": overheard(
        {"kind": "sip", **QUICK},
        {"kind": "tag", **MATCHED},
        {"kind": "lamp", **MATCHED, "every": 2, "permutations": 3},
        {"kind": "bisr", **QUICK, "gradient_steps": 3, "smashed_steps": 3},
        {"kind": "tag_linear", "iterations": 3},
        method=[{"kind": "dp_forward", "sigma": 0.1}],
    ),
    "vocabulary-matching": overheard(
        {"kind": "vocabulary_matching", "candidates": 8},
        method=[{"kind": "dp_forward", "sigma": 0.1}],
    ),
    "session-matching": overheard(
        {"kind": "session_matching", "candidates": 8, "batch_size": 4},
        data={"source": {"task": GENERATES, "length": 48}},
        targets={"tokens": 5},
    ),
    "gradient-ratio-mixguard": overheard(
        {"kind": "gradient_ratio", **QUICK},
        {"kind": "sip", **QUICK},
        method=[{**MIXGUARD, "warm_up": 0}],
        targets={"batch_size": 3},
    ),
    "adaptive": overheard(
        {"kind": "adaptive_online", **QUICK, "unmixer": 16},
        {"kind": "adaptive_offline", **QUICK, "unmixer": 16, "unmixing": 4},
        method=[{**MIXGUARD, "messages": 2, "inputs": 2, "blind": False, "tokens": 0}],
        clients={"count": 2},
        schedule={"rounds": 2},
    ),
    "span-search-cover": overheard(
        {"kind": "span_search", "inverter": "gaussian", "looks": 2},
        method=[{"kind": "cover"}],
        targets={"batch_size": 3},
    ),
    "sip-encoder": overheard(
        {"kind": "sip", **QUICK},
        model={**CLASSIFIER, "sizes": {"family": "bert", "width": 16, "layers": 3}},
        train={"group_by_length": True},
    ),
    "sip-vanilla-v2": overheard(
        {"kind": "sip", **QUICK},
        topology=VANILLA,
        clients={"count": 2},
        schedule=PARALLEL,
        aggregation={"kind": "splitfed_v2"},
    ),
}

LONGER: Values = {"schedule": {"rounds": 2}}
RESUMED = {
    "resumed": images(
        then={"schedule": {"rounds": 3}}, train=ADAM, schedule={"rounds": 1, "local_steps": 2}
    ),
    "resumed-before-stopping": images(
        then={"schedule": {"rounds": 4}},
        schedule={"rounds": 1},
        stop={"metric": "test_loss", "patience": 1, "min_delta": 10.0},
    ),
    "resumed-asynchronous": images(
        then=LONGER,
        clients=OWN,
        schedule={**ASYNCHRONOUS, "rounds": 1},
        network=SPREAD,
        method=[{"kind": "shredder", "tensors": 3}],
    ),
    "resumed-fedadam-watched": make_harmed(
        LOUD,
        then=LONGER,
        schedule={**PARALLEL, "rounds": 1},
        aggregation={"kind": "splitfed_v1", "strategy": {"kind": "fedadam"}},
        detectors=[
            {**COSINE, "response": "skip"},
            {"kind": "krum", "threshold": {"kind": "sequential"}},
            {"kind": "contra"},
        ],
    ),
    "resumed-safesplit": make_harmed(
        GRADIENTS,
        then=LONGER,
        schedule={**TURNS, "rounds": 1},
        detectors=[{"kind": "safesplit"}],
    ),
    "resumed-pcat": read({"kind": "pcat"}, then=LONGER, schedule={"rounds": 1}),
    "resumed-mixguard": texts(
        then=LONGER,
        method=[MIXGUARD],
        schedule={"rounds": 1},
        attacks=[{"kind": "adaptive_online", **QUICK, "unmixer": 16}],
        targets={"count": 4},
    ),
}
HOSTS: Values = {"kind": "ray", "hosts": 2}
HOSTED = {
    "hosts-v1-watched": make_harmed(
        LOUD,
        engine=HOSTS,
        schedule={**PARALLEL, "rounds": 2},
        aggregation={"kind": "splitfed_v1"},
        detectors=[{**COSINE, "response": "skip"}],
        network=SPREAD,
    ),
    "hosts-mixguard-own-heads": texts(engine=HOSTS, clients=OWN, method=[MIXGUARD]),
}

CASES: dict[str, Case] = {
    **{f"shipped-{name}": case for name, case in SHIPPED.items()},
    **AXES,
    **METHODS,
    **HARM,
    **READ,
    **WORDS,
    **RESUMED,
    **HOSTED,
}


THINGS = ("film", "play", "song", "old book", "show")
FOUND = (("dull", "awful", "grim"), ("fine", "lovely", "bright"))
PLACES = ("here", "in town", "by the sea", "on the long road home")


def write_texts(folder: Path) -> None:
    """Write private reviews with a label and a topic, public sentences, and images."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    reviews = [
        {"sentence": f"a {FOUND[label][word]} {thing}", "label": label, "topic": thing}
        for word, label, thing in product(range(3), range(2), THINGS)
    ]
    public = [
        {"sentence": f"the {thing} was {place}", "label": 0, "topic": thing}
        for thing, place in product(THINGS, PLACES)
    ]
    for name, rows in (("private", reviews), ("public", public)):
        (folder / name).mkdir(parents=True)
        for split, chosen in (("train", rows), ("test", rows[::3])):
            pq.write_table(pa.Table.from_pylist(chosen), folder / name / f"{split}.parquet")
    write_pictures(folder / "pictures")


def write_pictures(folder: Path) -> None:
    """Write grey images of two classes, a bright half above or below, as encoded PNG."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder.mkdir()
    drawn = np.random.default_rng(5)
    for split, count in (("train", 90), ("test", 40)):
        rows = []
        for label in (0, 1) * (count // 2):
            pixels = drawn.integers(0, 120, (12, 12), dtype=np.uint8)
            pixels[6 * label : 6 * label + 6] += 120
            encoded = BytesIO()
            Image.fromarray(pixels).save(encoded, "png")
            rows.append({"image": {"bytes": encoded.getvalue(), "path": None}, "label": label})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
