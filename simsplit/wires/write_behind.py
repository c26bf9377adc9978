"""Packets are written by a thread behind the loop that makes them, with a bounded queue."""

import threading
from collections import deque
from collections.abc import Callable

Work = Callable[[], object]
AHEAD = 256 * 2**20
"""Bytes that wait to be written, at most; the loop waits when there are more."""


class WriteBehind:
    """A thread that does pieces of work in order; work that fails ends it, with its reason."""

    def __init__(self, ahead: int = AHEAD) -> None:
        self.ahead = ahead
        self.failure = ""
        """Why a piece of work failed; empty if none has."""
        self._waiting: deque[tuple[Work, int]] = deque()
        self._nbytes = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="simsplit-record", daemon=True)
        self._thread.start()

    def put(self, work: Work, nbytes: int) -> None:
        """Add a piece of work that holds `nbytes`, when there is room for it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._nbytes or self._nbytes + nbytes <= self.ahead)
            self._waiting.append((work, nbytes))
            self._nbytes += nbytes
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all work is done, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                work, nbytes = self._waiting.popleft()
            if not self.failure:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - the loop must go on, whatever it is
                    self.failure = f"{type(error).__name__}: {error}".splitlines()[0]
            del work  # and with it the tensors, before the loop may add others
            with self._changed:
                self._nbytes -= nbytes
                self._changed.notify_all()
