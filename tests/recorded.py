"""Transcripts of runs for tests of audits: the observer's, and the sessions that attacks read."""

from pathlib import Path

from simsplit.attacking.session_judge import write_sessions
from simsplit.experiment import Experiment
from simsplit.observers.wire_recorder import TranscriptConfig
from simsplit.phases import EVALUATE
from simsplit.scenario import Scenario
from simsplit.wires.transcript import Transcript
from simsplit.wires.transcript_writer import TranscriptWriter


def record_run(given: Scenario, path: Path) -> tuple[Path, Path]:
    """Run a scenario, recorded; return the run's folder and the transcript's."""
    folder = path / "run"
    wire = folder / "transcript"
    run = Experiment(given, folder, [TranscriptConfig().build(folder)])
    run.run(resume=False)
    if any(config.recovers == "sessions" for config in given.attacks):
        number, moment = run.live.progress.round, run.parts.wire.moment
        with moment.enter_round(number, run.live.program.phases[-1]), moment.count_as(EVALUATE):
            written = write_sessions(given, run.parts, run.data, number)
        writer = TranscriptWriter(wire, Transcript.open(wire).facts, append=True)
        for packet in written.packets:
            writer.add_packet(packet, "sessions")
        writer.close()
    return folder, wire
