"""What went wrong, in the words of the engine: broken, lost against a rival, or refused."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from textwrap import shorten
from typing import TypeVar

import asyncpg

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    Locked,
    StoreFull,
    StoreReadOnly,
    Unavailable,
)
from flowfabric.core.base.pages import in_pages
from flowfabric.store.postgres.address import Address

Item = TypeVar("Item")
Answer = TypeVar("Answer")

RIVALS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""Undone by the server; the same statement can be sent again."""

MAX_TEXT = 300

PATIENCE_SECONDS = 2.5
"""How long work is tried again that needs what a transaction of the application keeps locked: for
longer than a transaction whose client was stopped is left alone."""

PIECES = 24
"""Into so many a batch is cut that has something refused in it: of 500 the guilty one is alone
after three waits for a lock."""

_DATA_CLASSES = ("22", "23", "54", "P0")
_ENDED_CLASSES = ("08", "57P")
_LOST = ("08000", "08003", "08006", "57P01", "57P02")
_MISSING = ("3F000", "42P01")
_DENIED = "42501"


_WAITPOINT_IDS = "waitpoint_of_attempt"


class WaitpointTaken(Invalid):
    """Another execution has made a waitpoint with the same id meanwhile."""


class Broken(Exception):
    """The connection broke during a statement, whose outcome is unknown."""


def is_broken(error: BaseException) -> bool:
    """Whether an error says that the connection is of no use any more."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate).startswith(_ENDED_CLASSES)
    return isinstance(error, OSError | TimeoutError | asyncpg.InternalClientError)


def is_refusal(error: BaseException) -> bool:
    """Whether a connection that was not made would not be made at once either."""
    if isinstance(error, asyncpg.PostgresError):
        return not str(error.sqlstate).startswith(_LOST)
    if isinstance(error, ConnectionError):
        return isinstance(error, ConnectionRefusedError)
    return isinstance(error, OSError | TimeoutError | ValueError | asyncpg.InterfaceError)


def translate(error: Exception, address: Address) -> FlowFabricError:
    """An error of the driver or of the server as one of ours."""
    # The server's details quote whole rows; only what it says first is passed on.
    told = error.args[0] if isinstance(error, asyncpg.PostgresError) and error.args else error
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):  # a port, or a local socket
        told = "no server listens there"
    brief = shorten(address.censored(told), MAX_TEXT) or type(error).__name__
    text = f"{address.shown}: {brief}"
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == _WAITPOINT_IDS:
        return WaitpointTaken(text)
    if isinstance(error, asyncpg.PostgresError):
        return _of_server(str(error.sqlstate), text)
    if isinstance(error, asyncpg.DataError):
        return Invalid(brief)
    return Unavailable(text)


def _of_server(state: str, text: str) -> FlowFabricError:
    if state == "55P03":
        return Locked(text)
    if state == "53100":
        return StoreFull(text)
    if state == "25006":
        return StoreReadOnly(text)
    if state == _DENIED:
        return Unavailable(f"{text} (the rights that a role needs are in the guide: Operations)")
    if state in _MISSING:
        return Unavailable(f"{text} (was the store migrated?)")
    if state.startswith(_DATA_CLASSES):
        return Invalid(text)
    return Unavailable(text)


async def divide(
    items: Sequence[Item], send: Callable[[Sequence[Item], float], Awaitable[Answer]]
) -> list[Answer]:
    """Sends everything at once. When an item is refused, its neighbours are written all the
    same: the batch is cut into pieces until the guilty one is alone, which is raised at the end.

    The second argument of `send` is how many seconds to wait for a lock of another session: an item
    by itself waits, an item among others does not."""
    answers: list[Answer] = []
    refused: list[Invalid | Locked] = []
    patience = PATIENCE_SECONDS if len(items) == 1 else 0.0
    waiting = deque([items] if items else [])
    while waiting:
        batch = waiting.popleft()
        try:
            answers.append(await send(batch, patience))
        except (Invalid, Locked) as error:
            if len(batch) == 1:
                refused.append(error)
                continue
            waiting += in_pages(batch, len(batch) // PIECES + 1)
    if refused:
        raise refused[0]
    return answers


async def each_of(sending: Iterable[Callable[[], Awaitable[Answer]]]) -> list[Answer]:
    """One after the other, also when one fails; that is raised at the end."""
    answers: list[Answer] = []
    failed: list[FlowFabricError] = []
    for send in sending:
        try:
            answers.append(await send())
        except FlowFabricError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return answers
