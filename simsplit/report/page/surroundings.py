"""A page states the environment of its run and the command that repeats it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.report.html.markup import Markup, join, mark_up_pairs, section, tag
from simsplit.report.html.subject import Subject
from simsplit.results import SCENARIO, Run

Facts = Mapping[str, Any]


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
        "Plugins": ", ".join(str(each.get("name")) for each in facts.get("plugins") or ()),
    }
    return [(name, value) for name, value in values.items() if value]


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
