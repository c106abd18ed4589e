"""Load, decide, apply: folding, losing against rivals, and what one caller may cost another."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    Corruption,
    Invalid,
    LeaseExpired,
    Locked,
    NotEligible,
    NotFound,
    RetryExhausted,
    Unavailable,
)
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner, Taking, fence_of, renew, take
from flowfabric.core.execution.model import RANK_STEP, Active, Ready, Snapshot, Source
from flowfabric.core.execution.submission import Submission, create
from flowfabric.core.wait.model import Loaded, Needs
from flowfabric.engine.commit import retry as module
from flowfabric.engine.commit.decide import Decision, Decisions
from flowfabric.engine.commit.post_commit import PostCommit
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.engine.limit.known import KnownLimits
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.hints import Hints
from flowfabric.store.queries import InboxEntry
from tests.kit.lab import TTL, W1

Rival = Callable[[], None]


class Rows:
    """Versions and nothing else: enough of a store to see what is loaded and what is written."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.clock = ManualClock()
        self.rows = {snapshot.execution.uuid: snapshot for snapshot in snapshots}
        self.loads: list[list[UUID]] = []
        self.applies: list[list[Change[Any]]] = []
        self.hints = Hints()
        self.unreadable: set[UUID] = set()
        self.rivals: list[Rival] = []
        self.trouble: list[Exception] = []
        self.held_up: asyncio.Event | None = None

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        self.loads.append(list(uuids))
        if self.held_up is not None:
            await self.held_up.wait()
        if self.unreadable.intersection(uuids):
            raise Corruption("no document")
        return {uuid: self.rows[uuid] for uuid in uuids if uuid in self.rows}

    async def apply(self, changes: Sequence[Change[Any]]) -> set[UUID]:
        self.applies.append(list(changes))
        if self.trouble:
            raise self.trouble.pop()
        if self.rivals:
            self.rivals.pop()()
        return {uuid for change in changes if (uuid := self._write(change)) is not None}

    async def inbox(self, uuids: Sequence[UUID] | None, limit: int) -> list[InboxEntry]:
        """Nobody waits at the door."""
        return []

    def move(self, uuid: UUID) -> None:
        """Somebody else writes this execution."""
        row = self.rows[uuid]
        self.rows[uuid] = row.to(row.state)

    def _write(self, change: Change[Any]) -> UUID | None:
        assert change.before is not None
        assert change.after is not None
        uuid = change.before.execution.uuid
        if self.rows[uuid].head.version != change.before.head.version:
            return None
        self.rows[uuid] = change.after
        return uuid


def fresh(number: int = 1) -> Snapshot:
    now = ManualClock().now()
    return create(Submission(kind="job"), new_uuid7(now, number), now).snapshot


def running(number: int = 1) -> Snapshot:
    before = fresh(number)
    assert isinstance(before.state, Ready)
    now = ManualClock().now()
    held = take(before, now, before.state.next, Taking(UUID(int=5), W1, TTL)).after
    assert held is not None
    return held


def decisions_on(rows: Rows) -> Decisions:
    store = cast(Store, rows)
    post_commit = PostCommit(store)
    return Decisions(store, Inbox(store, KnownLimits(store), post_commit, RANK_STEP), post_commit)


def to_priority(value: int) -> Callable[[Snapshot | None, Millis], Change[operator.Changed]]:
    return lambda found, now: operator.change_priority(found, now, value)


def cancel(found: Snapshot | None, now: Millis) -> Change[operator.Cancelled]:
    return operator.cancel(found, now, Owner(source=Source.OPERATOR), "enough")


def uuid_of(snapshot: Snapshot) -> UUID:
    return snapshot.execution.uuid


async def test_a_rule_decides_on_what_is_stored_and_its_change_is_written() -> None:
    row = fresh()
    rows = Rows(row)
    changed = await decisions_on(rows).decide(uuid_of(row), to_priority(7))
    assert changed.priority == rows.rows[uuid_of(row)].priority == 7
    assert (len(rows.loads), len(rows.applies)) == (1, 1)


async def test_many_calls_on_one_execution_are_one_write() -> None:
    """Design §2, rule 6: each is decided on the result of the one before."""
    row = fresh()
    rows = Rows(row)
    engine = decisions_on(rows)
    answers = await asyncio.gather(
        *(engine.decide(uuid_of(row), to_priority(value)) for value in range(1, 101))
    )
    assert [answer.priority for answer in answers] == list(range(1, 101))
    assert (len(rows.loads), len(rows.applies)) == (1, 1)
    ((change,),) = rows.applies
    assert change.before == row
    assert rows.rows[uuid_of(row)].priority == 100
    told = [event.detail for event in change.events]
    assert told == [{"old_priority": n, "new_priority": n + 1} for n in range(100)]


async def test_calls_on_many_executions_share_a_load_and_an_apply() -> None:
    row_of = [fresh(number) for number in range(50)]
    rows = Rows(*row_of)
    engine = decisions_on(rows)
    await asyncio.gather(*(engine.decide(uuid_of(row), to_priority(1)) for row in row_of))
    assert [len(load) for load in rows.loads] == [50]
    assert [len(apply) for apply in rows.applies] == [50]


async def test_one_that_is_refused_leaves_its_neighbours_on_the_same_execution_alone() -> None:
    row = fresh()
    rows = Rows(row)
    engine = decisions_on(rows)
    answers = await asyncio.gather(
        engine.decide(uuid_of(row), to_priority(4)),
        engine.decide(uuid_of(row), cancel),
        engine.decide(uuid_of(row), to_priority(5)),
        engine.decide(uuid_of(row), cancel),
        return_exceptions=True,
    )
    assert isinstance(answers[2], NotEligible)
    assert answers[1] == answers[3]
    ((change,),) = rows.applies
    assert [event.kind for event in change.events] == [
        EventKind.PRIORITY_CHANGED,
        EventKind.CANCELLED,
    ]


async def test_what_changes_nothing_writes_nothing() -> None:
    row = fresh()
    rows = Rows(row)
    answer = await decisions_on(rows).decide(uuid_of(row), lambda found, now: unchanged(now))
    assert answer == rows.clock.now()
    assert (rows.applies, rows.hints.count) == ([], 0)


async def test_what_does_not_exist_is_told_by_the_rule() -> None:
    rows = Rows()
    with pytest.raises(NotFound):
        await decisions_on(rows).decide(uuid_of(fresh()), cancel)
    assert rows.applies == []


async def test_a_decision_lost_to_a_rival_is_made_again() -> None:
    row = fresh()
    rows = Rows(row)
    rows.rivals = [lambda: rows.move(uuid_of(row))] * 3
    seen: list[int] = []

    def rule(found: Snapshot | None, now: Millis) -> Change[operator.Changed]:
        assert found is not None
        seen.append(found.head.version)
        return operator.change_priority(found, now, 3)

    await decisions_on(rows).decide(uuid_of(row), rule)
    assert seen == [1, 2, 3, 4]
    assert len(rows.loads) == 4


async def test_only_who_lost_decides_again() -> None:
    lucky, unlucky = fresh(1), fresh(2)
    rows = Rows(lucky, unlucky)
    rows.rivals = [lambda: rows.move(uuid_of(unlucky))]
    engine = decisions_on(rows)
    await asyncio.gather(
        engine.decide(uuid_of(lucky), to_priority(1)),
        engine.decide(uuid_of(unlucky), to_priority(2)),
    )
    assert rows.loads == [[uuid_of(lucky), uuid_of(unlucky)], [uuid_of(unlucky)]]
    assert [len(apply) for apply in rows.applies] == [2, 1]
    assert [rows.rows[uuid_of(row)].priority for row in (lucky, unlucky)] == [1, 2]


async def test_the_answer_is_that_of_the_round_that_was_written() -> None:
    """A rival may turn a success into a refusal; the refused round leaves no trace."""
    row = fresh()
    rows = Rows(row)

    def rival() -> None:
        cancelled = cancel(rows.rows[uuid_of(row)], rows.clock.now()).after
        assert cancelled is not None
        rows.rows[uuid_of(row)] = cancelled

    rows.rivals = [rival]
    with pytest.raises(NotEligible):
        await decisions_on(rows).decide(uuid_of(row), to_priority(9))
    assert rows.rows[uuid_of(row)].priority == 0


async def test_after_ten_lost_rounds_the_caller_hears_of_it() -> None:
    row, other = fresh(1), fresh(2)
    rows = Rows(row, other)
    rows.rivals = [lambda: rows.move(uuid_of(row))] * 20
    engine = decisions_on(rows)
    lost, fine = await asyncio.gather(
        engine.decide(uuid_of(row), to_priority(9)),
        engine.decide(uuid_of(other), to_priority(9)),
        return_exceptions=True,
    )
    assert isinstance(lost, RetryExhausted)
    assert lost.retryable
    assert isinstance(fine, operator.Changed)
    assert len(rows.applies) == module.MAX_ROUNDS == 10
    assert rows.rows[uuid_of(row)].priority == 0


async def test_a_value_in_hand_is_decided_on_without_a_load() -> None:
    held = running()
    rows = Rows(held)
    await decisions_on(rows).decide(uuid_of(held), cancel, held)
    assert rows.loads == []


async def test_a_value_in_hand_that_is_old_is_replaced_by_what_is_stored() -> None:
    held = running()
    rows = Rows(held)
    rows.move(uuid_of(held))
    await decisions_on(rows).decide(uuid_of(held), cancel, held)
    assert rows.loads == [[uuid_of(held)]]
    assert [len(apply) for apply in rows.applies] == [1, 1]


async def test_a_value_in_hand_never_refuses() -> None:
    """A renewal moves no version: only what is stored can say that a lease has run out."""
    held = running()
    assert isinstance(held.state, Active)
    owner = Owner.of(fence_of(held, held.state.lease))
    rows = Rows(held)
    renewed = renew(held, rows.clock.now(), owner, Millis(2 * TTL)).after
    assert renewed is not None
    assert isinstance(renewed.state, Active)
    rows.rows[uuid_of(held)] = Snapshot(held.execution, held.head, renewed.state)
    rows.clock.advance(TTL)
    engine = decisions_on(rows)

    def rule(found: Snapshot | None, now: Millis) -> Change[operator.Cancelled]:
        return operator.cancel_owned(found, now, owner, "mine")

    await engine.decide(uuid_of(held), rule, held)
    rows.rows[uuid_of(held)] = held
    with pytest.raises(LeaseExpired):
        await engine.decide(uuid_of(held), rule, held)


async def test_two_calls_with_a_value_in_hand_decide_on_what_is_stored() -> None:
    held = running()
    rows = Rows(held)
    engine = decisions_on(rows)
    await asyncio.gather(
        engine.decide(uuid_of(held), cancel, held), engine.decide(uuid_of(held), cancel, held)
    )
    assert rows.loads == [[uuid_of(held)]]


async def test_a_row_that_cannot_be_read_fails_alone() -> None:
    bad, good = fresh(1), fresh(2)
    rows = Rows(bad, good)
    rows.unreadable = {uuid_of(bad)}
    engine = decisions_on(rows)
    answers = await engine.decide_all(
        [
            Decision(uuid_of(bad), to_priority(1)),
            Decision(uuid_of(good), to_priority(2)),
            Decision(uuid_of(bad), to_priority(3)),
        ]
    )
    assert [type(answer) for answer in answers] == [Corruption, operator.Changed, Corruption]
    assert rows.rows[uuid_of(good)].priority == 2


async def test_a_page_is_written_beside_the_batch_under_way() -> None:
    first, second = fresh(), fresh()
    rows = Rows(first, second)
    decisions = decisions_on(rows)
    rows.held_up = asyncio.Event()
    waiting = asyncio.ensure_future(decisions.decide(uuid_of(first), to_priority(7)))
    await asyncio.sleep(0)
    page = [Decision(uuid_of(second), to_priority(8), second)]
    (changed,) = await decisions.decide_page(page)
    assert (changed.priority, waiting.done()) == (8, False)
    rows.held_up.set()
    assert (await waiting).priority == 7


async def test_a_page_whose_caller_is_cancelled_is_written_and_reported() -> None:
    """What follows a commit does not depend on the caller of one page"""
    row = fresh()
    rows = Rows(row)
    decisions = decisions_on(rows)
    rows.held_up = asyncio.Event()
    asking = asyncio.ensure_future(decisions.decide_page([Decision(uuid_of(row), to_priority(8))]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    rows.held_up.set()
    await decisions.drain()
    assert rows.rows[uuid_of(row)].priority == 8


async def test_one_of_a_page_that_cannot_be_written_yet_keeps_none_of_the_others() -> None:
    members = [fresh(), fresh()]
    rows = Rows(*members)
    locked = Locked("an application holds the row")
    # The page, the same as a batch, and then one by one.
    rows.trouble = [locked, locked, locked]
    page = [Decision(uuid_of(each), to_priority(7), each) for each in members]
    answers = await decisions_on(rows).decide_page(page)
    assert answers[0] is locked
    assert answers[1].priority == rows.rows[uuid_of(members[1])].priority == 7


async def test_a_store_in_trouble_is_reported_to_every_waiting_caller() -> None:
    row, other = fresh(1), fresh(2)
    rows = Rows(row, other)
    rows.trouble = [Unavailable("gone")]
    engine = decisions_on(rows)
    answers = await asyncio.gather(
        engine.decide(uuid_of(row), to_priority(1)),
        engine.decide(uuid_of(other), to_priority(2)),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    assert (await engine.decide(uuid_of(row), to_priority(3))).priority == 3


async def test_an_error_that_comes_with_a_change_is_raised_after_it_was_written() -> None:
    """INV-24: the two sanctioned writes of a refused call."""
    row = fresh()
    rows = Rows(row)

    def refuse(found: Snapshot | None, now: Millis) -> Change[None]:
        assert found is not None
        return Change(Invalid("no"), found, found.to(found.state))

    with pytest.raises(Invalid):
        await decisions_on(rows).decide(uuid_of(row), refuse)
    assert rows.rows[uuid_of(row)].head.version == 2


async def test_what_became_claimable_or_ended_is_hinted_at_and_nothing_else() -> None:
    row = fresh()
    rows = Rows(row)
    engine = decisions_on(rows)
    await engine.decide(
        uuid_of(row), lambda found, now: operator.block(found, now, "paused_by_operator")
    )
    assert rows.hints.count == 0
    await engine.decide(uuid_of(row), operator.unblock)
    await engine.decide(uuid_of(row), cancel)
    assert rows.hints.count == 2


async def test_a_caller_that_goes_away_is_decided_all_the_same() -> None:
    row = fresh()
    rows = Rows(row)
    rows.held_up = asyncio.Event()
    engine = decisions_on(rows)
    first = asyncio.ensure_future(engine.decide(uuid_of(row), to_priority(1)))
    second = asyncio.ensure_future(engine.decide(uuid_of(row), to_priority(2)))
    await asyncio.wait([first, second], timeout=0)
    first.cancel()
    rows.held_up.set()
    assert (await second).priority == 2
    ((change,),) = rows.applies
    assert len(change.events) == 2


async def test_draining_waits_for_what_was_asked() -> None:
    row = fresh()
    rows = Rows(row)
    engine = decisions_on(rows)
    answer = asyncio.ensure_future(engine.decide_all([Decision(uuid_of(row), to_priority(1))]))
    await asyncio.wait([answer], timeout=0)
    await engine.drain()
    assert rows.rows[uuid_of(row)].priority == 1
    await answer


async def test_a_held_value_with_its_memory_is_neither_loaded_nor_recalled() -> None:
    """Against a rival both are read: what was seen together is out of date together."""
    first, second = fresh(1), fresh(2)
    rows = Rows(first, second)
    recalls: list[list[UUID]] = []
    seen: list[object] = []

    async def load_needs(asks: Sequence[Needs]) -> list[Loaded]:
        recalls.append([ask.execution for ask in asks])
        return [Loaded({}, {}, []) for _ in asks]

    def rule(snapshot: Snapshot | None, now: Millis, memory: Loaded) -> Change[None]:
        seen.append(memory)
        assert snapshot is not None
        return Change(None, snapshot, snapshot.to(snapshot.state))

    rows.load_needs = load_needs  # type: ignore[attr-defined]
    known = Loaded({}, {}, [])
    decisions = [
        Decision(
            each.execution.uuid,
            rule,
            each,
            lambda snapshot: None if snapshot is None else Needs(snapshot.execution.uuid),
            known,
        )
        for each in (first, second)
    ]
    rows.rivals.append(lambda: rows.move(second.execution.uuid))
    assert await decisions_on(rows).decide_all(decisions) == [None, None]
    assert rows.loads == recalls == [[second.execution.uuid]]
    assert [memory is known for memory in seen] == [True, True, False]
    assert rows.rows[second.execution.uuid].head.version == second.head.version + 2


async def test_a_caller_of_many_that_stops_waiting_leaves_nothing_to_complain_about() -> None:
    first, second = fresh(1), fresh(2)
    rows = Rows(first)
    rows.held_up = asyncio.Event()
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: complaints.append(about))
    engine = decisions_on(rows)
    asked = [Decision(uuid_of(first), to_priority(3)), Decision(uuid_of(second), cancel)]
    waiting = asyncio.ensure_future(engine.decide_all(asked))
    await asyncio.wait([waiting], timeout=0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    rows.held_up.set()
    await engine.drain()
    gc.collect()
    assert complaints == []
    assert rows.rows[uuid_of(first)].priority == 3  # what was asked for is done all the same
