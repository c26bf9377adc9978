"""A detector: clients whose messages are much larger, or smaller, than everybody's."""

from typing import Literal

from simsplit.detectors.detector import SignalDetector, SignalDetectorConfig


class NormsConfig(SignalDetectorConfig):
    """The norm of a client's mean payload, or of another signal."""

    kind: Literal["norms"] = "norms"

    def build(self):
        """Build the detector; signal, window, threshold and response are fields of the base."""
        return Norms(self)


class Norms(SignalDetector):
    """A score per client and round; from which score on it is flagged is the threshold's to say."""

    def compare(self, clients, means):
        """Score the clients; `means` has a row per client that took part."""
        return means.norm(dim=1)


DETECTORS = {"norms": NormsConfig}
