"""Old names that plugins and notebooks may use: they work in this version, and name the new one.

All of them stand here, so that the next version can drop this file and its few uses.
"""

import sys
import types
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

MODULES = {
    "simsplit.attacks.base": "simsplit.attacks.attack",
    "simsplit.data.base": "simsplit.data.source_config",
    "simsplit.detectors.base": "simsplit.detectors.detector",
    "simsplit.methods.base": "simsplit.methods.method",
    "simsplit.models.own": "simsplit.models.split_model",
    "simsplit.observers.base": "simsplit.observers.observer",
    "simsplit.poisons.base": "simsplit.poisons.poison",
    "simsplit.topologies.base": "simsplit.topologies.topology",
}
NAMES = {
    "simsplit": {"trained": "load_trained"},
    "simsplit.detectors.detector": {"Turn": "TrunkTurn", "View": "RoundView"},
    "simsplit.methods.method": {"Ongoing": "SessionState", "suited": "needs_modality"},
    "simsplit.phases": {"Aside": "Interleaved"},
    "simsplit.pretrain": {"facts_of": "read_facts", "pretrained": "fetch_pretrained"},
    "simsplit.progress": {
        "Plan": "RunPlan",
        "RoundTold": "RoundEnded",
        "SilentSweep": "SweepObserver",
    },
    "simsplit.seeds": {"isolated": "isolate", "seed_for": "derive_seed"},
}
ATTRIBUTES = {
    "simsplit.attacks.attack.AttackConfig": {"suits": "modalities"},
    "simsplit.attacks.knowledge.Knowledge": {
        "crossed": "flatten_payload",
        "normalised": "normalise",
        "sent": "unpack_sent",
        "smashed": "lift_smashed",
    },
    "simsplit.attacks.label_attack.LabelAttackConfig": {"told": "known_share"},
    "simsplit.assembly.trained.Trained": {"told": "facts"},
    "simsplit.config.Config": {"word": "kind_name"},
    "simsplit.detectors.detector.Detector": {"pooled": "pool_scores", "scores": "score"},
    "simsplit.detectors.detector.DetectorConfig": {"sketched": "sketched_signals"},
    "simsplit.methods.method.Method": {
        "aside": "plan_interleaved_steps",
        "hear": "receive_announcement",
        "loss": "compute_encode_loss",
        "optimizer": "make_optimizer",
        "outgoing": "split_gradient",
        "own": "get_own_tokens",
        "plan": "plan_phases",
        "tail_loss": "compute_tail_loss",
        "task_loss": "compute_task_loss",
    },
    "simsplit.methods.method.MethodConfig": {
        "begins": "start_field",
        "changes": "changed_share_column",
        "coded": "coded_legs",
        "ends": "ended_traits",
        "in_sessions": "can_run_in_sessions",
        "passes": "works_in_sessions",
        "reported": "columns",
        "sent_shape": "compute_sent_shape",
        "suits": "modalities",
        "takes": "required_traits",
        "undoes": "get_ended_traits",
        "unreadable": "unreadable_legs",
    },
    "simsplit.methods.method.Step": {
        "next_rng": "make_next_rng",
        "reading": "evaluation_mode",
        "rng": "make_rng",
        "told": "figures",
    },
    "simsplit.models.fresh.SplitConfig": {
        "at_hand": "is_available_offline",
        "shapes": "compute_shapes",
        "start_known": "is_start_public",
    },
    "simsplit.poisons.poison.Poison": {"aim": "find_aim", "client": "for_client"},
    "simsplit.poisons.poison.PoisonConfig": {"during": "limit_to_rounds"},
    "simsplit.scenario.model.Scenario": {"prepared": "prepare_data"},
    "simsplit.schedules.averaging.StrategyConfig": {"fresh": "make_strategy"},
    "simsplit.sweep.running.SweepResult": {"told": "to_dict"},
}


class Renamed:
    """The base of classes whose attributes had other names.

    A subclass that defines an attribute by its old name has it by the new one, and an old name that
    is read gives what the new one is.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401 - as the classes have them
        super().__init_subclass__(**options)
        for old, new in _list_attributes(cls).items():
            if old in vars(cls) and new not in vars(cls):
                _warn(f"{cls.__qualname__}.{old}", new, level=3)
                setattr(cls, new, vars(cls)[old])

    if not TYPE_CHECKING:  # type checkers know the new names alone

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            if (new := _list_attributes(type(self)).get(name)) is not None:
                _warn(f"{type(self).__qualname__}.{name}", new, level=3)
                return getattr(self, new)
            if (further := getattr(super(), "__getattr__", None)) is not None:
                return further(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def find_by_old_name(module: str, name: str) -> object:
    """Return a module's class or function by its old name; a module's `__getattr__` calls this."""
    if (new := NAMES[module].get(name)) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _warn(f"{module}.{name}", new, level=3)
    return getattr(sys.modules[module], new)


class OldModules:
    """An importer of modules by their old names; they have what the new ones have."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Return a specification where the name is an old one."""
        del path, target
        return ModuleSpec(fullname, self) if fullname in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Copy the new module's names into the old one."""
        new = MODULES[module.__name__]
        _warn(module.__name__, new, level=2)
        vars(module).update({k: v for k, v in vars(import_module(new)).items() if k[:2] != "__"})
        vars(module)["__getattr__"] = lambda name: getattr(import_module(new), name)


def _list_attributes(cls: type) -> dict[str, str]:
    names: dict[str, str] = {}
    for base in cls.__mro__:
        if (older := ATTRIBUTES.get(f"{base.__module__}.{base.__qualname__}")) is not None:
            names |= older
    return names


def _warn(old: str, new: str, *, level: int) -> None:
    warnings.warn(
        f"{old} is now called {new}; the old name goes with the next version",
        FutureWarning,
        stacklevel=level + 1,
    )
