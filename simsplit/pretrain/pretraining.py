"""This module pretrains a model: it reads text, trains a tokenizer and a network, and saves both.

The result is an ordinary folder of transformers, which is loaded by its path. Its file
`pretraining.json` has the config, a digest of the text, and the losses. The folder appears complete
or not at all.
"""

import json
import math
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simsplit.errors import DataError, RunError, RunFailedError
from simsplit.foreign import refuse_link
from simsplit.pretrain.corpus import (
    END,
    PAD,
    START,
    compute_fingerprint,
    encode_stream,
    hold_out,
    read_documents,
    to_transformers,
    train_tokenizer,
)
from simsplit.pretrain.tiers import PretrainConfig
from simsplit.seeds import isolate, rng_for

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel


FACTS = "pretraining.json"
HELD_OUT = 0.05
"""Share of the text that is held out for the validation loss."""
_JUDGED = 512
"""Largest number of windows over which the validation loss is computed."""
_EVERY = 10
"""Number of steps between two reports of the loss; reading it waits for a GPU."""
_LOWEST = 0.1
"""Learning rate of the last step, as a share of the highest one."""
_SPREAD = 0.7
"""Standard deviation of the initial weights, times the root of the width. The usual 0.02 is meant
for widths of about a thousand."""
Say = Callable[[str], None]
"""A function that shows a line."""


@dataclass(frozen=True)
class PretrainProgress:
    """The progress of a pretraining."""

    step: int
    steps: int
    loss: float
    tokens: int
    """Number of tokens seen."""
    elapsed_s: float

    @property
    def left_s(self) -> float:
        """Estimated seconds until the last step."""
        return self.elapsed_s * (self.steps - self.step) / self.step

    def __str__(self) -> str:
        rate = self.tokens / max(self.elapsed_s, 1e-9)
        return f"loss {self.loss:.3f}  {rate:,.0f} tokens/s  {self.left_s:,.0f} s left"


Watch = Callable[[PretrainProgress], None]
"""A function that is called with the progress every few steps."""


def pretrain(
    config: PretrainConfig,
    out: Path,
    watch: Watch = lambda progress: None,
    device: torch.device | None = None,
) -> Path:
    """Train the model of `config` into the folder `out`, unless it has that model already.

    On a CPU the weights depend only on the config, the text and torch's number of threads.
    """
    if has_pretraining(out, config):
        return out
    for written in (out, _get_partial(out)):
        refuse_link(written)
    device = device or torch.device("cpu")
    with _write_whole(out) as folder:
        started = time.monotonic()
        documents = read_documents(config.text)
        kept, judged = hold_out(documents, HELD_OUT, config.seed)
        tokenizer = train_tokenizer(kept, config.vocabulary)
        streams = [encode_stream(tokenizer, part) for part in (kept, judged)]
        for stream in streams:
            _refuse_short(stream, config)
        model = build_model(config)
        model.to(device)  # type: ignore[arg-type]
        train_loss = _train(model, config, streams[0], watch)
        if config.half:
            _round_to_half(model)
        facts = {
            "config": config.model_dump(mode="json"),
            "source": compute_fingerprint(config.text),
            "documents": len(documents),
            "tokens": sum(map(len, streams)),
            "tokens_seen": config.steps * config.batch_size * config.length,
            "weights": sum(weight.numel() for weight in model.parameters()),
            "train_loss": train_loss,
            "validation_loss": _validate(model, config, streams[1]),
            "seconds": round(time.monotonic() - started, 1),
            "device": device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }
        _save(folder, model, tokenizer, config, facts)
    return out


def read_facts(folder: Path) -> dict[str, Any]:
    """Read the facts that a pretraining saved; raise RunError if they cannot be read."""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder} has no {FACTS} that can be read: {error}") from None
    return facts


def has_pretraining(out: Path, config: PretrainConfig) -> bool:
    """Return whether `out` has this very pretraining; raise RunError if it has other content."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / FACTS).is_file():
        raise RunError(f"{out} exists and is not a pretrained model; name another folder")
    facts, fields = read_facts(out), config.model_dump(mode="json")
    same = {**facts.get("config", {}), "text": None} == {**fields, "text": None}
    if same and facts.get("source") == compute_fingerprint(config.text):
        return True
    raise RunError(
        f"{out} has a model that was pretrained with another config or text (see its {FACTS}); "
        "name another folder, or remove this one"
    )


def _refuse_short(stream: Tensor, config: PretrainConfig) -> None:
    if len(stream) <= config.length:
        raise DataError(
            f"text: training and validation must each have {config.length + 1} tokens or more, a "
            f"window's, got {len(stream)}; give more text, or a smaller length"
        )


def _train(model: "PreTrainedModel", config: PretrainConfig, stream: Tensor, watch: Watch) -> float:
    """Take every step; return the mean loss of the last tenth of them."""
    model.train()
    optimizer = _build_optimizer(model, config)
    losses = torch.zeros(config.steps, device=model.device)
    started = time.monotonic()
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * _compute_factor(step, config.steps)
        loss = _compute_loss(model, _draw_windows(stream, config, step))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # kept on the device: reading it at every step would wait for a GPU
        losses[step] = loss.detach()
        done = step + 1
        if done % _EVERY == 0 or done in (1, config.steps):
            tokens = done * config.batch_size * config.length
            now = _check_finite(losses[step].item(), done)
            watch(PretrainProgress(done, config.steps, now, tokens, time.monotonic() - started))
    return losses[-max(1, config.steps // 10) :].mean().item()


def _round_to_half(model: nn.Module) -> None:
    """Round the weights to half precision, in place; raise RunFailedError if one exceeds it."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weight.half())
            if not weight.isfinite().all():
                raise RunFailedError(f"{name} exceeds half precision; pretrain without --half")


def _build_optimizer(model: nn.Module, config: PretrainConfig) -> torch.optim.Optimizer:
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    # biases and norms are not decayed, as is usual for transformers
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), fused=True)


def _compute_factor(step: int, steps: int) -> float:
    """Return the learning rate's factor: it rises for a twentieth of the steps, then falls."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return (step + 1) / warmup
    turned = math.pi * (step - warmup) / max(1, steps - warmup)
    return _LOWEST + (1 - _LOWEST) * (1 + math.cos(turned)) / 2


def _draw_windows(stream: Tensor, config: PretrainConfig, step: int) -> Tensor:
    """Draw a batch of windows from anywhere in the text, each with the token that follows it."""
    draws = rng_for(config.seed, "pretrain", "batch", step)
    starts = torch.randint(len(stream) - config.length, (config.batch_size, 1), generator=draws)
    return stream[starts + torch.arange(config.length + 1)].long()


def _compute_loss(model: "PreTrainedModel", windows: Tensor) -> Tensor:
    """Return the mean cross-entropy of next tokens, in nats; a GPU computes the logits in bf16."""
    windows = windows.to(model.device)
    on_gpu = model.device.type != "cpu"
    with torch.autocast(model.device.type, torch.bfloat16, enabled=on_gpu):
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


def _validate(model: "PreTrainedModel", config: PretrainConfig, stream: Tensor) -> float:
    """Return the mean loss over adjacent windows of the validation text."""
    model.eval()  # type: ignore[no-untyped-call]
    count = min(_JUDGED, (len(stream) - 1) // config.length)
    starts = torch.arange(count).unsqueeze(1) * config.length
    windows = stream[starts + torch.arange(config.length + 1)].long()
    with torch.no_grad():
        batches = windows.split(config.batch_size)
        total = sum(_compute_loss(model, batch).item() * len(batch) for batch in batches)
    return total / count


def _check_finite(loss: float, step: int) -> float:
    """Return the loss; raise RunFailedError unless it is finite."""
    if not math.isfinite(loss):
        raise RunFailedError(f"the loss is not finite at step {step}; lower the learning rate")
    return loss


def _get_partial(out: Path) -> Path:
    """Return the folder that is written first, and renamed to `out` when it is complete."""
    return out.with_name(f"{out.name}.partial")


@contextmanager
def _write_whole(out: Path) -> Iterator[Path]:
    """Provide a folder that becomes `out` if the block succeeds, and is removed if it fails."""
    out = out.absolute()
    partial = _get_partial(out)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        if out.exists():
            out.rmdir()  # it is empty, or `pretrain` would have refused it
        partial.rename(out)
    except OSError as error:
        raise RunFailedError(
            f"cannot write {out}: {error.strerror or error}; make room, or name another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _save(
    folder: Path,
    model: "PreTrainedModel",
    tokenizer: "Tokenizer",
    config: PretrainConfig,
    facts: Mapping[str, object],
) -> None:
    """Save model and tokenizer as transformers would, without its progress bars."""
    from safetensors.torch import save_file

    to_transformers(tokenizer, config.context).save_pretrained(folder)
    model.config.architectures = [type(model).__name__]
    if config.half:
        model.config.dtype = "float32"  # else the library would compute in the files' precision
    model.config.save_pretrained(folder)
    form = torch.float16 if config.half else torch.float32
    weights = {name: each.to("cpu", form).contiguous() for name, each in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def build_model(config: PretrainConfig) -> "PreTrainedModel":
    """Build a causal language model on the CPU, with weights drawn by the config's seed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    gpt2 = {
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": config.context,
        "embd_pdrop": 0.0,  # no dropout, since text is seen about once
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }
    gated = {
        "hidden_size": config.width,
        # a gated MLP has three matrices instead of two: each has two thirds of the usual 4 d
        "intermediate_size": -(-config.width * 8 // 3 // 8) * 8,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.width // config.heads,
        "max_position_embeddings": config.context,
    }
    shape = gpt2 if config.family == "gpt2" else gated
    ids = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    common = {"vocab_size": config.vocabulary, "tie_word_embeddings": False}
    spread = {"initializer_range": _SPREAD / math.sqrt(config.width)}
    with isolate(config.seed, "pretrain", "model"):
        made = AutoConfig.for_model(config.family, **shape, **ids, **common, **spread)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(made)  # type: ignore[no-untyped-call]
    return model


class Tenths:
    """A watch that shows a line for every tenth of the steps, for logs and pipes."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.shown = 0

    def __call__(self, progress: PretrainProgress) -> None:
        """Show a line if another tenth is done."""
        tenth = 10 * progress.step // progress.steps
        if tenth > self.shown:
            self.shown = tenth
            width = len(str(progress.steps))
            self.say(f"step {progress.step:>{width}}/{progress.steps}  {progress}")
