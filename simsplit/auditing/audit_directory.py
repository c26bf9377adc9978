"""An audit writes a run directory, so `show`, `report` and `compare` read it as any other.

Each attack has the folder that an attack on a finished run has. `audit.json` has the verdict.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path

from simsplit.attacking import Judgement
from simsplit.data import Prepared
from simsplit.machine import find_device
from simsplit.opened_run import OpenedRun
from simsplit.results import SUMMARY, Run
from simsplit.results.directory import encode_csv, make_folder, replace, writing
from simsplit.results.leak_table import COLUMNS, TABLE
from simsplit.results.ledger import Ledger, Round
from simsplit.results.summary import summarise
from simsplit.running.directories import describe_start, table_columns
from simsplit.scenario import Scenario
from simsplit.wire import Counts, Wire

AUDIT = "audit.json"


class AuditDirectory:
    """The run directory of one audit."""

    def __init__(self, path: Path, scenario: Scenario, data: Prepared) -> None:
        self.path, self.scenario, self.data = path, scenario, data
        columns = table_columns(scenario, withheld=scenario.figures)
        self.ledger = Ledger(path, columns, None)
        self._began = time.monotonic()

    def start(self, counts: Counts) -> None:
        """Write what describes the audit, and what crossed by round, client, phase and leg."""
        writer = self.ledger.writer
        describe_start(writer, self.scenario, self.data, find_device(self.scenario.device))
        wire = Wire()
        for number in sorted({key[0] for key in counts}) or [0]:
            own = {key: each for key, each in counts.items() if key[0] == number}
            wire.absorb(own)
            clients = sorted({key[1] for key in own})
            entry = Round(number=number, phase="train", everybody=clients, figures={}, own={})
            self.ledger.enter(entry, wire, 0.0)
            self.ledger.time(number, 0.0, 0.0, 0.0)

    def save(self, attack: str, judged: Judgement, number: int) -> None:
        """Save what one attack has read."""
        folder = self.path / "attacks" / attack
        with writing(folder):
            make_folder(folder.parent)
            make_folder(folder)
        judged.save(folder, number)
        rows = [{name: row.get(name, "") for name in COLUMNS} for row in judged.leaks]
        with writing(folder):
            replace(folder / f"{TABLE}.csv", encode_csv(rows) if rows else _HEADER)

    @staticmethod
    def note(path: Path, facts: Mapping[str, object]) -> None:
        """Write the verdict of a finished audit, and all that belongs to it."""
        with writing(path):
            replace(path / AUDIT, (json.dumps(facts, indent=2) + "\n").encode())

    def finish(self, rounds: int) -> OpenedRun:
        """Write the summary, and return the run."""
        writer = self.ledger.writer
        results = summarise(Run.load(self.path), ())
        results["seconds"] = time.monotonic() - self._began
        place = {"name": self.scenario.name, "status": "finished", "rounds": rounds}
        seed = {"seed": self.scenario.seed}
        writer.write_json(SUMMARY, {**place, **seed, **results})
        return OpenedRun.load(self.path)


_HEADER = (",".join(COLUMNS) + "\n").encode()
