"""How a scenario's parts are called in a table: a few words, read off the saved scenario."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.topologies import USUAL


def setting_of(scenario: Mapping[str, Any]) -> str:
    """What else tells rows apart, such as `cifar10, dirichlet 0.1, PCH, vanilla, parallel`."""
    source, partition = scenario["data"]["source"], scenario["data"]["partition"]
    name = Path(source.get("path") or source.get("name") or source["kind"]).name
    alpha = f" {partition['alpha']:g}" if "alpha" in partition else ""
    heads = "SCH" if scenario["clients"]["heads"] == "shared" else "PCH"
    topology = _but(scenario["topology"], USUAL)
    trunk = ["trunk skipped"] if scenario["model"].get("trunk") == "skipped" else []
    told = [name, f"{partition['kind']}{alpha}", heads, *topology, *trunk, *_course(scenario)]
    return ", ".join(told)


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


def told_apart(scenarios: Sequence[Mapping[str, Any]]) -> list[str]:
    """`methods_of` each; those that it calls alike are told apart by the fields that differ.

    One such field is named everywhere, several only where they are not what they mostly are.
    """
    names = [methods_of(scenario) for scenario in scenarios]
    fields = [
        {
            f"{place}.{name}": value_of(value)
            for place, method in enumerate(scenario["method"])
            for name, value in method.items()
        }
        for scenario in scenarios
    ]
    for name in dict.fromkeys(names):
        alike = [row for row, other in enumerate(names) if other == name]
        known = dict.fromkeys(field for row in alike for field in fields[row])
        values = {field: [fields[row].get(field, "") for row in alike] for field in known}
        differ = {field: each for field, each in values.items() if len(set(each)) > 1}
        for field, each in differ.items():
            mostly = None if len(differ) == 1 else max(each, key=each.count)
            for row, value in zip(alike, each, strict=True):
                if value != mostly:
                    names[row] += f" {field.partition('.')[2]}={value}"
    return names


def _method(method: Mapping[str, Any]) -> str:
    telling = ("ratio", "k", "lift", "weight", "to", "sigma", "multiplier")
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


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """Each dotted field by the last of its parts that tell it from the others."""
    return {field: _short_name(field, fields) for field in fields}


def _short_name(field: str, fields: Sequence[str]) -> str:
    parts = field.split(".")
    for count in range(1, len(parts) + 1):
        tail = parts[-count:]
        alike = [other for other in fields if other.split(".")[-count:] == tail]
        if alike == [field] and not tail[0].isdecimal():
            return ".".join(tail)
    return field
