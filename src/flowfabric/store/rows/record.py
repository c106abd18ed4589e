"""Versioned records: every kind of document that is read and written by its key and version.

A record is one row of its kind's table: key, version, the columns other statements look by, and the
document. Columns win over the document: a statement may raise a version without rewriting it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, cast
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.access.audit import AuditRecord
from flowfabric.core.access.token import AccessToken
from flowfabric.core.base import document
from flowfabric.core.base.document import Document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import RegistryEvent
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.registry_event import expired
from flowfabric.core.execution.schedule import Schedule
from flowfabric.core.execution.subscription import Subscription
from flowfabric.core.execution.webhook import Webhook
from flowfabric.core.flow.model import Flow
from flowfabric.core.limit.budget import ATTACHED, Budget
from flowfabric.core.limit.lane import Lane
from flowfabric.core.limit.quota import Quota
from flowfabric.store.readable import named, readable

Row = tuple[Any, ...]


class Versioned(Protocol):
    """A value that knows the version it was read with, 0 if it was never stored."""

    @property
    def version(self) -> int: ...


K = TypeVar("K")
V = TypeVar("V", bound=Versioned)
D = TypeVar("D", bound=Document)

ONLY = 1
"""The key of a kind that has one record."""


class RecordKind(Struct, Generic[K, V], frozen=True, kw_only=True, eq=False):
    """One kind of record and its table.

    `name` is what errors call a record. `key` names the key columns and their SQL types; a value
    has members of the same names. `columns` are the other columns that statements look by, and how
    each is made of a value. `due`, one of them, holds the moment at which a record needs attention.
    `owned` are tables whose rows go when a record goes, with the column that holds its key. `first`
    gives the version of a new record. `expired` makes the event of a record that expires, of its
    key columns and its value (None if it cannot be read). `read` makes a value of key columns,
    version and document; `write` makes the document of a value.
    """

    name: str
    table: str
    key: Mapping[str, str]
    read: Callable[[Sequence[Any], int, Any], V]
    write: Callable[[V], bytes]
    columns: Mapping[str, Callable[[V], Any]] = field(default_factory=dict)
    due: str | None = None
    owned: Mapping[str, str] = field(default_factory=dict)
    first: Callable[[V], int] = lambda value: 1
    expired: Callable[[Sequence[Any], V | None, Millis], RegistryEvent] | None = None

    def key_of(self, value: V) -> K:
        """The key as callers use it: its only member, or a tuple of all."""
        return cast(K, attrgetter(*self.key)(value))

    def title(self, key: K) -> str:
        """What errors and logs call a record."""
        return self.name if key == ONLY else f"{self.name} {self.parts(key)[-1]}"

    def parts(self, key: K) -> Row:
        """The values of the key columns."""
        return key if isinstance(key, tuple) else (key,)

    def key_in(self, row: Sequence[Any]) -> K:
        """The key that the values of the key columns make."""
        return cast(K, row[0] if len(self.key) == 1 else tuple(row))

    @property
    def first_page(self) -> Row:
        """A key before every other."""
        return ("",) * len(self.key)

    def numbered(self, value: V, expected: int) -> V:
        """The value with the version it gets when it replaces the expected one (0: none)."""
        version = expected + 1 if expected else self.first(value)
        return cast(V, replace(cast(Any, value), version=version))

    @property
    def width(self) -> int:
        """How many columns a row has."""
        return len(self.key) + len(self.columns) + 2

    def row(self, value: V) -> Row:
        """Key columns, version, columns, document."""
        columns = (column(value) for column in self.columns.values())
        return (*self.parts(self.key_of(value)), value.version, *columns, self.write(value))

    def by_key(self, rows: Iterable[Sequence[Any]]) -> dict[K, V]:
        """The values of rows (key columns, version, document) that were asked for by key.
        Corruption names a row that cannot be read."""
        found = [named(self.name, self._shown(row), partial(self.value, row)) for row in rows]
        return {self.key_of(value): value for value in found}

    def readable(
        self,
        rows: Iterable[Sequence[Any]],
        left_out: Callable[[Sequence[Any]], None] = lambda row: None,
    ) -> list[V]:
        """The values of such rows that can be read; `left_out` gets each row that cannot."""
        return readable(rows, self.value, self.name, self._shown, left_out)

    def expiries(self, rows: Sequence[Sequence[Any]], now: Millis) -> list[RegistryEvent]:
        """The events of expired rows (key columns, version, document)."""
        if self.expired is None:
            return []
        read = {self.parts(self.key_of(value)): value for value in self.readable(rows)}
        keys = [tuple(row[: len(self.key)]) for row in rows]
        return [self.expired(key, read.get(key), now) for key in keys]

    def value(self, row: Sequence[Any]) -> V:
        """The value of a row (key columns, version, document)."""
        *key, version, doc = row
        return self.read(key, version, doc)

    def _shown(self, row: Sequence[Any]) -> object:
        return row[len(self.key) - 1]


def _reading(cls: type[D], *members: str) -> Callable[[Sequence[Any], int, Any], D]:
    """How documents of a class are read; `members` are filled in from the key columns."""

    def read(key: Sequence[Any], version: int, doc: Any) -> D:
        found = document.read(cls, bytes(doc))
        return replace(found, version=version, **dict(zip(members, key, strict=False)))

    return read


def _given(value: Presence | Schedule | Quota | Budget) -> int:
    """A new record begins with the version that its maker gave it, one that no earlier record of
    the same key had."""
    return max(1, value.version)


def _made_at(value: Subscription | Webhook) -> int:
    """A new record begins with the moment it was made, so that a decision about one that was
    deleted does not fit the one that was made in its place."""
    return max(1, value.created_at)


def _read_lane(key: Sequence[Any], version: int, doc: Any) -> Lane:
    """A lane that no operator has touched has no document."""
    return Lane(name=key[0], version=version) if doc is None else _lane_of(key, version, doc)


_lane_of = _reading(Lane, "name")


def _scope(budget: Budget) -> str | None:
    """Only budgets that hold without being named have one in their row."""
    return str(budget.scope) if budget.scope in ATTACHED else None


class SealedKeyring(Struct, frozen=True):
    """The stored keys that sign tokens. `core.wait.keyring` reads and writes `doc`; the store never
    looks inside it, and no `repr` shows it, because it holds secrets."""

    doc: bytes
    version: int = 0
    one: int = ONLY

    def __repr__(self) -> str:
        return f"SealedKeyring(version={self.version})"


SCHEDULES: RecordKind[str, Schedule] = RecordKind(
    name="schedule",
    table="schedule",
    key={"name": "text"},
    columns={"next_at": attrgetter("next_at")},
    due="next_at",
    first=_given,
    read=_reading(Schedule, "name"),
    write=document.write,
)

PRESENCES: RecordKind[tuple[str, str], Presence] = RecordKind(
    name="worker",
    table="presence",
    key={"namespace": "text", "instance": "text"},
    columns={"expires_at": attrgetter("kept_until")},
    due="expires_at",
    first=_given,
    expired=lambda key, presence, now: expired(key[0], key[1], presence, now),
    read=_reading(Presence, "namespace", "instance"),
    write=document.write,
)

QUOTAS: RecordKind[str, Quota] = RecordKind(
    name="quota",
    table="quota",
    key={"name": "text"},
    owned={"admission": "quota"},
    first=_given,
    read=_reading(Quota, "name"),
    write=document.write,
)

LANES: RecordKind[str, Lane] = RecordKind(
    name="lane",
    table="lane",
    key={"name": "text"},
    columns={"state": lambda lane: int(lane.state), "concurrency": attrgetter("concurrency")},
    read=_read_lane,
    write=document.write,
)

BUDGETS: RecordKind[str, Budget] = RecordKind(
    name="budget",
    table="budget",
    key={"name": "text"},
    columns={
        "parent": attrgetter("parent"),
        "scope": _scope,
        "scope_id": lambda budget: budget.scope_id if budget.scope in ATTACHED else None,
        "next_reset_at": attrgetter("next_reset_at"),
    },
    due="next_reset_at",
    first=_given,
    read=_reading(Budget, "name"),
    write=document.write,
)
"""`records` reads and lists budgets; `post` writes them, together with what was spent."""

FLOWS: RecordKind[UUID, Flow] = RecordKind(
    name="flow",
    table="flow",
    key={"id": "uuid"},
    columns={
        "namespace": attrgetter("namespace"),
        "kind": attrgetter("kind"),
        "state": lambda flow: str(flow.state),
        "created_at": attrgetter("created_at"),
        "ended_at": attrgetter("ended_at"),
    },
    read=_reading(Flow),
    write=document.write,
)
"""`records` reads flows; `apply_flow` and `count_flows` write them, with their executions."""

SUBSCRIPTIONS: RecordKind[str, Subscription] = RecordKind(
    name="subscription",
    table="subscription",
    key={"name": "text"},
    columns={"namespace": attrgetter("namespace")},
    first=_made_at,
    read=_reading(Subscription, "name"),
    write=document.write,
)

WEBHOOKS: RecordKind[str, Webhook] = RecordKind(
    name="webhook",
    table="webhook",
    key={"name": "text"},
    columns={"namespace": attrgetter("namespace")},
    first=_made_at,
    read=_reading(Webhook, "name"),
    write=document.write,
)

KEYRING: RecordKind[int, SealedKeyring] = RecordKind(
    name="the key ring",
    table="keyring",
    key={"one": "smallint"},
    read=lambda key, version, doc: SealedKeyring(bytes(doc), version),
    write=attrgetter("doc"),
)

TOKENS: RecordKind[str, AccessToken] = RecordKind(
    name="access token",
    table="access_token",
    key={"name": "text"},
    read=_reading(AccessToken, "name"),
    write=document.write,
)

AUDIT: RecordKind[str, AuditRecord] = RecordKind(
    name="audit record",
    table="audit",
    key={"id": "text"},
    columns={"kept_until": attrgetter("kept_until")},
    due="kept_until",
    read=_reading(AuditRecord, "id"),
    write=document.write,
)
