"""The judge of attacks on sessions scores prompts, responses, and both together.

A client's model continues the targets' prompts as in evaluation, with the run's own weights;
attacks get only the packets of that. Both sides are scored on the tokens that crossed: the last
written token never crosses. Special tokens are left out.

Guesses that need no attack are scored too: random tokens, the most frequent token, and what the
model writes without a prompt (after its begin or end token only). A further row has the utility of
the texts: METEOR of what was written against the references.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.attacking.attack_judge import AttackJudge, KindScores
from simsplit.attacking.text_scorer import find_special, make_text_floors
from simsplit.attacks import Knowledge
from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.known_pairs import is_ceiling
from simsplit.attacks.session_attack import SessionAttack
from simsplit.attacks.session_records import Record, build_record, build_record_of_last_passes
from simsplit.attacks.targets import TargetsConfig
from simsplit.data import Prepared
from simsplit.data.samples import Samples
from simsplit.evaluation.generation import split_prompts
from simsplit.metrics.learned import BertScore, Bleurt
from simsplit.metrics.text import (
    combine_ends,
    compute_attack_performance,
    entity_f1,
    meteor,
    token_rouge_l,
)
from simsplit.packets import Packet
from simsplit.results.leak_table import ATTACK, CEILING, FLOOR, WRITTEN, Row, list_leaks
from simsplit.results.recovered_files import SESSIONS, encode_lines
from simsplit.results.recovered_kinds import BOTH, LEARNED, PROMPT, RESPONSE
from simsplit.scenario import Scenario
from simsplit.seeds import rng_for

FLOORS = ("random_tokens", "frequent_token", "said_to_nothing")
"""Guesses that need no attack; the last is what the model writes without a prompt."""
KNOWN_ROUND = 1_000_000
"""The round from which known sessions are counted, far from any of a run."""


@dataclass(frozen=True)
class WrittenSessions:
    """The sessions of one judgement: the server sees the packets, everything else is private."""

    packets: Sequence[Packet]
    in_sessions: bool
    """Whether each token crossed once; otherwise whole texts crossed in every pass."""
    prompts: Sequence[Tensor]
    responses: Sequence[Tensor]
    """The written tokens that crossed."""
    written: Sequence[str]
    """The whole written texts."""
    references: Sequence[str]
    """The references for the written texts."""
    unprompted: Tensor
    """The tokens that the model writes without a prompt."""

    def record(self, known: Knowledge) -> Record:
        """Return what the server has of the sessions."""
        if self.in_sessions:
            return build_record(known, self.packets)
        prompts, responses = (
            torch.tensor([len(text) for text in side]) for side in (self.prompts, self.responses)
        )
        return build_record_of_last_passes(known, self.packets, prompts + responses, prompts)


class _Recorder:
    """A tap of the wire that keeps the packets of writing."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []

    def observe(self, packet: Packet) -> None:
        """Keep a packet of the sessions, for the attacks' record."""
        self.packets.append(packet)


def write_sessions(
    scenario: Scenario, parts: Assembly, data: Prepared, number: int
) -> WrittenSessions:
    """Have the targets' client continue their prompts, and return the sessions."""
    samples, rows = scenario.aims.choose(data)
    return write_after(scenario, parts, samples.take(rows), number)


def write_after(
    scenario: Scenario, parts: Assembly, samples: Samples, number: int
) -> WrittenSessions:
    """Have the targets' client continue the prompts of samples, and return the sessions."""
    generator, targets = parts.evaluator.generator, scenario.aims
    assert generator is not None, "the scenario's checks refuse sessions without generation"
    writer, reader = generator.writer, generator.reader
    prompts, references = split_prompts(reader, samples, halved=True)
    recorder = _Recorder()
    parts.wire.taps.append(recorder)
    try:
        texts = writer.write(targets.client, prompts, targets.tokens, number)
    finally:
        parts.wire.taps.remove(recorder)
    rooms = [min(targets.tokens, writer.positions - len(each) + 1) for each in prompts]
    # A text that ends at its limit ends with a token that is never sent, for none follows it.
    crossed = [
        torch.tensor(text[: room - 1], dtype=torch.int64)  # an empty list would become floats
        for text, room in zip(texts, rooms, strict=True)
    ]
    begin = torch.tensor([reader.end if reader.begin is None else reader.begin])
    # Written after the recorder is gone: this floor is a guess that needs no packets, so attacks
    # must not see its own.
    longest = max(len(p) + len(r) for p, r in zip(prompts, crossed, strict=True))
    (unprompted,) = writer.write(targets.client, [begin], longest, number)
    return WrittenSessions(
        packets=recorder.packets,
        in_sessions=writer.in_sessions(""),
        prompts=prompts,
        responses=crossed,
        written=[reader.decode(text).strip() for text in texts],
        references=references,
        unprompted=torch.tensor(unprompted, dtype=torch.int64),
    )


def _load_learned(targets: TargetsConfig) -> dict[str, BertScore | Bleurt]:
    """Load the learned metrics for which the scenario names weights."""
    metrics: tuple[type[BertScore | Bleurt], ...] = (BertScore, Bleurt)
    return {
        name: metric(path, f"targets.{name}")
        for name, metric in zip(LEARNED, metrics, strict=True)
        if (path := getattr(targets, name)) is not None
    }


class SessionJudge(AttackJudge[SessionAttack]):
    """The judge that compares what attacks read of sessions with the private texts."""

    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly) -> None:
        assert data.vocabulary is not None, "only data of texts have sessions"
        self.scenario, self.parts = scenario, parts
        self.number = 0
        """The round of the current judgement."""
        self.sessions: WrittenSessions | None = None
        """The sessions of the current judgement."""
        self.alpha, self.seed, self.data = scenario.targets.alpha, scenario.seed, data
        self.vocabulary, self.reader = data.vocabulary, scenario.text_reader()
        compute_attack_performance(
            "x", "x"
        )  # a missing package raises now rather than after training
        self._learned = _load_learned(scenario.targets)

    def begin(self, number: int) -> None:
        self.number = number
        self.sessions = write_sessions(self.scenario, self.parts, self.data, number)

    def inform(self, attack: SessionAttack) -> None:
        attack.hear(self._get_sessions().record(attack.known))
        if attack.known_sessions:
            attack.learn_sessions(*self._write_known_sessions(attack))

    def _write_known_sessions(self, attack: SessionAttack) -> tuple[Record, Tensor]:
        """Have the client write after public prompts; return the record and the tokens."""
        public = self.data.auxiliary
        assert public is not None, "the scenario's checks refuse known sessions without it"
        known = public.take(torch.arange(min(attack.known_sessions, len(public))))
        # A round of their own: with the targets' draws, their noise would be the targets' too.
        number = KNOWN_ROUND + self.number
        sessions = write_after(self.scenario, self.parts, known, number)
        tokens = [
            torch.cat(pair) for pair in zip(sessions.prompts, sessions.responses, strict=True)
        ]
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=NOTHING)
        return sessions.record(attack.known), padded

    def score(self, number: int, attacks: Mapping[str, SessionAttack]) -> KindScores:
        """Return a row for each attack, session and side, and one for both sides."""
        sessions = self._get_sessions()
        rows: list[Row] = []
        dialogues: list[Row] = []
        read = {name: list(attack.recovered.cpu()) for name, attack in attacks.items()}
        for name, tokens in (*read.items(), *self._make_floors(sessions).items()):
            for sides, dialogue in self._judge(name, tokens, sessions):
                rows += sides
                dialogues.append(dialogue)
        pairs = zip(sessions.written, sessions.references, strict=True)
        for session, (written, reference) in enumerate(pairs):
            row = {"attack": WRITTEN, "session": session, "side": RESPONSE}
            ap = compute_attack_performance(written, reference)
            rows.append({**row, "ap": ap, "meteor": meteor(written, reference)})
        self._add_learned(rows, dialogues, sessions)
        leaks = [leak for row in rows for leak in _list_leaks(number, row)]
        return KindScores(leaks, {SESSIONS: encode_lines(dialogues)})

    def _get_sessions(self) -> WrittenSessions:
        assert self.sessions is not None, "a judgement begins with `begin`"
        return self.sessions

    def _add_learned(
        self, rows: list[Row], dialogues: Sequence[Row], sessions: WrittenSessions
    ) -> None:
        """Add the learned metrics of each side as it was read, and of what was written."""
        if not self._learned:
            return
        pairs: dict[tuple[object, ...], tuple[str, str]] = {
            (each["attack"], each["session"], side): (str(each[side]), str(each[f"private_{side}"]))
            for each in dialogues
            for side in (PROMPT, RESPONSE)
        }
        for session, pair in enumerate(zip(sessions.written, sessions.references, strict=True)):
            pairs[WRITTEN, session, RESPONSE] = pair
        rows = [row for row in rows if "ap" in row and row["side"] != BOTH]
        compared = [pairs[row["attack"], row["session"], row["side"]] for row in rows]
        texts, truths = [text for text, _ in compared], [truth for _, truth in compared]
        # One call for all texts: the networks work in batches.
        for name, score in self._learned.items():
            for row, value in zip(rows, score(texts, truths), strict=True):
                row[name] = value

    def _judge(
        self, name: str, tokens: Sequence[Tensor], sessions: WrittenSessions
    ) -> Iterator[tuple[list[Row], Row]]:
        """Yield the rows of an attack or floor, one by side, and the dialogue of each session."""
        private = zip(sessions.prompts, sessions.responses, tokens, strict=True)
        for session, (prompt, response, guess) in enumerate(private):
            place = {"attack": name, "session": session}
            ends = len(prompt), len(prompt) + len(response)
            sides = {
                PROMPT: self._pair(guess[: ends[0]], prompt),
                RESPONSE: self._pair(guess[ends[0] : ends[1]], response),
            }
            figures = {side: self._compute_figures(*pair) for side, pair in sides.items()}
            both = self._combine_ends(*(each.get("ap") for each in figures.values()))
            rows = [{**place, "side": s, **each} for s, each in {**figures, BOTH: both}.items()]
            texts: dict[str, object] = {s: self._decode(pair[0]) for s, pair in sides.items()}
            texts |= {f"private_{side}": self._decode(pair[1]) for side, pair in sides.items()}
            texts |= {f"tokens_{side}": self._pair_tokens(*pair) for side, pair in sides.items()}
            yield rows, {**place, **texts}

    def _combine_ends(self, of_prompt: object, of_response: object) -> Row:
        """Return the figure of both ends, or nothing if one end has no tokens."""
        if not (isinstance(of_prompt, float) and isinstance(of_response, float)):
            return {}
        return {"ap": combine_ends(of_prompt, of_response, self.alpha)}

    def _pair(self, guess: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Return a side as it was read and as it was, without the places of special tokens."""
        padded = torch.full_like(truth, NOTHING)
        padded[: len(guess)] = guess[: len(truth)]
        # By the truth alone: an attack that reads a special token in a text's place is wrong there.
        kept = ~find_special(truth, self.vocabulary)
        return padded[kept], truth[kept]

    def _compute_figures(self, guess: Tensor, truth: Tensor) -> Row:
        """Return the figures of one side, or nothing if no text of it crossed."""
        made, private = self._decode(guess), self._decode(truth)
        if not private.strip():
            return {}
        return {
            "ap": compute_attack_performance(made, private),
            "meteor": meteor(made, private),
            "token_rouge_l": token_rouge_l(guess[guess != NOTHING].tolist(), truth.tolist()),
            "token_accuracy": float((guess == truth).double().mean()),
            "entity_f1": entity_f1(made, private),
        }

    def _pair_tokens(self, guess: Tensor, truth: Tensor) -> list[list[str]]:
        """Return the text of each private token with the text that it was read as."""
        pairs = zip(truth.split(1), guess.split(1), strict=True)
        return [[self._decode(private), self._decode(read)] for private, read in pairs]

    def _decode(self, tokens: Tensor) -> str:
        return self.reader.decode(tokens[tokens != NOTHING].tolist())

    def _make_floors(self, sessions: WrittenSessions) -> dict[str, list[Tensor]]:
        rng = rng_for(self.seed, "floor of sessions")
        sides = zip(sessions.prompts, sessions.responses, strict=True)
        lengths = [len(prompt) + len(response) for prompt, response in sides]
        said = [self._guess_unprompted(sessions, len(prompt)) for prompt in sessions.prompts]
        guesses = (*make_text_floors(self.data, lengths, rng), said)
        return dict(zip(FLOORS, guesses, strict=True))

    def _guess_unprompted(self, sessions: WrittenSessions, boundary: int) -> Tensor:
        """Return the unprompted text as a guess at the prompt, and again at the response."""
        prompt = torch.full((boundary,), NOTHING)
        beginning = sessions.unprompted[:boundary]
        prompt[: len(beginning)] = beginning
        return torch.cat([prompt, sessions.unprompted])


def _list_leaks(number: int, row: Row) -> Iterator[Row]:
    """Yield the leaks of a session's side, which a row has as columns."""
    name, session, side = (row[each] for each in ("attack", "session", "side"))
    roles = {WRITTEN: WRITTEN, **dict.fromkeys(FLOORS, FLOOR)}
    role = roles.get(str(name), CEILING if is_ceiling(str(name)) else ATTACK)
    place = {"round": number, "kind": "sessions", "attack": name, "role": role}
    figures = {n: value for n, value in row.items() if n not in ("attack", "session", "side")}
    yield from list_leaks({**place, "target": session, "view": side}, figures)
