"""A reader must see the question behind the results: the scenario, and how settings differ.

The page ends with the environment of its run, and the command that repeats it.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.report.grouping import label_rows, list_differing
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
from simsplit.results import SCENARIO

Values = Mapping[str, Any]


def describe_question(subject: Subject) -> Markup:
    """Write the scenario as tables, with the differences between settings first."""
    first = subject.entries[0].scenario
    rows = list(_flatten(first).items())
    every = details(f"All {len(rows)} fields", mark_up_rows(("field", "value"), rows, "ll"))
    shared = tag("h3", "What all share") if len(subject.rows) > 1 else None
    every_line = [_summarise(entry.scenario) for entry in subject.entries]
    shown = {name for name in every_line[0] if len({each[name] for each in every_line}) == 1}
    lines = [(name, value) for name, value in every_line[0].items() if value and name in shown]
    left = [tag("p", line, class_="note") for line in subject.left_out]
    parts = (_tabulate_settings(subject), shared, mark_up_pairs(lines), every, join(left))
    return section("The question", *parts)


def _tabulate_settings(subject: Subject) -> Markup:
    """Tabulate a row per setting, with the fields in which settings differ."""
    if len(subject.rows) < 2:
        return Markup()
    labels = label_rows(subject.rows)
    kept = list_differing(labels) or ["run"]
    cells = [
        (*(label.get(key, "") for key in kept), str(len(row.entries)))
        for label, row in zip(labels, subject.rows, strict=True)
    ]
    title = "what differs between settings"
    return mark_up_rows((*kept, "seeds"), cells, "l" * len(kept) + "r", title)


def _summarise(scenario: Values) -> dict[str, str]:
    """Summarise a scenario in a few lines."""
    return {
        "Setting": describe_setting(scenario),
        "Model": _describe_model(scenario),
        "Clients": describe_clients(scenario),
        "Method": name_methods(scenario),
        "Schedule": _describe_schedule(scenario),
        "Training": _describe_training(scenario["train"]),
        "Detectors": ", ".join(_title_of(each) for each in scenario.get("detectors") or ()),
        "Attacks": ", ".join(_title_of(each) for each in scenario.get("attacks") or ()),
        "Network": _describe_network(scenario.get("network") or {}),
        "Seed": str(scenario["seed"]),
    }


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


def describe_clients(scenario: Values) -> str:
    """Describe how many clients there are, whose heads they have, and who is malicious."""
    clients = scenario["clients"]
    words = [str(clients["count"]), f"{str(clients['heads']).replace('_', ' ')} heads"]
    malicious = clients.get("malicious") or {}
    poisons = ", ".join(each["kind"] for each in malicious.get("poison") or ())
    if malicious.get("ids"):
        words.append(f"malicious: {value_of(list(malicious['ids']))} ({poisons})")
    elif malicious and malicious.get("fraction") != 0:  # null is a tenth
        words.append(f"{100 * (malicious.get('fraction') or 0.1):g} % malicious ({poisons})")
    return ", ".join(words)


def _describe_schedule(scenario: Values) -> str:
    schedule, aggregation = scenario["schedule"], scenario.get("aggregation") or {}
    rounds, averaged = schedule.get("rounds"), aggregation.get("kind", "none")
    length = f"{rounds} rounds" if rounds else f"{schedule.get('epochs')} epochs"
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
    words = []
    for name, value in network.items():
        if value is not None:
            mixed = isinstance(value, Mapping)
            shares = ", ".join(f"{one} {of}" for one, of in value.items()) if mixed else ""
            words.append(f"{name.replace('_', ' ')} {shares if mixed else value_of(value)}")
    return "; ".join(words)


def _title_of(part: Values) -> str:
    """Return a part's name in tables."""
    words = filter(None, (part["kind"], part.get("signal")))
    return str(part.get("name") or "_".join(map(str, words)))


def describe_environment(subject: Subject) -> Markup:
    """Describe the first run's versions and machine, its command, and the one that repeats it."""
    run = subject.entries[0].run
    try:
        facts: Values = run.environment
    except RunError:
        facts = {}
    started = [("Started with", tag("code", _write_command(facts)))] if facts.get("command") else []
    which = "Repeats it" if subject.one else "Repeats the first"
    kinds = {"data": run.fields["data"]["source"]["kind"], "model": run.fields["model"]["kind"]}
    if given := [name for name, kind in kinds.items() if kind in ("given", "text_given")]:
        passed = ", ".join(f"{name}=..." for name in given)
        repeated = f'simsplit.run("{run.path / SCENARIO}", {passed})'
        words = (
            f"It was passed {' and '.join(given)} from Python, which the directory does not keep."
        )
    else:
        plugins = [("--plugin", str(each.get("name"))) for each in facts.get("plugins") or ()]
        command = ["simsplit", "run", str(run.path / SCENARIO)]
        repeated = shlex.join([*command, *(word for pair in plugins for word in pair)])
        words = "The saved scenario is complete: run again, it gives the same tables."
    again = mark_up_pairs([*started, (which, tag("code", repeated))])
    note = tag("p", words, class_="note")
    return section("Environment", join((mark_up_pairs(_list_facts(facts)), again, note)))


def _list_facts(facts: Values) -> list[tuple[str, object]]:
    """List versions and machine, and which of simsplit's own models the run had."""
    packages = facts.get("packages") or {}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    device, model = facts.get("gpu") or facts.get("device"), facts.get("model") or {}
    named = [model.get("name"), model.get("digest") and f"(files {model['digest']})"]
    values = {
        "Started": facts.get("started"),
        "Python": facts.get("python"),
        "Packages": versions,
        "Platform": facts.get("platform"),
        "Device": device and f"{device}, threads: {facts.get('threads')}",
        "Processors": facts.get("processors"),
        "Pretrained model": " ".join(str(word) for word in named if word),
        "Plugins": ", ".join(str(each.get("name")) for each in facts.get("plugins") or ()),
    }
    return [(name, value) for name, value in values.items() if value]


def _write_command(facts: Values) -> str:
    """Return the command as typed, with the program's name in place of a module's file."""
    program, *words = map(str, facts["command"])
    is_ours = Path(program).name in ("__main__.py", "simsplit")
    return shlex.join(["simsplit" if is_ours else program, *words])
