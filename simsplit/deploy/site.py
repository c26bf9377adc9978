"""A client on its owner's machine: it answers calls, by the owner's scenario and the owner's data.

What it knows stays with it: labels, outputs, checkpoints, secrets, and why something failed. The
server gets answers to the calls that training takes, and figures.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simsplit.assembly import Assembler
from simsplit.assembly.evaluating import build_pen
from simsplit.data import Prepared, Samples
from simsplit.deploy.expected import Expected
from simsplit.deploy.handing import Handing, Unusable, as_tensor
from simsplit.deploy.keys import Keys
from simsplit.deploy.messages import NUMBER, answer_form, call_understood, told
from simsplit.deploy.remote_pool import BACK_TO, KEEP, MARK, UNDO
from simsplit.deploy.rules import Rules
from simsplit.deploy.seals import Seals
from simsplit.deploy.tensors import frame_of, read
from simsplit.deploy.terms import Mode, digest_of, facts, form_of
from simsplit.errors import ProtocolError, RunError
from simsplit.evaluation.authoring import Author
from simsplit.evaluation.scoring import Scorer
from simsplit.packets import ClientId, Packet
from simsplit.parties.calls import Call, CountSteps, Receive
from simsplit.parties.client import Client
from simsplit.results import CHECKPOINTS, checkpoints
from simsplit.results.checkpoints import Progress
from simsplit.scenario import Scenario
from simsplit.states import below


class Site:
    """One client of a deployed run."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        number: ClientId,
        out: Path,
        *,
        mode: Mode = "rehearsal",
        secret: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.scenario, self.data, self.number, self.out = scenario, data, number, out
        self.mode, self.secret = mode, secret
        self.device = device or torch.device("cpu")
        self.terms = digest_of(scenario, mode)
        self.rounds_kept = 0
        self.steps = 0
        """Batches that were sent so far."""
        self.met = False
        """Whether a server has welcomed it since it last waited for one."""
        self._asked = 0
        self._touched = False
        self._marked: Mapping[str, Tensor] = {}
        assembler = self._build()
        self.expected = Expected(assembler.owners)
        feeds = self.client.training.feeds.items()
        batches = {source: feed.steps_per_epoch for source, feed in feeds}
        self.rules = Rules(number, self.expected, batches)
        self.handing: Handing | None = None
        """How it hands weights on, where it does."""

    def seal_by(self, keys: Keys) -> None:
        """Hand on weights so that no other than this deployment's clients can read them."""
        if not self.expected.hands_on or self.handing is not None:
            return
        undoes = any(
            each.by_turns and each.response == "rollback" for each in self.scenario.detectors
        )
        seals = Seals(keys, self.scenario.clients.count)
        self.handing = Handing(seals, self.number, self.terms, strict=not undoes)

    def hello(self) -> dict[str, Any]:
        """What a server is told of it."""
        return {
            "client": self.number,
            "terms": self.terms,
            "facts": facts(),
            "form": form_of(self.data),
            "samples": len(self.data.parts[self.number]),
        }

    def connected(self) -> None:
        """A new stream begins, and its requests are numbered from 1."""
        self._asked = 0

    def answer(self, frame: bytes) -> bytes:
        """The answer to a request; ProtocolError for one that it should not have been sent."""
        header, tensors = read(frame, self.expected.most_bytes)
        number = header.pop("number", None)
        if number != self._asked + 1:
            raise ProtocolError("a request out of turn")
        self._asked = number
        try:
            return self._answer(number, header, tensors)
        except Unusable as error:
            return frame_of({"number": number, "unusable": error.sender}, [as_tensor(error.key)])

    def failed(self, error: Exception) -> bytes:
        """In place of an answer: that there is none. Why, is said here alone."""
        return frame_of({"number": self._asked, "failed": type(error).__name__})

    def _answer(self, number: int, header: dict[str, Any], tensors: list[Tensor]) -> bytes:
        commands = {KEEP: self._keep, BACK_TO: self._back_to, MARK: self._mark, UNDO: self._undo}
        for name, command in commands.items():
            if header.keys() == {name}:
                command(NUMBER.read(header[name], iter(())))
                return frame_of({"number": number, "answer": None})
        call = self._opened(call_understood(header, tensors))
        self.rules.check(call)
        self._touched = self._touched or not isinstance(call, CountSteps)
        answer = self._sealed(call.on(self.client))
        self.rules.answered(call, answer, waiting=self.client.training.is_waiting)
        self.steps = self._taken
        value, made = told(answer_form(call), answer)
        return frame_of({"number": number, "answer": value}, made)

    def _opened(self, call: Call[object]) -> Call[object]:
        """A call whose weights, if it brings another client's, are out of their seal."""
        if not isinstance(call, Receive):
            return call
        if not self.expected.hands_on:
            if call.packet.sealed is not None:
                raise ProtocolError("a sealed hand-over, where the server averages")
            return call
        return Receive(self._handing.opened(call.packet, self._taken, self.expected))

    def _sealed(self, answer: object) -> object:
        """An answer whose weights, if they go to other clients, nobody else can read."""
        if not (isinstance(answer, Packet) and self.expected.hands_on and answer.tensors):
            return answer
        return self._handing.sealed(answer, self._taken)

    @property
    def _taken(self) -> int:
        """Steps that this client has taken."""
        return sum(self.client.training.taken.values())

    @property
    def _handing(self) -> Handing:
        if self.handing is None:
            raise RunError("this client has no keys by which to hand weights on to others")
        return self.handing

    def _build(self) -> Assembler:
        """The client as it is before training."""
        assembler = Assembler(self.scenario, self.data, self.device, self.secret)
        self.client: Client = assembler.make_pool([self.number]).clients[self.number]
        self.client.examination.scores = self._scorer()
        self.client.examination.author = self._author()
        return assembler

    def _author(self) -> Author | None:
        pen, evaluate = build_pen(self.scenario), self.scenario.evaluate
        if pen is None:
            return None
        sizes = {"texts": evaluate.generated_texts, "tokens": evaluate.max_new_tokens}
        reader = self.scenario.text_reader()
        held_out, metrics = self._held_out(), self.scenario.metrics
        return Author(self.client, pen, reader, held_out, metrics, **sizes)

    def _held_out(self) -> dict[str, Samples]:
        held_out = {"test": self.data.test, "validation": self.data.validation}
        return {name: samples for name, samples in held_out.items() if samples is not None}

    def _scorer(self) -> Scorer:
        scenario, data = self.scenario, self.data
        return Scorer(
            self._held_out(),
            scenario.metrics,
            scenario.evaluate.batch_size,
            choices=None if data.vocabulary is None else data.vocabulary.choices,
            own=scenario.plugins.of("METRICS"),
        )

    def _keep(self, round_number: int) -> None:
        """Write a checkpoint of this client's own."""
        self.rules.keep(round_number)
        state = self._state()
        kept = self.scenario.checkpoint.keep + 1  # the server may fall back on an earlier one
        progress = Progress(round=round_number)
        checkpoints.drop_after(self.out / CHECKPOINTS, round_number)  # of rounds done again
        checkpoints.save(self.out / CHECKPOINTS, state, progress, self.terms, kept)
        self.rounds_kept = round_number

    def _back_to(self, round_number: int) -> None:
        """Be as after a round, with nothing left of what came later."""
        self.rules.back_to(round_number)
        if self._touched:
            self._build()
            self._touched = False
        if self.handing is not None:
            self.handing.made = {}
        if round_number:
            state = checkpoints.at(self.out / CHECKPOINTS, self.terms, round_number)
            self._load(state)
            self._touched = True
        self.rounds_kept = round_number

    def _mark(self, round_number: int) -> None:
        """Remember how the client is when a round begins that may be undone."""
        self.rules.mark(round_number)
        self._marked = {name: tensor.detach().clone() for name, tensor in self._state().items()}

    def _undo(self, round_number: int) -> None:
        """Be as when the round began."""
        self.rules.undo(round_number)
        self._load(self._marked)

    def _state(self) -> dict[str, Tensor]:
        """All that the client's next step depends on."""
        state = {f"own/{name}": t for name, t in self.client.keeping.state().items()}
        state |= {f"shared/{name}": t for name, t in self.client.sharing.state().items()}
        handing = {} if self.handing is None else self.handing.state()
        return state | {f"handing/{name}": tensor for name, tensor in handing.items()}

    def _load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `_state` gave."""
        self.client.sharing.load(below(state, "shared/"))
        self.client.keeping.load(below(state, "own/"))
        if self.handing is not None:
            self.handing.load(below(state, "handing/"))
