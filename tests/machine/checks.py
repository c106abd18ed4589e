"""What must hold after every step, whatever the steps were.

Most of it compares the store with the model; the rest (nothing moves by itself, epochs only grow,
an attempt that ended never changes, …) compares the store with what it said before.
"""

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.model import (
    Active,
    Attempt,
    Ended,
    Gate,
    Hold,
    Lost,
    Ready,
    Snapshot,
    Start,
    Suspended,
    Waiting,
    WorkerIdentity,
)
from flowfabric.core.execution.status import outcome_word, vector
from flowfabric.store.contract import Store
from flowfabric.store.queries import Claimable, EventQuery, Progress, Query
from tests.machine.answers import words_of
from tests.machine.benches import Bench
from tests.machine.book import Book, claim_order
from tests.machine.model import Life
from tests.machine.wait_checks import WaitChecks, alarms_are_set, step_doc
from tests.machine.words import LEGAL, Row, Stage

LANES = ("a", "b")
CLOSER = WorkerIdentity("closer", "closer-1")
WORKERS = [
    WorkerIdentity("w1", "w1-1"),
    WorkerIdentity("w2", "w2-1"),
    WorkerIdentity("w3", "w3-1"),
    WorkerIdentity("operator", "operator"),
    CLOSER,
]
MANY = 1000
LOOKS_PER_LIST = 5


@dataclass
class Seen:
    """One execution as it was seen last."""

    marks: tuple[int, ...]
    snapshot: Snapshot
    attempts: dict[int, Attempt]


@dataclass
class Checks:
    bench: Bench
    store: Store
    book: Book
    seen: dict[UUID, Seen] = field(default_factory=dict)
    told: dict[UUID, list[str]] = field(default_factory=dict)
    cursor: int = 0
    looks: int = 0

    def __post_init__(self) -> None:
        self.waits = WaitChecks(self.store)

    async def all(self, now: Millis) -> None:
        found = await self.store.load(list(self.book.lives))
        await self._hear()
        for uuid, life in self.book.lives.items():
            if life.stage is Stage.GONE:
                await self._gone(life, found.get(uuid))
            else:
                await self._one(life, found[uuid])
        await self._timers(now)
        alarms_are_set(found, await self.bench.alarms())
        self.looks += 1
        if self.looks % LOOKS_PER_LIST == 0:
            await self.lists(now)

    async def lists(self, now: Millis) -> None:
        """What the store says about many at once; asked less often, it takes many questions."""
        await self._everything_once()
        await self._owners()
        await self.waits.suspended(self._living())
        await self._order(now)

    async def _one(self, life: Life, snapshot: Snapshot) -> None:
        last = self.seen.get(life.uuid)
        if last is not None and last.marks == _marks(life):
            assert snapshot == last.snapshot, f"{life.id} moved although nobody moved it"
            return
        _is_as_modelled(life, snapshot)
        _can_go_on(snapshot)
        _within_limits(life, snapshot)
        attempts = {attempt.index: attempt for attempt in await self._attempts(snapshot)}
        _attempts_are_as_modelled(life, attempts)
        await self._notes_are_as_modelled(life)
        await self.waits.one(life, snapshot, self.told.get(life.uuid, []))
        if last is not None:
            _follows(last, snapshot, attempts)
        assert self.told.get(life.uuid, []) == life.told, f"the events of {life.id}"
        self.seen[life.uuid] = Seen(_marks(life), snapshot, attempts)

    async def _gone(self, life: Life, snapshot: Snapshot | None) -> None:
        assert snapshot is None, f"{life.id} was to be deleted"
        if self.seen.pop(life.uuid, None) is not None:
            assert await self.store.attempts(life.uuid) == []
            assert (await self.store.events(EventQuery(uuid=life.uuid))).events == ()
            assert await self.store.signals(life.uuid) == []
            self.told.pop(life.uuid, None)
            self.waits.gone(life.uuid)

    async def _hear(self) -> None:
        """Every event once, in order."""
        page = await self.store.events(EventQuery(after=self.cursor))
        last = self.cursor
        for event in page.events:
            assert event.seq > last, "an event was told twice or out of order"
            last = event.seq
            assert event.id is not None, "no worker registers here"
            self.told.setdefault(event.id.uuid, []).extend(words_of(event))
        self.cursor = page.cursor

    async def _attempts(self, snapshot: Snapshot) -> list[Attempt]:
        history = await self.store.attempts(snapshot.execution.uuid)
        known = {attempt.index for attempt in history}
        fresh = [one for one in inline_attempts(snapshot) if one.index not in known]
        return [*history, *fresh]

    async def _notes_are_as_modelled(self, life: Life) -> None:
        wanted = {name: doc for (run, name), doc in life.steps.items() if run == life.generation}
        (found,) = await self.store.steps([(life.uuid, life.generation)])
        assert {step.name: step_doc(step.doc) for step in found} == wanted, (
            f"the steps of {life.id}"
        )
        if life.percent is not None:
            detail = await self.store.detail(life.uuid)
            assert detail is not None
            last = detail.progress[max(detail.progress)]
            assert last == Progress(life.percent), f"the progress of {life.id}"

    async def _everything_once(self) -> None:
        """Each execution is in one place, and the lists know all of them."""
        found = await self.store.load(list(self.book.lives))
        page = await self.store.page(Query(limit=MANY))
        order = [(item.execution.created_at, item.execution.uuid) for item in page.items]
        assert order == sorted(set(order)), "an execution is in two places"
        assert {item.execution.uuid: item for item in page.items} == found, "the list of all"
        counts = await self.store.counts(None, None)
        wanted = Counter(life.public for life in self._living())
        assert {state: n for state, n in counts.by_state.items() if n} == wanted, "the counts"

    async def _timers(self, now: Millis) -> None:
        """What time will free is found when its moment has come, and announced before."""
        due = {life.uuid for life in self._living() if life.due(now)}
        assert set(await self.store.due(now, MANY)) == due, "what is due"
        assert await self.store.next_due(now) == self.book.next_due(now), "when something is due"

    async def _owners(self) -> None:
        """Each lease has one owner, and each owner the leases it took and did not lose."""
        running = [life for life in self._living() if life.stage is Stage.RUNNING]
        for worker in WORKERS:
            mine = {life.uuid for life in running if life.worker == worker.id}
            held = await self.store.held_leases(worker.instance, MANY)
            assert len(held) == len(mine), f"{worker.id} has other leases, or one twice"
            assert {lease.id.uuid for lease in held} == mine, f"leases of {worker.id}"

    async def _order(self, now: Millis) -> None:
        """What waits is listed in the order of claims, what was lost is listed too."""
        lost = {life.uuid for life in self._living() if _overdue(life, now)}
        expired = await self.store.expired_leases(now, None, MANY, None)
        assert {lease.id.uuid for lease in expired} == lost, "leases that ran out"
        for lane in LANES:
            waiting = [
                life
                for life in self._living()
                if life.wish.lane == lane and life.stage is Stage.WAITING and life.held_until <= now
            ]
            wanted = [life.uuid for life in sorted(waiting, key=claim_order)]
            found = await self.store.snapshots(Claimable(lane, None, now, MANY))
            assert [snapshot.execution.uuid for snapshot in found] == wanted, "the order of claims"

    def _living(self) -> list[Life]:
        return [life for life in self.book.lives.values() if life.stage is not Stage.GONE]


def _overdue(life: Life, now: int) -> bool:
    """Whether its owner lost it, or is about to."""
    ran_out = life.stage is Stage.RUNNING and life.expires_at <= now
    return ran_out or life.stage is Stage.LOST


def _marks(life: Life) -> tuple[int, ...]:
    """Differs when somebody did something to the execution, or tried to write beside it."""
    return (life.created_at, life.changes, life.asked)


def _is_as_modelled(life: Life, snapshot: Snapshot) -> None:
    row = _row(snapshot)
    assert row in LEGAL, f"{life.id} is in a state that does not exist: {row}"
    found = {"row": row, "public": str(vector(snapshot).public), **_figures(snapshot)}
    wanted = {
        "row": life.row,
        "public": life.public,
        "priority": life.priority,
        "epoch": life.epoch,
        "attempts": len(life.tries),
        "retries": life.retries,
        "reclaims": life.reclaims,
        "replays": life.replays,
        "generation": life.generation,
        "started_at": life.started_at,
        "deadline_at": None if life.final else life.deadline_at,
        **_standing(life),
    }
    assert found == wanted, f"{life.id} is not as modelled"


def _row(snapshot: Snapshot) -> Row:
    shape = vector(snapshot)
    return (
        shape.phase.value,
        shape.ownership.value,
        shape.eligibility.value,
        shape.blocking.value,
        shape.outcome,
        shape.attempt.value,
    )


def _figures(snapshot: Snapshot) -> dict[str, object]:
    state, life = snapshot.state, snapshot.life
    ended = isinstance(state, Ended)
    figures: dict[str, object] = {
        "priority": snapshot.priority,
        "epoch": snapshot.head.epoch,
        "attempts": snapshot.attempts_made,
        "retries": life.retries,
        "reclaims": snapshot.reclaims,
        "replays": life.replays,
        "generation": life.generation,
        "started_at": snapshot.started_at,
        "deadline_at": None if ended else snapshot.deadline_at,
    }
    match state:
        case Active(lease=lease):
            figures["owner"] = (lease.id, lease.worker.id, lease.attempt)
            figures["until"] = (lease.expires_at, lease.times_out_at)
        case Ready(hold=hold, next=next) | Lost(hold=hold, next=next):
            figures["hold"] = _hold(hold)
            figures["next"] = (_name(next.start), next.timeout)
        case Waiting(next=next, due_at=due_at) | Suspended(next=next, due_at=due_at):
            figures["until"] = due_at
            figures["next"] = (_name(next.start), next.timeout)
        case Ended():
            figures["end"] = (outcome_word(state.outcome), state.ended_at, state.result)
    return figures


def _standing(life: Life) -> dict[str, object]:
    """The same figures from the model."""
    match life.stage:
        case Stage.RUNNING:
            assert life.owner is not None
            return {
                "owner": (life.owner.lease_id, life.worker, life.owner.attempt),
                "until": (life.expires_at, life.times_out_at),
            }
        case Stage.WAITING | Stage.LOST:
            hold = (life.held_for, life.held_until) if life.held_until else None
            return {"hold": hold, "next": (life.start, life.time_left)}
        case Stage.ENDED:
            return {"end": (life.outcome, life.ended_at, life.result)}
        case _:
            until = life.until if life.sleep is None else life.sleep.timeout_at
            return {"until": until, "next": (life.start, life.time_left)}


def _hold(hold: Hold | None) -> tuple[str | None, int] | None:
    return None if hold is None else (hold.worker, hold.until)


def _name(start: Start) -> str:
    return start.name.lower()


def _can_go_on(snapshot: Snapshot) -> None:
    """Nothing is stuck: claimable, leased, or something will free it."""
    state = snapshot.state
    if isinstance(state, Waiting):
        assert state.due_at is not None or state.gate is Gate.BLOCKED, f"stuck: {snapshot}"


def _within_limits(life: Life, snapshot: Snapshot) -> None:
    retries = 0 if life.wish.retries is None else life.wish.retries.most
    assert snapshot.life.retries <= retries, "more retries than allowed"
    assert snapshot.life.replays <= life.wish.replays, "more replays than allowed"
    assert 0 <= snapshot.priority <= 9000, "a priority beyond the range"


def _attempts_are_as_modelled(life: Life, attempts: dict[int, Attempt]) -> None:
    assert sorted(attempts) == list(range(len(life.tries))), f"gaps in the attempts of {life.id}"
    found = [(_name(one.type), one.outcome.value) for _, one in sorted(attempts.items())]
    assert found == [(one.type, one.outcome) for one in life.tries], f"attempts of {life.id}"


def _follows(last: Seen, snapshot: Snapshot, attempts: dict[int, Attempt]) -> None:
    """What may not happen between two looks at one execution."""
    before = last.snapshot
    if before.execution != snapshot.execution:
        return  # deleted and submitted anew under the same id
    assert snapshot.head.epoch >= before.head.epoch, "the epoch fell"
    assert snapshot.head.version >= before.head.version, "the version fell"
    if snapshot.head.version == before.head.version and snapshot != before:
        assert isinstance(snapshot.state, Active), "a change without a new version"
        assert snapshot.head == before.head, "only a lease may change without a new version"
    if isinstance(before.state, Ended) and snapshot.state != before.state:
        assert snapshot.life.replays > before.life.replays, "an end that was not for good"
    for index, attempt in last.attempts.items():
        if attempt.outcome.final:
            assert attempts[index] == attempt, "an attempt that had ended was changed"
