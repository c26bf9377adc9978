"""This room holds the methods, which act at the cut: one file each or with near relatives."""

from simsplit.methods.compressing import COMPRESSING
from simsplit.methods.hiding_inputs import HIDING_INPUTS
from simsplit.methods.hiding_labels import HIDING_LABELS
from simsplit.methods.method import CodecConfig, Method, MethodConfig, Share, Site, Step
from simsplit.phases import Phase

METHODS: dict[str, type[MethodConfig]] = {**COMPRESSING, **HIDING_INPUTS, **HIDING_LABELS}

__all__ = [
    "METHODS",
    "CodecConfig",
    "Method",
    "MethodConfig",
    "Phase",
    "Share",
    "Site",
    "Step",
]
