"""A site runs one client on its owner's machine, by the owner's scenario and with the owner's data.

Labels, outputs, checkpoints, secrets and the reasons of failures stay on the site. The server gets
metrics, and answers to the calls that training needs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simsplit.assembly import Assembler
from simsplit.assembly.exchanges import build_pen
from simsplit.data import Prepared, Samples
from simsplit.deploy import terms
from simsplit.deploy.bounds import Bounds
from simsplit.deploy.call_codecs import NUMBER, get_answer_codec, read_call, write_value
from simsplit.deploy.connection import JoiningSite
from simsplit.deploy.figure_bounds import Holdings, append_figures
from simsplit.deploy.frames import bytes_to_tensor, read_frame, write_frame
from simsplit.deploy.handovers import (
    DISCLOSE,
    Handovers,
    UnusableHandover,
    undoes_turns,
)
from simsplit.deploy.keys import Keys
from simsplit.deploy.remote_pool import BACK_TO, KEEP, MARK, UNDO
from simsplit.deploy.rules import Rules
from simsplit.deploy.seals import Seals, UnopenedSeal
from simsplit.errors import ProtocolError, RunError
from simsplit.evaluation.authoring import Author
from simsplit.evaluation.generation import Scorer
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties.calls import Assess, Call, CountSteps, Receive, ReportRound
from simsplit.parties.client import Client
from simsplit.results import CHECKPOINTS, checkpoints
from simsplit.results.checkpoints import Progress
from simsplit.scenario import Scenario
from simsplit.states import select_below

WITHHELD_FIGURES = "withheld.csv"
"""The figures that a client does not send, which its owner may read."""


class ClientSite(JoiningSite):
    """One client of a deployed run, on its owner's machine."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        number: ClientId,
        out: Path,
        *,
        mode: terms.Mode = "rehearsal",
        secret: int | None = None,
        device: torch.device | None = None,
        has_own_data: bool = False,
    ) -> None:
        self.scenario, self.data, self.number, self.out = scenario, data, number, out
        self.mode, self.secret = mode, secret
        self.device = device or torch.device("cpu")
        self.has_own_data = has_own_data
        """Whether its data are others than the scenario names, so that no simulation has them."""
        self.terms = terms.digest_terms(scenario, mode)
        self._resumes = terms.digest_resumable(scenario, mode)
        """The digest of the runs that its checkpoints are of."""
        self._is_changed = False
        """Whether the client's state may differ from a newly built client's."""
        self._marked: Mapping[str, Tensor] = {}
        assembler = self._build()
        own = {number: len(data.parts[number])}
        self.bounds = Bounds(assembler.owners, Holdings(own, terms.describe_data(data)["held_out"]))
        self.most_bytes = self.bounds.most_bytes
        self.rules = Rules(number, self.bounds)
        self.handovers: Handovers | None = None
        """Seals and opens hand-overs; None if the run has none, or keys are not loaded yet."""

    def enable_sealing(self, keys: Keys) -> None:
        if not self.bounds.hands_on or self.handovers is not None:
            return
        seals = Seals(keys, self.scenario.clients.count)
        strict = not undoes_turns(self.scenario)
        self.handovers = Handovers(seals, self.number, self.terms, strict=strict)

    def describe_itself(self) -> dict[str, Any]:
        return {
            "client": self.number,
            "terms": self.terms,
            "facts": {
                **terms.describe_machine(self.device),
                "data": "own" if self.has_own_data else "scenario",
            },
            "form": terms.describe_data(self.data),
            "samples": len(self.data.parts[self.number]),
        }

    def answer(self, frame: bytes) -> bytes:
        header, tensors = read_frame(frame, self.most_bytes)
        number = header.pop("number", None)
        if number != self._last_number + 1:
            raise ProtocolError(
                f"a request out of turn: number {str(number)[:20]}, not {self._last_number + 1}"
            )
        # Before any work, so that a request that fails cannot be asked again.
        self._last_number = number
        try:
            return self._answer(number, header, tensors)
        except UnusableHandover as error:
            header, evidence = {"number": number, "unusable": error.sender}, error.key
        except UnopenedSeal as error:
            header, evidence = {"number": number, "unopened": error.sender}, error.complaint
        return write_frame(header, [bytes_to_tensor(evidence)])

    def _answer(self, number: int, header: dict[str, Any], tensors: list[Tensor]) -> bytes:
        """Carry out a command or a call that the rules allow, and return the answer's frame."""
        commands = {KEEP: self._keep, BACK_TO: self._return_to, MARK: self._mark, UNDO: self._undo}
        for name, command in commands.items():
            if header.keys() == {name}:
                command(NUMBER.read(header[name], iter(())))
                return write_frame({"number": number, "answer": None})
        if header.keys() == {DISCLOSE}:
            receiver = NUMBER.read(header[DISCLOSE], iter(()))
            secret = self._required_handovers.disclose(receiver, tensors)
            return write_frame({"number": number, "answer": None}, [bytes_to_tensor(secret)])
        call = self._open_handover(read_call(header, tensors))
        # Before it acts on the client, whose weights a refused call must not change.
        self.rules.check(call)
        self._is_changed = self._is_changed or not isinstance(call, CountSteps)
        # Frames are read on the CPU.
        placed = call if self.device.type == "cpu" else call.to_device(self.device)
        answer = self._seal_handover(self._withhold(call, placed.on(self.client)))
        self.rules.note_answer(call, answer, waiting=self.client.training.is_waiting)
        self.steps = self._steps_taken
        value, tensors = write_value(get_answer_codec(call), answer)
        return write_frame({"number": number, "answer": value}, tensors)

    def _withhold(self, call: Call[object], answer: object) -> object:
        """Return an answer without the figures that a guarantee forbids to send; keep them here."""
        figures = self.bounds.figures
        if not figures.withheld or not isinstance(call, ReportRound | Assess):
            return answer
        assert isinstance(answer, dict), "these calls are answered by figures"
        sent = figures.withhold_from(call, answer)
        start = f"{call.split}_" if isinstance(call, Assess) else ""
        kept = {f"{start}{name}": value for name, value in answer.items() if name not in sent}
        if kept:
            append_figures(self.out / WITHHELD_FIGURES, self.rules.round, kept)
        return sent

    def _open_handover(self, call: Call[object]) -> Call[object]:
        """Return a call with the weights of another client opened, if it has such."""
        if not isinstance(call, Receive):
            return call
        if not self.bounds.hands_on:
            if call.packet.sealed is not None:
                raise ProtocolError(
                    "a sealed hand-over, but in this run the server averages weights"
                )
            return call
        return Receive(self._required_handovers.open(call.packet, self._steps_taken, self.bounds))

    def _seal_handover(self, answer: object) -> object:
        """Return an answer with weights for other clients sealed, if it has such."""
        if not (isinstance(answer, Packet) and self.bounds.hands_on and answer.tensors):
            return answer
        power = self.bounds.weights.find_power(answer)
        return self._required_handovers.seal(answer, self._steps_taken, power)

    def describe_spending(self) -> str:
        """Write what the owner's samples have lost of their privacy; empty without a guarantee."""
        if not (spent := self.client.training.report_spending()):
            return ""
        budget = self.scenario.epsilon_limit
        limit = "" if budget is None else f", of a budget of {budget:g}"
        return f"; its samples have lost epsilon {spent['epsilon']:.4g}{limit}"

    @property
    def _steps_taken(self) -> int:
        """The steps that this client has taken."""
        return sum(self.client.training.taken.values())

    @property
    def _required_handovers(self) -> Handovers:
        """The seals of hand-overs; RunError if keys are not loaded."""
        if self.handovers is None:
            raise RunError("this client has no keys to seal the weights that it hands over")
        return self.handovers

    def _build(self) -> Assembler:
        """Build the client in its state before training."""
        given = self.scenario, self.data, self.device, self.secret
        assembler = Assembler(*given, with_trunk=False)
        self.client: Client = assembler.make_pool([self.number]).clients[self.number]
        self.client.examination.scores = self._make_scorer()
        self.client.examination.author = self._make_author()
        return assembler

    def _make_author(self) -> Author | None:
        """Return the author that scores generated texts here; None if none are scored."""
        pen, evaluate = build_pen(self.scenario), self.scenario.evaluate
        if pen is None:
            return None
        return Author(
            *(self.client, pen, self.scenario.text_reader()),
            *(self._select_held_out(), self.scenario.metrics),
            texts=evaluate.generated_texts,
            tokens=evaluate.max_new_tokens,
        )

    def _select_held_out(self) -> dict[str, Samples]:
        """Return the held-out samples by the names of their splits."""
        held_out = {"test": self.data.test, "validation": self.data.validation}
        return {name: samples for name, samples in held_out.items() if samples is not None}

    def _make_scorer(self) -> Scorer:
        """Return the scorer of outputs; labels need not leave the site for metrics."""
        scenario, data = self.scenario, self.data
        return Scorer(
            self._select_held_out(),
            scenario.metrics,
            scenario.evaluate.batch_size,
            choices=None if data.vocabulary is None else data.vocabulary.choices,
            own=scenario.plugins.of("METRICS"),
        )

    def _keep(self, round_number: int) -> None:
        """Write this client's own checkpoint of a round."""
        self.rules.keep(round_number)
        # Read first, so that a state that cannot be read costs no checkpoint.
        state, folder = self._state(), self.out / CHECKPOINTS
        kept = self.scenario.checkpoint.keep + 1  # the server may fall back on an earlier one
        checkpoints.drop_after(folder, round_number)  # rounds that are trained again
        progress = Progress(round=round_number)
        checkpoints.save(folder, state, progress, self._resumes, kept)
        self.rounds_kept = round_number

    def _return_to(self, round_number: int) -> None:
        """Return to the state after a round; nothing of later rounds remains."""
        self.rules.return_to(round_number)
        # Building takes seconds, which a client at its start need not spend again.
        if self._is_changed:
            self._build()
            self._is_changed = False
        if self.handovers is not None:
            self.handovers.made = {}
        if round_number:
            folder = self.out / CHECKPOINTS
            self._load(checkpoints.load_round(folder, self._resumes, round_number))
            self._is_changed = True
        self.rounds_kept = round_number

    def _mark(self, round_number: int) -> None:
        """Remember the client's state before a round that may be undone."""
        self.rules.mark(round_number)
        # Copies, since the round changes the live tensors in place.
        self._marked = {name: tensor.detach().clone() for name, tensor in self._state().items()}

    def _undo(self, round_number: int) -> None:
        """Return to the state before the round."""
        self.rules.undo(round_number)
        self._load(self._marked)

    def _state(self) -> dict[str, Tensor]:
        """Return everything that the client's next step depends on."""
        state = {f"own/{name}": t for name, t in self.client.keeping.state().items()}
        state |= {f"shared/{name}": t for name, t in self.client.sharing.state().items()}
        handovers = {} if self.handovers is None else self.handovers.state()
        return state | {f"handing/{name}": tensor for name, tensor in handovers.items()}

    def _load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `_state` returned."""
        self.client.sharing.load(select_below(state, "shared/"))
        self.client.keeping.load(select_below(state, "own/"))
        if self.handovers is not None:
            self.handovers.load(select_below(state, "handing/"))
