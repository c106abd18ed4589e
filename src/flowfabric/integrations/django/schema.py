"""FlowFabric's tables in the database of a Django project."""

import asyncio
from typing import Any

from django.db import connections, transaction

from flowfabric.integrations.django.settings import is_in_memory, read_settings, store_url
from flowfabric.store.open import open_store
from flowfabric.store.sqlite import schema
from flowfabric.store.sqlite.session import NameRegistry, SqliteSession


def make_tables(using: str, **kwargs: Any) -> None:
    """After `manage.py migrate`, also when Django's test runner creates a test database: makes
    FlowFabric's tables or brings them up to date, if the runs are kept in that database."""
    if read_settings().alias != using:
        return
    wrapper = connections[using]
    if wrapper.vendor == "sqlite" and is_in_memory(wrapper.settings_dict["NAME"]):
        with transaction.atomic(using=using):  # no other connection reaches it
            schema.migrate(SqliteSession(wrapper.connection, NameRegistry()))
        return
    if wrapper.vendor in ("postgresql", "sqlite"):
        asyncio.run(_migrate(store_url()))


async def _migrate(url: str) -> None:
    store = await open_store(url)
    try:
        await store.migrate()
    finally:
        await store.close()
