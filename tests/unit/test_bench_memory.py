"""The memory bench counts bytes of tensors, and what whole models took."""

from pathlib import Path
from typing import cast

import pytest
import torch
from benches import memory
from benches.memory import BenchModel
from safetensors import safe_open
from safetensors.torch import save_file

from simsplit.models import text_model
from simsplit.models.language import CausalLM

TINY = BenchModel(
    {
        "model_type": "qwen3_moe",
        "vocab_size": 300,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "tie_word_embeddings": True,
    },
    cut=1,
)


def test_the_memory_bench_counts_what_ends_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    large = TINY._replace(is_large=True)
    monkeypatch.setattr(memory, "SHAPES", {"tiny": TINY, "large": large})
    told: list[str] = []
    ((table, figures),) = memory.measure_memory("cpu", quick=True, say=told.append)
    assert [row[0] for row in table.rows] == ["tiny"] == list(figures)
    assert any("large" in line for line in told)
    counted = cast("dict[str, int]", figures["tiny"])
    attention, experts = 4 * 64 * 64, 4 * 3 * 64 * 64
    layer = attention + experts + 4 * 64 + 2 * 64 + 2 * 32
    table_of_tokens, norm = 300 * 64, 64
    whole = table_of_tokens + 4 * layer + norm
    assert counted["server, whole, copied"] == 4 * (whole + 2 * layer)
    assert counted["client, whole, copied"] == 4 * (whole + 2 * table_of_tokens + 2 * layer + norm)
    adapters = 4 * 2 * 8 * 4 * (64 + 64)
    assert counted["client, float32"] >= 4 * (2 * table_of_tokens + 2 * layer + norm) + adapters
    packed = 2 * (attention + experts)
    assert counted["server, nf4"] >= packed // 2 + packed // 16
    for side in ("client", "server"):
        kinds = [counted[f"{side}, {form}"] for form in ("whole, copied", "float32", "bfloat16")]
        assert kinds == sorted(kinds, reverse=True)


def test_whole_models_took_what_the_memory_bench_adds_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory.write_checkpoint(tmp_path, TINY.options)
    model = CausalLM(name=str(tmp_path), head=1, tail=1, learns=["tail"])
    added = memory.count_whole(model, ["trunk"])
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # a block counts its own thread
    monkeypatch.setattr(text_model, "find_weight_files", lambda *given: None)
    peak, _ = memory.count_peak(model, ["trunk"])
    assert added <= peak < 1.5 * added


def test_bytes_of_tensors_are_those_that_live(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1000)}, tmp_path / "a.safetensors")
    with memory.PeakBytes() as counted, safe_open(tmp_path / "a.safetensors", "pt") as opened:
        mapped = opened.get_slice("a")[...]
        for _ in range(3):
            held = torch.zeros(100)
            held.view(10, 10).add_(mapped[0])
        assert counted.now == held.nbytes
    assert counted.peak == 2 * held.nbytes
