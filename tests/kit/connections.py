"""Connections as applications open them, one for each library: a transaction that commits at the
end and rolls back on an error."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

T = TypeVar("T")

Connect = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a transaction of the application; commits at the end, rolls back on an error."""


def sqlalchemy_url(url: str, driver: str) -> str:
    if url.startswith("sqlite"):
        return url
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


@asynccontextmanager
async def with_sqlite3(url: str) -> AsyncIterator[Any]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@asynccontextmanager
async def with_psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def with_sqlalchemy(url: str) -> AsyncIterator[Any]:
    engine = sa.create_engine(sqlalchemy_url(url, "psycopg"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_session(url: str) -> AsyncIterator[Any]:
    engine = sa.create_engine(sqlalchemy_url(url, "psycopg"))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_async(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(sqlalchemy_url(url, "asyncpg"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_async_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(sqlalchemy_url(url, "asyncpg"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@asynccontextmanager
async def with_asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


LIBRARIES = {
    "sqlite": (with_sqlite3, with_sqlalchemy, with_sqlalchemy_session),
    "postgresql": (
        with_asyncpg,
        with_psycopg,
        with_psycopg_async,
        with_sqlalchemy,
        with_sqlalchemy_session,
        with_sqlalchemy_async,
        with_sqlalchemy_async_session,
        with_asyncpg_pool,
    ),
}


def libraries(url: str) -> list[Connect]:
    return [
        lambda connect=connect: connect(url)  # type: ignore[misc]
        for connect in LIBRARIES[url.partition(":")[0]]
    ]


async def rolled_back(connect: Connect, work: Callable[[Any], Awaitable[T]]) -> T:
    """What `work` gives in a transaction that is rolled back."""
    with suppress(NoSale):
        async with connect() as connection:
            result = await work(connection)
            raise NoSale
    return result


class NoSale(Exception):
    pass
