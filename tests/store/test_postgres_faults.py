"""Broken connections, rivals, wrong addresses, and items nobody can write."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, StoreFull, StoreReadOnly, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import lease, operator
from flowfabric.core.execution.submission import Creation
from flowfabric.store.postgres import PostgresStore, open_postgres
from flowfabric.store.postgres.address import read_address
from flowfabric.store.postgres.clock import SAMPLES, ClockKeeper
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.faults import divide, is_broken, translate
from flowfabric.store.postgres.link import MAX_BREAKS, MAX_RIVALS
from tests.kit.postgres import Databases, with_database
from tests.kit.snapshots import after
from tests.store.postgres_bench import (
    OPERATOR,
    Bench,
    its_connection,
    opened,
    progress,
    renewal,
    until_none_waits,
    until_waiting,
    uuids,
)

# -- broken connections


async def test_a_terminated_session_is_replaced_unnoticed(bench: Bench) -> None:
    held = await bench.running()
    watcher = await bench.raw()
    for _ in range(2):
        await watcher.execute(
            """select pg_terminate_backend(pid, 5000) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()"""
        )
        assert await bench.store.renew([renewal(held)], bench.now)
        assert await bench.load(held)
        await bench.submit()
        assert await bench.claim()
        assert await bench.store.due(bench.now, 9) == []
        assert await bench.store.counts(None, None)


async def test_a_session_terminated_while_it_works_is_replaced(bench: Bench) -> None:
    held = await bench.running()
    blocker, watcher = await bench.raw(), await bench.raw()
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("select 1 from flowfabric.lease for update")
    ending = asyncio.create_task(bench.store.end([bench.completion(held)], bench.now))
    await until_waiting(watcher)
    await watcher.execute(
        """select pg_terminate_backend(pid, 5000) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'"""
    )
    await transaction.commit()
    assert await ending == {held.execution.uuid}


async def test_listening_goes_on_after_a_break_and_looks_once(bench: Bench) -> None:
    other = await bench.other_store()
    assert await bench.store.hints.wait(5.0)
    watcher = await bench.raw()
    broken = asyncio.create_task(bench.store.hints.wait(30.0))
    await asyncio.wait([broken], timeout=0)
    await watcher.execute(
        """select pg_terminate_backend(pid, 5000) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()
            and (query ilike 'listen%' or query ilike '%pg_notify%')"""
    )
    assert await broken, "after a reconnect everybody looks once"
    waiting = asyncio.create_task(bench.store.hints.wait(30.0))
    await asyncio.wait([waiting], timeout=0)
    other.hints.send()
    assert await waiting


async def test_a_store_that_is_gone_is_unavailable(bench: Bench, databases: Databases) -> None:
    await bench.submit()
    databases.drop(bench.url)
    methods: list[Callable[[], Awaitable[object]]] = [
        lambda: bench.store.submit([bench.creation()], bench.now),
        lambda: bench.store.claim(bench.call(), bench.now),
        lambda: bench.store.load([bench.fresh()]),
        lambda: bench.store.due(bench.now, 1),
        lambda: bench.store.apply([]),
    ]
    for method in methods[:-1]:
        with pytest.raises(Unavailable):
            await method()
    assert await methods[-1]() == set()


async def test_a_caller_that_goes_away_spoils_nothing_for_the_next(bench: Bench) -> None:
    held = await bench.running()
    blocker, watcher = await bench.raw(), await bench.raw()
    changes = [lease.revoke(held, bench.now, reason="")]
    async with blocker.transaction():
        await blocker.execute("select 1 from flowfabric.lease for update")
        leaving = [
            asyncio.create_task(bench.store.end([bench.completion(held)], bench.now)),
            asyncio.create_task(bench.store.apply(changes)),
        ]
        await until_waiting(watcher, 2)
        for task in leaving:
            task.cancel()
        await asyncio.wait(leaving)
        assert all(task.cancelled() for task in leaving)
        await until_none_waits(watcher)
    assert await bench.store.apply(changes) == {held.execution.uuid}
    assert await bench.store.end([bench.completion(held)], bench.now) == set()


async def test_a_closed_store_is_unavailable(bench: Bench) -> None:
    await bench.store.close()
    with pytest.raises(Unavailable, match="closed"):
        await bench.submit()
    await bench.store.close()


async def test_closing_lets_go_of_every_connection(new_database: str) -> None:
    async with opened(new_database) as bench:
        await bench.running()
        await bench.store.hints.wait(5.0)
        await bench.store.counts(None, None)
        await bench.store.due(bench.now, 1)
        watcher = await bench.raw()
        await bench.store.close()
        others = """select count(*) from pg_stat_activity
            where datname = current_database() and application_name = 'flowfabric'"""
        while await watcher.fetchval(others):
            pass


async def test_a_connection_that_breaks_again_and_again_is_given_up(bench: Bench) -> None:
    link = bench.store.session.load
    breaks = 0

    async def cut(connection: Connection) -> None:
        nonlocal breaks
        breaks += 1
        connection.terminate()
        raise ConnectionResetError("again")

    link.seam = cut
    with pytest.raises(Unavailable, match="again"):
        await bench.store.load([bench.fresh()])
    assert breaks == MAX_BREAKS
    link.seam = None
    assert await bench.store.load([bench.fresh()]) == {}


# -- rivals


async def test_a_rival_that_wins_every_time_is_told(bench: Bench) -> None:
    tries = 0

    async def lose(connection: Connection, repeated: bool) -> None:
        nonlocal tries
        tries += 1
        assert not repeated, "the server undid it: nothing is unknown"
        raise asyncpg.PostgresError.new({"C": "40P01", "M": "deadlock detected"})

    with pytest.raises(Unavailable, match="deadlock"):
        await bench.store.session.load.run(lose)
    assert tries == MAX_RIVALS


async def test_two_batches_in_opposite_order_both_come_through(bench: Bench) -> None:
    other = await bench.other_store()
    for _ in range(10):
        keys = [str(bench.fresh()) for _ in range(40)]
        ids = [ExecutionId.solo("default", bench.fresh()) for _ in range(40)]
        mine = [bench.creation(key=k, id=i) for k, i in zip(keys, ids, strict=True)]
        theirs = [bench.creation(key=k, id=i) for k, i in zip(keys[::-1], ids[::-1], strict=True)]
        one, two = await asyncio.gather(
            bench.store.submit(mine, bench.now), other.submit(theirs, bench.now)
        )
        created = [a is None for a in one] + [a is None for a in two]
        assert sum(created) == 40


async def test_ending_and_renewing_the_same_leases_in_opposite_order(bench: Bench) -> None:
    other = await bench.other_store()
    for _ in range(5):
        await bench.submit_many(50)
        held = await bench.claim(50)
        ended, _, _ = await asyncio.gather(
            bench.store.end([bench.completion(h) for h in held], bench.now),
            other.renew([renewal(h) for h in held[::-1]], bench.now),
            other.write_progress([progress(h, 1) for h in held[::-1]], bench.now),
        )
        assert len(ended) == 50


async def test_a_deadlock_is_tried_again(bench: Bench) -> None:
    """A stranger locks two rows in the order nobody else uses."""
    first, second = sorted(await bench.submit_many(2), key=lambda s: s.execution.uuid)
    stranger, watcher = await bench.raw(), await bench.raw()
    await stranger.execute("set deadlock_timeout = '1min'")
    lock = "select 1 from flowfabric.ready where id = $1 for update"
    changes = [operator.change_priority(s, bench.now, 5) for s in (first, second)]
    transaction = stranger.transaction()
    await transaction.start()
    await stranger.execute(lock, second.execution.uuid)
    applying = asyncio.create_task(bench.store.apply(changes))
    await until_waiting(watcher)
    # Now it is the store that finds the deadlock, for it is the one less patient.
    await stranger.execute(lock, first.execution.uuid)
    await transaction.commit()
    assert await applying == set(uuids([first, second]))


# -- items nobody can write


def unwritable(creation: Creation) -> Creation:
    """Text that the checks would never let through."""
    return replace(creation, tags={"app.note": "nul \0 inside"})


def surrogate(creation: Creation) -> Creation:
    return replace(creation, tags={"app.note": "lone \ud800 surrogate"})


@pytest.mark.parametrize("spoil", [unwritable, surrogate])
async def test_a_guilty_submission_keeps_no_neighbour_from_being_written(
    bench: Bench, spoil: Callable[[Creation], Creation]
) -> None:
    creations = [bench.creation() for _ in range(9)]
    creations[4] = spoil(creations[4])
    with pytest.raises(Invalid):
        await bench.store.submit(creations, bench.now)
    good = [c for n, c in enumerate(creations) if n != 4]
    assert set(uuids(await bench.claim(99))) == set(uuids(c.snapshot for c in good))


async def test_a_guilty_change_keeps_no_neighbour_from_being_written(bench: Bench) -> None:
    submitted = await bench.submit_many(5)
    changes = [operator.cancel(s, bench.now, OPERATOR, "") for s in submitted]
    broken = after(changes[2])
    changes[2] = replace(changes[2], after=replace(broken, head=replace(broken.head, epoch=-1)))
    with pytest.raises(Invalid, match="done_epoch") as caught:
        await bench.store.apply(changes)
    assert str(submitted[2].execution.uuid) not in str(caught.value), "rows are not quoted"
    assert uuids(await bench.claim(9)) == uuids([submitted[2]])


async def test_a_guilty_ending_and_a_guilty_note_are_alone_too(bench: Bench) -> None:
    held = [await bench.running() for _ in range(3)]
    changes = [bench.completion(h) for h in held]
    late = after(changes[1])
    changes[1] = replace(changes[1], after=replace(late, head=replace(late.head, version=-1)))
    with pytest.raises(Invalid):
        await bench.store.end(changes, bench.now)
    notes = [progress(held[1], 1, "nul \0"), progress(held[1], 2)]
    with pytest.raises(Invalid):
        await bench.store.write_progress(notes[:1], bench.now)
    assert await bench.store.write_progress(notes[1:], bench.now) == {held[1].execution.uuid}


async def test_cutting_a_batch_finds_every_guilty_item() -> None:
    sent: list[list[int]] = []

    async def send(items: Sequence[int], patience: float) -> list[int]:
        assert not patience
        batch = list(items)
        if any(item % 10 == 3 for item in batch):
            raise Invalid(f"guilty among {batch}")
        sent.append(batch)
        return batch

    with pytest.raises(Invalid, match=r"\[3\]"):
        await divide(list(range(20)), send)
    assert sorted(item for batch in sent for item in batch) == [n for n in range(20) if n % 10 != 3]


# -- what errors are called


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("53100", StoreFull),
        ("25006", StoreReadOnly),
        ("53300", Unavailable),
        ("57014", Unavailable),
        ("42P01", Unavailable),
        ("22021", Invalid),
        ("23514", Invalid),
        ("54000", Invalid),
        ("XX000", Unavailable),
    ],
)
def test_errors_of_the_server_have_our_names(state: str, kind: type[Exception]) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "it says secret"})
    address = read_address("postgresql://me:secret@host/db")
    told = translate(error, address)
    assert type(told) is kind
    assert "secret" not in str(told)
    assert "host" in str(told)


@pytest.mark.parametrize("state", ["57P01", "57P02", "57P03", "08006"])
def test_a_session_the_server_ended_is_broken(state: str) -> None:
    assert is_broken(asyncpg.PostgresError.new({"C": state, "M": ""}))


async def test_a_read_only_server_is_told_apart_and_looked_for_again(bench: Bench) -> None:
    raw = await bench.raw()
    name = await raw.fetchval("select current_database()")
    await raw.execute(f"alter database {name} set default_transaction_read_only = on")
    link = bench.store.session.sweep
    connection = await link.run(its_connection)
    await connection.execute("set default_transaction_read_only = on")
    with pytest.raises(StoreReadOnly):
        await bench.store.glance("sweep", "me", bench.now, Millis(bench.now + 1))
    assert connection.is_closed()
    await raw.execute(f"alter database {name} set default_transaction_read_only = off")
    assert (await bench.store.glance("sweep", "me", bench.now, Millis(bench.now + 1))).has_duty


# -- addresses


@pytest.mark.parametrize(
    "url", ["mysql://host/db", "host/db", "postgresql://h/d?pooler=yes", "postgres://[::1/db"]
)
async def test_what_is_no_address_of_a_postgres_is_invalid(url: str) -> None:
    with pytest.raises(Invalid):
        await open_postgres(url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
async def test_an_unreachable_host_is_named_and_the_password_is_not(scheme: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await open_postgres(f"{scheme}://me:hush-hush@127.0.0.1:1/shop")
    assert "database 'shop' on 127.0.0.1:1: no server listens there" in str(caught.value)
    assert "hush-hush" not in str(caught.value)
    assert caught.value.retryable


async def test_a_socket_that_is_not_there_is_no_riddle(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no server listens there"):
        await open_postgres(f"postgresql://me@/shop?host={tmp_path}")


async def test_a_database_that_does_not_exist_is_named(databases: Databases) -> None:
    with pytest.raises(Unavailable, match="nowhere_to_be_found"):
        await open_postgres(with_database(databases.url, "nowhere_to_be_found"))


async def test_a_wrong_password_is_refused_without_telling_it(unused_tcp_port: int) -> None:
    """A server that asks for a password and accepts none."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:  # the client asks for encryption first
            size = int.from_bytes(await reader.readexactly(4), "big")
            if await reader.readexactly(size - 4) != b"\x04\xd2\x16\x2f":
                break
            writer.write(b"N")
        writer.write(b"R\x00\x00\x00\x08\x00\x00\x00\x03")
        await reader.readexactly(5)
        text = b"SFATAL\0C28P01\0Mpassword authentication failed for user me\0\0"
        writer.write(b"E" + (len(text) + 4).to_bytes(4, "big") + text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", unused_tcp_port)
    async with server:
        with pytest.raises(Unavailable, match="authentication failed") as caught:
            await open_postgres(f"postgresql://me:hush-hush@127.0.0.1:{unused_tcp_port}/shop")
    assert "hush-hush" not in str(caught.value)
    assert "shop" in str(caught.value)


def test_an_address_is_shown_without_its_password() -> None:
    address = read_address("postgres://me:p%40ss@h1:1,h2:2/db?sslmode=disable&pooler=session")
    assert address.shown == "database 'db' on h1:1,h2:2"
    assert (address.password, address.pooler) == ("p@ss", "session")
    assert "pooler" not in address.dsn
    assert read_address("postgresql:///db?host=/run/pg").shown == "database 'db' on /run/pg"


async def test_what_was_never_migrated_says_so(fresh_database: Callable[..., str]) -> None:
    store: PostgresStore = await open_postgres(fresh_database())
    with pytest.raises(Unavailable, match="migrated"):
        await store.due(store.clock.now(), 1)
    await store.close()


async def test_the_clock_is_the_databases_unless_one_is_given(bench: Bench) -> None:
    store = await open_postgres(bench.url)
    raw: Connection = await bench.raw()
    theirs = await raw.fetchval("select extract(epoch from clock_timestamp())::float8 * 1000")
    assert abs(store.clock.now() - theirs) < 60_000
    assert bench.store.clock.now() == bench.clock.now()
    await store.close()


async def test_the_clock_goes_on_following(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()
    answers = 0

    async def sample(keeper: ClockKeeper, connection: Connection, repeated: bool = False) -> None:
        nonlocal answers
        answers += 1
        if answers > SAMPLES + 1:
            asked.set()
        raise_once = answers == SAMPLES + 1
        if raise_once:
            raise Unavailable("a clock that cannot be asked once is asked again")

    monkeypatch.setattr("flowfabric.store.postgres.clock.EVERY_SECONDS", 0.0)
    monkeypatch.setattr(ClockKeeper, "sample", sample)
    store = await open_postgres(bench.url)
    await asked.wait()
    await store.close()
