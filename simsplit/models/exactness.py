"""A cut is held against the whole model when it is loaded, and refused if it differs.

A wrong mask or a forgotten factor ends in plausible losses of another model, which nobody notices.
So the library's own model is the judge: a small copy of the same configuration, with random
weights, is run whole and cut. The copy has narrow layers, few of each kind, and windows of a few
tokens, which its texts exceed. It takes a fraction of a second, whatever the model's size, and once
in a process.
"""

import copy
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError
from simsplit.models.encoders import ENCODERS, build_classifier, copy_encoder_segment
from simsplit.models.families import IMAGES, TEXTS, get_token_reader, list_layer_kinds
from simsplit.models.image_transformer import (
    copy_image_segment,
    get_classifier,
    is_vit,
    measure_images,
)
from simsplit.models.transformer import Cut, copy_segment
from simsplit.models.whole import get_class, load_config, refuse_unknown_family
from simsplit.seeds import isolate, rng_for

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_WINDOW, _LENGTH, _LAYERS, _VOCABULARY = 6, 16, 4, 64
_HEADS, _HEAD_WIDTH = 2, 16
_PATCH, _PATCHES = 2, 3
"""Sides of a patch in pixels, and of an image in patches."""
_OWNERS = ("head", "trunk", "tail")
_MOST_WEIGHTS = 50_000_000
"""The largest model that is run at its own size, where it has no small copy."""
_ALLOWED = 1e-6
"""The largest difference of logits, relative to the largest logit, that rounding may cause."""
_SMALL = {
    "intermediate_size": 24,
    "ffn_dim": 24,
    "n_inner": 24,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "sliding_window": _WINDOW,
    "attention_chunk_size": _WINDOW,
    "vocab_size": _VOCABULARY,
}
"""The largest values of options of the small copy, next to the width of its layers."""
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Difference(NamedTuple):
    """How far the cut copy is from the whole one."""

    largest: float
    """The largest difference of two logits; infinite if one of them is not a number."""
    logit: float
    """The largest logit of the whole copy."""

    @property
    def is_none(self) -> bool:
        """Whether the two are the same, up to rounding."""
        return self.largest <= _ALLOWED * max(1.0, self.logit)


_MEASURED: dict[str, Difference | Exception] = {}
"""What was found of each configuration, by its options."""


def require_exact_cut(config: "PreTrainedConfig", field: str) -> None:
    """Raise ScenarioError for `field` if models of this configuration differ when they are cut."""
    if not is_vit(config):
        refuse_unknown_family(config)
    left_out = ("_name_or_path", "transformers_version", "architectures")
    options = {name: value for name, value in config.to_dict().items() if name not in left_out}
    text = json.dumps(options, sort_keys=True, default=repr)
    if text not in _MEASURED:
        _MEASURED[text] = _measure(config)
    found = _MEASURED[text]
    allowed = f"allowed: {IMAGES if is_vit(config) else TEXTS}"
    if isinstance(found, Exception):
        reason = "a small copy of it did not run in parts"
        raise ScenarioError(
            field, f"{config.model_type} cannot be cut: {reason}; {allowed}"
        ) from found
    if not found.is_none:
        raise ScenarioError(
            field,
            f"{config.model_type} cannot be cut exactly: a small copy with random weights was cut, "
            f"and its logits differ by up to {found.largest:.3g} from those of the whole copy, the "
            f"largest of which is {found.logit:.3g}; {allowed}",
        )


@lru_cache(maxsize=64)
def require_exact_saved(name: str, revision: str | None) -> None:
    """Raise ScenarioError if a saved model would differ when it is cut."""
    require_exact_cut(load_config(name, revision), "model.name")


def _measure(config: "PreTrainedConfig") -> Difference | Exception:
    """Return how far a cut is from the whole, or the error for which there is none."""
    try:
        return compare(_draw(shrink(config)))
    except ScenarioError:
        raise
    except Exception as error:  # noqa: BLE001 - any of the library's models, with any error
        failure = error
    if _count_weights(config) > _MOST_WEIGHTS:
        return failure
    try:
        return compare(_draw(config))
    except Exception as error:  # noqa: BLE001 - as above
        return error


def _count_weights(config: "PreTrainedConfig") -> float:
    """Return the number of weights of a whole model; infinite if it cannot be built."""
    try:
        with torch.device("meta"):
            return sum(weight.numel() for weight in _make(config).parameters())
    except Exception:  # noqa: BLE001 - any of the library's models, with any error
        return float("inf")


def compare(model: "PreTrainedModel") -> Difference:
    """Run a model whole and cut: plain, in training with the same dropout, and texts padded."""
    images, layers = is_vit(model.config), int(model.config.num_hidden_layers)
    parts = _cut(model, Cut(1, 1) if layers > 2 else Cut(1, 0))
    x = _draw_inputs(model.config)
    runs: list[tuple[bool, Tensor | None]] = [(False, None), (True, None)]
    if not images:
        runs.append((False, _pad(x.shape[1])))
    worst, logit = 0.0, 0.0
    for training, mask in runs:
        if mask is not None:
            x = x * mask  # encoders find positions by the padding token, which is 0
        for part in (model, *parts):
            part.train(training)
        with torch.no_grad(), isolate(0, "probe", "dropout"):
            expected = _run_whole(model, x, mask)
        with torch.no_grad(), isolate(0, "probe", "dropout"):
            got = x
            for part in parts:
                got = part(got) if mask is None else part(got, mask)
        if model.config.model_type in ENCODERS:
            got = got[:, 0]  # a text's logits, which a tail repeats at every token
        elif mask is not None:
            expected, got = expected[mask], got[mask]
        apart = (got - expected).abs().max().item()
        worst = max(worst, apart if apart == apart else float("inf"))  # noqa: PLR0124 - not a number
        logit = max(logit, expected.abs().max().item())
    return Difference(worst, logit)


def _cut(model: "PreTrainedModel", cut: Cut) -> list[nn.Module]:
    if is_vit(model.config):
        return [copy_image_segment(model, each, cut, get_classifier(model)) for each in _OWNERS]
    if model.config.model_type in ENCODERS:
        reader = build_classifier(model, (), seed=0, scope=())
        return [copy_encoder_segment(model, each, cut, reader) for each in _OWNERS]
    return [copy_segment(model, each, cut, get_token_reader(model)) for each in _OWNERS]


def _draw_inputs(config: "PreTrainedConfig") -> Tensor:
    """Draw three images, or three texts that exceed every window."""
    if is_vit(config):
        return torch.randn(3, *measure_images(config)[0], generator=rng_for(0, "probe", "images"))
    windows = [
        getattr(config, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")
    ]
    shape = (3, max(_LENGTH, 2 * max(windows)))
    least = len(_TOKENS) if config.model_type in ENCODERS else 0  # a padding token counts as none
    most = min(_VOCABULARY, int(config.vocab_size))
    return torch.randint(least, most, shape, generator=rng_for(0, "probe", "tokens"))


def _pad(length: int) -> Tensor:
    """Mark the real tokens of three texts: the second is padded on the left, the third right."""
    real = torch.ones(3, length, dtype=torch.bool)
    real[1, : length // 4], real[2, -length // 4 :] = False, False
    return real


def _run_whole(model: "PreTrainedModel", x: Tensor, mask: Tensor | None) -> Tensor:
    options: dict[str, Any] = {} if mask is None else {"attention_mask": mask.long()}
    if not (is_vit(model.config) or model.config.model_type in ENCODERS):
        options["use_cache"] = False
        if mask is not None:
            options["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
    logits: Tensor = model(x, **options).logits
    return logits


def _make(config: "PreTrainedConfig") -> "PreTrainedModel":
    classes = 2 if config.model_type in ENCODERS else None
    kind = get_class(config.model_type, classes)
    model: PreTrainedModel = kind.from_config(copy.deepcopy(config)).float()
    return model


def _draw(config: "PreTrainedConfig") -> "PreTrainedModel":
    """Build a model whose weights are all random: norms and biases as well, to show if left out."""
    with isolate(0, "probe", "weights"), torch.no_grad():
        model = _make(config)
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.2)
    return model


def shrink(config: "PreTrainedConfig") -> "PreTrainedConfig":
    """Return a configuration of the same family and options, with few and narrow layers."""
    small: Any = copy.deepcopy(config)
    layers, kept = int(small.num_hidden_layers), _choose_layers(config)
    for name, value in small.to_dict().items():
        if isinstance(value, list) and len(value) == layers:  # an option of each layer
            setattr(small, name, [value[place] for place in kept])
    if listed := getattr(small, "mlp_only_layers", None):
        small.mlp_only_layers = [new for new, old in enumerate(kept) if old in listed]
    _narrow(small)
    for name, most in _SMALL.items():
        if isinstance(value := getattr(small, name, None), int):
            setattr(small, name, min(value, most))
    small.num_hidden_layers = len(kept)
    _shorten_factors(small)
    for name, token in _TOKENS.items():
        setattr(small, name, token)
    return small  # type: ignore[no-any-return]


def _narrow(small: Any) -> None:  # noqa: ANN401 - options of the library, by family
    """Set the width, and the number and width of heads, which go together."""
    if hasattr(small, "word_embed_proj_dim"):  # OPT's: as wide as the layers, or not
        own = small.word_embed_proj_dim != small.hidden_size
        small.word_embed_proj_dim = _HEAD_WIDTH if own else _HEADS * _HEAD_WIDTH
    if hasattr(small, "num_key_value_heads"):
        grouped = small.num_key_value_heads or small.num_attention_heads
        small.num_key_value_heads = 1 if grouped < small.num_attention_heads else _HEADS
    small.hidden_size, small.num_attention_heads = _HEADS * _HEAD_WIDTH, _HEADS
    if hasattr(small, "pooler_hidden_size"):  # DeBERTa's
        small.pooler_hidden_size = small.hidden_size
    if hasattr(small, "attention_head_size"):
        small.attention_head_size = _HEAD_WIDTH
    if is_vit(small):
        small.patch_size, small.image_size = _PATCH, _PATCHES * _PATCH
    # DeepSeek's heads have several widths of their own, which need not be those of the layers.
    if hasattr(small, "head_dim") and not hasattr(small, "qk_rope_head_dim"):
        small.head_dim = _HEAD_WIDTH


def _choose_layers(config: "PreTrainedConfig") -> list[int]:
    """Return the numbers of layers to keep: the first ones, the last, and some of each kind."""
    kinds = list_layer_kinds(config)
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    chosen = {0, len(kinds) - 1, *firsts}
    for place in range(len(kinds)):
        if len(chosen) >= max(_LAYERS, len(firsts) + 1):
            break
        chosen.add(place)
    return sorted(chosen)


def _shorten_factors(config: Any) -> None:  # noqa: ANN401 - options of the library, by family
    """Cut the lists of factors of rotary angles (Phi-3's) to the narrower heads."""
    options = getattr(config, "rope_parameters", None) or {}
    width = int(_HEAD_WIDTH * float(options.get("partial_rotary_factor", 1.0) or 1.0))
    for name, value in options.items():
        if isinstance(value, list) and name.endswith("_factor"):
            options[name] = value[: width // 2]
