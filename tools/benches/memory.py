"""This bench counts the bytes that weights of large models take while segments are made from files.

Random checkpoints of known models' sizes are written into a temporary folder. Counted are bytes of
torch's own tensors, not what the process takes: files that are mapped into memory are not copied.
"""

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simsplit.bench.sides import BenchLines, Figures, Say
from simsplit.machine import read_free_bytes
from simsplit.models.fresh import Owner, SegmentRequest
from simsplit.models.language import CausalLM, LanguageConfig, SequenceClassifier
from simsplit.models.text_model import Lora
from simsplit.models.whole import load_config
from simsplit.preflight import GIB
from simsplit.report.tables import Table
from simsplit.sizes import format_size

_LENGTH, _CLASSES, _RANK = 32, 2, 8
_SHARD = 256 << 20
_ROOM = 8 * GIB
"""Free memory and disk without which a checkpoint of gigabytes is left out."""
_SIDES: Mapping[str, tuple[Owner, ...]] = {"client": ("head", "tail"), "server": ("trunk",)}
_FORMS: Mapping[str, dict[str, str]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "nf4": {"dtype": "bfloat16", "quantise": "nf4"},
}


class BenchModel(NamedTuple):
    """A model's sizes, and its cut."""

    options: Mapping[str, Any]
    """The library's options of the configuration."""
    cut: int
    """Number of layers in the head, and in the tail."""
    is_large: bool = False
    """Whether its checkpoint has gigabytes."""


_QWEN3 = {"model_type": "qwen3", "head_dim": 128, "num_key_value_heads": 8}
SHAPES: Mapping[str, BenchModel] = {
    "MiniLM-L6-H384": BenchModel(
        {
            "model_type": "bert",
            "vocab_size": 30522,
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
        },
        cut=1,
    ),
    "SmolLM2-135M": BenchModel(
        {
            "model_type": "llama",
            "vocab_size": 49152,
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "intermediate_size": 1536,
            "tie_word_embeddings": True,
        },
        cut=4,
    ),
    "Qwen3-MoE, 8 layers of 32 experts": BenchModel(
        {
            **_QWEN3,
            "model_type": "qwen3_moe",
            "vocab_size": 32000,
            "hidden_size": 512,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 256,
            "tie_word_embeddings": False,
        },
        cut=2,
    ),
    "Qwen3-1.7B": BenchModel(
        {
            **_QWEN3,
            "vocab_size": 151936,
            "hidden_size": 2048,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "intermediate_size": 6144,
            "tie_word_embeddings": True,
        },
        cut=4,
        is_large=True,
    ),
}


def measure_memory(device: str, quick: bool, say: Say) -> Iterator[tuple[Table, Figures]]:
    """Count the bytes of each model's ends, on the CPU only; `quick` leaves large ones out."""
    del device
    lines = BenchLines()
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            free = min(read_free_bytes(torch.device("cpu")), shutil.disk_usage(folder).free)
            if shape.is_large and (quick or free < _ROOM):
                say(f"memory: {name} is left out; it takes minutes, and {format_size(_ROOM)}")
                continue
            say(f"memory: {name} ...")
            write_checkpoint(Path(folder), shape.options)
            figures, cells = _count_ends(folder, shape)
        lines.add(name, figures, (name, *cells))
    kinds = [f"{side}, {form}" for side in _SIDES for form in ("whole, copied", *_FORMS)]
    title = "peak bytes of weights in memory while an end is made, adapters of rank 8 included"
    yield lines.table(title, ("model", *kinds))


def _count_ends(folder: str, shape: BenchModel) -> tuple[Figures, list[str]]:
    """Return the figures of both ends in each form, and their cells."""
    figures: Figures = {}
    for side, owners in _SIDES.items():
        figures[f"{side}, whole, copied"] = count_whole(_configure(folder, shape, {}), owners)
        for form, options in _FORMS.items():
            model = _configure(folder, shape, options)
            figures[f"{side}, {form}"], _ = count_peak(model, owners)
    return figures, [format_size(float(str(each))) for each in figures.values()]


def _configure(folder: str, shape: BenchModel, options: Mapping[str, str]) -> LanguageConfig:
    kind = SequenceClassifier if shape.options["model_type"] == "bert" else CausalLM
    given = {"name": folder, "head": shape.cut, "tail": shape.cut, "lora": Lora(rank=_RANK)}
    return kind(**given, learns=("head", "tail"), **options)


def _request(model: LanguageConfig, owner: Owner) -> SegmentRequest:
    return SegmentRequest(owner, (_LENGTH,), _CLASSES if model.classifies else 1, seed=0)


def count_whole(model: LanguageConfig, owners: Sequence[Owner]) -> int:
    """Return the bytes of a whole model in float32, and of copies of some of its segments.

    That is what an end took when models were loaded whole, and then cut. It is not measured, but
    added up from the sizes of a model without weights.
    """
    parts = {
        owner: model.lay_out_segment(_request(model, owner)) for owner in ("head", "trunk", "tail")
    }
    sizes = {owner: _count_numbers(part) for owner, part in parts.items()}
    config = load_config(model.find_folder(), None)
    # A whole model has one table of tokens where these are tied; each end is read with one.
    tied = getattr(config, "tie_word_embeddings", False) and not model.classifies
    shared = config.vocab_size * config.hidden_size if tied else 0
    return 4 * (sum(sizes.values()) - shared + sum(sizes[owner] for owner in owners))


def _count_numbers(part: nn.Module) -> int:
    return sum(weight.numel() for weight in part.parameters())


def count_peak(model: LanguageConfig, owners: Sequence[Owner]) -> tuple[int, int]:
    """Make segments, and return the most bytes that tensors took, and those of their weights."""
    model.lay_out_segment(_request(model, "trunk"))  # not counted: a small copy is compared
    with PeakBytes() as counted:
        made = [model.make_segment(_request(model, owner)) for owner in owners]
    return counted.peak, sum(weight.nbytes for part in made for weight in part.parameters())


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of tensors that torch allocates within a block, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Apply an operator, and count the memory of its results."""
        del types
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor) and not each.is_meta:
                self._count(each.untyped_storage())
        return out

    def _count(self, storage: UntypedStorage) -> None:
        # Memory of files cannot be resized, and is not torch's.
        if not storage.resizable() or id(storage) in self._known:
            return
        self._known.add(id(storage))
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, id(storage), storage.nbytes())

    def _free(self, place: int, nbytes: int) -> None:
        self._known.discard(place)
        self.now -= nbytes


def write_checkpoint(folder: Path, options: Mapping[str, Any]) -> None:
    """Write a random checkpoint in bfloat16, a shard at a time, as the library would."""
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    config = AutoConfig.for_model(**options)
    config.save_pretrained(folder)
    kind: Any = AutoModelForCausalLM
    if options["model_type"] == "bert":
        kind = AutoModelForSequenceClassification
    with torch.device("meta"):
        weights = kind.from_config(config).state_dict()
    if options.get("tie_word_embeddings"):
        del weights["lm_head.weight"]
    block = (torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)) / 50).bfloat16()
    shard, places, number = dict[str, Tensor](), dict[str, str](), 1
    for name, shape in _list_saved(weights):
        count = shape.numel()
        shard[name] = block.repeat(-(-count // len(block)))[:count].view(shape).contiguous()
        places[name] = f"model-{number:05d}.safetensors"
        if sum(tensor.nbytes for tensor in shard.values()) >= _SHARD:
            save_file(shard, folder / places[name], metadata={"format": "pt"})
            shard, number = {}, number + 1
    if shard:
        save_file(shard, folder / f"model-{number:05d}.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _list_saved(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, torch.Size]]:
    """Yield the names and shapes of saved tensors: experts are saved one by one."""
    for name, weight in weights.items():
        before, experts, part = name.partition(".experts.")
        if not experts:
            yield name, weight.shape
            continue
        rows, columns = weight.shape[1:]
        parts = [(part, rows)]
        if part == "gate_up_proj":
            parts = [("gate_proj", rows // 2), ("up_proj", rows // 2)]
        for number in range(len(weight)):
            for each, height in parts:
                yield f"{before}.experts.{number}.{each}.weight", torch.Size([height, columns])
