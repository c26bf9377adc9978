"""This room detects malicious clients from the server's side, and lists the kinds of detectors."""

from simsplit.detectors.activation_clustering import ActivationClusteringConfig
from simsplit.detectors.beatrix import BeatrixConfig
from simsplit.detectors.consensus import CosineMadConfig, KrumDetectorConfig, RootCosineConfig
from simsplit.detectors.detector import Detector, DetectorConfig, RoundView, TrunkTurn
from simsplit.detectors.mislabelled import MislabelledConfig
from simsplit.detectors.readings import Readings, Sensor
from simsplit.detectors.root_class import RootClassConfig
from simsplit.detectors.safesplit import SafeSplitConfig
from simsplit.detectors.similarity import ContraConfig, FoolsGoldConfig
from simsplit.detectors.spectral_signatures import SpectralSignaturesConfig
from simsplit.detectors.strip import StripConfig
from simsplit.detectors.watch import Findings, Watch
from simsplit.detectors.within_class import WithinClassConfig

DETECTORS: dict[str, type[DetectorConfig]] = {
    "cosine_mad": CosineMadConfig,
    "foolsgold": FoolsGoldConfig,
    "contra": ContraConfig,
    "root_cosine": RootCosineConfig,
    "krum": KrumDetectorConfig,
    "safesplit": SafeSplitConfig,
    "within_class": WithinClassConfig,
    "root_class": RootClassConfig,
    "mislabelled": MislabelledConfig,
    "activation_clustering": ActivationClusteringConfig,
    "spectral_signatures": SpectralSignaturesConfig,
    "strip": StripConfig,
    "beatrix": BeatrixConfig,
}

__all__ = [
    "DETECTORS",
    "Detector",
    "DetectorConfig",
    "Findings",
    "Readings",
    "RoundView",
    "Sensor",
    "TrunkTurn",
    "Watch",
]
