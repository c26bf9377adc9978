"""A reader must see the question behind the results: the scenario, and how settings differ.

The page ends with the environment of its run, and the command that repeats it.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.report.grouping import label_rows
from simsplit.report.html.markup import (
    Markup,
    details,
    join,
    mark_up_pairs,
    mark_up_rows,
    section,
    tag,
)
from simsplit.report.html.subject import Subject
from simsplit.report.short_names import describe_setting, name_methods, value_of
from simsplit.results import SCENARIO, Run

Values = Mapping[str, Any]
Facts = Mapping[str, Any]


def describe_question(subject: Subject) -> Markup:
    """Write the scenario as tables, with the differences between settings first."""
    first = subject.entries[0].scenario
    rows = list(_flatten(first).items())
    every = details(f"All {len(rows)} fields", mark_up_rows(("field", "value"), rows, "ll"))
    shared = tag("h3", "What all share") if len(subject.rows) > 1 else None
    hidden = {name for name, _ in _summarise(first)} & _find_differing(subject)
    lines = [(name, value) for name, value in _summarise(first) if value and name not in hidden]
    left = [tag("p", line, class_="note") for line in subject.left_out]
    return section(
        "The question", _tabulate_settings(subject), shared, mark_up_pairs(lines), every, join(left)
    )


def _tabulate_settings(subject: Subject) -> Markup:
    """Tabulate a row per setting, with the fields in which settings differ."""
    if len(subject.rows) < 2:
        return Markup()
    labels = label_rows(subject.rows)
    keys = dict.fromkeys(key for label in labels for key in label)
    kept = [key for key in keys if len({label.get(key, "") for label in labels}) > 1]
    kept = kept or ["run"]
    seeds = [str(len(row.entries)) for row in subject.rows]
    cells = [
        (*(label.get(key, "") for key in kept), count)
        for label, count in zip(labels, seeds, strict=True)
    ]
    return mark_up_rows(
        (*kept, "seeds"), cells, "l" * len(kept) + "r", "what differs between settings"
    )


def _find_differing(subject: Subject) -> set[str]:
    """Return the names of the summary's lines that differ between runs."""
    lines = [dict(_summarise(entry.scenario)) for entry in subject.entries]
    return {name for name in lines[0] if len({each[name] for each in lines}) > 1}


def _summarise(scenario: Values) -> list[tuple[str, str]]:
    """Summarise a scenario in a few lines."""
    return [
        ("Setting", describe_setting(scenario)),
        ("Model", _describe_model(scenario)),
        ("Clients", _describe_clients(scenario)),
        ("Method", name_methods(scenario)),
        ("Schedule", _describe_schedule(scenario)),
        ("Training", _describe_training(scenario["train"])),
        ("Detectors", ", ".join(_title_of(each) for each in scenario.get("detectors") or ())),
        ("Attacks", ", ".join(_title_of(each) for each in scenario.get("attacks") or ())),
        ("Network", _describe_network(scenario.get("network") or {})),
        ("Seed", str(scenario["seed"])),
    ]


def _flatten(values: Any, above: str = "") -> dict[str, str]:  # noqa: ANN401 - plain values
    """Flatten all fields to dotted names."""
    if isinstance(values, Mapping):
        below = {str(name): value for name, value in values.items()}
    elif isinstance(values, list) and any(isinstance(each, Mapping) for each in values):
        below = {str(index): value for index, value in enumerate(values)}
    else:
        return {above: value_of(values)}
    flat: dict[str, str] = {}
    for name, value in below.items():
        flat |= _flatten(value, f"{above}.{name}".strip("."))
    return flat


def _describe_model(scenario: Values) -> str:
    model = scenario["model"]
    words = [model.get("name") or model["kind"]]
    words += [f"{name} {model[name]}" for name in ("cut", "head", "tail") if model.get(name)]
    return ", ".join([*words, str(scenario["topology"]).replace("_", "-")])


def _describe_clients(scenario: Values) -> str:
    clients = scenario["clients"]
    words = [str(clients["count"]), f"{str(clients['heads']).replace('_', ' ')} heads"]
    malicious = clients.get("malicious") or {}
    poisons = ", ".join(each["kind"] for each in malicious.get("poison") or ())
    if malicious.get("clients"):
        words.append(f"malicious: {value_of(list(malicious['clients']))} ({poisons})")
    elif malicious.get("fraction"):
        words.append(f"{100 * malicious['fraction']:g} % malicious ({poisons})")
    return ", ".join(words)


def _describe_schedule(scenario: Values) -> str:
    schedule, aggregation = scenario["schedule"], scenario.get("aggregation") or {}
    length = f"{schedule['rounds']} rounds" if schedule.get("rounds") else ""
    length = length or f"{schedule.get('epochs')} epochs"
    averaged = aggregation.get("kind", "none")
    words = [str(schedule["kind"]).replace("_", " "), length]
    return ", ".join([*words, *([] if averaged == "none" else [averaged])])


def _describe_training(train: Values) -> str:
    sides = [
        f"{side} {train[side]['kind']} at {train[side]['lr']:g}" for side in ("client", "server")
    ]
    rates = (train.get("lr_schedule") or {}).get("kind", "constant")
    return ", ".join([f"batches of {train['batch_size']}", *sides, f"{rates} rate"])


def _describe_network(network: Values) -> str:
    """Name the fields that are set; of a mixture also the shares."""
    return "; ".join(
        f"{name.replace('_', ' ')} {', '.join(f'{one} {of}' for one, of in value.items())}"
        if isinstance(value, Mapping)
        else f"{name.replace('_', ' ')} {value_of(value)}"
        for name, value in network.items()
        if value is not None
    )


def _title_of(part: Values) -> str:
    """Return a part's name in tables."""
    return str(
        part.get("name") or "_".join(map(str, filter(None, (part["kind"], part.get("signal")))))
    )


def describe_environment(subject: Subject) -> Markup:
    """Describe the first run's versions and machine, its command, and the one that repeats it."""
    run = subject.entries[0].run
    try:
        facts: Facts = run.environment
    except RunError:
        facts = {}
    started = [("Started with", tag("code", _write_command(facts)))] if facts.get("command") else []
    which = "Repeats it" if subject.one else "Repeats the first"
    given = _list_given(subject.entries[0].scenario)
    repeated = _write_call(run, given) if given else _write_repeat(run, facts)
    again = mark_up_pairs([*started, (which, tag("code", repeated))])
    words = "The saved scenario is complete: run again, it gives the same tables."
    if given:
        words = (
            f"It was passed {' and '.join(given)} from Python, which the directory does not keep."
        )
    note = tag("p", words, class_="note")
    return section("Environment", join((mark_up_pairs(_list_facts(facts)), again, note)))


def _list_facts(facts: Facts) -> list[tuple[str, object]]:
    packages = facts.get("packages") or {}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    device = facts.get("gpu") or facts.get("device")
    values = {
        "Started": facts.get("started"),
        "Python": facts.get("python"),
        "Packages": versions,
        "Platform": facts.get("platform"),
        "Device": device and f"{device}, threads: {facts.get('threads')}",
        "Processors": facts.get("processors"),
        "Pretrained model": _write_model(facts),
        "Plugins": ", ".join(str(each.get("name")) for each in facts.get("plugins") or ()),
    }
    return [(name, value) for name, value in values.items() if value]


def _write_model(facts: Facts) -> str:
    """Return which of simsplit's own models the run had, with the beginning of its digest."""
    model = facts.get("model") or {}
    words = [model.get("name"), model.get("digest") and f"(files {model['digest']})"]
    return " ".join(str(word) for word in words if word)


def _write_command(facts: Facts) -> str:
    """Return the command as typed, with the program's name in place of a module's file."""
    program, *words = map(str, facts["command"])
    is_ours = Path(program).name in ("__main__.py", "simsplit")
    return shlex.join(["simsplit" if is_ours else program, *words])


def _list_given(scenario: Facts) -> list[str]:
    """Return the parts of a scenario that were passed from Python instead of named."""
    kinds = {"data": scenario["data"]["source"]["kind"], "model": scenario["model"]["kind"]}
    return [name for name, kind in kinds.items() if kind in ("given", "text_given")]


def _write_call(run: Run, given: Sequence[str]) -> str:
    """Write the Python call that repeats a run which no command can repeat."""
    passed = ", ".join(f"{name}=..." for name in given)
    return f'simsplit.run("{run.path / SCENARIO}", {passed})'


def _write_repeat(run: Run, facts: Facts) -> str:
    words = ["simsplit", "run", str(run.path / SCENARIO)]
    for plugin in facts.get("plugins") or ():
        words += ["--plugin", str(plugin.get("name"))]
    return shlex.join(words)
