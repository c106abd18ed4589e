"""Records of every kind on every store: versions, pages, what is due, what goes, and damage."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.access.audit import AUDIT_KEPT, AuditRecord
from flowfabric.core.access.token import AccessToken
from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import FOREVER, Presence
from flowfabric.core.execution.schedule import Schedule
from flowfabric.core.execution.subscription import Subscription
from flowfabric.core.execution.webhook import Webhook
from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.lane import Lane
from flowfabric.core.limit.quota import Quota
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.open import open_store
from flowfabric.store.rows.record import (
    AUDIT,
    BUDGETS,
    FLOWS,
    KEYRING,
    LANES,
    ONLY,
    PRESENCES,
    QUOTAS,
    SCHEDULES,
    SUBSCRIPTIONS,
    TOKENS,
    WEBHOOKS,
    RecordKind,
    SealedKeyring,
)
from tests.kit.damage import spoil

Kind = RecordKind[Any, Any]


def schedule(name: str, at: int | None = None) -> Schedule:
    moment = None if at is None else Millis(at)
    return Schedule(name=name, kind="k", every=Millis(1000), next_at=moment)


def presence(name: str, until: int = 0) -> Presence:
    return Presence(worker="w", instance=name, ttl=Millis(0), seen_at=Millis(until))


MAKE: dict[Kind, Callable[[str], Any]] = {
    SCHEDULES: schedule,
    PRESENCES: presence,
    QUOTAS: lambda name: Quota(name=name, concurrency=1),
    LANES: lambda name: Lane(name=name, weight=2),
    BUDGETS: lambda name: Budget(name=name),
    TOKENS: lambda name: AccessToken(name=name, scopes=("read",)),
    AUDIT: lambda name: AuditRecord(id=name, action="token.created"),
    SUBSCRIPTIONS: lambda name: Subscription(name=name, namespace="n"),
    WEBHOOKS: lambda name: Webhook(name=name, url="https://example.org", secret="s" * 16),
}
"""Kinds with a name of their own; `a` comes before `b`."""

NAMED = pytest.mark.parametrize("kind", MAKE, ids=lambda kind: kind.table)
DUE = pytest.mark.parametrize(
    ("kind", "make"),
    [
        (SCHEDULES, schedule),
        (PRESENCES, presence),
        (BUDGETS, lambda name, at=None: Budget(name=name, next_reset_at=at)),
    ],
    ids=["schedule", "presence", "budget"],
)


@pytest.fixture
async def store(store: Store) -> AsyncIterator[Store]:
    await store.migrate()
    yield store
    await store.close()


async def put(store: Store, kind: Kind, *names: str) -> list[Any]:
    """New records of these names, as they are stored."""
    values = [MAKE[kind](name) for name in names]
    for value in values:
        assert await store.records.put(kind, value, 0)
    found = await store.records.get(kind, [kind.key_of(value) for value in values])
    return [found[kind.key_of(value)] for value in values]


@NAMED
async def test_a_record_is_written_by_who_knows_its_version(store: Store, kind: Kind) -> None:
    records, made = store.records, MAKE[kind]("a")
    key = kind.key_of(made)
    assert not await records.put(kind, made, 1)
    assert await records.get(kind, [key]) == {}
    (first,) = await put(store, kind, "a")
    assert first == replace(made, version=first.version)
    assert first.version >= 1
    for wrong in (0, first.version + 1):
        assert not await records.put(kind, made, wrong)
    assert await records.put(kind, replace(made, unknown={"later": 1}), first.version)
    second = replace(made, unknown={"later": 1}, version=first.version + 1)
    assert await records.get(kind, [key, key]) == {key: second}
    assert not await records.put(kind, made, first.version)


@NAMED
async def test_a_record_is_dropped_by_who_knows_its_version(store: Store, kind: Kind) -> None:
    records = store.records
    first, other = await put(store, kind, "a", "b")
    key = kind.key_of(first)
    assert not await records.drop(kind, key, first.version + 1)
    assert await records.drop(kind, key, first.version)
    assert not await records.drop(kind, key)
    assert not await records.put(kind, first, first.version), "a write brings nothing back"
    assert await records.page(kind) == [other]
    assert await records.drop(kind, kind.key_of(other))
    assert await records.page(kind) == []


@NAMED
async def test_records_are_listed_by_key(store: Store, kind: Kind) -> None:
    """In the order of bytes; lanes in the order of the server, as routes are."""
    names = ["a", "ab", "b", "c"] if kind is LANES else ["B", "a", "ab", "b", "é"]
    await put(store, kind, *reversed(names))
    found = await store.records.page(kind)
    assert [kind.parts(kind.key_of(value))[-1] for value in found] == names
    assert await store.records.page(kind, None, 2) == found[:2]
    assert await store.records.page(kind, kind.key_of(found[1]), 2) == found[2:4]
    assert await store.records.page(kind, kind.key_of(found[-1])) == []
    assert await store.records.page(kind, None, 0) == []


@NAMED
async def test_of_two_processes_one_writes(
    store: Store, store_url: str, clock: ManualClock, kind: Kind
) -> None:
    other = await open_store(store_url, clock=clock)
    version = 0
    for _ in range(5):
        mine, theirs = MAKE[kind]("a"), replace(MAKE[kind]("a"), unknown={"theirs": True})
        answers = await asyncio.gather(
            store.records.put(kind, mine, version), other.records.put(kind, theirs, version)
        )
        assert sorted(answers) == [False, True]
        (found,) = await other.records.page(kind)
        assert found.unknown == ({} if answers[0] else {"theirs": True})
        version = found.version
    drops = await asyncio.gather(
        *(one.records.drop(kind, kind.key_of(found), version) for one in (store, other))
    )
    assert sorted(drops) == [False, True]
    await other.close()


@NAMED
async def test_a_record_that_cannot_be_read_costs_no_other(
    store: Store, store_url: str, kind: Kind
) -> None:
    records = store.records
    first, bad, last = await put(store, kind, "a", "b", "c")
    await spoil(store_url, kind.table, "doc", "b", [*kind.key][-1])
    assert await records.page(kind) == [first, last]
    good = [kind.key_of(value) for value in (first, last)]
    assert list((await records.get(kind, good)).values()) == [first, last]
    with pytest.raises(Corruption, match=f"{kind.name} b cannot be read"):
        await records.get(kind, [*good, kind.key_of(bad)])
    assert await records.drop(kind, kind.key_of(bad)), "it can be deleted all the same"


@DUE
async def test_what_is_due_comes_first_by_moment(
    store: Store, store_url: str, kind: Kind, make: Callable[[str, int], Any]
) -> None:
    records = store.records
    assert await records.next_due(kind) is None
    for name, at in (("c", 1), ("b", 5), ("a", 5), ("d", 9)):
        assert await records.put(kind, make(name, at), 0)
    assert await records.next_due(kind) == 1

    async def due(now: int, limit: int = 9) -> list[str]:
        found = await records.due(kind, Millis(now), limit)
        return [kind.parts(kind.key_of(value))[-1] for value in found]

    assert await due(0) == []
    assert await due(5) == ["c", "a", "b"]
    assert await due(99, 2) == ["c", "a"]
    await spoil(store_url, kind.table, "doc", "c", [*kind.key][-1])
    assert await due(5) == ["a", "b"]


async def test_what_is_never_due_is_not_waited_for(store: Store) -> None:
    await store.records.put(SCHEDULES, schedule("never"), 0)
    assert await store.records.next_due(SCHEDULES) is None
    assert await store.records.due(SCHEDULES, FOREVER, 9) == []


async def test_what_has_expired_goes_readable_or_not(store: Store, store_url: str) -> None:
    records = store.records
    for name, until in (("a", 1), ("b", 2), ("c", 3)):
        assert await records.put(PRESENCES, presence(name, until), 0)
    await spoil(store_url, "presence", "doc", "a", "instance")
    gone = await records.expire(PRESENCES, Millis(2))
    assert sorted(gone) == [("default", "a"), ("default", "b")]
    assert [entry.instance for entry in await records.page(PRESENCES)] == ["c"]


async def test_old_audit_records_go(store: Store) -> None:
    records = store.records
    for name, at in (("a", 1), ("b", 2), ("c", 3)):
        assert await records.put(AUDIT, AuditRecord(id=name, at=Millis(at)), 0)
    assert sorted(await records.expire(AUDIT, Millis(AUDIT_KEPT + 2))) == ["a", "b"]
    assert [record.id for record in await records.page(AUDIT)] == ["c"]


async def test_a_page_is_narrowed_down_by_columns(store: Store) -> None:
    records = store.records
    marked = replace(presence("m"), marked_at=Millis(1))
    for value in (presence("a"), marked, replace(presence("a"), namespace="other")):
        assert await records.put(PRESENCES, value, 0)
    (found,) = await records.page(PRESENCES, where={"expires_at": FOREVER})
    assert found.instance == "m"
    own = await records.page(PRESENCES, ("default", ""), 9, {"namespace": "default"})
    assert [entry.key for entry in own] == [("default", "a"), ("default", "m")]
    assert await records.page(PRESENCES, ("other", ""), 9, {"namespace": "default"}) == []
    assert len(await records.page(PRESENCES, ("default", "m"))) == 1
    keys = [("default", "a"), ("other", "a"), ("other", "m")]
    assert list(await records.get(PRESENCES, keys)) == keys[:2]


async def test_the_only_record_of_a_kind(store: Store) -> None:
    records = store.records
    assert await records.put(KEYRING, SealedKeyring(b"secret"), 0)
    assert not await records.put(KEYRING, SealedKeyring(b"other"), 0)
    found = (await records.get(KEYRING, [ONLY]))[ONLY]
    assert (found.version, found.doc) == (1, b"secret")
    assert "secret" not in repr(found)
    assert KEYRING.title(ONLY) == "the key ring"


async def test_nothing_is_asked_for(store: Store) -> None:
    for kind in (*MAKE, FLOWS, KEYRING):
        assert await store.records.get(kind, []) == {}
