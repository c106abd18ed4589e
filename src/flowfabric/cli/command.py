"""`@command`: one coroutine function per command.

It opens the store, makes the screen, and adds the options that all commands share.
"""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Argument, Context, Exit, Option, Typer

from flowfabric.cli.application import Application, load_application
from flowfabric.cli.errors import AS_JSON, DEBUG, CommandError, ExitCode
from flowfabric.cli.output import Screen
from flowfabric.cli.parse import read_ids
from flowfabric.engine.engine import Engine
from flowfabric.fabric import URL_VARIABLE, Fabric
from flowfabric.store.open import sqlite_path
from flowfabric.worker.api.ids import find_ids

Command = Callable[..., Awaitable[int | None]]
C = TypeVar("C", bound=Command)
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class StoreUrl(str):
    """The URL of a store, for commands that open it in their own way."""

    __slots__ = ()


_HANDED_IN = (Application, Engine, Fabric, Screen, StoreUrl)


def _remember_debug(ctx: Context, value: bool) -> bool:
    ctx.meta[DEBUG] = value
    return value


def _remember_json(ctx: Context, value: bool) -> bool:
    ctx.meta[AS_JSON] = value
    return value


def _read_ids(ctx: Context, ids: list[str]) -> list[str]:
    return ids if ctx.resilient_parsing else read_ids(ids)  # a shell that completes reads nothing


Debug = Annotated[
    bool, Option("--debug", callback=_remember_debug, help="Show the traceback of an error.")
]
AsJson = Annotated[
    bool,
    Option(
        "--json",
        callback=_remember_json,
        is_eager=True,  # an error in another argument is JSON too
        help="One JSON document, or one per line for lists.",
    ),
]
Url = Annotated[
    str | None,
    Option(
        "--url",
        envvar=URL_VARIABLE,
        help="The store: sqlite:///work.db or postgresql://user@host/database; or a server:"
        " https://host:9090, with a token in FLOWFABRIC_TOKEN.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    Option(
        "--url",
        envvar=URL_VARIABLE,
        help="The store: sqlite:///work.db or postgresql://user@host/database; not a server.",
    ),
]
AppUrl = Annotated[str | None, Option("--url", help="Another store than the application's.")]
App = Annotated[str, Argument(metavar="APP", help="Your Fabric, as app.module:fabric.")]

NAMES_RUNS = "names runs"
"""Marks an argument whose ids get their partition before the command is called."""

RunId = Annotated[str, NAMES_RUNS, Argument(metavar="ID", help="The run, as 01a1e105-7c1b-…")]
RunIds = Annotated[
    list[str],
    NAMES_RUNS,
    Argument(metavar="ID", callback=_read_ids, help="One or more runs; - reads stdin."),
]
Timeout = Annotated[str | None, Option(help="With --wait: give up after 30s, 5m, …")]
Limit = Annotated[int, Option(min=1, help="At most this many.")]


def command(
    app: Typer, name: str | None = None, *, loop_factory: LoopFactory | None = None
) -> Callable[[C], C]:
    """Makes a coroutine function a command of `app`. Parameters of the types Engine, Fabric,
    StoreUrl, Application and Screen are handed in; the others are its arguments and options. It
    may return an exit code."""

    def register(function: C) -> C:
        app.command(name)(_entry(function, loop_factory))
        return function

    return register


def _entry(function: Command, loop_factory: LoopFactory | None) -> Callable[..., None]:
    """The plain function that typer calls."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    names = {p.annotation: p.name for p in parameters if p.annotation in _HANDED_IN}
    typed = [p for p in parameters if p.annotation not in _HANDED_IN]
    runs = [p.name for p in typed if NAMES_RUNS in getattr(p.annotation, "__metadata__", ())]

    def entry(**options: Any) -> None:
        options.pop("debug")
        url = options.pop("url", None)
        values: dict[type, object] = {Screen: Screen(options.pop("as_json"))}
        if Application in names:  # imported before an event loop runs, as its author expects
            values[Application] = load_application(options.pop("app"), url)

        async def work() -> int | None:
            async with _store(url, names) as opened:
                found = {**values, **opened}
                for name in runs:
                    options[name] = await _located(opened[Engine], options[name])
                return await function(**options, **{n: found[kind] for kind, n in names.items()})

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            if code := runner.run(work()):
                raise Exit(code)

    entry.__name__, entry.__doc__ = function.__name__, help_of(function)
    entry.__signature__ = _signature(typed, names)  # type: ignore[attr-defined]
    return entry


def help_of(function: Callable[..., Any]) -> str:
    """The docstring as help: a paragraph is one line, which the terminal breaks where it ends."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _signature(typed: list[Parameter], names: Container[type]) -> inspect.Signature:
    """The command's own arguments and options, and the shared ones behind them."""
    own = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in typed]
    shared = [_parameter("as_json", AsJson, False), _parameter("debug", Debug, False)]
    if Application in names:
        own.insert(0, _parameter("app", App))
        shared.insert(0, _parameter("url", AppUrl, None))
    elif StoreUrl in names:
        shared.insert(0, _parameter("url", DatabaseUrl, None))
    elif Engine in names or Fabric in names:
        shared.insert(0, _parameter("url", Url, None))
    return inspect.Signature([*own, *shared])


def _parameter(name: str, annotation: object, default: object = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


@asynccontextmanager
async def _store(url: str | None, names: Container[type]) -> AsyncIterator[dict[type, Any]]:
    """What a command gets of the store, if it asks for any of it."""
    if Engine not in names and Fabric not in names and StoreUrl not in names:
        yield {}
        return
    address = check_url(url)
    check_exists(address)
    if StoreUrl in names:
        yield {StoreUrl: StoreUrl(address)}
        return
    async with Fabric(address) as fabric:
        yield {Fabric: fabric, Engine: await fabric.engine()}


async def _located(engine: Engine, given: Any) -> Any:
    """One id or several, or None, with their partitions."""
    if isinstance(given, str):
        return (await find_ids(engine, [given]))[0]
    return given and await find_ids(engine, given)


def check_url(url: str | None) -> str:
    if not url:
        text = f"no store: give --url or set {URL_VARIABLE}"
        raise CommandError(text, ExitCode.USAGE, "no_store")
    return url


def check_exists(url: str) -> None:
    """Looking at runs must not make a new database out of a mistyped path."""
    if not url.startswith("sqlite://"):
        return
    path = sqlite_path(url)
    if path != ":memory:" and _is_missing(path):
        where = Path(path).absolute()
        text = f"there is no database at {where}; `flowfabric migrate --url {url}` makes one"
        raise CommandError(text, ExitCode.UNAVAILABLE, "no_database")


def _is_missing(path: str) -> bool:
    """Whether nothing is there. Where that cannot be seen, the store says why."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False
