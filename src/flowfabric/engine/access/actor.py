"""Who acts: the name that events and audit records carry, from the request to the commit.

A server sets it around a request. It is read where a decision is made, in the caller's own task;
work that goes on behind a request is done for many callers and carries no name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any

from msgspec.structs import replace

from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import Event

_actor: ContextVar[str | None] = ContextVar("flowfabric_actor", default=None)

current_actor = _actor.get
"""The name of who acts here, None if no caller was identified."""


@contextmanager
def acting_as(name: str | None) -> Iterator[None]:
    """What is decided in this block is done by `name`; None if it is not done for one caller."""
    token = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(token)


def detached() -> Context | None:
    """The context for a task that works for many callers, for `asyncio.create_task`; None, which
    stands for the current one, if there is no actor to leave out."""
    if _actor.get() is None:
        return None
    context = copy_context()
    context.run(_actor.set, None)
    return context


def attribute(change: Change[Any], by: str) -> Change[Any]:
    """The change with the actor in its events. An authenticated name takes the place of one that
    the caller gave itself."""
    if not change.events:
        return change
    return replace(change, events=tuple(_attributed(event, by) for event in change.events))


def _attributed(event: Event, by: str) -> Event:
    return replace(event, detail={**(event.detail or {}), "by": by})
