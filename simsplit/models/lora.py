"""Low-rank adapters (Hu et al., 2022) in a segment of a language model, with the package peft."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from simsplit.errors import ScenarioError, install_command, suggest
from simsplit.models.transformer import get_layers


def add_adapters(segment: nn.Module, lora: Mapping[str, Any], keep: Sequence[str] = ()) -> None:
    """Add low-rank adapters to a segment's layers, in place, and freeze all other weights.

    Embeddings, norms and the output layer get none. The parts named in `keep` learn too.
    """
    layers = get_layers(segment)
    segment.requires_grad_(False)
    if linear := find_targets(layers, lora["targets"]):
        inject(layers, list(linear), lora["rank"], lora["alpha"], lora_dropout=lora["dropout"])
    for name in keep:
        part = getattr(segment, name, None)
        if part is not None:
            part.requires_grad_(True)


def inject(layers: nn.Module, names: list[str], rank: int, alpha: Any, **options: Any) -> None:  # noqa: ANN401 - peft's
    """Add adapters to the layers with these names, in place; `options` are peft's."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        message = f"needs the package peft: {install_command('text')}"
        raise ScenarioError("model.lora", message) from None
    transposed = any(_is_transposed(module) for module in layers.modules())
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=names, fan_in_fan_out=transposed, **options
    )
    inject_adapter_in_model(config, layers)


def find_targets(layers: nn.Module, targets: Sequence[str] | str) -> dict[str, tuple[int, int]]:
    """Return the linear layers that get adapters: their numbers of inputs and outputs, by name."""
    linear = {
        name: (int(w.shape[0]), int(w.shape[1]))
        for name, module in layers.named_modules()
        if isinstance(module, nn.Linear) or _is_transposed(module)
        for w in [module.weight if _is_transposed(module) else module.weight.T]
    }
    if targets == "all-linear":
        return linear
    known = {name.rsplit(".", 1)[-1] for name in linear}
    for target in targets:
        if target not in known:
            allowed = ", ".join(sorted(known))
            raise ScenarioError(
                "model.lora.targets",
                f"unknown '{target}'{suggest(target, known) or ','} allowed: {allowed}",
            )
    return {name: sizes for name, sizes in linear.items() if name.rsplit(".", 1)[-1] in targets}


def _is_transposed(module: nn.Module) -> bool:
    """Return whether the module is one of GPT-2's linear layers, with weights inputs x outputs."""
    return type(module).__name__ == "Conv1D"
