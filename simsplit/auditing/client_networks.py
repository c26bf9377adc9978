"""The client's network, where an attacker knows it: its layers, and perhaps its weights.

Layers come from a plain description of layers of PyTorch, or from a Python function that the
auditor names; weights come from safetensors. A transcript names files of its own folder alone, and
nothing of it is imported or unpickled.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from simsplit.errors import RunError, SimsplitError, format_list, suggest
from simsplit.foreign import MOST_YAML, parse_yaml
from simsplit.plugins.plugin_modules import load_plugin
from simsplit.wires.confined import ConfinedFolder
from simsplit.wires.tensor_file import TensorFile, is_finite

LAYERS = "layers.yaml"
"""The file with a plain description of layers, in the folder of a network."""
ALLOWED = (
    *("Conv1d", "Conv2d", "ConvTranspose2d", "Linear", "Embedding", "Flatten", "Identity"),
    *("BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm", "Dropout", "Dropout2d"),
    *("ReLU", "LeakyReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "Softmax", "ELU", "Hardtanh"),
    *("MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d", "AdaptiveAvgPool2d", "Upsample"),
)
"""The layers of `torch.nn` that a description may name."""
MOST_LAYERS, MOST_WEIGHTS, MOST_SIZE = 1000, 2 * 10**8, 2**20


@dataclass(frozen=True)
class ClientNetwork:
    """The client's part of a network, as an attacker knows it."""

    head: nn.Module
    has_weights: bool
    """Whether its weights are the client's; otherwise they count for nothing."""

    @property
    def can_be_drawn(self) -> bool:
        """Whether fresh weights can be drawn for its layers."""
        return all(
            hasattr(module, "reset_parameters")
            for module in self.head.modules()
            if any(True for _ in module.parameters(recurse=False))
        )

    @property
    def weights(self) -> dict[str, Tensor]:
        """Its weights, as a live client names them."""
        return {f"head/{name}": value.detach() for name, value in self.head.state_dict().items()}


def load_network(knows: Mapping[str, Any]) -> ClientNetwork | None:
    """Load the client's network; raise SimsplitError for what a user can mend; None: not known.

    `knows` has `model` (a module of PyTorch, a safetensors file, or a folder with one and
    `layers.yaml`), `factory` (a function, or FILE.py:NAME) and `module`, its part at the client.
    """
    model, factory, module = (knows.get(name) for name in ("model", "factory", "module"))
    if model is None and factory is None:
        if module is not None:
            raise SimsplitError("--knows: module needs model= or factory=, of which it is a part")
        return None
    if isinstance(model, nn.Module):
        # A copy: a batch norm that trains learns from whatever it is applied to.
        return ClientNetwork(deepcopy(_select_part(model, module)).eval(), has_weights=True)
    folder, layers, weights = _find_files(model)
    if factory is not None:
        network = _call_factory(factory)
    elif layers is not None and folder is not None:
        network = read_layers(folder)
    else:
        raise SimsplitError(
            f"--knows: model {model} has weights and no layers; add {LAYERS} to its folder, or "
            "name a function that makes the network: --knows factory=FILE.py:NAME"
        )
    head = _select_part(network, module)
    if weights is not None and folder is not None:
        _load_weights(head, TensorFile(folder, weights), "" if module is None else f"{module}.")
    return ClientNetwork(head.eval(), weights is not None)


def _find_files(model: Any) -> tuple[ConfinedFolder | None, str | None, str | None]:  # noqa: ANN401
    """Return the folder of a network, and the names of its layers and weights there."""
    if model is None:
        return None, None, None
    path = Path(str(model))
    if not path.is_dir():
        if path.suffix != ".safetensors":
            raise SimsplitError(
                f"--knows: model must be a folder or a .safetensors file, got '{path}'; what would "
                "be unpickled is not read"
            )
        if not path.is_file():
            raise SimsplitError(f"--knows: model: there is no file '{path}'")
        folder = ConfinedFolder.open(path.parent)
        return folder, LAYERS if folder.has(LAYERS) else None, path.name
    folder = ConfinedFolder.open(path)
    files = sorted(each.name for each in path.glob("*.safetensors"))
    if len(files) > 1:
        raise SimsplitError(f"--knows: model {path} has several files: {format_list(files)}")
    has_layers = folder.has(LAYERS)
    if not (files or has_layers):
        raise SimsplitError(f"--knows: model {path} has neither {LAYERS} nor a .safetensors file")
    return folder, LAYERS if has_layers else None, files[0] if files else None


def read_layers(folder: ConfinedFolder) -> nn.Module:
    """Build the layers that a description lists; raise RunError with the layer that is wrong."""
    text = folder.read_text(LAYERS, MOST_YAML)
    with folder.explain(LAYERS):
        values = parse_yaml(text)
        if not isinstance(values, list) or not 0 < len(values) <= MOST_LAYERS:
            raise ValueError(f"it must list 1 to {MOST_LAYERS:,} layers, such as '- ReLU'")
        with torch.device("meta"):  # so that sizes are known before memory is taken
            layers = nn.Sequential(*(_build_layer(n, each) for n, each in enumerate(values)))
        count = sum(each.numel() for each in layers.state_dict().values())
        if count > MOST_WEIGHTS:
            raise ValueError(f"its layers have {count:,} weights, more than {MOST_WEIGHTS:,}")
    made = layers.to_empty(device="cpu")
    for module in made.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
    return made


def _build_layer(number: int, value: Any) -> nn.Module:  # noqa: ANN401 - YAML
    """Build one layer: its name, or its name with its options."""
    named = {value: {}} if isinstance(value, str) else value
    if not isinstance(named, dict) or len(named) != 1:
        raise ValueError(f"layer {number}: must be a name, or one name with its options")
    ((name, options),) = named.items()
    if name not in ALLOWED:
        hint = suggest(str(name)[:60], ALLOWED) or ","
        raise ValueError(f"layer {number}: unknown '{str(name)[:60]}'{hint} allowed: {ALLOWED}")
    options = {} if options is None else options
    if not isinstance(options, dict) or not all(map(_is_plain, options.values())):
        raise ValueError(
            f"layer {number}: options of {name} must be numbers up to {MOST_SIZE:,}, words, or "
            "lists of numbers"
        )
    try:
        made: nn.Module = getattr(nn, name)(**{str(key): each for key, each in options.items()})
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"layer {number}: {name}: {str(error).splitlines()[0]}") from None
    return made


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - YAML
    if isinstance(value, list):
        return len(value) <= 8 and all(isinstance(each, int) and _is_plain(each) for each in value)
    if isinstance(value, int | float):
        return abs(value) <= MOST_SIZE
    return isinstance(value, str) and len(value) < 40


def _call_factory(factory: Any) -> nn.Module:  # noqa: ANN401 - a function, or the name of one
    """Make a network by a function that the auditor named; raise SimsplitError if it cannot."""
    said, make = "factory", factory
    if not callable(factory):
        file, _, name = str(factory).rpartition(":")
        if not file or not name:
            raise SimsplitError(f"--knows: factory must be FILE.py:NAME, got '{factory}'")
        said = f"factory {factory}"
        try:
            _, names = load_plugin(file)
        except SimsplitError as error:
            raise SimsplitError(f"--knows: {said}: {error}") from None
        make = names.get(name)
        if not callable(make):
            raise SimsplitError(f"--knows: {said}: {file} has no function '{name}'")
    try:
        network = make()
    except Exception as error:  # noqa: BLE001 - code of the user
        raise SimsplitError(f"--knows: {said} failed: {type(error).__name__}: {error}") from None
    if not isinstance(network, nn.Module):
        raise SimsplitError(
            f"--knows: {said} must return a module (nn.Module), got {type(network).__name__}"
        )
    return network


def _select_part(network: nn.Module, module: Any) -> nn.Module:  # noqa: ANN401 - of a user
    if module is None:
        return network
    names = [name for name, _ in network.named_modules() if name]
    if module not in names:
        hint = suggest(str(module), names) or ","
        raise SimsplitError(
            f"--knows: module: unknown '{module}'{hint} it has {format_list(names)}"
        )
    return network.get_submodule(str(module))


def _load_weights(head: nn.Module, file: TensorFile, prefix: str) -> None:
    """Load weights of a file into a part, by their names in it or in the whole network."""
    if not any(name.startswith(prefix) for name in file.tensors):
        prefix = ""
    state = {}
    for name, value in head.state_dict().items():
        stored = file.tensors.get(prefix + name)
        got = None if stored is None else stored.shape
        if got != tuple(value.shape):
            raise RunError(
                f"{file.folder.describe(file.name)}: tensor '{prefix}{name}' must have the shape "
                f"{list(value.shape)}, got {'none' if got is None else list(got)}"
            )
        state[name] = file.read(prefix + name)
        if not is_finite(state[name]):
            raise RunError(
                f"{file.folder.describe(file.name)}: tensor '{prefix}{name}' must be finite in "
                "float32; with it an attack reads nothing"
            )
    head.load_state_dict(state)
