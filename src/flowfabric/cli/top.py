"""`flowfabric top`"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from rich.live import Live
from typer import Option

from flowfabric.cli.activity import StoreMoment, StoreWatch
from flowfabric.cli.json import Document, document
from flowfabric.cli.output import Screen
from flowfabric.cli.panels import UNBOUNDED, draw
from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.redact import redact
from flowfabric.core.base.time import parse_span
from flowfabric.fabric import Fabric

SHORTEST = 0.05

Interval = Annotated[str, Option(help="The time between two looks: 1s, 500ms, …")]


async def top(
    fabric: Fabric,
    screen: Screen,
    once: Annotated[bool, Option("--once", help="Print one moment and end.")] = False,
    interval: Interval = "1s",
) -> None:
    """Watch a store: throughput, states, lanes, workers and failures, every second.

    Needs the database itself, not a server. q or Ctrl-C ends it. A look takes at most five cheap
    statements. With --json, each moment is one line.
    """
    seconds = max(SHORTEST, parse_span(interval, "--interval") / 1000)
    watch = StoreWatch((await fabric.engine()).store, seconds)
    board = _Board(screen, redact(fabric.url))
    board.frame = await watch.look()
    if once:
        await asyncio.sleep(seconds)
        board.print(await watch.look())
        return
    stop = asyncio.Event()
    with _signals(stop.set), _keys(stop.set), board.shown():
        while not await _stopped(stop, seconds):
            try:
                board.update(await watch.look())
            except FlowFabricError as error:  # the store may come back
                board.fail(str(error))


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


class _Board:
    """The terminal, or the pipe, on which frames are shown."""

    def __init__(self, screen: Screen, url: str) -> None:
        self.frame: StoreMoment | None = None
        self._screen = screen
        self._url = url
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The whole terminal is taken, and given back as it was."""
        if self._screen.as_json or not self._screen.out.is_terminal:
            yield
            return
        with Live(console=self._screen.out, screen=True, auto_refresh=False) as live:
            self._live = live
            self._refresh()
            yield
            self._live = None

    def update(self, frame: StoreMoment) -> None:
        self.frame = frame
        if self._live is None:
            self.print(frame)
        else:
            self._refresh()

    def fail(self, trouble: str) -> None:
        if self._live is None:
            self._screen.note(f"no answer: {trouble}")
        else:
            self._refresh(trouble)

    def print(self, frame: StoreMoment) -> None:
        if self._screen.as_json:
            self._screen.document(_document(frame))
        else:
            out = self._screen.out
            out.print(draw(frame, self._url, out.width, UNBOUNDED))

    def _refresh(self, trouble: str = "") -> None:
        if self._live is not None and self.frame is not None:
            size = self._screen.out.size
            picture = draw(self.frame, self._url, size.width, size.height, redact(trouble))
            self._live.update(picture, refresh=True)


def _document(frame: StoreMoment) -> Document:
    return {
        "at": document(frame)["at"],
        "per_second": document(frame.rates),
        "states": dict(frame.states.by_state),
        "capped": sorted(frame.states.capped),
        "lanes": [document(lane) for lane in frame.lanes],
        "workers": [
            {
                "instance": worker.instance,
                "worker": worker.worker,
                "running": frame.held.get(worker.instance, 0),
                "concurrency": worker.concurrency,
                "load": round(frame.load(worker), 3),
            }
            for worker in frame.workers
        ],
        "failures": [document(group) for group in frame.failures],
    }


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    wanted = (signal.SIGINT, signal.SIGTERM)
    try:
        for number in wanted:
            loop.add_signal_handler(number, stop)
    except (NotImplementedError, RuntimeError, ValueError):  # a system or a thread without them
        yield
        return
    try:
        yield
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)


@contextmanager
def _keys(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` when q is pressed; the terminal then shows no keys, and gets its mode back."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import termios
        import tty
    except ModuleNotFoundError:  # a system without them
        yield
        return
    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            stop()

    tty.setcbreak(number)
    loop.add_reader(number, pressed)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
