"""Workers in other languages: the example and the shell script of the guide, against a server on
the loopback address."""

import asyncio
import os
import re
import runpy
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from urllib.error import URLError

import pytest

from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import App
from flowfabric.store.open import open_store
from tests.kit.http_server import serving
from tests.kit.http_work import HttpWorker

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "http-workers.md"


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    """With the real clock: these workers are processes of their own."""
    engine = await Engine.open(await open_store(store_url))
    yield engine
    await engine.close()


@pytest.fixture
async def address(server: tuple[ServerContext, App]) -> AsyncIterator[str]:
    async with serving(server[1]) as url:
        yield url


async def _submit(engine: Engine, payload: bytes) -> str:
    policy = {"retry_policy": {"max_retries": 0}}
    submission = Submission(kind="greet", payload=payload, encoding="json", policy=policy)
    return (await engine.executions.submit(submission)).id


async def test_the_example_works(engine: Engine, address: str) -> None:
    ids = [await _submit(engine, b'{"name": "ada"}') for _ in range(12)]
    broken = await _submit(engine, b"{}")
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "http_worker.py"),
        env={**os.environ, "FLOWFABRIC_URL": address},
    )
    for id in ids:
        ending = await engine.views.wait(id, 30)
        assert ending.result == b'{"said": "hello ada"}'
    failed = await engine.views.wait(broken, 30)
    assert failed.failure is not None
    assert failed.failure.message == "KeyError('name')"
    late = await _submit(engine, b'{"name": "bob"}')
    assert (await engine.views.wait(late, 30)).result == b'{"said": "hello bob"}'
    worker.send_signal(signal.SIGTERM)
    unwanted = await _submit(engine, b'{"name": "eve"}')  # what it takes now, it gives back
    async with asyncio.timeout(30):
        assert await worker.wait() == 0
    assert await engine.views.state(unwanted) == "waiting"


async def test_a_killed_worker_loses_nothing(engine: Engine, address: str) -> None:
    """SIGKILL during the long poll: the server sees the closed connection, and what comes next
    goes to another worker at once."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "http_worker.py"),
        env={**os.environ, "FLOWFABRIC_URL": address},
    )
    watcher = HttpWorker(engine, None)  # type: ignore[arg-type]
    await watcher.until_it_waits()
    worker.kill()
    await worker.wait()
    while engine.store.hints.waiting:  # noqa: ASYNC110 - until the server has noticed
        await asyncio.sleep(0.01)
    id = await _submit(engine, b"{}")
    assert await engine.views.state(id) == "waiting"


async def test_the_example_stops_while_its_server_is_away() -> None:
    """As under a supervisor that stops both: the worker must not outlive the server."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "http_worker.py"),
        env={**os.environ, "FLOWFABRIC_URL": "http://127.0.0.1:1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    async with asyncio.timeout(30):
        assert b"does not answer, asking again" in await worker.stdout.readline()
        worker.send_signal(signal.SIGTERM)
        _, said = await worker.communicate()
    assert worker.returncode == 1
    assert said.decode().startswith("stopped while http://127.0.0.1:1 did not answer")


class Reply(BytesIO):
    status = 200


@pytest.mark.parametrize(("beside", "misses", "gives_up"), [(0, 2, 0), (0, 3, 1), (1, 9, 0)])
def test_a_stopped_example_gives_up_only_after_three_tries(
    monkeypatch: pytest.MonkeyPatch, beside: int, misses: int, gives_up: int
) -> None:
    """So that it reports what it has finished; and its other thread renews to the end"""
    example = runpy.run_path(str(ROOT / "examples" / "http_worker.py"))
    answers = iter([URLError("away")] * misses)

    def urlopen(*args: object, **options: object) -> Reply:
        if (error := next(answers, None)) is not None:
            raise error
        return Reply(b"{}")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setattr("time.sleep", lambda _: None)
    if beside:
        monkeypatch.setitem(example["call"].__globals__, "MAIN", None)
    example["stopping"].set()
    with pytest.raises(SystemExit) if gives_up else nullcontext():
        assert example["call"]("/", {}) == (200, {})


async def test_the_shell_script_works(engine: Engine, address: str, tmp_path: Path) -> None:
    found = re.search(r"```bash\n(#!.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    script = tmp_path / "worker.sh"
    script.write_text(found[1])
    checked = await asyncio.create_subprocess_exec("bash", "-n", str(script))
    assert await checked.wait() == 0
    if shutil.which("curl") is None or shutil.which("jq") is None:
        return  # the syntax is all that can be checked here
    worker = await asyncio.create_subprocess_exec(
        "bash", str(script), env={**os.environ, "FLOWFABRIC_URL": address}
    )
    id = await _submit(engine, b'{"name": "ada"}')
    ending = await engine.views.wait(id, 30)
    assert ending.result == b'{"said":"hello ada"}'
    worker.kill()
    await worker.wait()
