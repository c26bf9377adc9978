"""Encoders of the transformers library (BERT, RoBERTa, DeBERTa-v2), cut in three exactly.

Every token attends in both directions, so padding must be masked in all three segments: the mask
crosses the cut next to the payload. The family's own classification layers predict the class from
the first token. DeBERTa's layers share a table of relative positions. Each segment has a copy of
it, just as head and tail of language models have separate embeddings.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError
from simsplit.models.families import PREFIX
from simsplit.models.transformer import Cut
from simsplit.seeds import Scope, isolate

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "deberta-v2")
"""The library's names of the families."""
_COUNTED_FROM_PADDING = ("roberta", "xlm-roberta", "camembert")
"""Families whose first position is the padding token's number plus one."""
_RELATIVE = "deberta-v2"


def count_positions(config: "PreTrainedConfig") -> int:
    """Return the largest number of tokens of a text."""
    most: int = config.max_position_embeddings
    shifted = config.model_type in _COUNTED_FROM_PADDING
    return most - int(config.pad_token_id or 0) - 1 if shifted else most


class EncoderBlocks(nn.Module):
    """Consecutive layers of an encoder."""

    def __init__(
        self, config: "PreTrainedConfig", layers: Iterable[nn.Module], shared: nn.Module | None
    ) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(layers)
        self.computes_in = torch.float32
        """The type of the layers' states; what crosses is float32 all the same."""
        self.shared = shared
        """DeBERTa's encoder without its layers: the parts that all layers share."""

    def forward(self, x_BLD: Tensor, mask: Tensor | None = None, past: object = None) -> Tensor:
        """Apply all layers; `mask` marks the tokens that are not padding."""
        assert past is None, "only models that predict tokens have a cache"
        if self.computes_in == torch.float32:
            return self._run_layers(x_BLD, mask)
        return self._run_layers(x_BLD.to(self.computes_in), mask).float()

    def enter(self, passed: int) -> "EncoderBlocks":
        """Return the layers behind the first ones: the same modules, not copies."""
        rest = EncoderBlocks(self.config, self.layers[passed:], self.shared)
        rest.computes_in = self.computes_in
        return rest

    def _run_layers(self, x_BLD: Tensor, mask: Tensor | None) -> Tensor:
        if not len(self.layers):
            return x_BLD
        if self.shared is None:
            return self._apply_absolute(x_BLD, mask)
        return self._apply_relative(x_BLD, mask)

    def _apply_absolute(self, x_BLD: Tensor, mask: Tensor | None) -> Tensor:
        from transformers.masking_utils import create_bidirectional_mask

        attended = create_bidirectional_mask(
            config=self.config, inputs_embeds=x_BLD, attention_mask=mask
        )
        for layer in self.layers:
            x_BLD = layer(x_BLD, attended)
        return x_BLD

    def _apply_relative(self, x_BLD: Tensor, mask: Tensor | None) -> Tensor:
        shared: Any = self.shared
        real = _fill_mask(x_BLD, mask)
        given = {"relative_pos": shared.get_rel_pos(x_BLD)}
        given["rel_embeddings"] = shared.get_rel_embedding()
        attended, first = shared.get_attention_mask(real), x_BLD
        for index, layer in enumerate(self.layers):
            x_BLD, _ = layer(x_BLD, attended, **given)
            if index == 0 and shared.conv is not None:
                x_BLD = shared.conv(first, x_BLD, real)
        return x_BLD


class EncoderHead(nn.Module):
    """The embeddings of tokens and positions, and the first layers."""

    def __init__(self, embeddings: nn.Module, blocks: EncoderBlocks) -> None:
        super().__init__()
        self.embeddings, self.blocks = embeddings, blocks

    @property
    def tokens(self) -> nn.Module:
        """The embedding of tokens, without positions."""
        tokens: nn.Module = self.embeddings.word_embeddings  # type: ignore[assignment]
        return tokens

    def forward(self, ids_BL: Tensor, mask: Tensor | None = None, past: object = None) -> Tensor:
        return self.forward_embedded(self.tokens(ids_BL), mask, past)

    def forward_embedded(
        self, x_BLD: Tensor, mask: Tensor | None = None, past: object = None
    ) -> Tensor:
        """Continue from embeddings of tokens: add positions, and apply the layers."""
        config = self.blocks.config
        if self.blocks.computes_in != torch.float32:
            x_BLD = x_BLD.to(self.blocks.computes_in)  # a method's embeddings are float32
        given: dict[str, Tensor] = {}
        if config.model_type in _COUNTED_FROM_PADDING:
            real = _fill_mask(x_BLD, mask)
            given["position_ids"] = (real.cumsum(-1) * real).long() + int(config.pad_token_id or 0)
        if config.model_type == _RELATIVE:
            given["mask"] = _fill_mask(x_BLD, mask)
        out: Tensor = self.blocks(self.embeddings(inputs_embeds=x_BLD, **given), mask, past)
        return out


class EncoderTail(nn.Module):
    """The last layers, and the classification layers at the first token."""

    def __init__(self, blocks: EncoderBlocks, reader: nn.Module) -> None:
        super().__init__()
        self.blocks, self.reader = blocks, reader

    def forward(self, x_BLD: Tensor, mask: Tensor | None = None, past: object = None) -> Tensor:
        """Return the text's logits, repeated at every position: the label is at one of them."""
        out_BLD = self.blocks(x_BLD, mask, past)
        if self.blocks.computes_in != torch.float32:
            out_BLD = out_BLD.to(next(self.reader.parameters()).dtype)
        logits_BC: Tensor = self.reader(out_BLD).float()
        return logits_BC[:, None].expand(-1, x_BLD.shape[1], -1)


def build_classifier(
    model: "PreTrainedModel", missing: Iterable[str], seed: int, scope: tuple[Scope, ...]
) -> nn.Module:
    """Copy the classification layers of a model, and draw those without saved weights.

    The model may be laid out without weights; those that are drawn are then not read from files.
    """
    # BERT's pooler belongs to the body, DeBERTa's to the whole model, and RoBERTa's classifier
    # contains the pooling.
    pooler = getattr(model.base_model, "pooler", None) or getattr(model, "pooler", None)
    whole: Any = model
    parts: list[nn.Module] = [whole.classifier] if pooler is None else [pooler, whole.classifier]
    fresh = tuple(missing)
    names = {id(module): name for name, module in model.named_modules()}
    copies = [copy.deepcopy(part) for part in parts]
    with isolate(seed, "model", "reader", *scope):
        for part, made in zip(parts, copies, strict=True):
            for name, module in made.named_modules():
                path = ".".join(filter(None, (names[id(part)], name)))
                if any(key.rpartition(".")[0] == path for key in fresh):
                    if any(weight.is_meta for weight in module.parameters(recurse=False)):
                        module.to_empty(device="cpu", recurse=False).__dict__.pop(PREFIX)
                    model._init_weights(module)  # type: ignore[no-untyped-call]
    if pooler is None:
        return copies[0]
    # BERT's and DeBERTa's classification layers: a pooled first token, dropout, a linear layer.
    dropout: nn.Module = copy.deepcopy(whole.dropout)
    return nn.Sequential(OrderedDict(pooler=copies[0], dropout=dropout, classifier=copies[1]))


def copy_encoder_segment(
    model: "PreTrainedModel", owner: str, cut: Cut, reader: nn.Module | None
) -> nn.Module:
    """Copy one segment out of an encoder."""
    body: Any = model.base_model
    encoder = body.encoder
    own = cut.layers_of(owner, len(encoder.layer))
    shared = None
    if model.config.model_type == _RELATIVE:
        if body.z_steps > 1:
            raise ScenarioError(
                "model.name", "runs its last layer several times; such an encoder cannot be cut"
            )
        # The parts that layers share; only the segment of the first layer has a convolution.
        shared = copy.copy(encoder)
        shared._modules = {name: each for name, each in encoder._modules.items() if name != "layer"}
        if own.start:
            shared._modules["conv"] = None
    blocks = EncoderBlocks(model.config, encoder.layer[own], shared)
    if owner == "head":
        return copy.deepcopy(EncoderHead(body.embeddings, blocks))
    if owner == "trunk":
        return copy.deepcopy(blocks)
    assert reader is not None, "a tail has classification layers"
    return copy.deepcopy(EncoderTail(blocks, reader))


def _fill_mask(x_BLD: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask as numbers; all ones without a mask."""
    if mask is None:
        return torch.ones(x_BLD.shape[:2], device=x_BLD.device)
    return mask.float()
