"""`simsplit bench` measures the simulator, and `pretrain` makes a model to measure with."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from simsplit.commands.options import Quiet, load_plugins, print_json
from simsplit.showing.saying import echo, end_interrupted, heed_termination, make_console, say


def bench(
    name: Annotated[
        Literal["overhead"], typer.Argument(help="What is measured: the overhead of a cut.")
    ] = "overhead",
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON, by bench and table.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the steps: a smoke test.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="MODULE|FILE", help="Measure its methods and models."),
    ] = None,
) -> None:
    """Measure the simulator against a plain PyTorch loop."""
    from simsplit.bench import overhead, own
    from simsplit.machine import find_device
    from simsplit.terminal.printing import print_table

    find_device(device)
    known = load_plugins(plugin)
    measure = partial(own, plugins=known) if known.origins else overhead
    figures = {}
    for table, figures[table.title] in measure(device, quick, say):
        if not as_json:
            print_table(table, "table")
    if as_json:
        print_json({name: figures})


def pretrain(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The model's folder, to be made.")],
    *,
    tier: Annotated[
        Literal["ci", "demo", "gpu"], typer.Option(help="Preset of all fields.")
    ] = "demo",
    text: Annotated[
        Path | None,
        typer.Option(help="A .txt, .md or .parquet file, or a folder; default: Python's docs."),
    ] = None,
    family: Annotated[
        Literal["llama", "qwen3", "gpt2"] | None, typer.Option(help="The architecture.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Values per token between layers.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks of attention and MLP.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads per layer.")] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Number of tokens of the tokenizer.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Maximum number of positions.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows of text per step.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per window.")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and batches.")] = None,
    half: Annotated[
        bool, typer.Option("--half", help="Save the weights rounded to half precision.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="torch threads; default: all.")] = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train a small language model from nothing."""
    heed_termination()
    fields = {
        "text": text, "family": family, "width": width, "layers": layers, "heads": heads,
        "vocabulary": vocabulary, "context": context, "steps": steps, "batch_size": batch_size,
        "length": length, "lr": lr, "seed": seed, "half": half,
    }  # fmt: skip
    from simsplit import pretrain as training
    from simsplit.machine import pin_threads
    from simsplit.pretrain.tiers import change_tier
    from simsplit.terminal.pretraining_output import (
        describe_end,
        describe_start,
        find_named_device,
        watch_pretraining,
    )

    config = change_tier(tier, {name: got for name, got in fields.items() if got is not None})
    place, kept = find_named_device(device), training.has_pretraining(out, config)
    if not (quiet or as_json or kept):
        say(describe_start(config, out))
    try:
        with (
            watch_pretraining(make_console(stderr=True), config, quiet=quiet or as_json) as watch,
            pin_threads(threads),
        ):
            training.pretrain(config, out, watch, place)
    except KeyboardInterrupt:
        end_interrupted("nothing was kept")
    facts = training.read_facts(out)
    if as_json:
        print_json({**facts, "path": str(out)})
    elif not quiet:
        echo(describe_end(facts, out, kept=kept))
