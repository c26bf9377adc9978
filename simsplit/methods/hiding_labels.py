"""This module lists the methods that hide clients' labels."""

from simsplit.methods.cae import CaeConfig
from simsplit.methods.discrete_sgd import DiscreteSgdConfig
from simsplit.methods.distance_correlation import DistanceCorrelationConfig
from simsplit.methods.grad_perturb import GradPerturbConfig
from simsplit.methods.marvell import MarvellConfig, MaxNormConfig
from simsplit.methods.method import MethodConfig
from simsplit.methods.p3eft import P3eftConfig
from simsplit.methods.private_backprop import PrivateBackpropConfig
from simsplit.methods.pslf import PslfConfig
from simsplit.methods.randomised_response import RandomisedResponseConfig

HIDING_LABELS: dict[str, type[MethodConfig]] = {
    "p3eft": P3eftConfig,
    "randomised_response": RandomisedResponseConfig,
    "distance_correlation": DistanceCorrelationConfig,
    "pslf": PslfConfig,
    "marvell": MarvellConfig,
    "max_norm": MaxNormConfig,
    "private_backprop": PrivateBackpropConfig,
    "cae": CaeConfig,
    "discrete_sgd": DiscreteSgdConfig,
    "grad_perturb": GradPerturbConfig,
}
