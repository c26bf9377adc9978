"""Text generation through the cut is timed: in a session, with whole texts per pass, and uncut.

All three must generate the same tokens from the same weights. The uncut model is transformers' own,
with its cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from simsplit.assembly import Assembler
from simsplit.assembly.exchanges import build_writer
from simsplit.bench.sides import BenchLines, BenchSide, Figures, Say, ratio_of, ratio_row
from simsplit.data import Prepared
from simsplit.errors import ProtocolError
from simsplit.evaluation.writing import Writer
from simsplit.legs import ClientId
from simsplit.models.language import CausalLM
from simsplit.report.tables import Table
from simsplit.scenario import Scenario
from simsplit.seeds import rng_for

BATCH, PROMPT, TOKENS = 8, 64, 128
COLUMNS = ("case", "ratio", "quartiles", "target", "ms per token", "against")
UNENDING = -1
"""Replaces the end token, so that all texts have the same length."""


def measure_writing(
    given: Scenario,
    data: Prepared,
    device: torch.device,
    quick: bool,
    say: Say,
    *,
    large: bool = False,
) -> tuple[Table, Figures]:
    """Compare a session with whole texts, and with transformers' own cache.

    A large model generates whole texts once only, since each of their passes takes seconds.
    """
    assert isinstance(given.model, CausalLM), "the bench's model writes"
    writer = _make_writer(given, data, device)
    prompts = _draw_prompts(given)
    lines = BenchLines()
    whole = partial(_Writing, replace(writer, in_sessions=lambda _: False), prompts)
    uncut = partial(_Uncut, given.model.origin, prompts, device)
    cases: tuple[tuple[str, Callable[[int], _Writing | _Uncut], float, int], ...] = (
        ("whole texts", whole, 0.10, 1 if large else 3),
        ("transformers' cache", uncut, 1.15, 9),
    )
    tokens = 8 if quick else TOKENS
    for name, made, target, times in cases:
        pairs = min(times, 3) if quick else times
        say(f"language: writing in a session against {name} ...")
        session, other = _Writing(writer, prompts, tokens), made(tokens)
        sides = BenchSide(session.write), BenchSide(other.write)
        measured = ratio_of(sides, 1, pairs, device)
        _refuse_other_texts(session.texts, other.texts, name)
        measured |= {key: measured[key] / tokens for key in ("ms", "against_ms")}
        row = ratio_row(f"a session over {name}, {tokens} new tokens", measured, target)
        lines.add(f"writing over {name}", measured | {"target": target, "tokens": tokens}, row)
    return lines.table(f"writing through the cut ({BATCH} prompts of {PROMPT})", COLUMNS)


def prepare_writers(
    given: Scenario, data: Prepared, device: torch.device, tokens: int
) -> Callable[[ClientId], None]:
    """Return a function that generates `tokens` tokens after each prompt, through the cut."""
    return _Writing(_make_writer(given, data, device), _draw_prompts(given), tokens).write


def _draw_prompts(given: Scenario) -> Tensor:
    vocabulary = given.text_reader().size
    return torch.randint(vocabulary, (BATCH, PROMPT), generator=rng_for(0, "bench", "prompts"))


class _Writing:
    """Texts that are generated through the cut."""

    def __init__(self, writer: Writer, prompts: Tensor, tokens: int) -> None:
        self.writer, self.prompts, self.tokens = writer, list(prompts), tokens
        self.texts: list[list[int]] = []

    def write(self, client: ClientId) -> None:
        """Generate all texts once."""
        self.texts = self.writer.write(client, self.prompts, self.tokens)


class _Uncut:
    """transformers' own model, loop and cache."""

    def __init__(self, model: str, prompts: Tensor, device: torch.device, tokens: int) -> None:
        from transformers import AutoModelForCausalLM

        net: Any = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
        self.net, self.prompts, self.tokens = net.to(device).eval(), prompts.to(device), tokens
        net.generation_config.eos_token_id = None
        net.generation_config.pad_token_id = 0
        self.texts: list[list[int]] = []

    @torch.no_grad()
    def write(self, client: ClientId) -> None:
        """Generate all texts once."""
        given = {"attention_mask": torch.ones_like(self.prompts), "do_sample": False}
        rows = self.net.generate(self.prompts, max_new_tokens=self.tokens, **given)
        self.texts = rows[:, self.prompts.shape[1] :].tolist()


def _make_writer(given: Scenario, data: Prepared, device: torch.device) -> Writer:
    parts = Assembler(given, data, device).assemble()
    parts.exchange.announce(parts.clients, counted=False)
    writer = build_writer(given, parts.exchange)
    assert writer is not None, "the bench's model predicts tokens"
    return replace(writer, end=UNENDING)


def _refuse_other_texts(texts: Sequence[list[int]], others: Sequence[list[int]], name: str) -> None:
    if list(texts) != list(others):
        raise ProtocolError(f"a session writes other tokens than {name}")
