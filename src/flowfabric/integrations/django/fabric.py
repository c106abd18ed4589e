"""The Fabric of a Django project."""

import asyncio
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric, LifespanFunction
from flowfabric.integrations.django import connections
from flowfabric.integrations.django.settings import SETTING, read_settings, store_url
from flowfabric.store.clock import Clock
from flowfabric.worker.api.deployment import Options
from flowfabric.worker.api.other_loop import from_other_loop

_FROM_SETTINGS = "django:settings"


class DjangoFabric(Fabric):
    """A Fabric on the store that the settings of the Django project name.

    The settings are read when the store is opened, so it can be made in any module. It is used from
    views of every kind: from plain ones with the methods that end in `_sync`, from async ones with
    `await`, whichever event loop the server runs them in. Around handlers and steps in a worker it
    closes database connections that are old, as Django does around requests.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        options: Options | None = None,
        clock: Clock | None = None,
        lifespan: LifespanFunction | None = None,
    ) -> None:
        super().__init__(
            _FROM_SETTINGS if url is None else url, options=options, clock=clock, lifespan=lifespan
        )
        self._client.engine = self._reach
        self._carried: tuple[Engine, Engine] | None = None
        connections.look_after(self)

    @property
    def url(self) -> str:
        """The URL of the store."""
        return store_url() if self._url == _FROM_SETTINGS else self._url

    @url.setter
    def url(self, url: str) -> None:
        self._url = url

    def _identity(self) -> str | None:
        """None for a database in memory: it has the tables, and no URL at which a worker reads
        them."""
        try:
            return super()._identity()
        except ImproperlyConfigured:
            return None

    async def _reach(self) -> Engine:
        """The engine, wherever it is open. Until a worker or `async with` opens it in an event
        loop, it lives in a thread of its own: the event loops of a web server come and go."""
        running = asyncio.get_running_loop()
        if self._loop is running or (self._lender is not None and self._engine is None):
            return await self.engine()
        engine = await asyncio.wrap_future(self._start(self.engine()))
        if self._carried is None or self._carried[0] is not engine:
            assert self._loop is not None  # noqa: S101 - it has just opened the engine
            self._carried = engine, from_other_loop(engine, self._loop)
        return self._carried[1]


fabric = DjangoFabric()
"""The Fabric of a project whose settings name no other."""


def get_fabric() -> Fabric:
    """The Fabric of the project: the one that `FLOWFABRIC["app"]` names, or `fabric`. Raises
    ImproperlyConfigured."""
    given = read_settings()
    if given.app is None:
        return fabric
    found = _imported(given.app)
    if not isinstance(found, DjangoFabric):
        connections.look_after(found)
        if given.store or given.database:
            found.url = store_url()
    return found


def _imported(app: str) -> Fabric:
    module, _, attribute = app.partition(":")
    try:
        found: Any = import_string(f"{module}.{attribute}")
    except ImportError as error:
        raise ImproperlyConfigured(f"{SETTING}['app'] is {app!r}: {error}") from error
    if not isinstance(found, Fabric):
        kind = type(found).__name__
        raise ImproperlyConfigured(f"{SETTING}['app'] is {app!r}, which is a {kind}, not a Fabric")
    return found
