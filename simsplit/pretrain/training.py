"""Pretraining: text, a tokenizer, a network from nothing, and the folder that they end in.

The folder is an ordinary one of transformers', to be loaded by its path, with `pretraining.json`
beside: what was trained on what, and how it went. It appears whole or not at all.
"""

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simsplit.errors import DataError, RunError, RunFailedError
from simsplit.pretrain.corpus import documents_of, fingerprint, held_out
from simsplit.pretrain.networks import fresh_model
from simsplit.pretrain.tiers import PretrainConfig
from simsplit.pretrain.tokens import as_transformers, stream_of, trained
from simsplit.pretrain.watching import Progress, Watch
from simsplit.seeds import rng_for

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

FACTS = "pretraining.json"
HELD_OUT = 0.05
"""The share of the text that is kept for the validation loss."""
_JUDGED = 512
"""Windows of it that are looked at, at most."""
_EVERY = 10
"""Steps between two looks at the loss: on a GPU a look waits for it."""
_LOWEST = 0.1
"""The last step's share of the learning rate."""


def pretrain(
    config: PretrainConfig,
    out: Path,
    watch: Watch = lambda progress: None,
    device: torch.device | None = None,
) -> Path:
    """Train what `config` describes into the folder `out`; one that has it already is kept.

    The weights are a function of the config, the text and (on a CPU) torch's number of threads.
    """
    if is_there(out, config):
        return out
    device = device or torch.device("cpu")
    with _whole(out) as folder:
        started = time.monotonic()
        documents = documents_of(config.text)
        kept, judged = held_out(documents, HELD_OUT, config.seed)
        tokenizer = trained(kept, config.vocabulary)
        streams = [_long_enough(stream_of(tokenizer, part), config) for part in (kept, judged)]
        model = fresh_model(config)
        model.to(device)  # type: ignore[arg-type]
        train_loss = _train(model, config, streams[0], watch)
        facts = {
            "config": config.model_dump(mode="json"),
            "source": fingerprint(config.text),
            "documents": len(documents),
            "tokens": sum(map(len, streams)),
            "tokens_seen": config.steps * config.batch_size * config.length,
            "weights": sum(weight.numel() for weight in model.parameters()),
            "train_loss": train_loss,
            "validation_loss": _validation_loss(model, config, streams[1]),
            "seconds": round(time.monotonic() - started, 1),
            "device": device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        _save(folder, model, tokenizer, config, facts)
    return out


def facts_of(folder: Path) -> dict[str, Any]:
    """What a pretraining left in its folder beside the model."""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder} has no {FACTS} that can be read: {error}") from None
    return facts


def is_there(out: Path, config: PretrainConfig) -> bool:
    """Whether `out` has this very pretraining; RunError where it has anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / FACTS).is_file():
        raise RunError(f"{out} exists and is no pretrained model; name another folder")
    facts, fields = facts_of(out), config.model_dump(mode="json")
    same = {**facts.get("config", {}), "text": None} == {**fields, "text": None}
    if same and facts.get("source") == fingerprint(config.text):
        return True
    raise RunError(
        f"{out} already holds a model that was pretrained otherwise ({FACTS} in it says how); "
        "name another folder, or remove this one"
    )


def _long_enough(stream: Tensor, config: PretrainConfig) -> Tensor:
    if len(stream) <= config.length:
        raise DataError(
            f"text: too short; {len(stream)} tokens of it are for training or validation, and a "
            f"window takes {config.length + 1}"
        )
    return stream


def _train(model: "PreTrainedModel", config: PretrainConfig, stream: Tensor, watch: Watch) -> float:
    """Take every step; gives the mean loss of the last tenth of them."""
    model.train()
    optimizer = _optimizer(model, config)
    losses = torch.zeros(config.steps, device=model.device)
    started = time.monotonic()
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * _factor(step, config.steps)
        loss = _loss(model, _windows(stream, config, step))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses[step] = loss.detach()
        done = step + 1
        if done % _EVERY == 0 or done in (1, config.steps):
            tokens = done * config.batch_size * config.length
            now = _finite(losses[step].item(), done)
            watch(Progress(done, config.steps, now, tokens, time.monotonic() - started))
    return losses[-max(1, config.steps // 10) :].mean().item()


def _optimizer(model: nn.Module, config: PretrainConfig) -> torch.optim.Optimizer:
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), fused=True)


def _factor(step: int, steps: int) -> float:
    """A rise over the first twentieth of the steps, then half a cosine."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return (step + 1) / warmup
    turned = math.pi * (step - warmup) / max(1, steps - warmup)
    return _LOWEST + (1 - _LOWEST) * (1 + math.cos(turned)) / 2


def _windows(stream: Tensor, config: PretrainConfig, step: int) -> Tensor:
    """A batch from anywhere in the text: each row's tokens, and the one that follows them."""
    draws = rng_for(config.seed, "pretrain", "batch", step)
    starts = torch.randint(len(stream) - config.length, (config.batch_size, 1), generator=draws)
    return stream[starts + torch.arange(config.length + 1)].long()


def _loss(model: "PreTrainedModel", windows: Tensor) -> Tensor:
    """Mean cross-entropy of each next token, in nats; in bf16 on a GPU."""
    windows = windows.to(model.device)
    on_gpu = model.device.type == "cuda"
    with torch.autocast(model.device.type, torch.bfloat16, enabled=on_gpu):
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


def _validation_loss(model: "PreTrainedModel", config: PretrainConfig, stream: Tensor) -> float:
    """The mean over windows that lie side by side in what was held out."""
    model.eval()  # type: ignore[no-untyped-call]
    count = min(_JUDGED, (len(stream) - 1) // config.length)
    starts = torch.arange(count).unsqueeze(1) * config.length
    windows = stream[starts + torch.arange(config.length + 1)].long()
    with torch.no_grad():
        batches = windows.split(config.batch_size)
        total = sum(_loss(model, batch).item() * len(batch) for batch in batches)
    return total / count


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise RunFailedError(f"the loss is no number at step {step}; lower the learning rate")
    return loss


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder to write into that takes its place when all went well, and is gone otherwise."""
    out = out.absolute()
    partial = out.with_name(f"{out.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        if out.exists():
            out.rmdir()  # an empty one
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
    """What transformers would save, without its progress bars."""
    from safetensors.torch import save_file

    as_transformers(tokenizer, config.context).save_pretrained(folder)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    weights = {name: weight.cpu().contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
