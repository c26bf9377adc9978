"""Pictures draw detectors' thresholds, which are computed from the run's saved scenario."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from simsplit.detectors import DETECTORS, DetectorConfig
from simsplit.detectors.thresholds import FixedConfig, SequentialConfig, Side, to_suspicion
from simsplit.results import Run, load_saved_scenario


@dataclass(frozen=True)
class SignalCut:
    """A threshold that can be drawn in a signal's picture."""

    value: float
    side: Side
    of_scores: bool
    """Whether it applies to the scores themselves instead of their robust z."""

    @property
    def lines(self) -> tuple[float, ...]:
        """The values at which a client would be flagged."""
        ways: dict[Side, tuple[float, ...]] = {
            "both": (-self.value, self.value),
            "high": (self.value,),
            "low": (-self.value,),
        }
        return ways[self.side]


def list_detectors(run: Run) -> list[str]:
    """Return the names of a run's detectors, in their order."""
    ends = "_flagged"
    columns = map(str, run.clients.columns)
    return [name.removesuffix(ends) for name in columns if name.endswith(ends)]


def find_cut(run: Run, detector: str) -> SignalCut | None:
    """Return a detector's threshold at the end of the run.

    Return None for a plugin's detector and for one that averages over rounds, which have no line.
    """
    config = _read_configs(run.path).get(detector)
    if config is None or isinstance(config.threshold, SequentialConfig):
        return None
    last = run.clients[run.clients["round"] == run.clients["round"].max()]
    judged = int(last[f"{detector}_z"].notna().sum()) - len(config.trusted)
    value = config.threshold.cut(judged, config.side, len(run.rounds))
    return SignalCut(value, config.side, isinstance(config.threshold, FixedConfig))


def rank_suspicion(run: Run, detector: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which clients are malicious, and each one's suspicion, in the last judged round.

    Suspicion ranks clients like the detector; for a plugin's detector it is the distance from the
    others.
    """
    config = _read_configs(run.path).get(detector)
    scores = config is not None and isinstance(config.threshold, FixedConfig)
    column = detector if scores else f"{detector}_z"
    known = run.clients.dropna(subset=[column])
    last = known[known["round"] == known["round"].max()]
    trusted = () if config is None else config.trusted
    last = last[~last["client"].isin(trusted)]
    side = "both" if config is None else config.side
    return last["malicious"].to_numpy(), to_suspicion(last[column].to_numpy(float), side)


@cache
def _read_configs(path: Path) -> Mapping[str, DetectorConfig]:
    """Read by name the detectors of a saved scenario that are part of simsplit."""
    values = load_saved_scenario(path)
    configs = {}
    for each in values.get("detectors") or ():
        if each["kind"] in DETECTORS:
            try:
                config = DETECTORS[each["kind"]].model_validate(each)
            except ValidationError:  # another version wrote the scenario
                continue
            configs[config.title] = config
    return configs
