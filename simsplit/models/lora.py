"""Low-rank adapters (Hu et al., 2022) in a segment of a language model, by the package peft."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from simsplit.errors import ScenarioError, near
from simsplit.models.transformer import layers_of


def adapted(segment: nn.Module, lora: Mapping[str, Any], keep: Sequence[str] = ()) -> None:
    """Put low-rank adapters into a segment's layers, in place; they alone learn, and what is kept.

    Embeddings, norms and the output layer have none.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ScenarioError(
            "model.lora", "needs the package peft: pip install 'simsplit[text]'"
        ) from None
    layers = layers_of(segment)
    targets = lora["targets"]
    linear = [
        name
        for name, module in layers.named_modules()
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    ]
    if targets != "all-linear":
        known = {name.rsplit(".", 1)[-1] for name in linear}
        for target in targets:
            if target not in known:
                allowed = ", ".join(sorted(known))
                raise ScenarioError(
                    "model.lora.targets",
                    f"unknown '{target}'{near(target, known) or ','} allowed: {allowed}",
                )
        linear = [name for name in linear if name.rsplit(".", 1)[-1] in targets]
    segment.requires_grad_(False)
    if linear:
        config = LoraConfig(
            r=lora["rank"],
            lora_alpha=lora["alpha"],
            lora_dropout=lora["dropout"],
            target_modules=linear,
            fan_in_fan_out=any(type(m).__name__ == "Conv1D" for m in layers.modules()),
        )
        inject_adapter_in_model(config, layers)
    for name in keep:
        part = getattr(segment, name, None)
        if part is not None:
            part.requires_grad_(True)
