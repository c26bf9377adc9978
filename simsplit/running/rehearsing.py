"""Plugins' parts are rehearsed on two samples before training, so that their faults show early.

A few clients with two samples each take a step, a detector judges them, the model is evaluated, and
a plugin's attacks recover two targets in one iteration. Only faults of plugins are raised: a part
that ships may need more samples than there are here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import torch

from simsplit.assembly.rehearsal import Rehearsal, is_own, list_own_parts, make_data, undo_draws
from simsplit.attacking import Attacking
from simsplit.attacking.run_attacks import shorten
from simsplit.data import DataInfo, Prepared
from simsplit.detection import Detection
from simsplit.errors import PluginError
from simsplit.phases import EVALUATE
from simsplit.running.forgetful import find_forgetful
from simsplit.scenario import Scenario


def rehearse(
    scenario: Scenario,
    data: Prepared | None,
    device: torch.device,
    *,
    info: DataInfo | None = None,
    round_number: int = 1,
) -> list[str]:
    """Raise PluginError if a plugin's part that the scenario names fails on two samples.

    Return warnings of parts that work, and would not go on after a resume as they were before.

    Without `data`, samples are random, unless they come from a plugin's own source. With `info`
    they are random anyway. `round_number` is the round that the parts are told.
    """
    if not list_own_parts(scenario) or scenario.model.is_pretrained:
        return []
    warnings: list[str] = []
    with undo_draws(scenario.seed, device), _raise_own():
        if (known := data or make_data(scenario, info)) is None:
            return warnings
        own = [shorten(config, 0) for config in scenario.attacks if is_own(config, scenario)]
        try:
            warnings += _run_stages(Rehearsal(scenario, known, device, round_number, attacks=own))
        except PluginError as error:
            # Round and client are those of the rehearsal, which the user has not asked for.
            raise PluginError(replace(error.fault, round=None, client=None)) from error
    return warnings


@contextmanager
def _raise_own() -> Iterator[None]:
    """Open a context that raises no other error than a PluginError."""
    try:
        yield
    except PluginError:
        raise
    except Exception:  # noqa: BLE001 - the run itself names other errors, if they occur there
        return


class _Enough(Exception):  # noqa: N818 - no error
    """Raised when an attack has done its first piece of work."""


def _run_stages(dry: Rehearsal) -> list[str]:
    """Let each stage run; raise PluginError for the first fault, and return warnings.

    A stage need not succeed for the next ones to run.
    """
    phases = dry.plan_phases()
    with dry.exchange.moment.enter_round(dry.round, phases[-1], dry.numbers):
        # Detectors and attacks listen to the wire, so they come before the training.
        stages: list[Callable[[], object]] = [partial(dry.train, phase) for phase in phases]
        stages.append(lambda: dry.exchange.collect_reports(dry.numbers))
        with _raise_own():
            detection = Detection(dry.scenario, dry.parts, dry.data.info.classes)
            stages.append(lambda: detection.judge_round(dry.round))
        stages.append(dry.evaluate)
        with _raise_own():
            attacking = Attacking(dry.scenario, dry.parts, dry.data, dry.device)
            stages.append(lambda: _attack(dry, attacking))
        for stage in stages:
            with _raise_own():
                stage()
    warnings: list[str] = []
    with _raise_own():
        warnings += find_forgetful(dry, phases[-1])
    return warnings


def _attack(dry: Rehearsal, attacking: Attacking) -> None:
    """Let each attack do its work, or the first piece of it if there is more."""

    def stop(name: str, done: int, total: int) -> None:
        if 0 < done < total:
            raise _Enough

    for config in dry.scenario.attacks:
        attacking.configs = (config,)
        with dry.exchange.moment.count_as(EVALUATE), _raise_own(), suppress(_Enough):
            attacking.judge(dry.round, stop)
