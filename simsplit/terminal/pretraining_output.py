"""A pretraining shows its progress as a live bar in a terminal, and as plain lines elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from simsplit.errors import ScenarioError, SimsplitError
from simsplit.machine import find_device
from simsplit.pretrain.pretraining import Tenths, Watch
from simsplit.pretrain.tiers import PretrainConfig
from simsplit.showing.pace import format_clock


@contextmanager
def watch_pretraining(console: Console, config: PretrainConfig, *, quiet: bool) -> Iterator[Watch]:
    """Open a context with a function that shows progress; a bar is always removed at its end."""
    if quiet:
        yield lambda reached: None
    elif not console.is_terminal or console.no_color:
        yield Tenths(lambda line: console.print(line, highlight=False, markup=False))
    else:
        columns = (
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[reached]}"),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=config.steps, reached="reading the text")
            yield lambda reached: bar.update(task, completed=reached.step, reached=str(reached))


def describe_start(config: PretrainConfig, out: Path) -> str:
    """Return the lines that are printed before training."""
    text = config.text or "Python's own documentation"
    return (
        f"{config.family}, {config.layers} layers of width {config.width}, a vocabulary of "
        f"{config.vocabulary:,}: {config.steps:,} steps of {config.batch_size} x {config.length} "
        f"tokens of {text}\nfolder: {out}"
    )


def describe_end(facts: Mapping[str, Any], out: Path, *, kept: bool) -> str:
    """Return the lines that are printed after training: the results, and how to use the model."""
    losses = f"validation loss {facts['validation_loss']:.3f}, training {facts['train_loss']:.3f}"
    spent = f"{facts['tokens_seen']:,} tokens in {format_clock(facts['seconds'])}"
    return (
        f"{facts['weights']:,} weights, {losses}, {spent}\n"
        f"The model lies in {out}{', where it was already' if kept else ''}; "
        f"in a scenario: model: {{kind: causal_lm, name: {out}}}"
    )


def find_named_device(name: str) -> torch.device:
    """Return the device that --device names; raise SimsplitError if there is none."""
    try:
        return find_device(name)
    except ScenarioError as error:
        raise SimsplitError(f"--device: {error.reason}") from None
    except RuntimeError:
        raise SimsplitError(f"--device: got '{name}'; allowed: cpu, cuda, cuda:N, auto") from None
