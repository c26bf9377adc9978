"""What was asked: the scenario in a few lines, what differs between settings, and every field."""

from collections.abc import Mapping
from typing import Any

from simsplit.report.grouping import labels_of
from simsplit.report.html.markup import Markup, details, joined, section, tag
from simsplit.report.html.subject import Subject
from simsplit.report.html.table_markup import pairs, plain
from simsplit.report.short_names import methods_of, setting_of, value_of

Values = Mapping[str, Any]


def question(subject: Subject) -> Markup:
    """The scenario as tables, what differs first."""
    first = subject.entries[0].scenario
    rows = list(_fields(first).items())
    every = details(f"All {len(rows)} fields", plain(("field", "value"), rows, "ll"))
    shared = tag("h3", "What all share") if len(subject.rows) > 1 else None
    hidden = {name for name, _ in _told(first)} & _differing(subject)
    told = [(name, value) for name, value in _told(first) if value and name not in hidden]
    left = [tag("p", line, class_="note") for line in subject.left_out]
    return section("The question", _settings(subject), shared, pairs(told), every, joined(left))


def _settings(subject: Subject) -> Markup:
    """A row a setting, with the fields in which they differ."""
    if len(subject.rows) < 2:
        return Markup()
    labels = labels_of(subject.rows)
    keys = dict.fromkeys(key for label in labels for key in label)
    kept = [key for key in keys if len({label.get(key, "") for label in labels}) > 1]
    kept = kept or ["run"]
    seeds = [str(len(row.entries)) for row in subject.rows]
    cells = [
        (*(label.get(key, "") for key in kept), count)
        for label, count in zip(labels, seeds, strict=True)
    ]
    return plain((*kept, "seeds"), cells, "l" * len(kept) + "r", "what differs between settings")


def _differing(subject: Subject) -> set[str]:
    """Lines of the short form that are not the same for all."""
    told = [dict(_told(entry.scenario)) for entry in subject.entries]
    return {name for name in told[0] if len({each[name] for each in told}) > 1}


def _told(scenario: Values) -> list[tuple[str, str]]:
    """The scenario in a few lines."""
    return [
        ("Setting", setting_of(scenario)),
        ("Model", _model(scenario)),
        ("Clients", _clients(scenario)),
        ("Method", methods_of(scenario)),
        ("Schedule", _schedule(scenario)),
        ("Training", _training(scenario["train"])),
        ("Detectors", ", ".join(_title(each) for each in scenario.get("detectors") or ())),
        ("Attacks", ", ".join(_title(each) for each in scenario.get("attacks") or ())),
        ("Network", value_of(scenario["network"]) if scenario.get("network") else ""),
        ("Seed", str(scenario["seed"])),
    ]


def _fields(values: Any, above: str = "") -> dict[str, str]:  # noqa: ANN401 - plain values
    """Every field by its dotted name."""
    if isinstance(values, Mapping):
        below = {str(name): value for name, value in values.items()}
    elif isinstance(values, list) and any(isinstance(each, Mapping) for each in values):
        below = {str(index): value for index, value in enumerate(values)}
    else:
        return {above: value_of(values)}
    flat: dict[str, str] = {}
    for name, value in below.items():
        flat |= _fields(value, f"{above}.{name}".strip("."))
    return flat


def _model(scenario: Values) -> str:
    model = scenario["model"]
    words = [model.get("name") or model["kind"]]
    words += [f"{name} {model[name]}" for name in ("cut", "head", "tail") if model.get(name)]
    return ", ".join([*words, str(scenario["topology"]).replace("_", "-")])


def _clients(scenario: Values) -> str:
    clients = scenario["clients"]
    words = [str(clients["count"]), f"{str(clients['heads']).replace('_', ' ')} heads"]
    malicious = clients.get("malicious") or {}
    poisons = ", ".join(each["kind"] for each in malicious.get("poison") or ())
    if malicious.get("clients"):
        words.append(f"malicious: {value_of(list(malicious['clients']))} ({poisons})")
    elif malicious.get("fraction"):
        words.append(f"{100 * malicious['fraction']:g} % malicious ({poisons})")
    return ", ".join(words)


def _schedule(scenario: Values) -> str:
    schedule, aggregation = scenario["schedule"], scenario.get("aggregation") or {}
    length = f"{schedule['rounds']} rounds" if schedule.get("rounds") else ""
    length = length or f"{schedule.get('epochs')} epochs"
    averaged = aggregation.get("kind", "none")
    words = [str(schedule["kind"]).replace("_", " "), length]
    return ", ".join([*words, *([] if averaged == "none" else [averaged])])


def _training(train: Values) -> str:
    sides = [
        f"{side} {train[side]['kind']} at {train[side]['lr']:g}" for side in ("client", "server")
    ]
    rates = (train.get("lr_schedule") or {}).get("kind", "constant")
    return ", ".join([f"batches of {train['batch_size']}", *sides, f"{rates} rate"])


def _title(part: Values) -> str:
    """As tables call it."""
    return str(
        part.get("name") or "_".join(map(str, filter(None, (part["kind"], part.get("signal")))))
    )
