"""Runs the application: sockets, TLS, signals, and an orderly end.

On SIGTERM or SIGINT the server first says that it is draining (`/readyz` answers 503, long polls
and streams end), then stops accepting, gives the requests under way `drain_timeout`, and stops. A
second signal stops it at once.
"""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from time import monotonic
from typing import Any

import uvicorn

from flowfabric.engine.commit.observer import watching
from flowfabric.engine.engine import Engine
from flowfabric.metrics import enable
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.http.protocol import GuardedProtocol
from flowfabric.server.metrics import metrics_beside
from flowfabric.server.options import ListenAddress, ServerOptions, check_exposure, warnings_of
from flowfabric.server.processes import BACKLOG

log = logging.getLogger("flowfabric.server")

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept; longer than the 60 of common proxies, which would
otherwise send a request into a connection that is just being closed."""


RESERVED_FILES = 128
"""Files for the store and the log: connections must not use up all that the process may open."""
MOST_FILES = 65_536


def connections_allowed() -> int:
    """How many connections the process can hold. Asks for as many files as the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    known = most if soft == resource.RLIM_INFINITY else soft
    return max(known - RESERVED_FILES, known // 2)


def address_of(listening: socket.socket, options: ServerOptions) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if options.has_tls else 'http'}://{ListenAddress(host, port)}"


class Server:
    """One server process: `await server.run()` ends when a signal asks for it."""

    def __init__(self, context: ServerContext, listening: Sequence[socket.socket]) -> None:
        self._context = context
        self._listening = list(listening)
        self._uvicorn = _Uvicorn(_config(context), self._drain)
        self._on_drain: list[Callable[[], None]] = []
        self._signalled = False

    @classmethod
    async def open(
        cls, engine: Engine, options: ServerOptions, listening: Sequence[socket.socket]
    ) -> "Server":
        """A server on an engine. Invalid if it would let everyone in who can reach it."""
        if options.token is not None:
            engine.tokens.trust(options.token)
        is_open = not await engine.tokens.any_made()
        any_token = await engine.tokens.any_live()
        check_exposure(options, any_token=any_token)
        for warning in warnings_of(options, any_token=any_token, is_open=is_open):
            log.warning(warning)
        await engine.keys.prepare()
        enable()
        authentication = Authentication(engine, is_open=is_open)
        return cls(ServerContext(engine, authentication, options), listening)

    def on_drain(self, act: Callable[[], None]) -> None:
        """Called when the server begins to stop."""
        self._on_drain.append(act)

    def watch_parent(self, pipe: int) -> None:
        """Drains when the pipe ends: the parent of this process holds its other end."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(pipe)
            log.warning("the parent of this server process has ended")
            self.stop()

        loop.add_reader(pipe, ended)

    async def run(self) -> None:
        """Serves until `stop`, SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        self._context.engine.sweep.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            async with metrics_beside(self._context) as url:
                if url is not None:
                    log.info("metrics on %s", url)
                await self._uvicorn.serve(sockets=self._listening)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Begins to drain. Called again, it changes nothing: the worker beside a server and the
        parent of a process end during a drain, and requests under way keep their time."""
        if not self._context.draining.is_set():
            log.info("draining: no new work is handed out")
        self._drain()
        self._uvicorn.should_exit = True

    def _on_signal(self) -> None:
        """The first signal begins to drain, the second one stops at once."""
        self._uvicorn.force_exit = self._signalled
        self._signalled = True
        self.stop()

    def _drain(self) -> None:
        if not self._context.draining.is_set():
            self._context.draining.set()
            for act in self._on_drain:
                act()


class _Uvicorn(uvicorn.Server):
    """Without its own signal handlers, so that ours drain first."""

    def __init__(self, config: uvicorn.Config, on_shutdown: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_shutdown = on_shutdown

    def capture_signals(self) -> Any:
        return nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_shutdown()
        began = monotonic()
        await super().shutdown(sockets)
        granted = self.config.timeout_graceful_shutdown
        if granted is not None and monotonic() - began >= granted:
            log.warning("requests were cut off: they had not ended %d s after the drain", granted)
            if (seen := watching()) is not None:
                seen.shutdown_timed_out()


def _config(context: ServerContext) -> uvicorn.Config:
    options = context.options

    class Limited(GuardedProtocol):
        most_connections = connections_allowed()

    return uvicorn.Config(
        create_app(context),
        http=Limited,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(options.drain_timeout / 1000)),
        backlog=BACKLOG,
        ws="none",
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )
