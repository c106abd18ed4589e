"""A store in a file, the command line on it, and a worker when a test wants one. All of it is also
run through a server: a test that needs the file itself is marked `inside`."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowfabric import WorkerOptions
from tests.cli import sample
from tests.cli.patient import Patient
from tests.cli.terminal import Cli, Work, Worker, same_tasks
from tests.kit.served import SERVER, served_in_thread


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'work.db'}"


@pytest.fixture(params=["file", SERVER])
def url(request: pytest.FixtureRequest, database: str) -> Iterator[str]:
    if request.param == "file":
        yield database
        return
    with served_in_thread(database) as url:
        yield url


@pytest.fixture
def cli(url: str, database: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line where FLOWFABRIC_URL and the application name the same fresh store."""
    monkeypatch.setenv("FLOWFABRIC_URL", url)
    monkeypatch.setattr(sample.fabric, "url", url)
    monkeypatch.setenv("COLUMNS", "200")
    return Cli(url, database)


@pytest.fixture
def patient(cli: Cli) -> Patient:
    """Another application on the same store: its runs wait for the outside world."""
    return Patient(cli.url)


@pytest.fixture
def work(url: str) -> Work:
    """Runs everything that can run now; returns how many were run."""

    async def run() -> int:
        async with same_tasks(url) as fabric:
            worker = await fabric.worker(WorkerOptions(name="ada"))
            return await worker.run_until_idle()

    return lambda: asyncio.run(run())


@pytest.fixture
def worker(url: str) -> Worker:
    """`with worker():` a worker is there, in a thread of its own."""

    @contextmanager
    def start() -> Iterator[None]:
        ready, stop = threading.Event(), list[Callable[[], object]]()

        async def run() -> None:
            async with same_tasks(url) as fabric:
                worker = await fabric.worker(WorkerOptions(name="ada", drain=0))
                loop = asyncio.get_running_loop()
                stop.append(lambda: loop.call_soon_threadsafe(worker.stop))
                ready.set()
                await worker.run()

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        assert ready.wait(60)
        yield
        stop[0]()
        thread.join(20)
        assert not thread.is_alive()

    return start
