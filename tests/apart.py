"""Tests of a folder that run in a process of their own, since they change torch for good.

The folder's conftest.py hands each test to `call`; a test gets `tmp_path` and parameters.
"""

import importlib.util
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


class Apart:
    """A process that runs tests, prepared once by a function."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process: BaseProcess = spawn.Process(target=_work, args=(theirs, prepare))
        self._process.start()

    def call(self, path: str, name: str, given: dict[str, Any]) -> str:
        """Run a test of a file; return what it raised, an empty text if nothing."""
        self._pipe.send((path, name, given))
        return str(self._pipe.recv())

    def stop(self) -> None:
        """End the process that runs tests apart, and wait for it."""
        self._pipe.send(None)
        self._process.join()


def _work(pipe: Connection, prepare: Callable[[], None]) -> None:
    os.fsync = lambda _: None  # as conftest.py has it in the process of pytest
    prepare()
    modules: dict[str, Any] = {}
    while (job := pipe.recv()) is not None:
        path, name, given = job
        try:
            if path not in modules:
                spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
                modules[path] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(modules[path])
            getattr(modules[path], name)(**given)
            pipe.send("")
        except BaseException:  # noqa: BLE001 - pytest shows it
            pipe.send(traceback.format_exc())
