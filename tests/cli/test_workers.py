"""`flowfabric workers …`"""

import asyncio

from flowfabric import Fabric
from flowfabric.core.registry import Presence
from tests.cli.terminal import Cli


def register(url: str, **members: object) -> None:
    async def put() -> None:
        async with Fabric(url) as fabric:
            engine = await fabric.engine()
            await engine.workers.register(
                Presence(worker="ada", instance="ada-1", kinds=("greet",), **members)  # type: ignore[arg-type]
            )

    asyncio.run(put())


def test_workers_are_listed_with_what_they_can_run(cli: Cli) -> None:
    cli("migrate")
    register(cli.url, concurrency=7, lanes=("fast",))
    header, row = cli("workers", "list").stdout.splitlines()
    assert header.split()[:2] == ["instance", "worker"]
    assert row.split()[:5] == ["ada-1", "ada", "0/7", "greet", "fast"]
    (found,) = cli.lines("workers", "list")
    assert (found["instance"], found["kinds"], found["concurrency"]) == ("ada-1", ["greet"], 7)


def test_without_workers_it_says_so(cli: Cli) -> None:
    cli("migrate")
    assert cli("workers", "list").stderr.startswith("no workers")
    assert cli.lines("workers", "list") == []


def test_a_worker_that_will_not_come_back_is_forgotten(cli: Cli) -> None:
    cli("migrate")
    register(cli.url)
    assert cli("workers", "forget", "ada-1").stdout == "forgot ada-1\n"
    assert cli.lines("workers", "list") == []
    assert "ada-1" in cli.complaint("workers", "forget", "ada-1", code=3)
