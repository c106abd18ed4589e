"""Versions of a task: runs are pinned to the version they were submitted with."""

import asyncio
from typing import Any

import pytest

from flowfabric import Context, Fabric, Invalid, NotFound
from flowfabric.core.execution.model import Route
from flowfabric.core.execution.versions import (
    age_of,
    check_version,
    version_of,
    version_token,
    versions_in,
    without_versions,
)
from flowfabric.testing import Stuck, harness
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings
from tests.worker.bench import TTL, Bench, working


def charge(fabric: Fabric, *versions: str | None, **options: Any) -> list[Any]:
    """These versions of one task; each returns its version."""

    def make(version: str | None) -> Any:
        @fabric.task(name="charge", version=version, **options)
        async def charge(cents: int) -> str:
            return f"{version}: {cents}"

        return charge

    return [make(version) for version in versions]


async def work(bench: Bench, *versions: str | None, **options: Any) -> int:
    """A worker of another process, which has only these versions."""
    fabric = Fabric("sqlite://:memory:")
    charge(fabric, *versions, **options)
    return await Worker(bench.engine, fabric.tasks, WorkerSettings(ttl=TTL)).run_until_idle()


async def test_only_workers_with_the_version_run_what_is_pinned_to_it(bench: Bench) -> None:
    (one,) = charge(bench.fabric, "1")
    run = await one.submit(5)
    assert await work(bench, "2") == 0
    assert await work(bench, None) == 0
    assert await work(bench, "1") == 1
    assert await run.result() == "1: 5"


async def test_versions_are_registered_side_by_side(bench: Bench) -> None:
    one, two = charge(bench.fabric, "1", "2")
    runs = [await one.submit(1), await two.submit(2)]
    assert await bench.work() == 2
    assert [await run.result() for run in runs] == ["1: 1", "2: 2"]


@pytest.mark.parametrize(
    ("versions", "newest"),
    [
        (["1", "2"], "2"),
        (["2", "1"], "2"),
        (["9", "10", "1"], "10"),
        (["1.9", "1.10"], "1.10"),
        ([None, "1"], "1"),
        (["2024-12-01", "2025-01-01", "2024-02-03"], "2025-01-01"),
        (["beta", "alpha"], "beta"),
    ],
)
async def test_submissions_by_name_take_the_newest(
    bench: Bench, versions: list[str | None], newest: str
) -> None:
    charge(bench.fabric, *versions)
    task = bench.fabric.get_task("charge")
    assert task.version == newest
    run = await task.submit(7)
    await bench.work()
    assert await run.result() == f"{newest}: 7"


async def test_a_run_older_than_the_versions_gets_what_pins_nothing_or_the_oldest(
    bench: Bench,
) -> None:
    (plain,) = charge(Fabric("sqlite://:memory:"), None)
    for versions, expected in [
        (("2", "1"), "1: 3"),
        ((None, "2", "1"), "None: 3"),
    ]:
        old = plain.submission(plain.with_options().options, (3,), {}, bench.engine.now())
        outcome = await bench.engine.executions.submit(old)
        assert await work(bench, *versions) == 1
        result = await bench.engine.views.result(outcome.id)
        assert result == f'"{expected}"'.encode()


async def test_a_version_without_a_pin_only_names_the_code(bench: Bench) -> None:
    (one,) = charge(bench.fabric, "1", pin=False)
    run = await one.submit(5)
    assert await work(bench, "2", pin=False) == 1
    assert await run.result() == "2: 5"
    assert (await run.describe()).version is None
    assert one.fingerprint != charge(Fabric("sqlite://:memory:"), "2")[0].fingerprint


async def test_why_names_the_version_that_no_worker_offers(bench: Bench) -> None:
    (one,) = charge(bench.fabric, "1")
    run = await one.submit(5)
    two, three = Fabric("sqlite://:memory:"), Fabric("sqlite://:memory:")
    charge(two, "2", "3")
    charge(three, None)
    for name, fabric in {"two": two, "three": three}.items():
        worker = Worker(bench.engine, fabric.tasks, WorkerSettings(name=name, ttl=TTL))
        await bench.engine.workers.register(worker.presence)
    reason = (await bench.engine.explain(run.id)).main
    assert reason.code == "no_worker_for_version"
    assert "version 1 of charge" in reason.text
    assert "versions 2 and 3" in reason.text
    assert (reason.detail["version"], reason.detail["offered"]) == ("1", ["2", "3"])
    lane = await bench.engine.explain.lane("default")
    assert "version 1 of charge" in lane.shares[0].text


async def test_the_run_says_its_version_and_not_the_capability(bench: Bench) -> None:
    (one,) = charge(bench.fabric, "1", capabilities=["gpu"])
    run = await one.submit(5)
    facts = await run.describe()
    assert (facts.version, facts.capabilities) == ("1", ("gpu",))
    info = await bench.engine.views.info(run.id)
    assert info is not None
    assert info.version == "1"


async def test_the_context_has_the_version(bench: Bench) -> None:
    @bench.fabric.task(version="7")
    async def job(ctx: Context) -> str | None:
        return ctx.info.version

    run = await job.submit()
    await bench.work()
    assert await run.result() == "7"


async def test_a_run_that_was_found_by_id_has_the_type_of_its_version(bench: Bench) -> None:
    @bench.fabric.task(name="job", version="1")
    async def one() -> tuple[int, int]:
        return 1, 2

    @bench.fabric.task(name="job", version="2")
    async def two() -> list[int]:
        return [1, 2]

    first, second = await one.submit(), await two.submit()
    await bench.work()
    assert await (await bench.fabric.run(first.id)).result() == (1, 2)
    assert await (await bench.fabric.run(second.id)).result() == [1, 2]


async def test_schedules_pin_the_newest_and_flows_what_they_are_given(bench: Bench) -> None:
    @bench.fabric.task(name="tick", version="1", every="1h")
    async def one() -> str:
        return "1"

    @bench.fabric.task(name="tick", version="2", every="1h")
    async def two() -> str:
        return "2"

    await bench.fabric.worker()
    run = await bench.fabric.schedules.trigger("tick")
    async with bench.fabric.flow("f") as flow:
        flow.add(one)
    await bench.work()
    assert await run.result() == "2"
    assert await flow.result() == "1"


@pytest.mark.parametrize("versions", [("1", "1"), (None, None)])
def test_one_version_is_registered_once(versions: tuple[str | None, ...]) -> None:
    with pytest.raises(Invalid, match="already registered; give this one a name or a version"):
        charge(Fabric("sqlite://:memory:"), *versions)


@pytest.mark.parametrize("bad", ["", " ", "a b", "a,b", "x" * 65, 1, 1.5, "\x00", "\ud800"])
def test_bad_versions_are_refused(bad: Any) -> None:
    with pytest.raises(Invalid):
        charge(Fabric("sqlite://:memory:"), bad)


@pytest.mark.parametrize("bad", [{"pin": True}, {"pin": 1, "version": "1"}])
def test_bad_pins_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        Fabric("sqlite://:memory:").task(**bad)


def test_get_task_finds_a_version() -> None:
    fabric = Fabric("sqlite://:memory:")
    one, two = charge(fabric, "1", "2")
    assert fabric.get_task("charge") is two
    assert fabric.get_task("charge", "1") is one
    with pytest.raises(NotFound, match="registered: 1, 2"):
        fabric.get_task("charge", "3")


async def test_in_the_test_kit_both_versions_run() -> None:
    fabric = Fabric("sqlite://:memory:")
    one, two = charge(fabric, "1", "2")
    async with harness(fabric) as kit:
        assert await kit.run(one, 1) == "1: 1"
        assert await kit.run(two, 1) == "2: 1"


async def test_in_the_test_kit_a_version_that_is_gone_is_told() -> None:
    fabric = Fabric("sqlite://:memory:")
    (one,) = charge(fabric, "1")
    async with harness(fabric) as kit:
        run = await one.submit(1)
        del fabric.tasks["charge"]
        charge(fabric, "2")
        with pytest.raises(Stuck, match="is version 1 of charge registered"):
            await kit.result(run)


async def test_live_workers_of_two_versions_share_the_work(store_url: str) -> None:
    async with Fabric(store_url) as old, Fabric(store_url) as new:
        (one,) = charge(old, "1")
        (two,) = charge(new, "2")
        async with working(old, name="old"), working(new, name="new"):
            runs = [await (one, two)[number % 2].submit(number) for number in range(10)]
            found = await asyncio.gather(*(run.result(60) for run in runs))
    assert found == [f"{1 + number % 2}: {number}" for number in range(10)]


# -- words


@pytest.mark.parametrize("kind", ["charge", "a b", "a,b", "größe", "x@1", "v:x", "a/b"])
def test_a_pin_is_a_capability_of_one_task_and_version(kind: str) -> None:
    token = version_token(kind, "1")
    route = Route("default", "default", kind, ("gpu", token))
    assert (version_of(route), without_versions(route.capabilities)) == ("1", ("gpu",))
    other = Route("default", "default", f"{kind}!", ("gpu", token))
    assert version_of(other) is None
    assert versions_in((token, version_token(kind, "10"), "gpu"), kind) == ["1", "10"]


def test_versions_sort_as_people_do() -> None:
    words = [None, "1", "1.2", "1.10", "2", "10", "a", "a2", "a10"]
    assert sorted(reversed(words), key=age_of) == words
    assert check_version("2024-05-01T10:00") == "2024-05-01T10:00"
