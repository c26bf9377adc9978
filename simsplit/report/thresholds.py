"""Where a detector's threshold lay, from the scenario that its run kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from simsplit.detectors import DETECTORS, DetectorConfig
from simsplit.detectors.thresholds import FixedConfig, SequentialConfig, Side, suspicion
from simsplit.results import Run, saved_scenario


@dataclass(frozen=True)
class SignalCut:
    """A threshold that can be drawn beside a signal."""

    value: float
    side: Side
    of_scores: bool
    """Whether it is of the scores themselves, rather than of their robust z."""

    @property
    def lines(self) -> tuple[float, ...]:
        """The values at which a client would be flagged."""
        ways: dict[Side, tuple[float, ...]] = {
            "both": (-self.value, self.value),
            "high": (self.value,),
            "low": (-self.value,),
        }
        return ways[self.side]


def detectors_of(run: Run) -> list[str]:
    """The names of a run's detectors, in their order."""
    ends = "_flagged"
    columns = map(str, run.clients.columns)
    return [name.removesuffix(ends) for name in columns if name.endswith(ends)]


def cut_of(run: Run, detector: str) -> SignalCut | None:
    """A detector's threshold at the end.

    None where there is no such line: of a plugin's detector, and of one that averages over rounds.
    """
    config = _configs(run.path).get(detector)
    if config is None or isinstance(config.threshold, SequentialConfig):
        return None
    last = run.clients[run.clients["round"] == run.clients["round"].max()]
    judged = int(last[f"{detector}_z"].notna().sum()) - len(config.trusted)
    value = config.threshold.cut(judged, config.side, len(run.rounds))
    return SignalCut(value, config.side, isinstance(config.threshold, FixedConfig))


def suspicion_of(run: Run, detector: str) -> tuple[np.ndarray, np.ndarray]:
    """Of the last round that a detector judged: who is malicious, and how suspicious each is.

    As the detector itself ranks them; of a plugin's detector, by how far they are from the others.
    """
    config = _configs(run.path).get(detector)
    scores = config is not None and isinstance(config.threshold, FixedConfig)
    column = detector if scores else f"{detector}_z"
    known = run.clients.dropna(subset=[column])
    last = known[known["round"] == known["round"].max()]
    trusted = () if config is None else config.trusted
    last = last[~last["client"].isin(trusted)]
    side = "both" if config is None else config.side
    return last["malicious"].to_numpy(), suspicion(last[column].to_numpy(float), side)


@cache
def _configs(path: Path) -> Mapping[str, DetectorConfig]:
    """By name, the detectors of a saved scenario that ship with simsplit."""
    values = saved_scenario(path)
    found = {}
    for each in values.get("detectors") or ():
        if each["kind"] in DETECTORS:
            try:
                config = DETECTORS[each["kind"]].model_validate(each)
            except ValidationError:  # of another version
                continue
            found[config.title] = config
    return found
