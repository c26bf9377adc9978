import random

import pytest

from simsplit.network.events import Stage, StepDone, play


def actor(*stages, log=None, name=""):
    """Yield what it is given; write its name into the log whenever it is resumed."""
    for stage in stages:
        if log is not None:
            log.append(name)
        yield stage


def client(seconds):
    return Stage("client", seconds)


def server(seconds):
    return Stage("server", seconds)


def through(times):
    return {client: one.seconds for client, one in times.clients.items()}


def tick_by_tick(stages, slots):  # noqa: C901 - plain, so that it can be read
    """Compute when each client has ended, by a plain loop over whole seconds."""
    todo = {client: list(ahead) for client, ahead in stages.items()}
    left = dict.fromkeys(todo, 0)
    queue, served, done = [], set(), {}
    for now in range(10_000):
        for c in todo:
            if c in done or left[c] or c in queue:
                continue
            served.discard(c)
            if not todo[c]:
                done[c] = now
                continue
            where, seconds = todo[c].pop(0)
            if where == "server":
                queue.append(c)
                todo[c].insert(0, ("served", seconds))
            else:
                left[c] = seconds
        while queue and len(served) < slots:
            c = queue.pop(0)
            served.add(c)
            left[c] = todo[c].pop(0)[1]
        for c in left:
            left[c] = max(0, left[c] - 1)
        if len(done) == len(todo):
            return done
    raise AssertionError("did not end")


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_loop_equals_a_plain_loop_over_seconds(seed, slots):
    draw = random.Random(seed)
    places = ("client", "wire", "server")
    stages = {
        c: [(draw.choice(places), draw.randint(1, 6)) for _ in range(draw.randint(0, 12))]
        for c in (4, 2, 9, 0, 7)
    }
    times = play({c: actor(*(Stage(*one) for one in all_)) for c, all_ in stages.items()}, slots)
    assert through(times) == tick_by_tick(stages, slots)
    assert times.seconds == max(through(times).values())
    for c, all_ in stages.items():
        assert times.clients[c].compute_s == sum(s for where, s in all_ if where == "client")
        assert times.clients[c].transfer_s == sum(s for where, s in all_ if where == "wire")
    served = sum(s for all_ in stages.values() for where, s in all_ if where == "server")
    assert times.server_busy == pytest.approx(served / times.seconds / slots)


def test_the_server_takes_who_comes_first_and_ties_by_the_actors_order():
    late_first = {5: actor(client(3), server(10)), 1: actor(client(2), server(10))}
    assert through(play(late_first, slots=1)) == {5: 22, 1: 12}
    tied = {5: actor(client(2), server(10)), 1: actor(client(2), server(10))}
    assert through(play(tied, slots=1)) == {5: 12, 1: 22}


def test_actors_are_resumed_in_the_order_of_simulated_time():
    log = []
    play(
        {
            "b": actor(client(5), client(1), client(9), log=log, name="b"),  # at 0, 5, 6
            "a": actor(client(2), client(3), client(9), log=log, name="a"),  # at 0, 2, 5
        },
        slots=1,
    )
    assert log == ["b", "a", "a", "b", "a", "b"]


def steps(count, seconds, *, says_last=True):
    for step in range(count):
        yield client(seconds)
        yield StepDone(last=says_last and step == count - 1)


def test_without_a_bound_nobody_waits_for_anybody():
    assert through(play({0: steps(4, 10), 1: steps(4, 1)}, slots=1)) == {0: 40, 1: 4}


@pytest.mark.parametrize(
    ("ahead", "fast"),
    [
        (0, 31),  # its fourth step starts with the slow one's fourth
        (1, 21),
        (2, 11),  # its fourth step starts once the slow one has taken its first
        (3, 4),
    ],
)
def test_a_bound_holds_the_fast_back(ahead, fast):
    times = play({0: steps(4, 10), 1: steps(4, 1)}, slots=1, max_ahead=ahead)
    assert through(times) == {0: 40, 1: fast}
    assert times.clients[1].compute_s == 4
    assert times.clients[1].waiting == pytest.approx(0.9)


def test_a_client_without_steps_left_holds_nobody_back():
    def short(seconds_after):
        yield from steps(1, 1)
        yield Stage("wire", seconds_after)

    assert through(play({0: short(100), 1: steps(5, 2)}, 1, max_ahead=0)) == {0: 101, 1: 10}


def test_a_client_that_took_its_last_step_is_not_held():
    def long(count):
        yield from steps(count, 1)
        yield Stage("wire", 1)

    assert through(play({0: long(2), 1: steps(5, 10)}, 1, max_ahead=1))[0] == 3


def test_actors_that_do_not_say_which_step_is_their_last_come_to_an_end():
    actors = {0: steps(2, 1, says_last=False), 1: steps(5, 10, says_last=False)}
    assert play(actors, slots=1, max_ahead=0).seconds == 50


def test_the_held_go_on_in_the_actors_order():
    log = []

    def fast(name):
        for _ in range(3):
            log.append(name)
            yield client(1)
            yield StepDone()

    play({2: fast("x"), 0: fast("y"), 1: steps(3, 10)}, slots=1, max_ahead=0)
    assert log == ["x", "y"] * 3


def test_a_round_of_nobody_takes_no_time():
    for actors in ({}, {0: actor(), 1: actor()}):
        times = play(actors, slots=2)
        assert (times.seconds, times.server_busy, times.waiting) == (0, 0, 0)
