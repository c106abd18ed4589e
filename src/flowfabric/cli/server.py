"""`flowfabric server`"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

from typer import Option

from flowfabric.cli.application import load_application
from flowfabric.cli.command import AsJson, Debug
from flowfabric.cli.errors import CommandError, no_server
from flowfabric.cli.working import new_event_loop, start_log
from flowfabric.core.base.errors import Invalid
from flowfabric.core.wait.keyring import check_first
from flowfabric.engine.engine import Engine
from flowfabric.fabric import SECRET_VARIABLE, URL_VARIABLE, Fabric
from flowfabric.server.options import (
    LogFormat,
    ServerOptions,
    check_tls,
    read_options,
    unread_variables,
)
from flowfabric.server.processes import SOCKET_VARIABLE, ServerProcesses, bind, inherited_socket
from flowfabric.store.open import shown_url
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings

if TYPE_CHECKING:
    from flowfabric.server.run import Server

log = logging.getLogger("flowfabric.server")

DEFAULT_STORE = "sqlite:///flowfabric.db"

Store = Annotated[
    str | None,
    Option(
        "--store",
        "--url",
        envvar=URL_VARIABLE,
        show_default=DEFAULT_STORE,
        help="The store: sqlite:///work.db or postgresql://user@host/database.",
    ),
]
App = Annotated[
    str | None, Option(metavar="APP", help="Run a worker for app.module:fabric beside the server.")
]
Listen = Annotated[
    str | None, Option(show_default="127.0.0.1:9090", help="Where to listen: host:port.")
]
Token = Annotated[
    str | None,
    Option(
        help="An access token with every scope. Others see it in a list of processes: prefer "
        "FLOWFABRIC_TOKEN, or `flowfabric tokens create`."
    ),
]
Text = str | None


def server(  # noqa: PLR0913 - the options are the interface
    store: Store = None,
    listen: Listen = None,
    app: App = None,
    token: Token = None,
    insecure: Annotated[
        bool, Option("--insecure", help="Let everyone in on an address that others can reach.")
    ] = False,
    processes: Annotated[
        int | None, Option(min=1, show_default="1", help="Server processes on the one port.")
    ] = None,
    tls_cert: Annotated[Text, Option(help="The certificate, a PEM file.")] = None,
    tls_key: Annotated[Text, Option(help="Its key, a PEM file.")] = None,
    metrics_listen: Annotated[Text, Option(help="Serve /metrics on an address of its own.")] = None,
    cors_origins: Annotated[Text, Option(help="Origins of web pages that may call.")] = None,
    rate_limit: Annotated[Text, Option(help="Of each caller, such as 100/s.")] = None,
    request_timeout: Annotated[
        Text, Option(show_default="30s", help="How long a request may take.")
    ] = None,
    drain_timeout: Annotated[
        Text, Option(show_default="15s", help="How long requests may take to finish at the end.")
    ] = None,
    max_stream_readers: Annotated[
        Text, Option(show_default="64", help="Reads and long polls of streams at once.")
    ] = None,
    waitpoint_grace: Annotated[
        Text, Option(show_default="24h", help="How long tokens outlive a rotation of their key.")
    ] = None,
    public_url: Annotated[Text, Option(help="How others reach this server, for links.")] = None,
    log_format: Annotated[
        Text, Option("--log", show_default="text", help="Write the log as text or json.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; by default on this machine only.

    Every option has an environment variable, such as FLOWFABRIC_LISTEN. Without --store the runs
    are kept in flowfabric.db here. With --app one command is a whole system: server and worker.
    """
    flags = {
        "listen": listen,
        "token": token,
        "insecure": "1" if insecure else None,
        "processes": None if processes is None else str(processes),
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "metrics_listen": metrics_listen,
        "cors_origins": cors_origins,
        "rate_limit": rate_limit,
        "request_timeout": request_timeout,
        "drain_timeout": drain_timeout,
        "max_stream_readers": max_stream_readers,
        "waitpoint_grace": waitpoint_grace,
        "public_url": public_url,
        "log": log_format or ("json" if as_json else None),
    }
    _start(_configured(flags), store or DEFAULT_STORE, app)


def _start(options: ServerOptions, url: str, app: str | None) -> None:
    """Serves until a signal, in this process or in those that the options ask for."""
    listening = inherited_socket(os.environ) or _bind(options)
    start_log("info", as_json=options.log is LogFormat.JSON)
    if not _is_child():
        for line in unread_variables(os.environ):
            log.warning(line)
    if options.processes > 1 and not _is_child():
        ServerProcesses(sys.argv[1:], listening, options.processes).run()
        return
    fabric = Fabric(url) if app is None else load_application(app, url).fabric
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(fabric, options, listening, with_worker=app is not None))


def _is_child() -> bool:
    """Whether another process of the same command has started this one."""
    return SOCKET_VARIABLE in os.environ


def _configured(flags: dict[str, str | None]) -> ServerOptions:
    """The options. A flag that is not understood is wrong usage of the command. A variable is not:
    the server fails to start."""
    try:
        options = read_options(os.environ, flags)
        check_tls(options, flags)
        if (secret := os.environ.get(SECRET_VARIABLE)) is not None:
            check_first(secret, f"invalid value for {SECRET_VARIABLE}: it")
    except Invalid as error:
        if error.detail.startswith("invalid value for --"):
            raise
        raise CommandError(error.detail, word="invalid_configuration") from None
    return options


def _bind(options: ServerOptions) -> socket.socket:
    """A taken address is not wrong usage: the same command may succeed later."""
    try:
        return bind(options.listen)
    except Invalid as error:
        raise CommandError(error.detail, word="cannot_listen") from None


async def _serve(
    fabric: Fabric, options: ServerOptions, listening: socket.socket, *, with_worker: bool
) -> None:
    try:
        from flowfabric.server.run import address_of
    except ModuleNotFoundError as error:
        raise no_server(error) from None
    async with fabric:
        engine = await fabric.engine()
        server = await _opened(engine, options, listening)
        if _is_child():
            server.watch_parent(sys.stdin.fileno())
        log.info("serving %s on %s", shown_url(fabric.url), address_of(listening, options))
        name = "worker" if with_worker else "webhooks"  # webhooks are delivered in any case
        worker = await fabric.worker(WorkerSettings(name=name, webhooks=True))
        async with _beside(worker, server):
            await server.run()
    log.info("stopped")


async def _opened(engine: Engine, options: ServerOptions, listening: socket.socket) -> "Server":
    from flowfabric.server.run import Server

    try:
        return await Server.open(engine, options, [listening])
    except Invalid as error:
        raise CommandError(error.detail, word="refused_to_listen") from None


@asynccontextmanager
async def _beside(worker: Worker, server: "Server") -> AsyncIterator[None]:
    """A worker that runs as long as the server does. If it fails, the server stops as well: who
    has started both expects both."""
    working = asyncio.create_task(worker.run(), name="flowfabric-worker")
    working.add_done_callback(lambda done: server.stop())
    server.on_drain(worker.stop)
    try:
        yield
    finally:
        worker.stop()
        await working
