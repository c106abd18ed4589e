"""Django's database connections in a worker.

Django gives every thread a connection of its own and closes old ones around each request. A worker
has no requests; the same is done around handlers and steps.
"""

import threading
from collections.abc import Callable
from typing import Any

import django
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.db import close_old_connections, connections

from flowfabric.fabric import Fabric
from flowfabric.worker.api.hooks import Invocation, NextCall, SyncNextCall

_thread = threading.local()


def look_after(fabric: Fabric) -> None:
    """Has the workers of this fabric look after Django's connections."""
    hooks = fabric._hooks
    if hooks.in_process is not in_process:
        hooks.put_outermost(around_coroutine, plain=around_function)
        hooks.in_process = in_process


def around_function(call: Invocation, next: SyncNextCall) -> Any:
    """In the thread of a plain handler or step. A step in the thread of its handler leaves the
    connection alone, which the handler may be using."""
    if getattr(_thread, "busy", False):
        return next(call)
    _thread.busy = True
    close_old_connections()
    try:
        return next(call)
    finally:
        _thread.busy = False
        close_old_connections()


async def around_coroutine(call: Invocation, next: NextCall) -> Any:
    """Gives a coroutine a thread of its own for its queries, as an ASGI request has, once it makes
    any. Its connections end with that thread."""
    async with ThreadSensitiveContext() as context:
        try:
            return await next(call)
        finally:
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(connections.close_all)()


def in_process(work: Callable[[], bytes]) -> bytes:
    """In the process of a task with `process=True`, which has Django set up before it imports the
    task."""
    if not apps.ready:
        django.setup()
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()
