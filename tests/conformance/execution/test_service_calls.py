"""Service calls: is the store there, what can it do, is it ready, may it stop. §3.67, E-T342"""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, Unavailable
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.wait.keyring import AlreadySeeded, Seeded
from flowfabric.engine.engine import Engine
from flowfabric.engine.service_calls import PrepareApplied, PrepareNoOp
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from tests.kit.flow_lab import declare
from tests.kit.lab import Lab
from tests.kit.race import Race


async def test_a_store_that_answers_is_there(lab: Lab) -> None:
    await lab.engine.ping()
    assert lab.engine.now() == lab.clock.now()


@pytest.mark.inside
async def test_a_store_that_was_closed_does_not_answer(lab: Lab) -> None:
    await lab.engine.store.close()
    with pytest.raises(Unavailable):
        await lab.engine.ping()


async def test_an_engine_says_what_it_can_do(lab: Lab) -> None:
    """E-T342: nothing of the original is missing, except for what neither of its stores had"""
    record = await lab.engine.capabilities()
    assert record.family in ("sqlite", "postgres")
    assert {name for name, has in record.capabilities.items() if not has} == {
        "subscribe_instance_tags"
    }
    assert {"claim_for_worker", "issue_reclaim_grant", "prepare"} <= set(record.capabilities)


@pytest.mark.inside
async def test_a_database_is_made_ready_once(lab: Lab, store_url: str, clock: ManualClock) -> None:
    """Opening an engine does it, unless `migrate` is False"""
    other = await Engine.open(await open_store(store_url, clock=clock), migrate=False)
    assert await lab.engine.prepare() == PrepareNoOp()
    assert await other.prepare() == PrepareApplied(f"schema version {lab.engine.schema_version}")
    assert await other.prepare() == PrepareNoOp()
    await other.close()


async def test_a_caller_seeds_a_key_of_its_own_after_the_preparation(lab: Lab) -> None:
    """server-sdk.md 7.5: the second run of the program finds its key"""
    answers = []
    for _ in range(2):
        await lab.engine.prepare()
        answers.append(await lab.engine.keys.seed("k1", "ab" * 32))
    assert answers == [Seeded("k1"), AlreadySeeded("k1", same_secret=True)]


@pytest.mark.inside
async def test_of_two_processes_one_installs_the_first_key(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other finds it, though there was none when it looked"""
    answers: list[object] = []

    async def rival() -> None:
        answers.append(await second_lab.engine.keys.prepare())

    Race(lab, monkeypatch).before("records.put", rival)
    answers.append(await lab.engine.keys.prepare())
    assert answers == [True, False]


@pytest.mark.inside
async def test_what_takes_longer_than_the_grace_is_finished_all_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that is under way is not cut off: its caller gets its answer"""
    gate, honest = asyncio.Event(), lab.engine.store.submit

    async def slow(*args: Any) -> Any:
        await gate.wait()
        return await honest(*args)

    monkeypatch.setattr(lab.engine.store, "submit", slow)
    lab.engine.sweep.start()
    submitting = asyncio.ensure_future(lab.submit())
    await asyncio.sleep(0)
    assert await lab.engine.shutdown_prepare(0) is False
    assert await lab.engine.shutdown_prepare(0.01) is False
    gate.set()
    assert await lab.engine.shutdown_prepare(60) is True
    assert await lab.engine.views.state(await submitting) == "waiting"


@pytest.mark.inside
async def test_a_flow_that_is_being_declared_is_finished(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, honest = asyncio.Event(), lab.engine.store.lay_flows

    async def slow(*args: Any) -> Any:
        await gate.wait()
        return await honest(*args)

    monkeypatch.setattr(lab.engine.store, "lay_flows", slow)
    declaring = asyncio.ensure_future(declare(lab, "a>b"))
    await asyncio.sleep(0)
    assert await lab.engine.shutdown_prepare(0.01) is False
    gate.set()
    assert await lab.engine.shutdown_prepare(60) is True
    assert (await (await declaring).flow()).nodes == 2


@pytest.mark.inside
async def test_an_engine_that_will_stop_finishes_what_it_was_asked_for(lab: Lab) -> None:
    lab.engine.sweep.start()
    submitting = asyncio.ensure_future(lab.submit())
    await asyncio.sleep(0)
    with pytest.raises(Invalid):
        await lab.engine.shutdown_prepare("soon")
    assert await lab.engine.shutdown_prepare(60) is True
    await asyncio.sleep(0)  # the caller has its answer, and needs a turn to return it
    assert submitting.done()
    assert not lab.engine.sweep.is_running
    assert await lab.engine.shutdown_prepare() is True
    assert await lab.engine.views.state(await submitting) == "waiting"  # `close` comes later


@pytest.mark.inside
async def test_an_engine_that_will_stop_takes_no_new_work_and_lets_its_own_end(lab: Lab) -> None:
    id = await lab.submit()
    waiting = await lab.submit()
    claim = await lab.claim_one()
    assert await lab.engine.shutdown_prepare(60) is True
    with pytest.raises(Unavailable):
        await lab.submit()
    with pytest.raises(Unavailable):
        await lab.engine.executions.submit_many([])
    with pytest.raises(Unavailable):
        await lab.engine.executions.fork(id)
    with pytest.raises(Unavailable):
        await lab.engine.flows.create("build")
    with pytest.raises(Unavailable):
        await lab.engine.claims.claim(WorkerIdentity("w", "w-1"))
    with pytest.raises(Unavailable):
        await lab.engine.grants.issue(waiting, "w")
    with pytest.raises(Unavailable):
        await lab.engine.grants.take(waiting)
    await lab.engine.claims.renew(claim)
    await lab.engine.attempts.complete(claim, b"done")
    assert await lab.engine.views.state(waiting) == "waiting"


@pytest.mark.inside
async def test_a_claim_that_waits_for_work_ends_when_the_engine_will_stop(lab: Lab) -> None:
    claiming = asyncio.ensure_future(
        lab.engine.claims.claim(WorkerIdentity("w", "w-1"), max_wait=600)
    )
    await asyncio.sleep(0)
    assert await lab.engine.shutdown_prepare(60) is True
    async with asyncio.timeout(60):
        assert await claiming == []


@pytest.mark.inside
async def test_a_claim_that_waits_does_not_look_again_when_the_engine_will_stop(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that comes at that moment is left to other engines"""
    calls, hints = lab.engine.claims.calls, lab.engine.store.hints
    honest, looks = calls.take, list[object]()

    async def take(*args: Any) -> Any:
        looks.append(args)
        return await honest(*args)

    monkeypatch.setattr(calls, "take", take)
    claiming = asyncio.ensure_future(
        lab.engine.claims.claim(WorkerIdentity("w", "w-1"), max_wait=600)
    )
    async with asyncio.timeout(60):
        while not hints.waiting:  # noqa: ASYNC110 - hints are no event
            await asyncio.sleep(0)
        before = len(looks)
        assert await lab.engine.shutdown_prepare(60) is True
        assert await claiming == []
    assert len(looks) == before
