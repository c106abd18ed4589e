"""Waiting for an end: however many wait, a look answers all."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    NotFound,
    Unavailable,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Failure,
    Outcome,
    Snapshot,
)
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.commit import watcher
from flowfabric.engine.execution.described import Ending
from tests.kit import situations
from tests.kit.lab import Lab
from tests.kit.situations import ENDED, described, load, missing_ids, take


@pytest.mark.parametrize("name", ENDED)
async def test_waiting_for_what_has_ended_answers_at_once(lab: Lab, name: str) -> None:
    id = await ENDED[name](lab)
    seen = await described(lab, id)
    ending = await lab.engine.views.wait(id, timeout=20)
    assert (ending.id, ending.outcome.name.lower()) == (id, seen.vector.outcome)
    assert (ending.ended_at, ending.failure) == (seen.ended_at, seen.failure)
    assert (ending.result, ending.reason) == (
        b"result" if name == "completed" else None,
        seen.cancel_reason,
    )


async def waiters(lab: Lab, *ids: str) -> list[asyncio.Task[Ending]]:
    """Tasks that wait for these, each known to the engine when this returns."""
    tasks = [asyncio.create_task(lab.engine.views.wait(id, timeout=20)) for id in ids]
    await asyncio.wait(tasks, timeout=0)
    return tasks


async def test_waiting_ends_with_the_execution_however_it_ends(lab: Lab) -> None:
    ids = [await lab.submit(deadline_at=Millis(lab.clock.now() + 100)) for _ in range(4)]
    tasks = await waiters(lab, *ids)
    await lab.complete(await take(lab, ids[0]), b"done")
    assert (await tasks[0]).result == b"done"
    await lab.fail(await take(lab, ids[1]), "permanent", "broken")
    assert (await tasks[1]).failure == Failure("broken", "permanent")
    await lab.engine.executions.cancel(ids[2], reason="enough")
    assert (await tasks[2]).reason == "enough"
    await lab.pass_time(100)
    assert (await tasks[3]).outcome is Outcome.EXPIRED


async def test_waiting_outlasts_retries_and_replays(lab: Lab) -> None:
    id = await lab.submit(policy=situations.RETRY_AT_ONCE)
    (task,) = await waiters(lab, id)
    await lab.fail(await lab.claim_one())
    await lab.lose(await lab.claim_one())
    assert not task.done()
    await lab.complete(await lab.claim_one(), b"at last")
    assert (await task).result == b"at last"


async def test_an_end_in_another_engine_is_seen(lab: Lab, second_lab: Lab) -> None:
    """By a hint, or at the latest by the poll floor"""
    claim = await lab.running()
    (task,) = await waiters(second_lab, claim.id)
    await lab.complete(claim, b"over there")
    assert (await task).result == b"over there"


async def test_waiting_has_an_end_of_its_own(lab: Lab) -> None:
    claim = await lab.running()
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError):
            await lab.engine.views.wait(claim.id, timeout=timeout)
    (task,) = await waiters(lab, claim.id)
    await lab.complete(claim)
    assert (await task).outcome is Outcome.SUCCESS


async def test_waiting_for_what_does_not_exist_is_refused_at_once(lab: Lab) -> None:
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await lab.engine.views.wait(id)


async def test_waiting_for_what_is_forgotten_meanwhile_is_refused(
    lab: Lab, second_lab: Lab
) -> None:
    id = await lab.submit()
    (task,) = await waiters(second_lab, id)
    await lab.engine.executions.cancel(id, reason="r")
    lab.clock.advance(8 * 86_400_000)
    await lab.engine.sweep.trim()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcome, NotFound | Ending)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_waiting_for_what_was_forgotten_before_is_refused(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """At once if the engine that created the run has ended it; if another one has, also while
    hints of others keep coming"""
    monkeypatch.setattr(watcher, "POLL_FLOOR", 60.0)
    monkeypatch.setattr(watcher, "LONGEST_HINTED", 0.0)
    other = second_lab.engine if elsewhere else lab.engine
    id = await lab.submit()
    await other.executions.cancel(id, reason="r")
    lab.clock.advance(8 * 86_400_000)
    assert await other.sweep.trim() == 1
    (task,) = await waiters(lab, id)
    while elsewhere and not task.done():
        await second_lab.complete(await second_lab.running())
    with pytest.raises(NotFound):
        await task


class Loads:
    """Counts what the engine reads: all of it, and what it reads `whole`."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.whole: list[int] = []
        self._load, self._ended = lab.engine.store.load, lab.engine.store.ended
        monkeypatch.setattr(lab.engine.store, "load", self.load)
        monkeypatch.setattr(lab.engine.store, "ended", self.ended)

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        self.sizes.append(len(uuids))
        self.whole.append(len(uuids))
        return await self._load(uuids)

    async def ended(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        self.sizes.append(len(uuids))
        return await self._ended(uuids)


async def test_a_thousand_who_wait_for_one_cost_a_few_looks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §8"""
    claim = await lab.running()
    loads = Loads(lab, monkeypatch)
    tasks = await waiters(lab, *[claim.id] * 1000)
    await lab.complete(claim, b"for all")
    endings = await asyncio.gather(*tasks)
    assert {ending.result for ending in endings} == {b"for all"}
    assert len(loads.sizes) <= 6
    assert max(loads.sizes) == 1


async def test_a_thousand_who_wait_for_a_thousand_cost_a_few_looks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §8: one query per hint, not one per caller"""
    await lab.engine.executions.submit_many([Submission(kind="job")] * 1000)
    claims = [claim for _ in range(2) for claim in await lab.claim(limit=500)]
    assert len(claims) == 1000
    loads = Loads(lab, monkeypatch)
    tasks = await waiters(lab, *(claim.id for claim in claims))
    await asyncio.gather(*(lab.complete(claim, b"ok") for claim in claims))
    endings = await asyncio.gather(*tasks)
    assert [ending.id for ending in endings] == [claim.id for claim in claims]
    assert len(loads.sizes) <= 40
    assert max(loads.sizes) <= 500


async def test_only_another_engine_asks_whether_a_run_exists(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await lab.running()
    own, other = Loads(lab, monkeypatch), Loads(second_lab, monkeypatch)
    tasks = [*await waiters(lab, claim.id), *await waiters(second_lab, claim.id)]
    await lab.complete(claim, b"done")
    assert [ending.result for ending in await asyncio.gather(*tasks)] == [b"done"] * 2
    assert (own.whole, other.whole[:1]) == ([], [1])


async def test_a_caller_that_goes_away_stops_no_other(lab: Lab) -> None:
    claim = await lab.running()
    impatient, patient = await waiters(lab, claim.id, claim.id)
    impatient.cancel()
    await lab.complete(claim)
    assert (await patient).outcome is Outcome.SUCCESS
    assert impatient.cancelled()


@pytest.mark.parametrize("trouble", [None, Unavailable("gone")])
async def test_a_caller_that_goes_away_during_a_look_stops_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, trouble: Exception | None
) -> None:
    claim = await lab.running()
    load, ended = lab.engine.store.load, lab.engine.store.ended

    def check(found: dict[UUID, Snapshot]) -> dict[UUID, Snapshot]:
        if claim.uuid in found and isinstance(found[claim.uuid].state, Ended):
            impatient.cancel()
            if trouble is not None:
                raise trouble
        return found

    async def loaded(uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        return check(await load(uuids))

    async def asked(uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        return check(await ended(uuids))

    monkeypatch.setattr(lab.engine.store, "load", loaded)
    monkeypatch.setattr(lab.engine.store, "ended", asked)
    impatient, patient = await waiters(lab, claim.id, claim.id)
    await lab.complete(claim)
    gone, told = await asyncio.gather(impatient, patient, return_exceptions=True)
    assert isinstance(gone, asyncio.CancelledError)
    assert isinstance(told, Ending if trouble is None else Unavailable)


async def test_who_waits_hears_of_a_store_in_trouble(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await lab.running()

    async def broken(uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        raise Unavailable("gone")

    monkeypatch.setattr(lab.engine.store, "load", broken)
    monkeypatch.setattr(lab.engine.store, "ended", broken)
    with pytest.raises(Unavailable):
        await lab.engine.views.wait(claim.id, timeout=20)
    monkeypatch.undo()
    (task,) = await waiters(lab, claim.id)
    await lab.complete(claim)
    assert (await task).outcome is Outcome.SUCCESS


async def test_closing_an_engine_lets_those_who_wait_go(lab: Lab, second_lab: Lab) -> None:
    claim = await lab.running()
    tasks = await waiters(second_lab, claim.id, claim.id)
    await second_lab.engine.close()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, Unavailable)
    assert isinstance((await load(lab, claim.id)).state, Active)


async def test_without_a_waiter_nothing_is_watched(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = Loads(lab, monkeypatch)
    for _ in range(3):
        await lab.complete(await lab.running())
    assert loads.sizes == []
