"""Whose step has spoilt the trunk, and whose fault an exception is."""

import errno
import os
from typing import Any

import pytest
import torch
from torch import nn

from simsplit.deploy.client_session import ClientLost
from simsplit.deploy.remote_pool import RemotePool
from simsplit.deploy.server_tables import LeftOutTable, clean
from simsplit.deploy.trunk_watch import (
    CLIP_NORM,
    MOST_GROWTH,
    MOST_IN_ROUND,
    Growth,
    RoundSpoilt,
    TrunkWatch,
    find_odd,
)
from simsplit.engine.pool import ClientAtFault
from simsplit.errors import ProtocolError, RunError, RunFailedError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig

NAN = float("nan")


def packets(client: int, *tensors: torch.Tensor) -> tuple[Packet, ...]:
    return (Packet(client, Leg.SMASHED, 1, 0, tensors),)


def send_equal(*clients: int) -> dict[int, tuple[Packet, ...]]:
    return {client: packets(client, torch.ones(2, 3)) for client in clients}


@pytest.fixture
def pool() -> RemotePool:
    lost: list[tuple[Any, ...]] = []
    bounds: Any = None
    made = RemotePool({}, bounds, torch.device("cpu"), lambda *all_: lost.append(all_))
    vars(made)["lost"] = lost
    return made


def lost_by(pool: RemotePool) -> list[tuple[Any, ...]]:
    """Return whom a pool has lost: the client, why, whether for good, and the round."""
    lost: list[tuple[Any, ...]] = vars(pool)["lost"]
    return lost


def push(learner: Learner, value: float) -> None:
    with torch.no_grad():
        learner.parameters[0].fill_(value)


def find_guilty(watch: TrunkWatch, *clients: int) -> int:
    with pytest.raises(ClientAtFault) as result:
        watch.check_step(send_equal(*clients))
    return result.value.client


@pytest.fixture
def learner() -> Learner:
    return Learner({"trunk": nn.Linear(3, 3)}, AdamConfig(lr=0.01))


TOO_LARGE = {0: packets(0, torch.tensor([NAN]))}


class TestStepByStep:
    """Once a round has spoilt the trunk, it is measured after each step, and then clipped."""

    @pytest.fixture
    def watch(self, learner: Learner) -> TrunkWatch:
        watch = TrunkWatch(learner, Growth(step_by_step=True, clips=True))
        watch.begin_round()
        return watch

    @pytest.mark.parametrize("value", [NAN, float("inf"), 1e20, 3e38, -1e10])
    def test_the_client_whose_step_it_was(self, watch, learner, value):
        watch.check_step(send_equal(0))
        push(learner, value)
        assert find_guilty(watch, 1) == 1

    def test_moments_too(self, watch, learner):
        """Adam's second moment overflows where its weights hardly move."""
        for parameter in learner.parameters:
            parameter.grad = torch.full_like(parameter, 1e20)
        learner.step()
        assert watch.learner.parameters[0].isfinite().all()
        assert find_guilty(watch, 1) == 1

    def test_not_an_honest_one_in_whose_step_it_shows(self, watch, learner):
        push(learner, 10 * MOST_GROWTH)
        watch.check_step(send_equal(2))
        push(learner, NAN)
        assert find_guilty(watch, 0) == 2

    def test_not_an_honest_one_whose_step_then_made_it_larger_still(self, watch, learner):
        for factor, client in ((0.1, 1), (10, 2), (1e4, 1)):
            push(learner, factor * MOST_GROWTH)
            watch.check_step(send_equal(client))
        push(learner, NAN)
        assert find_guilty(watch, 0) == 2

    def test_nor_for_answers_that_are_too_large(self, watch, learner):
        with pytest.raises(ClientAtFault) as result:
            watch.check_answers(TOO_LARGE, send_equal(0))
        assert result.value.client == 0
        push(learner, 10 * MOST_GROWTH)
        watch.check_step(send_equal(2))
        with pytest.raises(ClientAtFault) as result:
            watch.check_answers(TOO_LARGE, send_equal(0))
        assert result.value.client == 2

    def test_integers_and_honest_steps_pass(self, watch, learner):
        for value in (0.5, 1.5, 0.1):
            push(learner, value)
            watch.check_step(send_equal(0, 1))
        watch.check_answers({0: packets(0, torch.arange(3), torch.ones(0))}, send_equal(0))
        watch.end_round()


class TestBeforeAnybodyIsBlamed:
    """Little by little a client makes the trunk so large that an honest step overflows."""

    def test_the_round_is_done_again_with_clipped_gradients(self, learner):
        growth = Growth(step_by_step=True)
        watch = TrunkWatch(learner, growth)
        watch.begin_round()
        assert learner.clip_norm is None
        push(learner, NAN)
        with pytest.raises(RoundSpoilt):
            watch.check_step(send_equal(1))
        again = Learner({"trunk": nn.Linear(3, 3)}, AdamConfig(lr=0.01))
        TrunkWatch(again, growth).begin_round()
        assert again.clip_norm == CLIP_NORM

    @pytest.mark.parametrize(("own", "norm"), [(0.1, 0.1), (50.0, CLIP_NORM), (None, CLIP_NORM)])
    def test_the_smaller_norm_is_kept(self, own, norm):
        learner = Learner({"trunk": nn.Linear(3, 3)}, AdamConfig(lr=0.01), own)
        TrunkWatch(learner, Growth(clips=True)).begin_round()
        assert learner.clip_norm == norm

    def test_a_copys_owner_is_blamed_at_once(self, learner):
        watch = TrunkWatch(learner, Growth(step_by_step=True))
        watch.begin_copy(3)
        push(learner, NAN)
        with pytest.raises(ClientAtFault) as result:
            watch.end_copy()
        assert result.value.client == 3


class TestOnceARound:
    """Until then a round that spoils the trunk is done again, and nobody is blamed for it."""

    @pytest.fixture
    def watch(self, learner: Learner) -> TrunkWatch:
        watch = TrunkWatch(learner, Growth())
        watch.begin_round()
        return watch

    @pytest.mark.parametrize("value", [NAN, float("inf"), 1e20, 10 * MOST_IN_ROUND])
    def test_at_its_end(self, watch, learner, value):
        push(learner, value)
        watch.check_step(send_equal(1))
        with pytest.raises(RoundSpoilt):
            watch.end_round()
        assert watch._growth.step_by_step
        watch.end_round()

    def test_or_before_answers_that_are_too_large(self, watch):
        for _ in ("step by step", "clipped"):
            with pytest.raises(RoundSpoilt):
                watch.check_answers(TOO_LARGE, send_equal(0))
        with pytest.raises(ClientAtFault):
            watch.check_answers(TOO_LARGE, send_equal(0))

    def test_honest_rounds_pass(self, watch, learner):
        for value in (0.5, 10.0, 0.1):
            push(learner, value)
            watch.check_step(send_equal(0))
        watch.end_round()
        assert not watch._growth.step_by_step

    def test_a_pool_expels_nobody_for_it(self, pool):
        with pytest.raises(RoundSpoilt), pool.work_on({3: ()}):
            raise RoundSpoilt
        assert not lost_by(pool)


class TestACopy:
    """A client's own copy of the trunk is measured at the end; only its owner has changed it."""

    @pytest.fixture
    def watch(self, learner: Learner) -> TrunkWatch:
        watch = TrunkWatch(learner, Growth())
        watch.begin_round()
        watch.begin_copy(1)
        return watch

    def test_that_overflows(self, watch, learner):
        push(learner, NAN)
        watch.check_step(send_equal(1))
        with pytest.raises(ClientAtFault) as result:
            watch.end_copy()
        assert result.value.client == 1

    def test_that_makes_answers_too_large(self, watch):
        with pytest.raises(ClientAtFault) as result:
            watch.check_answers({1: TOO_LARGE[0]}, send_equal(1))
        assert result.value.client == 1
        assert not watch._growth.step_by_step

    def test_that_has_become_large_is_remembered(self, watch, learner):
        push(learner, 10 * MOST_GROWTH)
        watch.end_copy()
        watch.begin_copy(2)
        with pytest.raises(ClientAtFault) as result:
            watch.check_answers(TOO_LARGE, send_equal(2))
        assert result.value.client == 1


class TestTheOddOne:
    @pytest.mark.parametrize(
        "odd",
        [
            (),
            packets(1),
            packets(1, torch.ones(2, 4)),
            packets(1, torch.ones(2, 3).double()),
            packets(1, torch.ones(2, 3), torch.ones(2, 3)),
            packets(1, torch.full((2, 3), 9.0)),
            packets(1, torch.full((2, 3), NAN)),
            (Packet(1, Leg.FEATURES_GRAD, 1, 0, (torch.ones(2, 3),)),),
        ],
        ids=range(8),
    )
    def test_is_picked_among_others(self, odd):
        every = send_equal(0, 1, 2)
        every[2] = packets(2, torch.ones(7, 3))  # another number of rows is honest
        assert find_odd(every | {1: odd}) == 1

    def test_of_two_it_is_the_one_that_sends_less(self):
        assert find_odd(send_equal(0) | {1: ()}) == 1
        assert find_odd({0: ()} | send_equal(1)) == 0


class TestWhoseFault:
    """An exception while an answer is worked on is the client's, except for the server's own."""

    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            OSError(errno.ENOSPC, "full"),
            ImportError("flwr"),
            RunFailedError("needs at least 3"),
            RunError("damaged"),
            torch.OutOfMemoryError("cuda"),
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            KeyboardInterrupt(),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_the_servers(self, pool, error):
        with pytest.raises(type(error)) as raised, pool.work_on({0: ()}):
            raise error
        assert raised.value is error
        assert not lost_by(pool)

    @pytest.mark.parametrize(
        "error",
        [
            ProtocolError("x"),
            RuntimeError("shape"),
            KeyError("x"),
            OverflowError(),
            ZeroDivisionError(),
            AssertionError(),
            RecursionError(),
            StopIteration(),
            torch.linalg.LinAlgError("singular"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_the_clients(self, pool, error):
        with pytest.raises(ClientLost), pool.work_on({3: ()}):
            raise error
        (client, _, for_good, round_number) = lost_by(pool)[0]
        assert (client, for_good, round_number) == (3, True, 1)

    def test_another_clients_where_that_is_known(self, pool):
        with pytest.raises(ClientLost) as raised, pool.work_on({3: ()}):
            raise ClientAtFault(1, "it was not 3")
        assert raised.value.host == lost_by(pool)[0][0] == 1

    def test_one_that_is_lost_is_not_expelled_by_a_block_around(self, pool):
        with pytest.raises(ClientLost) as raised, pool.work_on({3: ()}):
            raise ClientLost(2, "its connection ended")
        assert raised.value.host == 2
        assert [(client, for_good) for client, _, for_good, _ in lost_by(pool)] == [(2, False)]


class TestTable:
    def test_is_read_again(self, tmp_path):
        table = LeftOutTable(tmp_path / "run", resume=False)
        table.add(2, 3, "expelled", 'it sent "a, b"\n\x1b[31m')
        table.add(2, 4, "away", "the first reason counts")
        table.add(0, 4, "without", "")
        again = LeftOutTable(tmp_path / "run", resume=True)
        assert again.clients == {0, 2}
        row = again.get(2)
        assert row == table.get(2)
        assert row is not None
        assert (row.round, row.kind, row.reason.isprintable()) == (3, "expelled", True)
        assert not LeftOutTable(tmp_path / "run", resume=False).clients

    @pytest.mark.parametrize(
        "content",
        [
            b"\xff\xfe\x00",
            b"a,b\n1,2\n",
            b"client,round,kind,reason\nx,1,away,\n",
            b"client,round,kind,reason\n1,1,gone,\n",
        ],
    )
    def test_a_damaged_one_is_named(self, tmp_path, content):
        (tmp_path / "expelled.csv").write_bytes(content)
        with pytest.raises(RunError, match=r"expelled\.csv"):
            LeftOutTable(tmp_path, resume=True)

    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "expelled.csv")
        with pytest.raises(RunError, match=r"expelled\.csv"):
            LeftOutTable(tmp_path, resume=True)

    def test_foreign_text_moves_no_cursor(self):
        assert clean("a\x1b[2J\r\nb\u202e").isprintable()
