"""Where a run was made and with what, and the command that repeats it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.report.html.markup import Markup, joined, section, tag
from simsplit.report.html.subject import Subject
from simsplit.report.html.table_markup import pairs
from simsplit.results import SCENARIO, Run

Facts = Mapping[str, Any]


def surroundings(subject: Subject) -> Markup:
    """Versions and machine of the first run, how it was started, and how it is repeated."""
    run = subject.entries[0].run
    try:
        facts: Facts = run.environment
    except RunError:
        facts = {}
    started = [("Started with", tag("code", _command(facts)))] if facts.get("command") else []
    which = "Repeats it" if subject.one else "Repeats the first"
    given = _given(subject.entries[0].scenario)
    repeated = _called(run, given) if given else _repeated(run, facts)
    again = pairs([*started, (which, tag("code", repeated))])
    words = "The saved scenario is complete: run again, it gives the same tables."
    if given:
        words = (
            f"It was passed {' and '.join(given)} from Python, which the directory does not keep."
        )
    note = tag("p", words, class_="note")
    return section("Environment", joined((pairs(_told(facts)), again, note)))


def _told(facts: Facts) -> list[tuple[str, object]]:
    packages = facts.get("packages") or {}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    device = facts.get("gpu") or facts.get("device")
    told = {
        "Started": facts.get("started"),
        "Python": facts.get("python"),
        "Packages": versions,
        "Platform": facts.get("platform"),
        "Device": device and f"{device}, threads: {facts.get('threads')}",
        "Processors": facts.get("processors"),
        "Plugins": ", ".join(str(each.get("name")) for each in facts.get("plugins") or ()),
    }
    return [(name, value) for name, value in told.items() if value]


def _command(facts: Facts) -> str:
    """As it was typed; a module's file is the program's name."""
    words = [str(word) for word in facts["command"]]
    return shlex.join([_program(words[0]), *words[1:]])


def _program(word: str) -> str:
    return "simsplit" if Path(word).name in ("__main__.py", "simsplit") else word


def _given(scenario: Facts) -> list[str]:
    """What was passed from Python rather than named."""
    kinds = {"data": scenario["data"]["source"]["kind"], "model": scenario["model"]["kind"]}
    return [name for name, kind in kinds.items() if kind in ("given", "text_given")]


def _called(run: Run, given: Sequence[str]) -> str:
    """The call that repeats what no command can."""
    passed = ", ".join(f"{name}=..." for name in given)
    return f'simsplit.run("{run.path / SCENARIO}", {passed})'


def _repeated(run: Run, facts: Facts) -> str:
    words = ["simsplit", "run", str(run.path / SCENARIO)]
    for plugin in facts.get("plugins") or ():
        words += ["--plugin", str(plugin.get("name"))]
    return shlex.join(words)
