"""Tables need short names for the parts of a scenario, read from the saved scenario."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.protocols import USUAL


def describe_setting(scenario: Mapping[str, Any]) -> str:
    """Describe a scenario beside its methods, such as `cifar10, dirichlet 0.1, PCH, parallel`."""
    source, partition = scenario["data"]["source"], scenario["data"]["partition"]
    name = Path(source.get("path") or source.get("name") or source["kind"]).name
    alpha = f" {partition['alpha']:g}" if "alpha" in partition else ""
    heads = "SCH" if scenario["clients"]["heads"] == "shared" else "PCH"
    trunk = "trunk skipped" if scenario["model"].get("trunk") == "skipped" else ""
    aggregation = scenario.get("aggregation") or {}
    strategy = aggregation.get("strategy", {}).get("kind", "fedavg")
    averages = aggregation.get("kind", "none")
    averages += "" if strategy == "fedavg" else f" {strategy}"
    usual = {USUAL: scenario["topology"], "": trunk}
    usual |= {"round_robin": scenario["schedule"]["kind"], "none": averages}
    unusual = [each for name, each in usual.items() if each != name]
    return ", ".join([name, f"{partition['kind']}{alpha}", heads, *unusual])


def name_methods(scenario: Mapping[str, Any]) -> str:
    """Return a short name of a scenario's methods, such as `lightsplit 8 fixed + wcc 0.01`."""
    methods = [method for method in scenario["method"] if method["kind"] != "raw"]
    return " + ".join(_name_method(method) for method in methods) or "raw"


def distinguish_methods(scenarios: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each scenario's methods so that different methods have different names.

    Methods with one short name get the fields in which they differ: a single field always, several
    fields only where their value is not the most frequent one.
    """
    names = [name_methods(scenario) for scenario in scenarios]
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


def _name_method(method: Mapping[str, Any]) -> str:
    telling = ("ratio", "k", "lift", "weight", "to", "sigma", "multiplier")
    words = [str(method[name]) for name in telling if method.get(name) is not None]
    words = [word.removesuffix(".0") for word in words]
    if "features" in method.get("legs", ()):
        words.append("both legs" if "smashed" in method["legs"] else "features")
    return " ".join([method["kind"], *words])


def value_of(value: Any) -> str:  # noqa: ANN401 - any plain value
    """Write a swept value in a few words: for a part its kind and its set fields."""
    if isinstance(value, Mapping):
        rest = [value_of(one) for name, one in value.items() if name != "kind"]
        return " ".join([*([str(value["kind"])] if "kind" in value else []), *rest])
    if isinstance(value, list):
        return " + ".join(map(value_of, value)) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """Map each dotted field to the shortest end of it that no other field has."""
    return {field: _shorten(field, fields) for field in fields}


def _shorten(field: str, fields: Sequence[str]) -> str:
    parts = field.split(".")
    for count in range(1, len(parts) + 1):
        tail = parts[-count:]
        alike = [other for other in fields if other.split(".")[-count:] == tail]
        if alike == [field] and not tail[0].isdecimal():
            return ".".join(tail)
    return field
