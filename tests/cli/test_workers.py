"""`flowfabric workers …`"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import Fabric
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from tests.cli.terminal import Cli

ADA = WorkerIdentity("ada", "ada-1")


def within(url: str, work: Callable[[Engine], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Fabric(url) as fabric:
            return await work(await fabric.engine())

    return asyncio.run(run())


def register(url: str, **members: object) -> None:
    members = {"worker": "ada", "instance": "ada-1", "kinds": ("greet",), **members}
    within(url, lambda engine: engine.workers.register(Presence(**members)))  # type: ignore[arg-type]


def take(url: str, ttl: int = 60_000) -> str:
    """A run that `ada-1` holds."""

    async def claim(engine: Engine) -> str:
        await engine.executions.submit(Submission(kind="greet"))
        (claim,) = await engine.claims.claim(ADA, ttl=Millis(ttl))
        return str(claim.uuid)

    id: str = within(url, claim)
    return id


@pytest.fixture(autouse=True)
def migrated(cli: Cli) -> None:
    cli("migrate")


def test_workers_are_listed_with_what_they_can_run(cli: Cli) -> None:
    register(cli.url, concurrency=4, running=1, lanes=("fast",))
    header, row = cli("workers", "list").stdout.splitlines()
    assert header.split()[:4] == ["instance", "worker", "running", "load"]
    assert row.split()[:6] == ["ada-1", "ada", "1/4", "25%", "greet", "fast"]
    (found,) = cli.lines("workers", "list")
    assert (found["instance"], found["kinds"], found["concurrency"]) == ("ada-1", ["greet"], 4)
    assert (found["alive"], found["load"], "held" in found) == (True, 0.25, False)


def test_without_workers_it_says_so(cli: Cli) -> None:
    assert cli("workers", "list").stderr.startswith("no workers")
    assert cli("workers", "list", "--lane", "fast").stderr.startswith("no such workers")
    assert cli.lines("workers", "list") == []


def test_the_list_can_be_narrowed_and_widened(cli: Cli) -> None:
    register(cli.url, lanes=("fast",), capabilities=("gpu", "cpu"))
    register(cli.url, instance="bob-1", worker="bob", namespace="acme", kinds=("draw",))
    register(cli.url, instance="eve-1", worker="eve", ttl=Millis(1))

    def listed(*words: str) -> list[str]:
        return [found["instance"] for found in cli.lines("workers", "list", *words)]

    assert listed() == ["ada-1"]
    assert listed("--all") == ["bob-1", "ada-1"]
    assert listed("--namespace", "acme") == ["bob-1"]
    assert listed("--dead") == ["eve-1"]
    assert listed("--all", "--kind", "draw", "--lane", "fast") == ["bob-1"]
    assert listed("--capability", "gpu", "--capability", "cpu") == ["ada-1"]
    assert listed("--capability", "tpu") == []
    header, *rows = cli("workers", "list", "--all").stdout.splitlines()
    assert header.split()[2] == "namespace"
    assert [row.split()[2] for row in rows] == ["acme", "default"]
    assert "white space" in cli.complaint("workers", "show", "two words", code=2)
    assert cli.complaint("workers", "list", "--lane", "", code=2)


def test_a_worker_is_shown_with_what_it_really_holds(cli: Cli) -> None:
    id = take(cli.url)
    shown = cli("workers", "show", "ada-1")
    assert "not registered" in shown.stderr
    assert id in shown.stdout
    register(cli.url, concurrency=2)
    shown = cli("workers", "show", "ada-1")
    assert id in shown.stdout
    for words in ("alive", "0 of 2 (0%)", "1 lease"):
        assert words in shown.stdout
    found = cli.json("workers", "show", "ada-1")
    assert (found["running"], found["held"], found["registered"]) == (0, 1, True)
    (lease,) = found["leases"]
    assert (lease["id"], lease["kind"], lease["attempt"]) == (id, "greet", 1)
    assert lease["since"] < lease["expires_at"]
    header, row = cli("workers", "list", "--held").stdout.splitlines()
    assert (header.split()[4], row.split()[4]) == ("holds", "1")
    assert [found["held"] for found in cli.lines("workers", "list", "--held")] == [1]
    assert "nobody" in cli.complaint("workers", "show", "nobody", code=3)


def test_a_worker_that_will_not_come_back_is_marked_dead(cli: Cli) -> None:
    id = take(cli.url)
    register(cli.url)
    assert cli("workers", "dead", "ada-1", "--reason", "gone").stdout == "marked ada-1 dead\n"
    assert cli.lines("workers", "list") == []
    assert [lease["id"] for lease in cli.json("workers", "show", "ada-1")["leases"]] == [id]
    assert "ada-1" in cli.complaint("workers", "dead", "ada-1", "--reason", "gone", code=3)
    assert "--reason" in cli("workers", "dead", "ada-1", code=2).stderr
    assert "257" in cli.complaint("workers", "dead", "ada-1", "--reason", "x" * 257, code=2)


def test_its_leases_can_be_revoked_with_it(cli: Cli) -> None:
    """C-T131, C-T132: and what was revoked is found among the lost leases until it is taken"""
    assert cli("workers", "expired").stderr == "no lost leases\n"
    ids = [take(cli.url), take(cli.url)]
    register(cli.url)
    answer = cli.json("workers", "dead", "ada-1", "--reason", "host lost", "--revoke")
    assert answer == {"instance": "ada-1", "dead": True, "revoked": 2}
    lost = cli.lines("workers", "expired")
    assert [(lease["id"], lease["instance"]) for lease in lost] == [(id, "ada-1") for id in ids]
    assert len(cli.lines("workers", "expired", "--limit", "1")) == 1
    assert cli.lines("workers", "expired", "--namespace", "acme") == []
    header, *rows = cli("workers", "expired").stdout.splitlines()
    assert header.split()[:2] == ["run", "instance"]
    assert [row.split()[0] for row in rows] == ids
    assert "host lost" in cli("run", "events", ids[0]).stdout
    register(cli.url)
    plain = cli("workers", "dead", "ada-1", "--reason", "again", "--revoke")
    assert plain.stdout == "marked ada-1 dead and revoked 0 leases\n"
