"""`flowfabric why`"""

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from flowfabric import Fabric
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.engine.engine import Engine
from tests.cli.terminal import NOBODY, Cli, Work


def with_engine(url: str, work: Callable[[Engine], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Fabric(url) as fabric:
            engine = await fabric.engine()
            await work(engine)
            await engine._releases.drain()

    asyncio.run(run())


async def register(engine: Engine) -> None:
    await engine.workers.register(
        Presence(worker="ada", instance="ada-1", capabilities=("gpu",), ttl=Millis(600_000))
    )


@pytest.mark.inside
def test_a_run_tells_what_keeps_it_as_a_tree(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x")

    async def pause(engine: Engine) -> None:
        await register(engine)
        await engine.lanes.pause("default", by="ada", reason="maintenance")

    with_engine(cli.url, pause)
    head, line = cli("why", id).stdout.splitlines()
    assert head == f"{id} (greet, lane default) is waiting"
    assert line.startswith("└── lane default was paused by ada: maintenance (since 20")
    assert line.endswith(" ago)")
    found = cli.json("why", id)
    (reason,) = found["reasons"]
    assert (found["id"], found["state"]) == (id, "waiting")
    assert (reason["code"], reason["detail"]["by"]) == ("lane_paused", "ada")
    assert reason["since"].endswith("Z")


def test_nothing_is_cut_off_in_a_narrow_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    cli("lanes", "pause", "default", "--by", "ada", "--reason", "the database is being moved")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    shown = re.sub(r"\x1b\[[0-9;]*m|[│├└─]", "", cli("why", id).stdout)
    assert max(len(line) for line in shown.splitlines()) <= 60
    words = " ".join(shown.split())
    assert "paused by ada: the database is being moved (since 20" in words
    assert " ago)" in words


@pytest.mark.inside
def test_moments_are_told_as_local_time_and_as_what_is_left(cli: Cli) -> None:
    cli("migrate")
    ids: list[str] = []

    async def fill(engine: Engine) -> None:
        await engine.quotas.create(Quota(name="openai", rate=Rate(1, Millis(3_600_000))))
        policy = {"quotas": [{"quota": "openai", "key": ""}]}
        for _ in range(2):
            made = await engine.executions.submit(Submission(kind="job", policy=policy))
            ids.append(made.id)
            await engine._releases.drain()
        await engine.claims.claim(WorkerIdentity("ada", "ada-1"), ttl=Millis(30_000))

    with_engine(cli.url, fill)
    _, rate, line, _ = cli("why", ids[1]).stdout.splitlines()
    assert "quota openai allows 1 start in an hour, and those are used up (until 20" in rate
    assert ", in 59m" in rate
    assert "it is the next of its line to be let through quota openai" in line
    _, lease = cli("why", ids[0]).stdout.splitlines()
    assert "it runs: ada (ada-1) has a lease for attempt 1 (since 20" in lease
    assert lease.endswith(" s)")
    header, quota = cli("why", "--lane", "default").stdout.splitlines()[2:]
    assert header.split() == ["share", "runs", "why"]
    assert quota.split(maxsplit=3) == ["100", "%", "1", "blocked by quota openai"]


def test_what_has_ended_tells_how(cli: Cli, work: Work) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    work()
    assert "└── it has completed (since 20" in cli("why", id).stdout


def test_a_lane_is_told_in_numbers(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    cli.submit("greet", "--arg", "name=y")
    cli("run", "cancel", id)
    first, empty, _, row = cli("why", "--lane", "default").stdout.splitlines()
    assert (first, empty) == ("lane default: 1 waiting, 0 running", "")
    assert row.split(maxsplit=3)[2:] == [
        "1",
        "ready, no live worker takes work of namespace default",
    ]
    found = cli.json("why", "--lane", "default", "--namespace", "default")
    assert [(share["code"], share["count"]) for share in found["shares"]] == [("no_worker", 1)]
    assert cli("why", "--lane", "nobody").stdout == "lane nobody: 0 waiting, 0 running\n"


def test_what_cannot_be_explained_is_refused(cli: Cli) -> None:
    cli("migrate")
    assert cli.complaint("why", NOBODY, code=3) == f"no run {NOBODY}"
    assert "is not a run's id" in cli.complaint("why", "nonsense", code=2)
    assert cli.complaint("why", code=2) == "give the id of a run, or --lane"
    assert cli.complaint("why", NOBODY, "--lane", "default", code=2).startswith("give the id")
    assert (
        cli.complaint("why", NOBODY, "--namespace", "x", code=2) == "--namespace goes with --lane"
    )
    assert cli.complaint("why", "--lane", "x" * 65, code=2).startswith("lane has 65 bytes")
