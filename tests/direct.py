"""A server and sites in one process, with frames handed from one to the other: for quick tests."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from simsplit.assembly.ownership import Ownership
from simsplit.data import DataInfo, Prepared
from simsplit.deploy.bounds import Bounds
from simsplit.deploy.client_session import ClientLost, ClientSession
from simsplit.deploy.data_form import make_remote_data
from simsplit.deploy.figure_bounds import Holdings
from simsplit.deploy.handovers import HandoverJudge, undoes_turns
from simsplit.deploy.keys import SERVER, client_name, load_keys, make_keys
from simsplit.deploy.remote_pool import RemotePool
from simsplit.deploy.server_tables import SocketTable
from simsplit.deploy.site import ClientSite
from simsplit.deploy.terms import describe_data
from simsplit.errors import ProtocolError
from simsplit.experiment import Experiment
from simsplit.progress import Observer
from simsplit.scenario import Scenario


class Direct(ClientSession):
    """A session whose client is asked at once."""

    def __init__(
        self, site: ClientSite, most_bytes: int, sockets: SocketTable, frames: list[bytes]
    ) -> None:
        super().__init__(site.number, most_bytes, 5.0, sockets)
        self.site, self.frames = site, frames

    def ask(self, *args: Any, **more: Any) -> int:
        number = super().ask(*args, **more)
        frame = self._leaving.get()
        assert frame is not None
        try:
            answer = self.site.answer(frame)
        except ProtocolError as error:  # a client that leaves
            raise ClientLost(self.client, str(error)) from None
        self.frames += [frame, answer]
        self.arrive(answer)
        return number


class Sites:
    """Sites of a scenario, here, and every frame that crosses."""

    def __init__(
        self, given: Scenario, path: Path, held: Prepared | None = None, **more: Any
    ) -> None:
        """`held` are other data than the scenario's."""
        data = held or given.prepare_data()
        self.given, self.path, self.frames = given, path, list[bytes]()
        self.sites = [
            ClientSite(given, data, number, path / f"c{number}", **more)
            for number in range(given.clients.count)
        ]
        self.keys = path / "keys"
        if not self.keys.exists():
            make_keys(self.keys, given.clients.count, 1)
        for site in self.sites:
            site.enable_sealing(load_keys(self.keys, client_name(site.number)))
        self.counts, self.form = [len(part) for part in data.parts], describe_data(data)
        self.data = make_remote_data("digits", self.form, self.counts)
        self.sockets = SocketTable(path)
        self.lost: set[int] = set()

    def __len__(self) -> int:
        return 0

    def pool(
        self, recipe_of: Callable[[str], Any], samples: Sequence[int], device: torch.device
    ) -> RemotePool:
        del recipe_of, samples
        for site in self.sites:
            site.start_stream()
        sessions = {
            site.number: Direct(site, site.bounds.most_bytes, self.sockets, self.frames)
            for site in self.sites
        }
        own = self.sites[0].bounds
        samples_of = dict(enumerate(self.counts))
        holdings = Holdings(samples_of, own.figures.holdings.held_out)
        info = DataInfo(tuple(self.form["sample"]), len(self.form["classes"]), self.form["texts"])
        bounds = Bounds(Ownership(self.given, info, torch.device("cpu")), holdings)
        judge = None
        if bounds.hands_on:
            keys = load_keys(self.keys, SERVER)
            strict = not undoes_turns(self.given)
            judge = HandoverJudge(keys, bounds, self.sites[0].terms, strict=strict)
        return RemotePool(sessions, bounds, device, self.lose, judge)

    def lose(self, client: int, why: str, for_good: bool, round_number: int) -> None:
        """Note that a client is lost, for whatever reason."""
        del why, for_good, round_number
        self.lost.add(client)

    @property
    def left_out(self) -> tuple[int, ...]:
        return ()

    def give_up(self, host: int, why: str, round_number: int) -> bool:
        return False

    def revive(self) -> list[int]:
        """Bring a lost client back in another process, with its checkpoints alone."""
        for number in self.lost:
            old = self.sites[number]
            site = ClientSite(
                self.given, old.data, number, old.out, mode=old.mode, secret=old.secret
            )
            site.enable_sealing(load_keys(self.keys, client_name(number)))
            self.sites[number] = site
        self.lost.clear()
        return []

    def resident_bytes(self) -> list[int | None]:
        return []

    def experiment(self, *observers: Observer) -> Experiment:
        watching = [self.sockets, *observers]
        return Experiment(self.given, self.path / "run", watching, self.data, self)
