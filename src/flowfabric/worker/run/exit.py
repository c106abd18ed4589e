"""Ends a process that a signal asked to stop, when something in it does not end."""

import asyncio
import logging
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import thread as pool_threads
from contextlib import suppress

log = logging.getLogger("flowfabric.worker")

CLOSING = 3.0
"""Seconds the program has to close what is its own, when a handler or a thread was left behind."""

_SIGNAL, _LEFT, _CLEAN = b"s", b"l", b"c"


def when_parent_ends(stop: Callable[[], None]) -> None:
    """Calls `stop` when the process that started this one has ended, in whichever way: it holds the
    other end of the standard input."""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def ended() -> None:
        loop.remove_reader(stdin)
        stop()

    loop.add_reader(stdin, ended)


class ExitGuard:
    """Ends the process when it has not ended `seconds` after a signal. A handler may block the
    event loop, swallow its cancellation, or leave a thread behind that Python waits for; then an
    orchestrator would kill the process, together with everything else in it.

    It watches from a thread of its own. Signals reach it through a pipe, so that the handler of a
    signal does next to nothing.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before = _busy_threads()
        self._drained = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        threading.Thread(target=self._watch, name="flowfabric-exit", daemon=True).start()

    def on_signal(self, number: int, frame: object) -> None:
        """Installed with `signal.signal`: also called while the event loop is blocked."""
        with suppress(OSError):
            os.write(self._write, _SIGNAL)

    def release(self, *, left: bool) -> None:
        """The worker has stopped. The process is left alone unless something in it goes on: `left`
        handlers, or threads that were not busy when the worker began and are now."""
        self._drained = True
        busy = _busy_threads() - self._before
        if busy:
            names = ", ".join(sorted(thread.name for thread in busy))
            log.warning("the worker has stopped, but threads still run: %s", names)
        os.write(self._write, _LEFT if left or busy else _CLEAN)

    def _watch(self) -> None:
        end: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            while selector.select(None if end is None else max(0.0, end - time.monotonic())):
                event = os.read(self._read, 1)
                if event == _CLEAN or (event == _LEFT and end is None):
                    break  # nothing is left, or no signal asked this process to end
                latest = time.monotonic() + (CLOSING if event == _LEFT else self._seconds)
                end = latest if end is None else min(end, latest)
            else:
                self._end()
        os.close(self._read)
        os.close(self._write)

    def _end(self) -> None:
        log.error("the process was asked to stop and has not ended in time; ending it now")
        with suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
        os._exit(0 if self._drained else 1)


def _busy_threads() -> set[threading.Thread]:
    """The threads that Python waits for before it exits. Idle threads of pools end by
    themselves."""
    frames = sys._current_frames()
    idle = pool_threads._worker.__code__
    return {
        thread
        for thread in threading.enumerate()
        if not thread.daemon
        and (frame := frames.get(thread.ident or 0)) is not None
        and frame.f_code is not idle
    }


def forget(task: "asyncio.Task[None]") -> None:
    """Hides a task from the end of `asyncio.run`, which cancels every task it knows and waits for
    it: this one was cancelled and does not end."""
    asyncio._unregister_task(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
