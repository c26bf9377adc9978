"""A rehearsal shows which plugins' methods remember what no checkpoint keeps."""

import pickle
from contextlib import suppress

from torch import nn

from simsplit.assembly.rehearsal import Rehearsal
from simsplit.errors import format_list
from simsplit.methods.method import Method
from simsplit.methods.stack import find_declaring
from simsplit.phases import Phase
from simsplit.plugins import guard


def find_forgetful(dry: Rehearsal, main: Phase) -> list[str]:
    """Warn of plugins' methods that change from step to step, and that no checkpoint keeps."""
    stacks = [dry.exchange.server.stack]
    stacks += [dry.pool.clients[number].training.end.stack for number in dry.numbers]
    methods = [
        each
        for stack in stacks
        for each in stack.get_methods()
        if guard.find_part_name(each) is not None and find_declaring(each, "state") is Method
    ]
    before = [freeze_attributes(each) for each in methods]
    dry.train(main)
    changed: dict[str, None] = {}
    for method, earlier in zip(methods, before, strict=True):
        now = freeze_attributes(method)
        names = [name for name, value in now.items() if earlier.get(name) != value]
        if names:
            changed[_describe_forgetful(method, names)] = None
    return [*changed]


def freeze_attributes(method: Method) -> dict[str, bytes]:
    """Return a method's attributes as bytes to compare; those that have none are left out.

    Modules are left out too: checkpoints keep their weights.
    """
    frozen: dict[str, bytes] = {}
    for name, value in vars(method).items():
        with suppress(Exception):  # whatever a plugin's object raises when it is written down
            if not isinstance(value, nn.Module | nn.Parameter):
                frozen[name] = pickle.dumps(value)
    return frozen


def _describe_forgetful(method: Method, names: list[str]) -> str:
    name = guard.find_part_name(method)
    return (
        f"method '{name}' changes {format_list(names)} from step to step, and no checkpoint keeps "
        "that: a resumed run will differ. Give it `state` and `load`; what one "
        "hook hands to another within a step belongs into `step.memo`"
    )
