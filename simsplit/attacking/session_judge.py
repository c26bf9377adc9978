"""Sessions that attacks are judged on, and their judge: both ends apart, and together.

A client's model goes on with the targets' prompts as it does in evaluation, by the run's own
weights; attacks are given the packets of that and nothing else. Both sides are judged on the tokens
that crossed: the last one that is written never does. Special tokens are left out.

Beside the attacks stand guesses that need none: random tokens, the most frequent token, and what
the model says to nothing (after its begin or end token alone). A row of its own says what the texts
are worth: METEOR of what was written against the references.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.attacking.judging import AttackJudge, KindScores, Row
from simsplit.attacks import Knowledge
from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.session_attack import SessionAttack
from simsplit.attacks.session_records import Record, build_record, build_record_of_last_passes
from simsplit.attacks.targets import TargetsConfig
from simsplit.data import Prepared
from simsplit.metrics.ends import attack_performance, entity_f1, of_both_ends
from simsplit.metrics.learned import BertScore, Bleurt
from simsplit.metrics.text import meteor
from simsplit.packets import Packet
from simsplit.results.kept import SESSIONS, encode_lines
from simsplit.results.session_results import (
    BOTH,
    COLUMNS,
    FLOORS,
    LEARNED,
    PROMPT,
    RESPONSE,
    WRITTEN,
)
from simsplit.scenario import Scenario
from simsplit.seeds import rng_for


@dataclass(frozen=True)
class Spoken:
    """Sessions of one judgement: the packets are the server's, all else is private."""

    packets: Sequence[Packet]
    in_sessions: bool
    """Whether each token crossed once; else whole texts did, in every pass."""
    prompts: Sequence[Tensor]
    responses: Sequence[Tensor]
    """The written tokens that crossed."""
    said: Sequence[str]
    """All that was written."""
    meant: Sequence[str]
    """The references."""
    to_nothing: Tensor
    """What the model writes without a prompt."""

    def record(self, known: Knowledge) -> Record:
        """What the server has of them."""
        if self.in_sessions:
            return build_record(known, self.packets)
        prompts, written = (
            torch.tensor([len(text) for text in side]) for side in (self.prompts, self.responses)
        )
        return build_record_of_last_passes(known, self.packets, prompts + written, prompts)


class _Recorder:
    """A tap that keeps the packets of writing."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []

    def observe(self, packet: Packet) -> None:
        """See a packet on its way."""
        self.packets.append(packet)


def spoken(scenario: Scenario, parts: Assembly, data: Prepared, number: int) -> Spoken:
    """Have the targets' client write after their prompts."""
    generator, targets = parts.evaluator.generator, scenario.aims
    assert generator is not None, "refused without when the scenario is read"
    writer, reader = generator.writer, generator.reader
    samples, rows = targets.choose(data)
    prompts, meant = generator.prompts_and_answers(samples.take(rows), halved=True)
    recorder = _Recorder()
    parts.wire.taps.append(recorder)
    try:
        said = writer.write(targets.client, prompts, targets.tokens, number)
    finally:
        parts.wire.taps.remove(recorder)
    rooms = [min(targets.tokens, writer.positions - len(each) + 1) for each in prompts]
    crossed = [torch.tensor(s[: room - 1]) for s, room in zip(said, rooms, strict=True)]
    begin = torch.tensor([reader.end if reader.begin is None else reader.begin])
    longest = max(len(p) + len(r) for p, r in zip(prompts, crossed, strict=True))
    (to_nothing,) = writer.write(targets.client, [begin], longest, number)
    return Spoken(
        packets=recorder.packets,
        in_sessions=writer.in_sessions(""),
        prompts=prompts,
        responses=crossed,
        said=[reader.decode(text).strip() for text in said],
        meant=meant,
        to_nothing=torch.tensor(to_nothing, dtype=torch.int64),
    )


_LEARNED: Mapping[str, type[BertScore | Bleurt]] = dict(
    zip(LEARNED, (BertScore, Bleurt), strict=True)
)


def _asked(targets: TargetsConfig) -> tuple[str, ...]:
    return tuple(name for name in LEARNED if getattr(targets, name) is not None)


def _learned(targets: TargetsConfig) -> dict[str, BertScore | Bleurt]:
    """The networks that are asked for."""
    return {
        name: _LEARNED[name](getattr(targets, name), f"targets.{name}") for name in _asked(targets)
    }


@dataclass
class _Readings:
    """What comes of a judgement, as it is put together."""

    rows: list[Row] = field(default_factory=list)
    """One for each attack, session and side; the floors, and what was written."""
    dialogues: list[Row] = field(default_factory=list)
    """Prompts and responses as they were read, beside the private ones."""


class SessionJudge(AttackJudge[SessionAttack]):
    """Holds what attacks read against what was private."""

    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly) -> None:
        assert data.vocabulary is not None, "of texts"
        self.scenario, self.parts = scenario, parts
        self.spoken: Spoken | None = None
        """The sessions of the judgement that has begun."""
        self.alpha, self.seed, self.data = scenario.targets.alpha, scenario.seed, data
        self.vocabulary, self.reader = data.vocabulary, scenario.text_reader()
        self._special = torch.tensor(sorted(self.vocabulary.special))
        attack_performance("x", "x")  # a package that lacks is told of now, and not after training
        self._learned = _learned(scenario.targets)

    @staticmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """Return those of the table that it fills."""
        return (*COLUMNS, *_asked(scenario.targets))

    def begin(self, number: int) -> None:
        """Have the targets' client write the sessions that attacks are judged on."""
        self.spoken = spoken(self.scenario, self.parts, self.data, number)

    def inform(self, attack: SessionAttack) -> None:
        """Give an attack what the server has of the sessions."""
        attack.hear(self._sessions().record(attack.known))

    def score(self, number: int, attacks: Mapping[str, SessionAttack]) -> KindScores:
        """Score a row for each attack, session and side, and one for both sides."""
        spoken, found = self._sessions(), _Readings()
        for name, attack in attacks.items():
            self._judge(name, list(attack.recovered.cpu()), spoken, found)
        for name, tokens in self._floors(spoken).items():
            self._judge(name, tokens, spoken, found)
        for session, (said, meant) in enumerate(zip(spoken.said, spoken.meant, strict=True)):
            row = {"attack": WRITTEN, "session": session, "side": RESPONSE}
            ap = attack_performance(said, meant)
            found.rows.append({**row, "ap": ap, "meteor": meteor(said, meant)})
        for row in found.rows:
            row["round"] = number
        self._add_learned(found, spoken)
        return KindScores(found.rows, {SESSIONS: encode_lines(found.dialogues)})

    def _sessions(self) -> Spoken:
        assert self.spoken is not None, "which judging begins with"
        return self.spoken

    def _add_learned(self, found: _Readings, spoken: Spoken) -> None:
        """What networks say of each side as it was read, and of what was written."""
        if not self._learned:
            return
        pairs: dict[tuple[object, ...], tuple[str, str]] = {
            (told["attack"], told["session"], side): (str(told[side]), str(told[f"private_{side}"]))
            for told in found.dialogues
            for side in (PROMPT, RESPONSE)
        }
        for session, pair in enumerate(zip(spoken.said, spoken.meant, strict=True)):
            pairs[WRITTEN, session, RESPONSE] = pair
        rows = [row for row in found.rows if "ap" in row and row["side"] != BOTH]
        read = [pairs[row["attack"], row["session"], row["side"]] for row in rows]
        texts, meant = [text for text, _ in read], [truth for _, truth in read]
        for name, score in self._learned.items():
            for row, value in zip(rows, score(texts, meant), strict=True):
                row[name] = value

    def _judge(self, name: str, tokens: Sequence[Tensor], spoken: Spoken, found: _Readings) -> None:
        private = zip(spoken.prompts, spoken.responses, tokens, strict=True)
        for session, (prompt, response, guess) in enumerate(private):
            place = {"attack": name, "session": session}
            ends = len(prompt), len(prompt) + len(response)
            sides = {
                PROMPT: self._pair(guess[: ends[0]], prompt),
                RESPONSE: self._pair(guess[ends[0] : ends[1]], response),
            }
            figures = {side: self._figures(*pair) for side, pair in sides.items()}
            for side, each in figures.items():
                found.rows.append({**place, "side": side, **each})
            both = self._together(*(each.get("ap") for each in figures.values()))
            found.rows.append({**place, "side": BOTH, **both})
            told: dict[str, object] = {side: self._text(pair[0]) for side, pair in sides.items()}
            told |= {f"private_{side}": self._text(pair[1]) for side, pair in sides.items()}
            told |= {f"tokens_{side}": self._by_token(*pair) for side, pair in sides.items()}
            found.dialogues.append({**place, **told})

    def _together(self, of_prompt: object, of_response: object) -> Row:
        """The figure of both ends; where one end has no tokens, none."""
        if not (isinstance(of_prompt, float) and isinstance(of_response, float)):
            return {}
        return {"ap": of_both_ends(of_prompt, of_response, self.alpha)}

    def _pair(self, guess: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        """A side as it was read and as it was, at the places of the tokens that stand for text."""
        padded = torch.full_like(truth, NOTHING)
        padded[: len(guess)] = guess[: len(truth)]
        kept = ~torch.isin(truth, self._special)
        return padded[kept], truth[kept]

    def _figures(self, guess: Tensor, truth: Tensor) -> Row:
        """Of one side; empty where no word of it crossed."""
        made, private = self._text(guess), self._text(truth)
        if not private.strip():
            return {}
        return {
            "ap": attack_performance(made, private),
            "meteor": meteor(made, private),
            "token_accuracy": float((guess == truth).double().mean()),
            "entity_f1": entity_f1(made, private),
        }

    def _by_token(self, guess: Tensor, truth: Tensor) -> list[list[str]]:
        """What each private token says, and what it was read as."""
        pairs = zip(truth.split(1), guess.split(1), strict=True)
        return [[self._text(private), self._text(read)] for private, read in pairs]

    def _text(self, tokens: Tensor) -> str:
        return self.reader.decode(tokens[tokens != NOTHING].tolist())

    def _floors(self, spoken: Spoken) -> dict[str, list[Tensor]]:
        rng = rng_for(self.seed, "floor of sessions")
        lengths = [len(p) + len(r) for p, r in zip(spoken.prompts, spoken.responses, strict=True)]
        drawn = [torch.randint(self.vocabulary.size, (n,), generator=rng) for n in lengths]
        known = (self.data.auxiliary or self.data.train).inputs.flatten()
        often = int(known[~torch.isin(known, self._special)].bincount().argmax())
        guesses = (
            drawn,
            [torch.full((n,), often) for n in lengths],
            [self._of_nothing(spoken, len(prompt)) for prompt in spoken.prompts],
        )
        return dict(zip(FLOORS, guesses, strict=True))

    def _of_nothing(self, spoken: Spoken, boundary: int) -> Tensor:
        """What is said to nothing, for the prompt and, from its beginning again, the response."""
        prompt = torch.full((boundary,), NOTHING)
        said = spoken.to_nothing[:boundary]
        prompt[: len(said)] = said
        return torch.cat([prompt, spoken.to_nothing])
