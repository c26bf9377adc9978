"""How a scenario's parts are called in a table: a few words, read off the saved scenario."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def setting_of(scenario: Mapping[str, Any]) -> str:
    """What else tells rows apart, such as `cifar10, dirichlet 0.1, PCH, vanilla, parallel`."""
    source, partition = scenario["data"]["source"], scenario["data"]["partition"]
    name = Path(source.get("path") or source.get("name") or source["kind"]).name
    alpha = f" {partition['alpha']:g}" if "alpha" in partition else ""
    heads = "SCH" if scenario["clients"]["heads"] == "shared" else "PCH"
    vanilla = ["vanilla"] if scenario["topology"] == "vanilla" else []
    return ", ".join([name, f"{partition['kind']}{alpha}", heads, *vanilla, *_course(scenario)])


def _course(scenario: Mapping[str, Any]) -> list[str]:
    """Schedule and aggregation, where they are not the usual ones."""
    schedule, aggregation = scenario["schedule"]["kind"], scenario.get("aggregation") or {}
    strategy = aggregation.get("strategy", {}).get("kind", "fedavg")
    averages = " ".join([aggregation.get("kind", "none"), *_but(strategy, "fedavg")])
    return [*_but(schedule, "round_robin"), *_but(averages, "none")]


def _but(word: str, usual: str) -> list[str]:
    return [] if word == usual else [word]


def methods_of(scenario: Mapping[str, Any]) -> str:
    """A short name of what happens at the cut, such as `lightsplit 8 fixed + wcc 0.01`."""
    methods = [method for method in scenario["method"] if method["kind"] != "raw"]
    return " + ".join(_method(method) for method in methods) or "raw"


def _method(method: Mapping[str, Any]) -> str:
    telling = ("ratio", "k", "lift", "weight", "to")
    words = [str(method[name]) for name in telling if method.get(name) is not None]
    words = [word.removesuffix(".0") for word in words]
    if "features" in method.get("legs", ()):
        words.append("both legs" if "smashed" in method["legs"] else "features")
    return " ".join([method["kind"], *words])


def value_of(value: Any) -> str:  # noqa: ANN401 - any plain value
    """A swept value in a few words: a part by its kind and what it sets."""
    if isinstance(value, Mapping):
        rest = [value_of(one) for name, one in value.items() if name != "kind"]
        return " ".join([*([str(value["kind"])] if "kind" in value else []), *rest])
    if isinstance(value, list):
        return " + ".join(map(value_of, value)) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)
