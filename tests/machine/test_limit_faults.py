"""Faults of limits put in on purpose: the machine must find every one of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Lost
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit import release as release_rules
from flowfabric.core.limit import spend
from flowfabric.core.limit.at_submission import Admissions
from flowfabric.core.limit.quota import queue_of
from flowfabric.core.limit.release import Candidate, Need, QuotaView, Release, Room
from flowfabric.core.limit.spend import AlreadyApplied, BudgetLedger, Counted, Expense
from flowfabric.engine.limit import budget_gate
from flowfabric.store.queries import Crowd, QuotaViewRequest
from flowfabric.store.rows.record import BUDGETS, QUOTAS
from tests.machine.benches import Fault, FaultyBench, SqliteBench
from tests.machine.faults import BUDGET, assert_found
from tests.machine.limit_machine import LimitMachine
from tests.machine.limit_play import everything

LIMIT_BUDGET = settings(BUDGET, stateful_step_count=16, max_examples=1000)


class ReleasesUnderAnyVersion(Fault):
    """Writes what was decided on quotas that have moved since."""

    async def release(self, release: Release) -> set[UUID] | None:
        now = await self.inner.records.get(QUOTAS, list(release.versions))
        versions = {name: quota.version for name, quota in now.items()}
        return await self.inner.release(replace(release, versions=versions))


class AdmitsUnderAnyVersion(Fault):
    """Admits new runs to room that was known before the quota moved."""

    async def submit_and_admit(
        self, creations: Sequence[Creation], admissions: Admissions, now: Millis
    ) -> tuple[list[ExecutionId | None], bool]:
        found = await self.inner.records.get(QUOTAS, list(admissions.versions))
        versions = {name: quota.version for name, quota in found.items()}
        given = replace(admissions, versions=versions)
        return await self.inner.submit_and_admit(creations, given, now)


class ForgetsTheLost(Fault):
    """Does not count slots of executions whose owner was lost."""

    async def quota_view(self, ask: QuotaViewRequest) -> QuotaView:
        standing = await self.inner.quota_view(ask)
        lost = Counter(
            queue_of(one.execution.uses)
            for one in await everything(self.inner)
            if isinstance(one.state, Lost)
        )
        held = [(uses, count - lost[queue_of(uses)]) for uses, count in standing.held]
        return replace(standing, held=held)


class ForgetsAdmissions(Fault):
    """Does not note who was let through a rate."""

    async def release(self, release: Release) -> set[UUID] | None:
        return await self.inner.release(replace(release, admissions={}))


class HidesCrowds(Fault):
    """Does not find who waits for limits since a crash."""

    async def crowds(self, after: int, limit: int) -> list[Crowd]:
        return []


class PostsOverOthers(Fault):
    """Writes books that were decided on budgets as they were before."""

    async def post(self, books: BudgetLedger) -> bool:
        return await self.inner.post(await _rebased(self, books))


DEEP = pytest.mark.deep
"""For what takes hundreds of examples to be found."""

STORE_FAULTS = [
    pytest.param(ReleasesUnderAnyVersion, marks=DEEP),
    pytest.param(AdmitsUnderAnyVersion, marks=DEEP),
    ForgetsTheLost,
    ForgetsAdmissions,
    HidesCrowds,
    PostsOverOthers,
]


def settle_twice(
    books: BudgetLedger, asked: Expense, reservation: UUID, now: Millis
) -> Counted | AlreadyApplied:
    """Counts again when the reservation was settled before."""
    known = dict(books.charges)
    if reservation not in books.reservations:
        books.charges.clear()
    answer = SETTLE(books, asked, reservation, now)
    books.charges.update(known)
    return answer


def drop_again(books: BudgetLedger, reservation: UUID, now: Millis) -> bool:
    """Leaves the reservation behind, so that it is given back once more."""
    dropped = DROP(books, reservation, now)
    if dropped:
        del books.new_reservations[reservation]
    return dropped


def take_slots_only(room: Room, need: Need, candidate: Candidate) -> None:
    """A rate that does not count whom it lets through."""
    TAKE(room, need, replace(candidate, starts=False))


def admits_always(*_: object) -> None:
    """Budgets that nobody asks at the door."""


SETTLE, DROP, TAKE = spend.settle, spend.drop, Room.take
RULE_FAULTS = [
    pytest.param(spend, "settle", settle_twice, marks=DEEP),
    pytest.param(spend, "drop", drop_again, marks=DEEP),
    (release_rules.Room, "take", take_slots_only),
    pytest.param(budget_gate, "spent", admits_always, marks=DEEP),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_the_machine_of_limits_finds_a_fault_of_the_store(
    fault: type[Fault], tmp_path: Path
) -> None:
    assert_found(LimitMachine, FaultyBench(tmp_path, fault), LIMIT_BUDGET)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("module", "rule", "fault"), RULE_FAULTS)
def test_the_machine_of_limits_finds_a_fault_of_a_rule(
    module: Any,
    rule: str,
    fault: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, rule, fault)
    assert_found(LimitMachine, SqliteBench(tmp_path), LIMIT_BUDGET)


async def _rebased(fault: Fault, books: BudgetLedger) -> BudgetLedger:
    """The same books, as if nobody had written since they were read."""
    page = await fault.inner.records.page(BUDGETS, "", 100)
    versions = {budget.name: budget.version for budget in page}
    changed = {name: versions.get(name, 0) for name in books.changed}
    return replace(books, changed=changed)
