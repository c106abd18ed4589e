"""Tests of what every store keeps get the same stores as the conformance suite."""

from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from tests.conformance.conftest import clock, store
from tests.store.postgres_bench import Bench, opened

__all__ = ["clock", "store"]


@pytest.fixture
def database(empty_store: Callable[[str], str]) -> str:
    """The URL of an empty Postgres store. Earlier tests may have used it, and connections to it may
    be open: what asks for plans or sessions needs `new_database`."""
    return empty_store("postgres")


@pytest.fixture
def new_database(fresh_database: Callable[..., str], migrated_template: str) -> str:
    """The URL of a Postgres store that no other test has used."""
    return fresh_database(template=migrated_template)


@pytest.fixture
async def server(database: str) -> AsyncIterator[Bench]:
    """A bench on the Postgres store."""
    async with opened(database) as bench:
        yield bench


@pytest.fixture
def bench(server: Bench) -> Bench:
    """The same; files about flows, limits or SQLite have a bench of their own."""
    return server


# -- plans: files that ask for them have a `crowded_template`, a database with very many rows


@pytest.fixture(params=["new", "emptied", "crowded"])
def filled_database(request: pytest.FixtureRequest, fresh_database: Callable[..., str]) -> str:
    """A plan is made when a process starts, whatever is in the tables then."""
    if request.param == "crowded":
        return fresh_database(template=request.getfixturevalue("crowded_template"))
    url: str = request.getfixturevalue("database")
    if request.param == "emptied":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("vacuum analyze")
    return url


@pytest.fixture
async def filled(filled_database: str) -> AsyncIterator[Bench]:
    async with opened(filled_database) as bench:
        yield bench


@pytest.fixture
async def crowded(
    fresh_database: Callable[..., str], crowded_template: str
) -> AsyncIterator[Bench]:
    async with opened(fresh_database(template=crowded_template)) as bench:
        yield bench
