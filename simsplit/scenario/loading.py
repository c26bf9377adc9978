"""Scenarios are made here from files, from plain values or from others, with plugins' parts.

A resumed run's scenario is compared with the one before, and a user is reminded of its plugins.
Data and networks that a user passes from Python are named by their digests.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from simsplit.data.given_texts import TextGiven, build_given_texts, is_texts
from simsplit.data.passed_objects import GivenSource, build_given_source
from simsplit.errors import ScenarioError
from simsplit.foreign import read_facts
from simsplit.models.split_model import GivenModel, hold_model, hold_model_again
from simsplit.objects_by_digest import get_held
from simsplit.plugins import Given, Plugins, gather_plugins
from simsplit.plugins.gathering import remind
from simsplit.results.directory import ENVIRONMENT
from simsplit.results.environment import find_version
from simsplit.scenario.cells import refuse_sweep
from simsplit.scenario.extending import extend
from simsplit.scenario.files import assign, read
from simsplit.scenario.hiding import hide_foreign_values
from simsplit.scenario.messages import explain_left_over, format_value
from simsplit.scenario.model import Scenario


def load_scenario(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    plugins: Given = (),
) -> Scenario:
    """Read a scenario file; `overrides` maps dotted fields to values, or to YAML as `--set` does.

    `plugins` are modules with parts of your own, given by name, as .py files or imported.

    >>> load_scenario("scenarios/quickstart.yaml", {"clients.count": 4})  # doctest: +SKIP
    """
    values = read(Path(path), overrides or {})
    refuse_sweep(values, Path(path))
    known = gather_plugins(plugins)
    with hide_foreign_values(Path(path), overrides or {}):
        try:
            return parse(values, known)
        except ScenarioError as error:
            remind(error, Path(path).parent, known)  # one in a run directory may need plugins
            explained = explain_left_over(error, overrides or {})
            raise _name_version(explained, Path(path).parent) from None


def _name_version(error: ScenarioError, folder: Path) -> ScenarioError:
    """Return the error of a run's file, with the version that wrote it if that is another."""
    now, written = find_version("simsplit"), None
    with suppress(OSError, ValueError, TypeError, LookupError):  # as of a file that no run has
        written = read_facts(folder / ENVIRONMENT)["packages"]["simsplit"]
    if written in (None, now):
        return error
    what = f"(written by simsplit {written}; this is {now})"
    return ScenarioError.of_many(
        [ScenarioError(each.field, f"{each.reason} {what}") for each in error.problems]
    )


def parse(values: Mapping[str, Any], plugins: Given = ()) -> Scenario:
    """Return a scenario from plain values, which may name the parts of plugins."""
    return scenario_class(plugins)(**{str(name): value for name, value in values.items()})


def scenario_of(
    given: "Scenario | Mapping[str, Any] | str | Path",
    changes: Mapping[str, Any],
    plugins: Given = (),
) -> Scenario:
    """Return a scenario from a file, from fields or from another, with some fields changed."""
    if isinstance(given, str | Path):
        return load_scenario(given, changes, plugins)
    if isinstance(given, Scenario):
        if not changes:
            return given
        # As plain values: a change can reach below a part, as method.0.ratio does.
        values, plugins = given.model_dump(mode="json"), given.plugins
    else:
        # `assign` changes values in place, and these are the caller's.
        values = copy.deepcopy(dict(given))
    for field, value in changes.items():
        assign(values, field, value)
    return parse(values, plugins)


def scenario_class(plugins: Given = ()) -> type[Scenario]:
    """Return the class Scenario, with plugins' kinds allowed in its parts."""
    return extend(Scenario, gather_plugins(plugins))


def differences(before: Scenario, now: Scenario) -> list[str]:
    """Return the differences that keep `now` from resuming `before`, such as `seed was 0, is 1`."""
    return _compare(before.select_identity(), now.select_identity(), "")


def _compare(before: Any, now: Any, name: str) -> list[str]:  # noqa: ANN401 - plain values
    """Return the differences below a field; parts of two kinds differ as a whole."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict) and before.get("kind") == now.get("kind"):
        pairs = {key: (before.get(key), now.get(key)) for key in {**before, **now}}
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = {str(index): both for index, both in enumerate(zip(before, now, strict=True))}
    else:
        return [f"{name} was {format_value(before)}, is {format_value(now)}"]
    return [
        difference
        for key, (old, new) in pairs.items()
        for difference in _compare(old, new, f"{name}.{key}".strip("."))
    ]


@contextmanager
def remind_of_plugins(
    file: Path, overrides: Mapping[str, str], out: Path | None, plugins: Plugins, *, resume: bool
) -> Iterator[None]:
    """Open a context that reads a scenario file, to resume the run or sweep in `out`.

    Without its plugins, the plain error (a kind is unknown) would not say what to do.
    """
    try:
        yield
    except ScenarioError as error:
        if resume:
            remind(error, out or _find_default(file, overrides), plugins, cells=True)
        raise


def _find_default(file: Path, overrides: Mapping[str, str]) -> Path:
    """Return the default directory, from plain values, because the scenario is not valid."""
    values = read(file, overrides)
    output = values.get("output")
    root = output.get("root", "runs") if isinstance(output, dict) else "runs"
    return Path(str(root)) / str(values.get("name", "run"))


def own(data: Any = None, model: Any = None, **columns: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return overrides with your data and model, for `load_scenario`, `load_sweep` or `run`.

    Args:
        data: Arrays, tensors, texts, a Dataset or a frame; or two splits of it; or a list with one
            entry for each client.
        model: A `SplitModel`, or three modules.
        columns: Options of the data: target, categories, drop and client for a frame; task, length,
            learns and others for texts. `simsplit list data table` and `text_given` list them.

    >>> load_sweep("scenarios/quickstart.yaml", own(data=(x, y)))  # doctest: +SKIP
    """
    changes: dict[str, Any] = {}
    if data is None and columns:
        raise ScenarioError(
            next(iter(columns)), "is an option of data that are passed (data=...), and none are"
        )
    if data is not None:
        build = build_given_texts if is_texts(data, columns) else build_given_source
        source = build(data, **columns)
        changes["data.source"] = source.model_dump(mode="json")
        # Data that are given client by client stay with these clients.
        if source.owners:
            changes["data.partition"] = {"kind": "natural"}
            changes["clients.count"] = source.owners
    if model is not None:
        changes["model"] = hold_model(model).model_dump(mode="json")
    return changes


def pass_again(
    scenario: Scenario,
    data: Any = None,  # noqa: ANN401 - many forms
    model: Any = None,  # noqa: ANN401
    **columns: Any,  # noqa: ANN401
) -> None:
    """Keep the data and the network that a run was given, so that its saved scenario has them.

    Raise ScenarioError for others. Of a network the layers count: its weights are the run's.
    """
    if data is not None:
        kept, source = scenario.data.source, own(data, **columns)["data.source"]
        if not isinstance(kept, GivenSource | TextGiven) or kept.digest != source["digest"]:
            raise ScenarioError(
                "data.source", f"is not what was passed: got data with digest {source['digest']}"
            )
    if model is not None:
        if not isinstance(scenario.model, GivenModel):
            raise ScenarioError("model", f"the run made its own, {scenario.model.kind}; pass none")
        hold_model_again(scenario.model, model)


def collect_held(*parts: object) -> dict[str, object]:
    """Return the passed objects of a data source or model, by digest, for other processes."""
    kinds = GivenSource | TextGiven | GivenModel
    digests = [part.digest for part in parts if isinstance(part, kinds)]
    return {digest: thing for digest in digests if (thing := get_held(digest)) is not None}
