"""Ids of runs are UUIDs where people see them; the form of the engine is accepted as well."""

import json
from uuid import UUID

import pytest

from flowfabric import Context, Invalid, NotFound, RunFailed, RunId
from flowfabric.core.base.errors import InvalidId
from tests.worker.bench import Bench

UNKNOWN = "01a1e105-5216-7000-b234-22890e43ab8b"


async def test_people_see_uuids(bench: Bench) -> None:
    seen: list[str] = []

    @bench.fabric.task
    async def job(ctx: Context) -> None:
        seen.append(f"{ctx.info.id}")
        raise ValueError("no")

    run = await job.submit()
    text = str(run.id)
    assert (text, run.id.uuid, json.dumps(run.id)) == (str(UUID(text)), UUID(text), f'"{text}"')
    assert repr(run) == f"Run({text})"
    await bench.work()
    assert seen == [text]
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert (failed.value.id, "{fp:" in str(failed.value)) == (text, False)
    assert [str(found.id) async for found in bench.fabric.runs()] == [text]
    assert str((await run.describe()).id) == str((await run.explain()).id) == text
    assert {str(event.id) for event in await run.events()} == {text}


async def test_a_run_is_found_by_its_id_in_every_form(bench: Bench) -> None:
    @bench.fabric.task
    async def job() -> int:
        return 7

    run = await job.submit()
    await bench.work()
    for id in (run.id, str(run.id), run.id.uuid, str(run.id).upper(), run.id.tagged):
        found = await bench.fabric.run(id)
        assert (found.id, await found.result()) == (run.id, 7)
    assert await bench.engine.views.state(run.id) == "completed"


async def test_an_unknown_uuid_is_no_run(bench: Bench) -> None:
    unknown = UUID(UNKNOWN)
    for id in (unknown, str(unknown)):
        with pytest.raises(NotFound, match=f"no run {unknown}"):
            await bench.fabric.run(id)
        with pytest.raises(NotFound):
            await bench.fabric.signal(id, "go")
    for wrong in ("x", "", str(unknown)[:-1]):
        with pytest.raises(InvalidId, match="looks like 01a1e105"):
            await bench.fabric.run(wrong)
    with pytest.raises(Invalid):
        await bench.fabric.run(7)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await bench.fabric.budget("mine", tokens=1, scope="run", scope_id=unknown)


async def test_signals_and_budgets_take_uuids(bench: Bench) -> None:
    @bench.fabric.task
    async def job(ctx: Context) -> int:
        return await ctx.wait_for_signal("go", int)

    run = await job.submit()
    await bench.fabric.budget("mine", tokens=1, scope="run", scope_id=run.id.uuid)
    assert (await bench.fabric.budgets.get("mine")).scope_id == str(run.id)
    await bench.work()
    (item,) = await bench.fabric.waitpoints(run.id.uuid)
    assert str(item.execution) == str(run.id)
    await bench.fabric.signal(str(run.id), "go", 5)
    await bench.work()
    assert await run.result() == 5


async def test_a_caller_may_give_a_uuid_as_the_id(bench: Bench) -> None:
    @bench.fabric.task
    async def job() -> None: ...

    uuid = UUID(UNKNOWN)
    for id in (uuid, str(uuid)):
        run = await job.with_options(id=id, lane="elsewhere").submit()
        assert (type(run.id), run.id.uuid) == (RunId, uuid)


async def test_a_repeat_finds_the_run_of_its_id_in_the_lane_that_the_task_had(
    bench: Bench,
) -> None:
    """Execution 1.1: the caller gives no partition, so there is none to be wrong"""

    @bench.fabric.task(lane="before")
    async def job() -> None: ...

    first = await job.with_options(id=UNKNOWN).submit()
    for id in (UUID(UNKNOWN), first.id, first.id.tagged):
        again = await job.with_options(id=id, lane="since").submit()
        assert again.id == first.id
