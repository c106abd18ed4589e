"""`select flowfabric.submit(…)`: submitting from any language, in any transaction."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from flowfabric import ExecutionId, Fabric, RunFailed
from flowfabric.core.base.time import Millis, from_datetime
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.store.sql import load_migrations
from flowfabric.worker.api.run import Run
from flowfabric.worker.run.options import WorkerSettings


@pytest.fixture
async def fabric(database: str) -> AsyncIterator[Fabric]:
    async with Fabric(database) as fabric:
        fabric.task()(double)
        yield fabric


@pytest.fixture
async def psql(fabric: Fabric) -> AsyncIterator[asyncpg.Connection]:
    """A session that knows nothing but SQL."""
    connection = await asyncpg.connect(fabric.url)
    yield connection
    await connection.close()


async def double(n: int) -> int:
    return 2 * n


async def submit(
    psql: asyncpg.Connection, arguments: str = '{"n": 1}', task: str = "double", **options: Any
) -> UUID:
    query = "select flowfabric.submit($1, $2, $3)"
    uuid: UUID = await psql.fetchval(query, task, arguments, msgspec.json.encode(options).decode())
    return uuid


async def run_of(fabric: Fabric, uuid: UUID, lane: str = "default") -> Run[Any]:
    return await fabric.run(ExecutionId.solo(lane, uuid))


async def retries_of(fabric: Fabric, uuid: UUID) -> int:
    found = await (await fabric.engine()).store.load([uuid])
    policy = found[uuid].execution.rules.retry_policy
    assert policy is not None
    return policy.max_retries


async def work(fabric: Fabric) -> int:
    return await (await fabric.worker()).run_until_idle()


async def test_a_worker_runs_it_with_its_arguments(
    fabric: Fabric, psql: asyncpg.Connection
) -> None:
    uuid = await psql.fetchval("""select flowfabric.submit('double', '{"n": 21}')""")
    run = await run_of(fabric, uuid)
    assert await work(fabric) == 1
    assert await run.result() == 42


async def test_a_task_without_arguments_needs_none(
    fabric: Fabric, psql: asyncpg.Connection
) -> None:
    async def tick() -> str:
        return "tick"

    fabric.task()(tick)
    uuid = await psql.fetchval("select flowfabric.submit('tick')")
    await work(fabric)
    assert await (await run_of(fabric, uuid)).result() == "tick"


async def test_every_option_is_heard(fabric: Fabric, psql: asyncpg.Connection) -> None:
    before = (await fabric.engine()).now()
    uuid = await submit(
        psql,
        key="order-7",
        lane="slow",
        namespace="acme",
        priority=5,
        tags={"app.size": "big"},
        policy={"retry_policy": {"max_retries": 2}},
        delay_ms=3_600_000,
        deadline_ms=7_200_000,
    )
    about = await (await run_of(fabric, uuid, "slow")).describe()
    assert (about.state, about.key, about.namespace) == ("delayed", "order-7", "acme")
    assert (about.priority, about.tags) == (5, {"app.size": "big"})
    assert await retries_of(fabric, uuid) == 2
    assert about.deadline_at is not None
    assert 7_190_000 < from_datetime(about.deadline_at) - before < 7_290_000
    assert await work(fabric) == 0


async def test_it_exists_if_and_only_if_the_transaction_commits(
    fabric: Fabric, psql: asyncpg.Connection
) -> None:
    transaction = psql.transaction()
    await transaction.start()
    lost = await submit(psql, key="k")
    await transaction.rollback()
    async with psql.transaction():
        uuid = await submit(psql, key="k")
        assert await work(fabric) == 0
    assert lost != uuid
    assert await work(fabric) == 1
    assert await (await fabric.engine()).views.state(ExecutionId.solo("default", lost)) is None


async def test_a_known_key_gives_the_same_run(fabric: Fabric, psql: asyncpg.Connection) -> None:
    uuid = await submit(psql, key="k")
    assert await submit(psql, key="k") == uuid
    await work(fabric)
    assert await submit(psql, key="k") == uuid
    earlier = await fabric.get_task("double").with_options(key="straight").submit(1)
    assert await submit(psql, key="straight") == earlier.id.uuid
    assert await submit(psql, key="k", namespace="other") != uuid
    no_window: dict[str, Any] = {"key": "k", "policy": {"dedup_window_ms": 0}}
    assert await submit(psql, **no_window) != await submit(psql, **no_window)


async def test_a_rival_with_the_same_key_is_waited_for(
    fabric: Fabric, psql: asyncpg.Connection
) -> None:
    rival = await asyncpg.connect(fabric.url)
    transaction = psql.transaction()
    await transaction.start()
    uuid = await submit(psql, key="k")
    waiting = asyncio.create_task(submit(rival, key="k"))
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    await transaction.commit()
    assert await waiting == uuid
    await rival.close()


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("double", {"lane": ""}),
        ("double", {"lane": "x" * 65}),
        ("double", {"lane": "größe"}),
        ("double", {"namespace": ""}),
        ("", {}),
        ("x" * 257, {}),
    ],
)
async def test_what_no_table_can_hold_fails_at_once(
    fabric: Fabric, psql: asyncpg.Connection, task: str, options: dict[str, Any]
) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await submit(psql, task=task, **options)
    assert await (await fabric.engine()).inbox.admit() == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"policy": {"retry_policy": {"max_retries": -1}}}, "max_retries"),
        ({"policy": "nonsense"}, "invalid_policy_json"),
        ({"tags": {"BAD": "x"}}, "invalid_tag_key"),
        ({"colour": "red"}, "unknown options: colour"),
        ({"priority": "high"}, "priority"),
    ],
)
async def test_what_the_rules_refuse_ends_as_failed_with_the_reason(
    fabric: Fabric, psql: asyncpg.Connection, options: dict[str, Any], reason: str
) -> None:
    run = await run_of(fabric, await submit(psql, **options))
    await (await fabric.engine()).sweep.once()
    assert await work(fabric) == 0
    with pytest.raises(RunFailed, match=reason):
        await run.result()


async def test_arguments_that_do_not_fit_fail_that_run_only(
    fabric: Fabric, psql: asyncpg.Connection
) -> None:
    bad = await run_of(fabric, await submit(psql, '{"n": "one"}'))
    good = await run_of(fabric, await submit(psql, '{"n": 2}'))
    assert await work(fabric) == 2
    assert await good.result() == 4
    with pytest.raises(RunFailed, match="Expected `int`, got `str`"):
        await bad.result()


async def test_ids_are_of_version_7_and_sort_by_time(
    fabric: Fabric, psql: asyncpg.Connection
) -> None:
    uuids = [await submit(psql) for _ in range(20)]
    assert {(uuid.version, uuid.variant) for uuid in uuids} == {
        (7, "specified in RFC 4122"),
    }
    moments = [uuid.int >> 80 for uuid in uuids]
    assert moments == sorted(moments)
    assert len(set(uuids)) == 20
    assert abs((await fabric.engine()).now() - moments[-1]) < 60_000


async def test_a_waiting_worker_hears_of_it(
    fabric: Fabric, psql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody polls here: the notification of the transaction is all there is."""
    monkeypatch.setattr("flowfabric.engine.sweep.MAX_PAUSE", 60)
    monkeypatch.setattr("flowfabric.worker.run.claiming.REST", 60)
    monkeypatch.setattr("flowfabric.engine.commit.watcher.POLL_FLOOR", 60)
    seen = asyncio.Event()

    async def mark() -> None:
        seen.set()

    fabric.task()(mark)
    worker = await fabric.worker(WorkerSettings(drain=0))
    running = asyncio.create_task(worker.run())
    try:
        first = await fabric.get_task("double").submit(1)
        assert await first.result(60) == 2  # it works, and waits again
        await submit(psql, "{}", task="mark")
        await asyncio.wait_for(seen.wait(), 60)
    finally:
        worker.stop()
        await asyncio.wait_for(running, 60)


async def test_a_run_ended_in_an_open_transaction_does_not_stop_the_sweep(
    fabric: Fabric, psql: asyncpg.Connection
) -> None:
    """Its lease may run out meanwhile; whoever looked after it would wait for the application."""
    engine = await fabric.engine()
    await engine.executions.submit(Submission(kind="a"))
    await engine.executions.submit(Submission(kind="b"))
    ending, other = await engine.claims.claim(WorkerIdentity("w", "w-1"), limit=2, ttl=Millis(1))
    async with psql.transaction():
        await psql.execute("delete from flowfabric.lease where id = $1", ending.uuid)
        due = await engine.store.due(Millis(engine.now() + 1000), 10)
        assert due == [other.uuid]


async def test_what_waited_before_the_tables_had_these_names_is_admitted(
    fresh_database: Callable[..., str],
) -> None:
    url = fresh_database()
    psql = await asyncpg.connect(url)
    await psql.execute("create schema flowfabric")
    for migration in load_migrations("postgres")[:25]:
        await psql.execute(migration)
    await psql.execute("insert into flowfabric.meta (key, value) values ('version', '25')")
    before = await submit(psql, key="order-7")
    async with Fabric(url) as fabric:
        fabric.task()(double)
        await fabric.engine()
        assert await submit(psql, key="order-7") == before
        assert await work(fabric) == 1
        assert await (await run_of(fabric, before)).result() == 2
    await psql.close()
