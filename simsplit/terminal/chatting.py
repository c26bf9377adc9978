"""A user can write through the cut of a finished run, and see what crossed it for each text."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from simsplit.assembly import Assembler
from simsplit.assembly.blank_texts import make_blank_texts
from simsplit.assembly.exchanges import build_writer
from simsplit.assembly.state import restore
from simsplit.errors import RunError, SimsplitError
from simsplit.evaluation.writing import Sampling, Writer
from simsplit.legs import ClientId, Leg
from simsplit.models.language import CausalLM
from simsplit.packets import Packet
from simsplit.plugins import Plugins
from simsplit.report.tables import Table
from simsplit.results import SCENARIO, Run
from simsplit.scenario import Scenario, load_scenario
from simsplit.sizes import format_size

COLUMNS = ("leg", "packets", "bytes", "bytes per new token")


@dataclass(frozen=True)
class Written:
    """A written text, and the packets that crossed for it."""

    text: str
    tokens: int
    packets: list[Packet]
    read: str | None
    """The text that the server reads from its features, with its own or the pretrained tail.

    None without such a tail, or if the features are not those of one text."""

    def tabulate_bytes(self) -> Table:
        """Return a table of the packets and bytes by leg."""
        rows = []
        for leg in dict.fromkeys(packet.leg for packet in self.packets):
            sizes = [packet.nbytes for packet in self.packets if packet.leg is leg]
            each = format_size(sum(sizes) / max(1, self.tokens))
            rows.append((str(leg), str(len(sizes)), format_size(sum(sizes)), each))
        return Table("what crossed the cut", COLUMNS, rows)


class Chat:
    """A finished run's model, cut as it was trained."""

    def __init__(self, path: Path, client: ClientId, plugins: Plugins) -> None:
        run = Run.load(path)
        scenario = load_scenario(run.path / SCENARIO, {}, plugins)
        if not isinstance(scenario.model, CausalLM):
            raise RunError(f"{path} trained a {scenario.model.kind}, which writes no texts")
        if not 0 <= client < scenario.clients.count:
            raise RunError(f"no client {client}; allowed: 0 to {scenario.clients.count - 1}")
        self.scenario, self.client, self.reader = scenario, client, scenario.text_reader()
        # A run's attacks have texts to recover; here only the model writes.
        plain = scenario.model_copy(update={"attacks": ()})
        data = make_blank_texts(scenario) or scenario.prepare_data()
        assembler, self.parts, _ = restore(run.path, scenario, data, client, plain)
        writer = build_writer(scenario, self.parts.exchange)
        assert writer is not None, "a causal language model has a writer"
        self.writer: Writer = writer
        self.tail = _load_pretrained_tail(scenario, assembler)
        self._packets: list[Packet] = []
        self.parts.wire.taps.append(self)

    def observe(self, packet: Packet) -> None:
        """Keep a packet; the chat is a tap of the wire."""
        self._packets.append(packet)

    def write(self, prompt: str, tokens: int, sampling: Sampling | None = None) -> Written:
        """Return what the model writes after a prompt, and the packets that crossed for it."""
        begin = [] if self.reader.begin is None else [self.reader.begin]
        (ids,) = self.reader.encode([prompt])
        if not ids:
            raise SimsplitError("the prompt is empty; give it a word or more to go on with")
        self._packets.clear()
        writer = replace(self.writer, sampling=sampling)
        (written,) = writer.write(self.client, [torch.tensor([*begin, *ids])], tokens)
        crossed, start = list(self._packets), len(begin) + len(ids) - 1
        text = self.reader.decode(written)
        has_tail = "tail" in self.scenario.crossings.served
        read = text if has_tail else self._read(crossed, start)
        return Written(text, len(written), crossed, read)

    @torch.no_grad()
    def _read(self, packets: list[Packet], start: int) -> str | None:
        """Return the text that the server reads with the tail that everyone can download."""
        if self.tail is None:
            return None
        server, seen = self.parts.server, torch.empty(0)
        for packet in (each for each in packets if each.leg is Leg.FEATURES):
            made = server.stack.unpack(packet.leg, packet.tensors, server.end.open_step(packet))
            seen = torch.cat([seen, made], 1) if packet.position else made
        if len(seen) != 1:
            return None  # a method that mixes or covers sends several rows for one text
        read: Tensor = self.tail(seen)[0, start:].argmax(-1)
        return self.reader.decode(read.tolist())


def _load_pretrained_tail(scenario: Scenario, assembler: Assembler) -> torch.nn.Module | None:
    """Return the tail with its initial weights if these are public, else None."""
    model = scenario.model
    if not isinstance(model, CausalLM) or not model.is_start_public:
        return None
    info = assembler.data.info
    return model.segment("tail", info.shape, info.classes, scenario.seed).eval()
