"""One answer for all who ask the same, if they allow that it is a little old.

Ten open dashboards of a list would read it ten times a second. They send `Cache-Control: max-age=2`
instead: those who see the same namespaces get one answer, which is read again when it is older than
that. `Age` tells how old an answer is that was made for another caller. Who sends no such header
always gets what is true now.
"""

import asyncio
import math
import re
from collections.abc import Hashable
from functools import partial
from time import monotonic
from typing import Any

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.server.caller.access import CALLER, SCOPE
from flowfabric.server.http.asgi import CONTEXT, App, Message
from flowfabric.server.http.request_limits import takes_long

LONGEST = 5
"""Most seconds that an answer is shared, whatever a caller allows."""

_MAX_AGE = re.compile(rb"(?:^|[\s,])max-age=(\d{1,6})(?:$|[\s,])")
_FIRST_ERROR = 400


class _Answer:
    """What the application has answered, or is about to."""

    def __init__(self, app: App, scope: Any) -> None:
        self.began = monotonic()
        self.messages: list[Message] = []
        self._is_read = False
        self.task = asyncio.ensure_future(app(scope, self._receive, self._collect))

    async def _receive(self) -> Message:
        if self._is_read:
            await asyncio.Event().wait()  # it has many clients: none of them leaves for all
        self._is_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _collect(self, message: Message) -> None:
        self.messages.append(message)

    def serves(self, age: float) -> bool:
        """One that is still being made serves everyone: another read would come later."""
        return not self.task.done() or monotonic() - self.began < age

    @property
    def is_good(self) -> bool:
        """Errors are not kept: what was missing may be there in the next moment."""
        if self.task.cancelled() or self.task.exception() is not None or not self.messages:
            return False
        return bool(self.messages[0]["status"] < _FIRST_ERROR)

    async def send_to(self, send: Any, *, shared: bool) -> None:
        await asyncio.shield(self.task)
        for message in self.messages:
            copied = {**message}  # the gateway adds its headers to it
            if shared and message["type"] == "http.response.start":
                age = b"%d" % math.ceil(monotonic() - self.began)
                copied["headers"] = [*message["headers"], (b"age", age)]
            await send(copied)


Kept = dict[Hashable, _Answer]
"""The answers of one server, by who may see them and what they answer."""


class SharedAnswers:
    """An ASGI middleware that runs when the route is known and the caller may call it."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        age = _allowed_age(scope)
        if not age:
            await self._app(scope, receive, send)
            return
        caller: Identity = scope[CALLER]
        kept: Kept = scope[CONTEXT].answers
        named = tuple(scope["path_params"].values())
        key = (caller.namespaces, scope["path_template"], named, scope["query_string"])
        found = kept.get(key)
        shared = found is not None and found.serves(age)
        if found is None or not shared:
            found = kept[key] = _Answer(self._app, scope)
            found.task.add_done_callback(partial(_keep, kept, key, found))
        await found.send_to(send, shared=shared)


def _keep(kept: Kept, key: Hashable, made: _Answer, _: object) -> None:
    if made.is_good:
        asyncio.get_running_loop().call_later(LONGEST, _drop, kept, key, made)
    else:
        _drop(kept, key, made)


def _drop(kept: Kept, key: Hashable, made: _Answer) -> None:
    if kept.get(key) is made:
        del kept[key]


def _allowed_age(scope: Any) -> int:
    """Seconds that the answer may be old; 0 unless it is a plain read."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return 0
    options = scope["route_handler"].opt
    if options.get(SCOPE) is not AccessScope.READ or takes_long(scope):
        return 0
    given = next((value for name, value in scope["headers"] if name == b"cache-control"), b"")
    found = _MAX_AGE.search(given)
    return min(LONGEST, int(found[1])) if found else 0
