"""The pytest plugin, in a pytest of its own: whatever runs the asynchronous tests."""

import subprocess
import sys
from pathlib import Path

import pytest

APPLICATION = """
from flowfabric import Context, Fabric

fabric = Fabric("postgresql://nobody@nowhere.invalid/production")

@fabric.task(retries=3)
async def greet(ctx: Context, name: str) -> str:
    await ctx.sleep("1d")
    if ctx.info.attempt == 1:
        raise ConnectionError
    return f"Hello, {name}!"
"""

CONFTEST = """
import application, pytest

@pytest.fixture
def fabric():
    return application.fabric
"""

TESTS = """
import application
import pytest

{mark}

async def test_the_application(harness):
    assert await harness.run(application.greet, "you") == "Hello, you!"

async def test_every_test_begins_with_an_empty_store(harness):
    engine = await application.fabric.engine()
    assert sum((await engine.views.counts()).by_state.values()) == 0

async def test_another_fabric(fabric_harness):
    from flowfabric import Fabric
    other = Fabric("sqlite:///never.db")

    @other.task()
    async def one() -> int:
        return 1

    assert await fabric_harness(other).run(one) == 1

async def test_left_in_the_middle(fabric_harness):
    from flowfabric import Context, Fabric
    other = Fabric("sqlite:///never.db")

    @other.task()
    async def one(ctx: Context) -> int:
        await ctx.step(str.upper, "a")
        return 1

    harness = fabric_harness(other)
    await one.submit()
    await harness.run_until(step="upper")
"""

ANYIO = """
pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


def run_pytest(folder: Path, *options: str) -> str:
    (folder / "application.py").write_text(APPLICATION)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run(
        [*command, "-W", "error", *options], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        (("--asyncio-mode=auto",), ""),
        (("--asyncio-mode=strict",), "pytestmark = pytest.mark.asyncio"),
        (("-p", "no:asyncio", "-W", "ignore::pytest.PytestConfigWarning"), ANYIO),
    ],
    ids=["auto", "strict", "anyio"],
)
def test_the_fixtures_work_with(tmp_path: Path, options: tuple[str, ...], mark: str) -> None:
    (tmp_path / "test_application.py").write_text(TESTS.replace("{mark}", mark))
    told = run_pytest(tmp_path, *options)
    assert "4 passed" in told, told
    assert not (tmp_path / "never.db").exists()


def test_without_a_fabric_of_ones_own_there_is_a_fresh_one(tmp_path: Path) -> None:
    (tmp_path / "test_inline.py").write_text(
        """
def test_it(fabric):
    assert fabric.url == "sqlite://:memory:" and not fabric.tasks
"""
    )
    told = run_pytest(tmp_path, "--noconftest")
    assert "1 passed" in told, told
