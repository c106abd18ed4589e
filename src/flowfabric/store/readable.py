"""Unreadable rows: each is logged once and does not affect other rows.

A caller that asks for one thing by name gets `Corruption`, which names it. A caller that asks for
many gets the others.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.status import PublicState, vector

log = logging.getLogger("flowfabric.store")

SET_ASIDE = Millis(60_000)
"""How long an unreadable row is set aside before it is read again; it may be repaired by then."""

UNREADABLE = (
    Corruption,
    msgspec.MsgspecError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""The errors that reading a damaged row raises."""

MAX_NAMED = 10_000

_named: set[str] = set()

Row = TypeVar("Row")
T = TypeVar("T")
K = TypeVar("K")
Load = Callable[[Sequence[K]], Awaitable[dict[K, T]]]


def unreadable(what: str, key: object, error: BaseException) -> Corruption:
    """The error that names an unreadable row; `error` is the cause."""
    name = f"{what} {_shown(key)}"
    why = error.detail if isinstance(error, Corruption) else f"{type(error).__name__}: {error}"
    return Corruption(why if why.startswith(name) else f"{name} cannot be read: {why}")


def readable(
    rows: Iterable[Row],
    read: Callable[[Row], T],
    what: str,
    key: Callable[[Row], object],
    left_out: Callable[[Row], None] = lambda row: None,
) -> list[T]:
    """The readable ones of the rows; `left_out` is called for each of the others."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(read(row))
        except UNREADABLE as error:
            log_unreadable(unreadable(what, key(row), error))
            left_out(row)
    return found


def named(what: str, key: object, read: Callable[[], T]) -> T:
    """The result of `read`; an error of a damaged row is raised with its name."""
    try:
        return read()
    except UNREADABLE as error:
        raise unreadable(what, key, error) from None


async def load_each(load: Load[K, T], keys: Sequence[K]) -> dict[K, T | Corruption]:
    """What `load` finds, with a `Corruption` for each unreadable key."""
    if not keys:
        return {}
    try:
        return {**await load(keys)}
    except Corruption as error:
        if len(keys) == 1:
            return {keys[0]: error}
    middle = len(keys) // 2
    first = await load_each(load, keys[:middle])
    return first | await load_each(load, keys[middle:])


async def load_readable(load: Load[K, T], keys: Sequence[K]) -> dict[K, T]:
    """What `load` finds, without unreadable keys."""
    found: dict[K, T] = {}
    for key, each in (await load_each(load, keys)).items():
        if isinstance(each, Corruption):
            log_unreadable(each)
        else:
            found[key] = each
    return found


def log_unreadable(error: Corruption) -> None:
    """Logs an unreadable row, once per process."""
    text = error.detail
    if text not in _named:
        if len(_named) >= MAX_NAMED:
            _named.clear()
        _named.add(text)
        log.error("%s; it is skipped until it is repaired, other rows are not affected", text)


def stands_in(snapshot: Snapshot, states: Collection[PublicState]) -> bool:
    """Whether an execution is in one of the states. An unreadable state counts as any of them, so
    that lists can report it."""
    try:
        return vector(snapshot).public in states
    except Corruption:
        return True


def _shown(key: Any) -> object:
    return UUID(bytes=key) if isinstance(key, bytes) and len(key) == 16 else key
