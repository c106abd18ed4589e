"""Webhooks as an application sets and verifies them, and how it follows events itself."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Fabric, Invalid, NotFound, verify_webhook
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.event_filter import encode_cursor
from flowfabric.core.execution.event_views import EventView
from flowfabric.core.execution.webhook import headers_of
from flowfabric.store.clock import SystemClock
from tests.worker.bench import Bench, end_one

SECRET = "a secret of the receiver"


# -- the registry


async def test_webhooks_are_set_listed_and_deleted(bench: Bench) -> None:
    webhooks = bench.fabric.webhooks
    made = await webhooks.set("b", "https://example.org/b", namespace="n", families=["lease"])
    assert made.secret is not None
    assert len(made.secret) >= 32
    await webhooks.set("a", "https://example.org/a", tag={"app.x": "v"}, secret=SECRET)
    first, second = await webhooks.list()
    assert (first.name, first.tag, first.secret) == ("a", ("app.x", "v"), None)
    assert (second.name, second.families, second.namespace) == ("b", (Family.LEASE,), "n")
    assert [each.name for each in await webhooks.list(namespace="n")] == ["b"]
    assert [each.name for each in await webhooks.list(limit=1)] == ["a"]
    kept = await webhooks.set("b", "https://example.org/c")
    assert (kept.secret, kept.url, kept.namespace) == (made.secret, "https://example.org/c", None)
    await webhooks.delete("a")
    for name in ("a", "none"):
        for gone in (webhooks.get, webhooks.delete, webhooks.pause, webhooks.resume, webhooks.test):
            with pytest.raises(NotFound):
                await gone(name)
    assert made.secret not in repr(made)


@pytest.mark.parametrize(
    "members",
    [
        {"name": ""},
        {"name": 7},
        {"url": "ftp://example.org"},
        {"url": None},
        {"families": ["nonsense"]},
        {"families": "lease"},
        {"namespace": ""},
        {"tag": "nodot=v"},
        {"secret": "short"},
        {"secret": 7},
    ],
)
async def test_a_webhook_that_makes_no_sense_is_refused(
    bench: Bench, members: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        await bench.fabric.webhooks.set(**{"name": "h", "url": "https://example.org", **members})
    assert await bench.fabric.webhooks.list() == []


def test_webhooks_from_plain_code(store_url: str) -> None:
    fabric = Fabric(store_url)
    try:
        fabric.webhooks.set_sync("h", "https://example.org", secret=SECRET)
        assert fabric.webhooks.pause_sync("h").paused
        assert not fabric.webhooks.resume_sync("h").paused
        assert [each.name for each in fabric.webhooks.list_sync()] == ["h"]
        fabric.webhooks.delete_sync("h")
    finally:
        fabric.close_sync()


# -- receiving


def _signed(body: bytes = b'{"kind":"test"}') -> dict[str, str]:
    return headers_of(SECRET, "e", SystemClock().now() // 1000, body)


def test_a_receiver_gets_the_event() -> None:
    body = b'{"kind":"test"}'
    for given in (body, body.decode()):
        assert verify_webhook(SECRET, _signed(), given) == {"kind": "test"}
    assert verify_webhook(["old secret", SECRET], _signed(), body, "5m") == {"kind": "test"}
    assert verify_webhook(SECRET, _signed(), body, timedelta(minutes=1)) == {"kind": "test"}


@pytest.mark.parametrize(
    "call",
    [
        lambda: verify_webhook("", _signed(), b'{"kind":"test"}'),
        lambda: verify_webhook([], _signed(), b'{"kind":"test"}'),
        lambda: verify_webhook([SECRET, ""], _signed(), b'{"kind":"test"}'),
        lambda: verify_webhook(7, _signed(), b'{"kind":"test"}'),  # type: ignore[arg-type]
        lambda: verify_webhook(SECRET, [], b'{"kind":"test"}'),  # type: ignore[arg-type]
        lambda: verify_webhook(SECRET, _signed(), 7),  # type: ignore[arg-type]
        lambda: verify_webhook(SECRET, _signed(b"[]"), b"[]"),
        lambda: verify_webhook(SECRET, _signed(b"\xff"), b"\xff"),
        lambda: verify_webhook(SECRET, _signed(), b'{"kind":"test"}', "nonsense"),
    ],
)
def test_a_receiver_that_calls_it_wrongly_is_told(call: Callable[[], object]) -> None:
    with pytest.raises(Invalid):
        call()


# -- events and subscriptions of an application


async def test_an_application_follows_events(bench: Bench) -> None:
    """§8.1, §8.2"""
    first = await end_one(bench)
    async with aclosing(bench.fabric.events(families=["completion"])) as stream:
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.wait([waiting], timeout=0.05)
        second = await end_one(bench)
        async with asyncio.timeout(60):
            event = await waiting
    assert isinstance(event, EventView)
    assert str(event.execution_id) == second != first
    third = await end_one(bench)
    async with aclosing(bench.fabric.events(event.cursor)) as stream:
        async with asyncio.timeout(60):
            later = await anext(stream)
    assert isinstance(later, EventView)
    assert str(later.execution_id) == third
    for wrong in ("nonsense", encode_cursor(1)[:-1], "AQAAAAAAAAAAAAAAAAAAAAA="):
        with pytest.raises(Invalid):  # before the first iteration
            bench.fabric.events(wrong)


async def test_an_application_follows_events_from_its_call_on(bench: Bench) -> None:
    """server-sdk.md 7.1, §3.63: empty = from now; now is the call, not the first iteration"""
    await end_one(bench)
    async with aclosing(bench.fabric.events()) as stream:
        ended = await end_one(bench)
        async with asyncio.timeout(60):
            event = await anext(stream)
    assert isinstance(event, EventView)
    assert str(event.execution_id) == ended


def test_events_that_are_never_read_leave_nothing_behind(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Where no loop runs: "coroutine was never awaited" is a warning of the collector."""
    Fabric("sqlite://:memory:").events()
    gc.collect()
    assert recwarn.list == []


async def test_an_application_shares_a_subscription(bench: Bench) -> None:
    subscriptions = bench.fabric.subscriptions
    made = await subscriptions.create("s", namespace="default", families=["completion"])
    ids = [await end_one(bench) for _ in range(2)]
    batch = await subscriptions.read("s", holder="a", limit=1, lease="1m")
    assert [str(event.execution_id) for event in batch.events] == ids[:1]
    other = await subscriptions.read("s", holder="b")
    assert (other.events, other.held_by) == ((), "a")
    moved = await subscriptions.ack("s", batch.cursor)
    assert moved.cursor == batch.cursor != made.cursor
    assert moved.held_until == bench.moment(60_000)
    await subscriptions.release("s", holder="a")
    batch = await subscriptions.read("s", holder="b")
    assert [str(event.execution_id) for event in batch.events] == ids[1:]
    assert [each.name for each in await subscriptions.list()] == ["s"]
    assert (await subscriptions.get("s")).holder == "b"
    await subscriptions.delete("s")
    with pytest.raises(NotFound):
        await subscriptions.get("s")


async def test_a_reader_without_events_has_nothing_to_acknowledge(bench: Bench) -> None:
    """An empty cursor is where events end now: what another process still handles is before it."""
    subscriptions = bench.fabric.subscriptions
    made = await subscriptions.create("s")
    await end_one(bench)
    held = await subscriptions.read("s", holder="a")
    assert len(held.events) == 1
    other = await subscriptions.read("s", holder="b")
    assert (other.held_by, other.cursor) == ("a", "")
    with pytest.raises(Invalid, match="empty"):
        await subscriptions.ack("s", other.cursor)
    assert (await subscriptions.get("s")).cursor == made.cursor
    assert (await subscriptions.read("s", holder="a")).events == held.events
