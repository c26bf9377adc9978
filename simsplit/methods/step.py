"""A step as methods see it: one side's view of one mini-batch, or of those of a cohort at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from simsplit.legs import ClientId, Leg
from simsplit.methods.tokens import Stock
from simsplit.phases import TRAIN
from simsplit.seeds import Scope, rng_for

NoiseSource = Literal["cpu", "device"]


class SessionState(Protocol):
    """The state of a session, in which texts are processed token by token, as methods see it."""

    seen: int
    """Number of tokens of each text so far, this pass included."""
    mask: Tensor | None
    """Which of these tokens are real; None: all of them."""

    def get_cache(self, name: str) -> Any:  # noqa: ANN401 - transformers is not imported for its types
        """Return this session's cache (transformers' DynamicCache) with this name."""


@dataclass(slots=True)
class Step:
    """One side's view of one mini-batch."""

    client: ClientId
    round: int
    number: int
    """The step's number; in training it counts on from round to round."""
    seed: int
    training: bool = True
    labels: Tensor | None = None
    """The batch's labels: only where this side has them."""
    phase: str = TRAIN
    stage: str = TRAIN
    """The phase of the run, in evaluation too."""
    stock: Stock | None = None
    """Public texts and tokens: only on clients with texts."""
    evaluation_mode: str = ""
    """In evaluation: one of the method's `readings`, as a control requests it; empty: as the
    scenario sets it."""
    mask: Tensor | None = None
    """Client: which tokens are real, if texts cross with a mask."""
    leg: Leg | None = None
    """The leg of the latest `pack` or `unpack`."""
    session: SessionState | None = None
    """Client: the session, if this step is a pass of one."""
    embedded: Tensor | None = None
    """Client, in training: the head's embeddings, if a method has `reaches_head`."""
    outputs: Tensor | None = None
    """Client, for `tail_loss`: the tail's outputs."""
    task: Tensor | None = None
    """Client, for `tail_loss`: the task's loss on these outputs."""
    noise: NoiseSource = "cpu"
    """Where the noise of methods is drawn: on the CPU, or on the device of what it is added to."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """State that methods pass from hook to hook. Each method uses keys of its own, such as
    itself."""
    parts: Sequence[tuple["Step", int]] = ()
    """The steps of a cohort's clients with the rows of each, whose rows take this step as one."""
    figures: dict[str, float | Tensor] = field(default_factory=dict)
    """Figures of the step by column; the `clients` table has their means over a round. The config's
    `reported` names the columns."""

    def make_rng(self, *scope: Scope, device: torch.device | None = None) -> torch.Generator:
        """Return the random stream of one purpose in this step.

        The two sides' streams are independent, since each side has a seed of its own. With
        `device`, the stream is of noise that is wanted there: it is drawn there if the run says so.
        Draw with `device=rng.device`.

        >>> rng = step.make_rng("noise", device=z.device)  # doctest: +SKIP
        >>> z + torch.randn(z.shape, generator=rng, device=rng.device).to(z)  # doctest: +SKIP
        """
        mode = "train" if self.training else "evaluate"
        # Evaluations number their steps from 0 in every round, so the key needs the round as well.
        at = (mode, self.client, self.round, self.number, *scope)
        return rng_for(self.seed, *at, device=device if self.noise == "device" else None)

    def draw_rows(
        self,
        draw: Callable[..., Tensor],
        shape: Sequence[int],
        *scope: Scope,
        device: torch.device,
    ) -> Tensor:
        """Return the draws of one purpose for rows on a device: of a cohort, each client's own.

        `draw` is a function such as `torch.randn`.
        """
        if self.parts:
            every = [
                step.draw_rows(draw, (rows, *shape[1:]), *scope, device=device)
                for step, rows in self.parts
            ]
            return torch.cat(every)
        rng = self.make_rng(*scope, device=device)
        return draw(torch.Size(shape), generator=rng, device=rng.device).to(device)

    def make_next_rng(
        self, method: object, name: str, *, device: torch.device | None = None
    ) -> torch.Generator:
        """Return another random stream at each call, for hooks that run several times in a step."""
        count = self.memo[method] = self.memo.get(method, 0) + 1
        return self.make_rng(name, count, device=device)
