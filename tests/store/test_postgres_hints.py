"""Hints between processes: heard where that is possible, found by looking elsewhere."""

import asyncio
import logging
from collections.abc import Callable
from urllib.parse import quote, urlsplit

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.store.hints import EVERYTHING, Hints, Topic, Topics
from flowfabric.store.postgres import PostgresStore, open_postgres
from flowfabric.store.postgres import listener as listener_module
from flowfabric.store.postgres.address import read_address
from tests.kit.pooler import pooled
from tests.kit.proxy import proxied
from tests.store.postgres_bench import opened

NEVER = 60.0


async def calm(hints: Hints) -> None:
    """Returns when the looks of the beginning are over."""
    while await hints.wait(0.25):
        pass


async def waiting(hints: Hints, topics: Topics = EVERYTHING) -> "asyncio.Task[bool]":
    task = asyncio.create_task(hints.wait(NEVER, hints.count, topics))
    await asyncio.wait([task], timeout=0)
    return task


async def sent(store: PostgresStore) -> None:
    store.hints.send(Topic.ENDINGS)


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    while text not in caplog.text:  # noqa: ASYNC110 - logging has no event
        await asyncio.sleep(0.01)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


# -- topics


async def test_other_processes_wake_those_a_hint_concerns(database: str) -> None:
    async with opened(database) as bench:
        other = await bench.other_store()
        assert await bench.store.hints.wait(NEVER)
        work = await waiting(bench.store.hints, Topic.WORK)
        endings = await waiting(bench.store.hints, Topic.ENDINGS)
        other.hints.send(Topic.ENDINGS)
        assert await endings
        assert not work.done()
        other.hints.send(Topic.WORK)
        assert await work


@pytest.mark.parametrize("payload", ["0123456789abcdef", "someone:1025", "someone:x"])
async def test_hints_of_other_releases_are_understood(database: str, payload: str) -> None:
    """An older one sends no topics, a later one may know more of them."""
    async with opened(database) as bench:
        assert await bench.store.hints.wait(NEVER)
        raw = await bench.raw()
        task = await waiting(bench.store.hints, Topic.WORK)
        await raw.execute(f"select pg_notify('flowfabric_wake', '{payload}')")
        assert await task


async def test_who_waits_for_nothing_does_not_listen(database: str) -> None:
    async with opened(database) as bench:
        other = await bench.other_store()
        assert await other.hints.wait(NEVER)
        heard = await waiting(other.hints)
        bench.store.hints.send()
        assert await heard
        raw = await bench.raw()
        listening = "select count(*) from pg_stat_activity where query ilike 'listen%'"
        before = await raw.fetchval(listening + " and datname = current_database()")
        await bench.store.hints.wait(0.0)
        assert before <= 1


async def test_a_store_can_be_closed_at_any_moment_of_listening(database: str) -> None:
    for turns in range(40):
        async with opened(database) as bench:
            task = await waiting(bench.store.hints)
            bench.store.hints.send()
            for _ in range(turns):
                await asyncio.wait([task], timeout=0.0005)
            async with asyncio.timeout(60):
                await bench.store.close()


# -- through a pooler


async def test_news_are_found_through_a_pooler(database: str) -> None:
    async with (
        pooled(database, strict=False, sessions=3) as (_, url),
        opened(url) as bench,
        opened(database) as other,
    ):
        await calm(bench.store.hints)
        for happens in (
            sent(other.store),
            (await other.raw()).execute("select flowfabric.submit('task', '1', '{}')"),
        ):
            task = await waiting(bench.store.hints)
            await happens
            assert await task


async def test_without_waiting_tasks_a_pooler_is_left_alone(database: str) -> None:
    async with pooled(database, strict=False) as (pooler, url), opened(url) as bench:
        await calm(bench.store.hints)
        await asyncio.sleep(listener_module.LONGEST_GAP * 2)
        turns = len(pooler.turns)
        await asyncio.sleep(listener_module.LONGEST_GAP * 5)
        assert len(pooler.turns) == turns


async def test_a_process_behind_a_pooler_is_heard_by_those_that_listen(database: str) -> None:
    async with (
        pooled(database, strict=False) as (_, url),
        opened(url) as bench,
        opened(database) as other,
    ):
        assert await other.store.hints.wait(NEVER)
        task = await waiting(other.store.hints, Topic.ENDINGS)
        bench.store.hints.send(Topic.ENDINGS)
        assert await task


# -- a direct address to listen at


async def test_a_direct_address_makes_hints_heard_behind_a_pooler(database: str) -> None:
    async with (
        pooled(database, strict=False) as (pooler, url),
        proxied(database) as (_, direct),
        opened(f"{url}?listen={urlsplit(direct).netloc.rpartition('@')[2]}") as bench,
        opened(database) as other,
    ):
        assert await bench.store.hints.wait(NEVER)
        turns = len(pooler.turns)
        task = await waiting(bench.store.hints, Topic.WORK)
        other.store.hints.send(Topic.WORK)
        assert await task
        assert len(pooler.turns) == turns, "nothing is asked through the pooler"


async def test_losing_the_direct_address_costs_no_hint_and_is_logged_once(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        pooled(database, strict=False, sessions=3) as (_, url),
        proxied(database) as (proxy, direct),
        opened(f"{url}?listen={quote(direct, safe='')}") as bench,
        opened(database) as other,
    ):
        assert await bench.store.hints.wait(NEVER)
        proxy.refuses = True
        proxy.cut()
        await waiting(bench.store.hints)
        await until_logged(caplog, "cannot be heard")
        await calm(bench.store.hints)
        task = await waiting(bench.store.hints)
        other.store.hints.send(Topic.WORK)
        assert await task, "found by looking"
        proxy.refuses = False
        task = await waiting(bench.store.hints)
        await until_logged(caplog, "heard again")
        assert await task, "all look once"
        task = await waiting(bench.store.hints, Topic.WORK)
        other.store.hints.send(Topic.WORK)
        assert await task
        assert len(warnings(caplog)) == 2


async def test_a_direct_address_that_leads_elsewhere_is_named(
    database: str,
    fresh_database: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "ECHO_SECONDS", 0.2)
    elsewhere = fresh_database()
    async with (
        pooled(database, strict=False) as (_, url),
        opened(f"{url}?listen={quote(elsewhere, safe='')}") as bench,
    ):
        assert await bench.store.hints.wait(NEVER), "looks all the same"
        (warning,) = warnings(caplog)
        assert "was not heard there" in warning
        assert repr(urlsplit(elsewhere).path.lstrip("/")) in warning


async def test_a_direct_address_without_a_server_is_named(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        pooled(database, strict=False) as (_, url),
        opened(f"{url}?listen=127.0.0.1:1") as bench,
    ):
        assert await bench.store.hints.wait(NEVER)
        (warning,) = warnings(caplog)
        assert "127.0.0.1:1" in warning


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "host:port"),
        ("ada@db", "host:port"),
        ("db:0", "'0' is not a port"),
        ("https%3A%2F%2Fdb", "begins with postgresql"),
    ],
)
async def test_a_direct_address_that_is_none_is_refused(given: str, told: str) -> None:
    with pytest.raises(Invalid, match="listen in the URL of the store: .*" + told):
        await open_postgres(f"postgresql://ada:secret@pooler:6432/shop?listen={given}")


def test_a_direct_address_has_the_user_and_the_database_of_the_url() -> None:
    url = "postgresql://ada:secret@pooler:6432/shop?pooler=transaction&sslmode=require"
    address = read_address(f"{url}&listen=db:5432")
    assert address.listen is not None
    assert address.listen.dsn == "postgresql://ada:secret@db:5432/shop?sslmode=require"
    assert "listen" not in address.dsn
    whole = quote("postgresql://eve:hidden@db/other", safe="")
    other = read_address(f"{url}&listen={whole}")
    assert other.listen is not None
    assert other.listen.dsn == "postgresql://eve:hidden@db/other"
    assert other.censored("secret and hidden") == "*** and ***"


# -- without a pooler


async def test_where_nothing_is_heard_news_are_looked_for(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a pooler that is not recognised."""
    monkeypatch.setattr(listener_module, "ECHO_SECONDS", 0.05)
    monkeypatch.setattr(listener_module.Listener, "echoed", lambda self: None)
    async with opened(database) as bench:
        other: PostgresStore = await bench.other_store()
        await calm(bench.store.hints)
        task = await waiting(bench.store.hints)
        other.hints.send(Topic.WORK)
        assert await task
        assert len(warnings(caplog)) == 1
