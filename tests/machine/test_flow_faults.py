"""Faults of flows put in on purpose: the machine must find every one of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import change
from flowfabric.core.execution.model import Ended, Outcome, Snapshot
from flowfabric.core.execution.submission import Creation
from flowfabric.core.flow import grow, join, model, outbox
from flowfabric.core.flow import progress as rules
from flowfabric.core.flow.join import EdgeState, Join, On
from flowfabric.core.flow.model import Flow, FlowChange
from flowfabric.core.flow.outbox import OutboxEntry
from flowfabric.engine.flow import resolver
from flowfabric.store.queries import EdgeQuery, Unsettled
from tests.machine.benches import Fault, FaultyBench, SqliteBench
from tests.machine.faults import BUDGET, assert_found
from tests.machine.flow_machine import FlowMachine

FLOW_BUDGET = settings(BUDGET, stateful_step_count=20)


class ForgetsTheLastPage(Fault):
    """Finds only the first of several pages of edges to settle."""

    async def unsettled(
        self,
        endings: Sequence[tuple[UUID, UUID]],
        after: UUID | None,
        limit: int,
        each: int | None = None,
    ) -> list[Unsettled]:
        return [] if after is not None else await self.inner.unsettled(endings, after, limit, each)

    async def edges(self, query: EdgeQuery) -> list[EdgeState]:
        later = query.unsettled and query.after is not None
        return [] if later else await self.inner.edges(query)


class HidesDebts(Fault):
    """Does not find what a crash has left behind."""

    async def owed_flows(self, limit: int) -> list[UUID]:
        return []


STORE_FAULTS: list[type[Fault]] = [ForgetsTheLastPage, HidesDebts]


def count_twice(found: Join, on: On, outcome: Outcome) -> Join:
    """A join that counts an edge twice, if it failed."""
    once = join.count(found, on, outcome)
    return join.count(once, on, outcome) if once.failed > found.failed else once


def no_entry(before: Snapshot | None, after: Snapshot | None) -> tuple[OutboxEntry, ...]:
    """An ending whose outbox entry is not written, if it is a cancel."""
    cancelled = after is not None and isinstance(after.state, Ended)
    if cancelled and after is not None and after.life.cancel_reason is not None:
        return ()
    return outbox.outbox_of(before, after)


def no_cancel_of_the_rest(*_: object) -> tuple[OutboxEntry, ...]:
    """A race whose losers run on."""
    return ()


def no_hold(creation: Creation) -> Creation:
    """Members that run before their flow is sealed."""
    return creation


def no_taking_back(
    found: Flow, now: Millis, entries: tuple[OutboxEntry, ...], missing: int | None = None
) -> FlowChange:
    """Replays that are not taken back from the counts."""
    ended = tuple(one for one in entries if one.kind is not outbox.OutboxKind.REPLAYED)
    honest = model.count_outbox(found, now, ended, missing)
    return FlowChange(honest.before, honest.after, owed=honest.owed, done=entries)


def no_orphans(after: Snapshot) -> tuple[OutboxEntry, ...]:
    """Runs that leave their flows behind."""
    return ()


RULE_FAULTS: list[tuple[list[Any], str, Callable[..., Any]]] = [
    ([rules, grow], "count", count_twice),
    ([change], "outbox_of", no_entry),
    ([outbox], "_orphaned", no_orphans),
    ([rules], "siblings", no_cancel_of_the_rest),
    ([grow], "held", no_hold),
    ([resolver], "count_outbox", no_taking_back),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_the_machine_of_flows_finds_a_fault_of_the_store(
    fault: type[Fault], tmp_path: Path
) -> None:
    assert_found(FlowMachine, FaultyBench(tmp_path, fault), FLOW_BUDGET)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("modules", "rule", "fault"), RULE_FAULTS)
def test_the_machine_of_flows_finds_a_fault_of_a_rule(
    modules: list[Any],
    rule: str,
    fault: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in modules:
        monkeypatch.setattr(module, rule, fault)
    assert_found(FlowMachine, SqliteBench(tmp_path), FLOW_BUDGET)
