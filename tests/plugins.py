"""Methods as a plugin would define them, in a module that hosts can import as well."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from simsplit.methods.method import Method, MethodConfig, Site, Step
from simsplit.phases import Phase
from simsplit.seeds import isolate


class WarmupConfig(MethodConfig):
    """A learned correction of the features, with dropout; it first trains alone."""

    kind: Literal["warmup"] = "warmup"
    phase: bool = True

    def build(self, site: Site) -> Method:
        return Warmup(site, phase=self.phase) if site.side == "client" else Method()


class Warmup(Method):
    def __init__(self, site: Site, *, phase: bool) -> None:
        self.phase = phase
        with isolate(site.seed, "warmup"):
            self.module: nn.Module = nn.Sequential(nn.Dropout(0.25), nn.Linear(512, 512))

    def decode(self, u: Tensor, step: Step) -> Tensor:
        return u + self.module(u)

    def plan_phases(self, rounds: int) -> Sequence[Phase]:
        alone: frozenset[Any] = frozenset({"method"})
        warmup = Phase("warmup", 1, source="public", learns=alone, gradients=False)
        return [warmup] if self.phase else []


Hook = Literal["encode", "lift", "compute_encode_loss", "decode", "pack"]


class FaultyConfig(MethodConfig):
    """Throws in one of a client's steps, as long as a file is there."""

    kind: Literal["faulty"] = "faulty"
    hook: Hook = "encode"
    client: int = 1
    step: int = 1
    throws: Literal["division", "memory", "exit"] = "division"
    while_there: Path

    def build(self, site: Site) -> Method:
        own = "server" if self.hook == "lift" else "client"
        return Faulty(self) if site.side == own else Method()


class Faulty(Method):
    def __init__(self, config: FaultyConfig) -> None:
        self.config = config

    def encode(self, z: Tensor, step: Step) -> Tensor:
        self._reach("encode", step)
        return z

    def lift(self, z: Tensor, step: Step) -> Tensor:
        self._reach("lift", step)
        return z

    def decode(self, u: Tensor, step: Step) -> Tensor:
        self._reach("decode", step)
        return u

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        self._reach("compute_encode_loss", step)
        return None

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        self._reach("pack", step)
        return (x,)

    def _reach(self, hook: Hook, step: Step) -> None:
        config = self.config
        here = (hook, step.client, step.number) == (config.hook, config.client, config.step)
        if not (here and step.training and config.while_there.exists()):
            return
        if config.throws == "exit":
            os._exit(1)
        if config.throws == "memory":
            raise MemoryError("cannot allocate 12 GB")
        _ = 1 // 0


class FeedbackConfig(MethodConfig):
    """Sends signs, and adds what they leave out of a batch to the next one, on both sides."""

    kind: Literal["feedback"] = "feedback"
    keeps: bool = True
    sides: tuple[str, ...] = ("client", "server")

    def build(self, site: Site) -> Method:
        if site.side not in self.sides:
            return Method()
        return (Feedback if self.keeps else Forgetful)()


class Forgetful(Method):
    def __init__(self) -> None:
        self.left_out: Tensor | None = None

    def encode(self, z: Tensor, step: Step) -> Tensor:
        return self._add(z, step) if step.training else z

    def lift(self, z: Tensor, step: Step) -> Tensor:
        return self._add(z, step) if step.training else z

    def _add(self, z: Tensor, step: Step) -> Tensor:
        wanted = z if self.left_out is None else z + self.left_out
        sent = wanted.sign() * wanted.abs().mean()
        self.left_out = (wanted - sent).detach().mean(0, keepdim=True)
        return z + (sent - z).detach()


class Feedback(Forgetful):
    def state(self) -> dict[str, Tensor]:
        return {} if self.left_out is None else {"left_out": self.left_out}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.left_out = state.get("left_out")


METHODS = {"warmup": WarmupConfig, "faulty": FaultyConfig, "feedback": FeedbackConfig}
