"""Many rows in one statement: what is stored is what was given, whatever the columns hold."""

import secrets
import sqlite3
from collections.abc import Iterator
from uuid import UUID

import msgspec
import pytest

from flowfabric.store.readable import UNREADABLE
from flowfabric.store.rows.execution import Row
from flowfabric.store.sqlite.schema import migrate
from flowfabric.store.sqlite.session import NameRegistry, SqliteSession, read_uuid

COUNTS = [1, 3, 7, 8, 17, 48, 64, 85, 100, 147]


@pytest.fixture
def session() -> Iterator[SqliteSession]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    session = SqliteSession(connection, NameRegistry())
    migrate(session)
    yield session
    connection.close()


def event(number: int, *, attempt: int | None, worker: int | None, detail: bytes | None) -> Row:
    return (number.to_bytes(16, "big"), 1000 + number, 1, number, attempt, worker, detail)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("columns", ["never", "always", "first", "last", "every third"])
def test_insert_keeps_every_value(session: SqliteSession, count: int, columns: str) -> None:
    def is_null(number: int) -> bool:
        by_name = {
            "never": False,
            "always": True,
            "first": number == 0,
            "last": number == count - 1,
            "every third": number % 3 == 0,
        }
        return by_name[columns]

    rows = [
        event(
            number,
            attempt=None if is_null(number) else number,
            worker=None if is_null(number + 1) else 7,
            detail=None if is_null(number) else b"d%d" % number,
        )
        for number in range(count)
    ]
    session.insert("new_events", rows)
    stored = session.connection.execute(
        "select id, at, kind, epoch, attempt, worker, detail from event order by seq"
    ).fetchall()
    assert stored == rows


@pytest.mark.parametrize("count", COUNTS)
def test_keys_of_all_kinds_are_found(session: SqliteSession, count: int) -> None:
    ids = [secrets.token_bytes(16) for _ in range(count)]
    rows = [(id, 1, 1, None, None, None, b"p") for id in ids]
    session.insert("new_executions", rows)
    found = session.among("known_executions", [*ids, secrets.token_bytes(16)]).fetchall()
    assert sorted(id for id, _, _ in found) == sorted(ids)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("version", [None, 1])
def test_given_rows_are_compared_with_their_nulls(
    session: SqliteSession, count: int, version: int | None
) -> None:
    """A fence without a version stands whatever the version is."""
    fences = [(secrets.token_bytes(16), version, 1, secrets.token_bytes(16)) for _ in range(count)]
    session.insert(
        "new_lease",
        [
            (id, 1, 1, 0, 0, 0, 0, None, claim, 1, 0, 50, None, None, 1, None)
            for id, _, _, claim in fences
        ],
    )
    assert session.given("refused_fences", fences, 10).fetchall() == []
    wrong = [(id, version, 2, claim) for id, _, _, claim in fences[:1]]
    refused = session.given("refused_fences", [*fences[1:], *wrong], 10).fetchall()
    assert {(id, epoch) for id, epoch, _ in refused} == {(fences[0][0], 2)}


def test_a_uuid_is_read_as_its_class_reads_it() -> None:
    for id in (UUID(int=0), UUID(int=(1 << 128) - 1), UUID(int=7 << 100)):
        assert read_uuid(id.bytes) == UUID(bytes=id.bytes)
        assert read_uuid(id.bytes).is_safe is id.is_safe
    with pytest.raises(UNREADABLE):
        read_uuid(b"short")
    assert issubclass(msgspec.MsgspecError, UNREADABLE)
