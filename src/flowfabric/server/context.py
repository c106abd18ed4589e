"""What the routes of one server share."""

import asyncio
from typing import Any

from litestar import Request
from msgspec import Struct, field

from flowfabric.engine.engine import Engine
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.dashboard.change_feed import ChangeFeed
from flowfabric.server.dashboard.overview_reader import OverviewReader
from flowfabric.server.http.asgi import CONTEXT
from flowfabric.server.options import ServerOptions
from flowfabric.server.remote.operations import Operations
from flowfabric.server.worker.bounded_claims import BoundedClaims
from flowfabric.server.worker.held_claims import HeldClaims


class ServerContext(Struct, eq=False):
    """One per server process. `draining` is set when the server begins to stop: long polls end,
    and new requests for work are refused."""

    engine: Engine
    authentication: Authentication
    options: ServerOptions = ServerOptions()
    stream_readers: int = 0
    changes: ChangeFeed = field(default_factory=ChangeFeed)
    rotating: asyncio.Lock = field(default_factory=asyncio.Lock)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    claims: BoundedClaims = field(default_factory=BoundedClaims)
    held_claims: HeldClaims = field(default_factory=HeldClaims)
    answers: dict[Any, Any] = field(default_factory=dict)
    made_operations: Operations | None = None

    @property
    def operations(self) -> Operations:
        """What the Python SDK calls; made when the first of them comes."""
        if self.made_operations is None:
            self.made_operations = Operations(self.engine, self.draining)
        return self.made_operations

    @property
    def overviews(self) -> OverviewReader:
        return self.changes.overviews


def context_of(request: Request[Any, Any, Any]) -> ServerContext:
    found: ServerContext = request.scope[CONTEXT]  # type: ignore[literal-required]
    return found


def engine_of(request: Request[Any, Any, Any]) -> Engine:
    return context_of(request).engine
