"""Claims of one process that want the same and come while one is under way share a statement."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.queries import ClaimCall, Suspects, Taken
from tests.kit.lab import W1, W2, Lab
from tests.machine.rivals import Wrapper
from tests.worker.bench import until

W3 = WorkerIdentity("w3", "w3-a")


class Counted(Wrapper):
    """Knows the calls of every statement. While `door` is closed, a statement is under way."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.statements: list[list[ClaimCall]] = []
        self.door = asyncio.Event()
        self.door.set()
        self.lost = 0
        """The number of the statement whose reply is lost."""

    async def claim(self, call: ClaimCall, now: Millis) -> list[Taken]:
        (taken,) = await self.claim_all([call], now)
        return taken

    async def claim_all(self, calls: Sequence[ClaimCall], now: Millis) -> list[list[Taken]]:
        self.statements.append(list(calls))
        await self.door.wait()
        lost = len(self.statements) == self.lost
        taken = await self.inner.claim_all(calls, now)
        if lost:
            raise Unavailable("the reply was lost")
        return taken


@pytest.fixture
def counted(store: Store) -> Counted:
    return Counted(store)


@pytest.fixture
async def lab(counted: Counted, clock: ManualClock) -> AsyncIterator[Lab]:
    lab = await Lab.open(counted.store, clock)
    assert await lab.claim(lanes=["one", "two"]) == []  # it knows the weights from now on
    yield lab
    await lab.engine.close()


def worker(number: int) -> WorkerIdentity:
    return WorkerIdentity(f"worker-{number}", f"instance-{number}")


async def together(
    counted: Counted, calls: Sequence[Coroutine[Any, Any, list[Claim]]]
) -> list[asyncio.Task[list[Claim]]]:
    """The first call is under way in the store until all the others have asked."""
    counted.statements.clear()
    counted.door.clear()
    tasks = [asyncio.create_task(calls[0])]
    await until(lambda: counted.statements)
    for call in calls[1:]:
        tasks.append(asyncio.create_task(call))
        await asyncio.sleep(0)
    counted.door.set()
    return tasks


async def submitted(lab: Lab, count: int) -> list[ExecutionId]:
    """So many executions in the order in which they are claimed."""
    found = []
    for _ in range(count):
        found.append(await lab.submit())
        lab.clock.advance(1)
    return found


def ids(claims: Sequence[Claim]) -> list[ExecutionId]:
    return [claim.id for claim in claims]


async def test_callers_that_claim_one_each_share_a_statement(lab: Lab, counted: Counted) -> None:
    """E-T051: each execution has one owner, with the lease, the epoch and the event of that
    caller."""
    count = 64
    executions = await submitted(lab, count)
    calls = [lab.claim(worker(n), ttl=Millis(10_000 + n)) for n in range(count)]
    tasks = await together(counted, calls)
    found = [await task for task in tasks]
    assert [ids(claims) for claims in found] == [[id] for id in executions]
    assert [len(calls) for calls in counted.statements] == [1, count - 1]
    assert len({claim.lease.id for claims in found for claim in claims}) == count
    for n, (claim,) in enumerate(found):
        assert (claim.lease.worker, claim.epoch, claim.ttl) == (worker(n), 1, 10_000 + n)
        assert claim.expires_at == lab.clock.now() + 10_000 + n
        described = await lab.engine.views.describe(claim.id)
        assert described is not None
        assert described.lease is not None
        assert described.lease.lease_id == claim.lease.id
        assert described.lease.worker == worker(n).id
        (event,) = await lab.events(claim.id)
        assert (event.lease, event.worker) == ("acquired", worker(n))
        await lab.complete(claim, b"done")


async def test_the_best_goes_to_the_first_caller_and_no_caller_gets_too_much(
    lab: Lab, counted: Counted
) -> None:
    executions = await submitted(lab, 6)
    calls = [lab.claim(W1, limit=2), lab.claim(W2, limit=3), lab.claim(W3, limit=4)]
    first, *rest = await together(counted, [lab.claim(W1, limit=1), *calls])
    assert ids(await first) == executions[:1]
    assert [ids(await task) for task in rest] == [executions[1:3], executions[3:6], []]
    assert [[call.limit for call in calls] for calls in counted.statements] == [[1], [2, 3, 4]]


async def test_calls_that_want_different_things_share_nothing(lab: Lab, counted: Counted) -> None:
    plain, other = [
        await lab.submit(policy={"routing_requirements": {"required_capabilities": [needed]}})
        for needed in ("cpu", "gpu")
    ]
    calls = [
        lab.claim(W1, capabilities=["cpu"]),
        lab.claim(W1, capabilities=["cpu"], kinds=["other"]),
        lab.claim(W1, capabilities=["cpu"], namespace="elsewhere"),
        lab.claim(W1, capabilities=["cpu"], suspects=Suspects.ONLY),
        lab.claim(W1, capabilities=["cpu"], lanes=["slow"]),
        lab.claim(W1, capabilities=["gpu"]),
    ]
    tasks = await together(counted, calls)
    assert [ids(await task) for task in tasks] == [[plain], [], [], [], [], [other]]
    assert [len(calls) for calls in counted.statements] == [1] * 6


async def test_what_is_held_for_a_worker_goes_to_that_worker(lab: Lab, counted: Counted) -> None:
    """E-T077: neither does another get it, nor does its worker miss it."""
    first, held, last = await submitted(lab, 3)
    await lab.engine.grants.issue(held, W3, ttl=Millis(60_000))
    tasks = await together(counted, [lab.claim(w) for w in (W1, W2, W3)])
    assert [ids(await task) for task in tasks] == [[first], [last], [held]]


async def test_what_is_held_for_no_caller_stays(lab: Lab, counted: Counted) -> None:
    first, held, last = await submitted(lab, 3)
    await lab.engine.grants.issue(held, WorkerIdentity("w9", "w9-a"), ttl=Millis(60_000))
    tasks = await together(counted, [lab.claim(w) for w in (W1, W2, W3)])
    assert [ids(await task) for task in tasks] == [[first], [last], []]


async def test_two_calls_of_one_worker_share_what_is_held_for_it(
    lab: Lab, counted: Counted
) -> None:
    held = await submitted(lab, 2)
    for id in held:
        await lab.engine.grants.issue(id, W1, ttl=Millis(60_000))
    tasks = await together(counted, [lab.claim(W2), lab.claim(W1), lab.claim(W1)])
    assert [ids(await task) for task in tasks] == [[], [held[0]], [held[1]]]
    assert len(counted.statements) == 2


async def test_a_caller_that_is_cancelled_loses_nothing(lab: Lab, counted: Counted) -> None:
    """What the call takes goes back; the others keep theirs."""
    executions = await submitted(lab, 4)
    tasks = await together(counted, [lab.claim(w) for w in (W1, W2, W3)])
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    assert [ids(await tasks[n]) for n in (0, 2)] == [executions[:1], executions[2:3]]
    await lab.engine.claims.drain()
    assert set(ids(await lab.claim(W1, limit=9))) == {executions[1], executions[3]}


async def test_a_call_that_is_refused_does_not_concern_the_others(
    lab: Lab, counted: Counted
) -> None:
    id = await lab.submit()
    with pytest.raises(Invalid):
        await lab.claim(W1, limit=0)
    tasks = await together(
        counted, [lab.claim(W2, lanes=["none"]), lab.claim(W1, limit=0), lab.claim(W2)]
    )
    with pytest.raises(Invalid):
        await tasks[1]
    assert (await tasks[0], ids(await tasks[2])) == ([], [id])


async def test_what_calls_took_whose_reply_was_lost_goes_back(lab: Lab, counted: Counted) -> None:
    executions = await submitted(lab, 3)
    counted.lost = 2
    tasks = await together(counted, [lab.claim(w) for w in (W1, W2, W3)])
    assert ids(await tasks[0]) == executions[:1]
    answers = await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    assert ids(await lab.claim(W1, limit=9)) == executions[1:]
    assert [call.limit for call in counted.statements[2]] == [0, 0]


async def test_callers_that_wait_share_the_statements(lab: Lab, counted: Counted) -> None:
    """One hint about one execution asks the store once, however many wait for it."""
    count = 64
    tasks = [asyncio.create_task(lab.claim(worker(n), max_wait=60.0)) for n in range(count)]
    await until(lambda: lab.engine.store.hints.waiting >= count)
    counted.statements.clear()
    executions: list[ExecutionId] = []
    for _ in range(count):
        executions.append(await lab.submit())
        await until(lambda: sum(task.done() for task in tasks) == len(executions))
    claimed = [ids(await task) for task in tasks]
    assert sorted(id for (id,) in claimed) == sorted(executions)
    assert len(counted.statements) <= 1.5 * count + 10  # and some at the poll floor


async def test_a_lane_with_a_concurrency_is_not_overfilled(lab: Lab, counted: Counted) -> None:
    await lab.engine.lanes.set("default", concurrency=3)
    executions = await submitted(lab, 6)
    tasks = await together(counted, [lab.claim(worker(n)) for n in range(6)])
    assert [ids(await task) for task in tasks] == [[id] for id in executions[:3]] + [[]] * 3
    await lab.engine.lanes.set("default", concurrency=0)
    await lab.engine.lanes.drain("default")
    tasks = await together(counted, [lab.claim(worker(n)) for n in range(3)])
    assert [await task for task in tasks] == [[]] * 3
