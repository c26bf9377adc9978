"""Segments of a model as they are used: on the device, frozen or not, with units computed again."""

import torch
from torch import nn

from simsplit.models.fresh import Owner
from simsplit.models.recomputing import recompute_units
from simsplit.scenario import Scenario


def place_segment(
    module: nn.Module, owner: Owner, scenario: Scenario, device: torch.device
) -> nn.Module:
    """Move a module to the device, and freeze it unless its segment learns.

    One without weights stays on torch's device "meta".
    """
    if not any(weight.is_meta for weight in module.parameters()):
        module = module.to(device)
    if owner not in scenario.model.learning:
        module.requires_grad_(False)
    if scenario.train.channels_last:
        module = module.to(memory_format=torch.channels_last)
    return module


def prepare_segment(segment: nn.Module, scenario: Scenario) -> nn.Module:
    """Let a segment that trains compute activations again, if the scenario says so."""
    return recompute_units(segment) if scenario.train.checkpointing else segment
