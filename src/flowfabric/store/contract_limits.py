"""The part of the store contract for limits: quotas, the queues before them, budgets, lanes.

Rows, not rules, as everywhere. `QuotaView` and `BudgetLedger` are what the rules of
`core.limit.release` and `core.limit.spend` decide on; `Release` and `BudgetLedger` are what they
want written."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate, Route
from flowfabric.core.limit.budget import Budget, Reservation
from flowfabric.core.limit.lane import Lane
from flowfabric.core.limit.quota import Quota, Uses
from flowfabric.core.limit.release import QuotaView, Release, StartsBack
from flowfabric.core.limit.spend import BudgetLedger


class Crowd(Struct, frozen=True):
    """A queue somebody waits in: at which gate, and who is first. `known`: there is a row that
    says which quota it is for (only queues before quotas have one)."""

    queue: int
    gate: Gate
    first: UUID
    known: bool


class Through(Struct, frozen=True):
    """What a release let through, and the lanes that have work now."""

    moved: frozenset[UUID]
    lanes: frozenset[str]


class QueueCount(Struct, frozen=True):
    """How many wait in a queue and how many hold a slot of it; of those `running` have a lease, the
    others wait for a worker."""

    uses: Uses
    waiting: int
    held: int
    running: int = 0


class QuotaViewRequest(Struct, frozen=True):
    """Which lines of a quota a release looks at: those of `queues` (None: of all its queues) in
    which somebody waits at the limits gate, at most `lines` by (turn, queue), of each the best
    `depth` by (rank, id). Who has a route of `closed` is passed over, and of `draining` who would
    begin, as if they were not there."""

    quota: str
    queues: tuple[int, ...] | None
    lines: int
    depth: int
    now: Millis
    closed: tuple[Route, ...] = ()
    draining: tuple[Route, ...] = ()


class LedgerNeeds(Struct, frozen=True):
    """Which budgets, and what was noted of them. Budgets come with all they are part of, ledgers
    and reservations are those of the executions (and of the given ids)."""

    budgets: tuple[str, ...] = ()
    charges: tuple[tuple[str, str], ...] = ()
    executions: tuple[UUID, ...] = ()
    reservations: tuple[UUID, ...] = ()


class WaitCount(Struct, frozen=True):
    """How many executions of a lane wait at a gate, in which queue (if in any). Without a gate
    they are ready: nothing but a worker is missing."""

    gate: Gate | None
    queue: int | None
    count: int


class QuotaStore(Protocol):
    """Quotas and the queues before them.

    The state rows `ready`, `lease` and `parked` carry `queue` (`rows.queue_number`): of an
    execution with quotas the number of its queue while it is ready, lost, running or waits at the
    limits gate; of one that waits for a budget the number of that budget's queue; NULL otherwise.
    A row in `ready` or `lease` with a queue *is* a slot: it is counted, never kept in a counter.
    Only `release` moves rows with a queue into `ready`, so that while a quota's version stands its
    slots can only become fewer.
    """

    async def quotas(self, names: Sequence[str]) -> dict[str, Quota]:
        """The quotas of these names, with their versions."""

    async def quota_page(self, after: str, limit: int) -> list[Quota]:
        """Quotas by name."""

    async def put_quota(self, quota: Quota, expected: int) -> bool:
        """Writes a quota if the stored version is the expected one (0: there is none); the new one
        is `limit_rows.next_version`."""

    async def drop_quota(self, name: str) -> bool:
        """Deletes a quota and its admissions; False when there was none. The rows of its queues
        stay until `trim_queues`, so that whoever waits in them is found."""

    async def put_queues(self, queues: Sequence[tuple[int, Uses]]) -> None:
        """Notes for every quota of the uses that this queue is one of its; what is there stays."""

    async def standing(self, ask: QuotaViewRequest) -> QuotaView:
        """What a release decides on: the lines asked for; the quota asked for and those the lines
        use (as far as they exist, with versions); `held`: how many rows of `ready` and `lease` each
        queue of those quotas has (only if there are lines, and of quotas that limit concurrency; if
        all their limits are per key, only of queues with a key the lines use); `admitted`: the
        admissions within the longest window of each quota with a rate, for all of it and for the
        keys of the lines, oldest first; `served`: the latest turn of each quota,
        the one asked for also if it does not exist. The
        versions are never newer than the rest."""

    async def release(self, release: Release) -> Through | None:
        """Writes a release, if every quota in `versions` still has that version (0: is not there;
        of the others each becomes one more) and every queue in `turns` has its row; None, and
        nothing is written, otherwise. Moves the rows of `moves` from `parked` to `ready` (next
        version, as `core.execution.gate.admit` would with the limits gate open; the rank later by
        as much as the move is after the creation) that still have their version there at the limits
        gate; the others have gone elsewhere meanwhile. Writes the turns of queues, adds the
        admissions, deletes the admissions of quotas in `forget` up to that moment. The third
        statement that may repeat a core rule."""

    async def take_starts_back(self, starts: Sequence[StartsBack]) -> None:
        """Takes admissions off the log: of each quota and key `count` of those from `since` to
        `until`, the oldest first, as far as there are so many. A release that was decided before
        counts them still, which is harmless."""

    async def crowds(self, after: int, limit: int) -> list[Crowd]:
        """Queues in which somebody waits, by number above `after`. Must not read every row that
        waits: a hundred thousand may wait in one queue."""

    async def waiting_in(self, queue: int, limit: int) -> list[UUID]:
        """Who waits in a queue (parked rows), best first by (rank, id)."""

    async def queue_counts(self, quota: str, limit: int) -> list[QueueCount]:
        """How full the queues of a quota are, those with somebody waiting or running, by number."""

    async def holding(self, queues: Sequence[int], limit: int) -> list[UUID]:
        """Some of those who hold a slot of these queues, running ones first."""

    async def ahead_of(self, queue: int, rank: int, uuid: UUID, limit: int) -> int:
        """How many parked rows of a queue are before (rank, id), counted up to `limit`."""

    async def trim_queues(self, now: Millis, limit: int) -> int:
        """Deletes rows of queues nobody waits in and nobody holds a slot of (all rows of a queue
        together, `limit` queues at most), and admissions that no window which ends at `now`
        reaches; returns how many rows."""

    async def wait_counts(self, lane: str, namespace: str | None) -> list[WaitCount]:
        """How many executions of a lane wait at which gate and in which queue, and how many are
        ready; each counted up to 100,000."""


class BudgetStore(Protocol):
    """Budgets and what was spent of them."""

    async def books(self, ask: LedgerNeeds) -> BudgetLedger:
        """What exists of what is asked for; budgets with their versions."""

    async def post(self, books: BudgetLedger) -> bool:
        """Writes everything in `books` that is new, whole or not at all: each budget in `changed`
        if its stored version is the one noted there (0: there is none; the new one is one more),
        or deletes it with its ledgers and charges if it is in `removed`; ledgers, charges (the last
        of a key stays) and reservations (None: it goes). A reservation that goes must still be
        there, so that it is given back once. False when anything has moved meanwhile."""

    async def budget_page(self, after: str, limit: int) -> list[Budget]:
        """Budgets by name."""

    async def attached(self) -> list[tuple[str, str, str]]:
        """The budgets of a namespace, a flow or a run: (scope, its id, name)."""

    async def due_budgets(self, now: Millis, limit: int) -> list[str]:
        """Budgets whose reset has come, earliest first."""

    async def next_reset(self) -> Millis | None:
        """The earliest reset of all budgets."""

    async def stale_reservations(self, limit: int) -> list[Reservation]:
        """Reservations whose lease is gone: there is no row in `lease` of that execution with
        that epoch."""

    async def trim_charges(self, now: Millis, limit: int) -> int:
        """Deletes charges whose time has passed; returns how many."""


class LaneStore(Protocol):
    """Lanes. A claim repeats `core.limit.lane.begins` and `is_full`: nothing of a paused lane; of a
    draining one only what has begun (a start other than INITIAL); of one with a concurrency
    only so many that no more than that have a row in `lease` (rivals included: the lane's row
    is locked first)."""

    async def lanes(self, after: str | None, limit: int) -> list[str]:
        """Names of lanes anything was ever submitted to, or that have settings, ascending."""

    async def lane_settings(self, names: Sequence[str] | None) -> dict[str, Lane]:
        """What was decided about these lanes (None: about all); only of those with a row."""

    async def put_lane(self, lane: Lane, expected: int) -> bool:
        """Writes the settings of a lane if the stored version is the expected one (0: nothing was
        ever decided about it); the new one is one more."""

    async def running_in(self, lane: str, limit: int) -> list[UUID]:
        """Executions of a lane that have a row in `lease`, at most so many."""

    async def routes(self) -> list[Route]:
        """Every route anything was ever submitted to."""

    async def slots_in(self, routes: Sequence[Route], limit: int) -> list[UUID]:
        """Executions of these routes that hold a slot of a quota while they are ready (not lost),
        those let through first come first."""

    async def ready_routes(self, lane: str, namespace: str | None) -> dict[Route, int]:
        """How many executions of a lane are ready (not lost), by route, each up to 100,000."""
