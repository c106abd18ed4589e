"""The worker: what it claims, how much of it at once, and what it does when the store is away."""

import asyncio
import logging
import signal
import threading
from collections import Counter
from typing import Any

import pytest

from flowfabric import (
    AttemptEnd,
    Context,
    Fabric,
    Invalid,
    PublicState,
    SyncContext,
    Unavailable,
    WorkerOptions,
)
from flowfabric.core.base.time import Millis
from flowfabric.store.hints import Nudge
from flowfabric.worker.run.slots import ClaimRequest, Slots
from tests.worker import handlers
from tests.worker.bench import Bench, Log, Wire, gather_results, renew_now, until, working


class Gauge:
    """How many are inside at once."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def hold(self, together: int, name: str = "all") -> None:
        """Waits until so many have been inside at once, and a little for one too many."""
        self.inside[name] += 1
        self.most[name] = max(self.most[name], self.inside[name])
        await until(lambda: self.most[name] >= together)
        await asyncio.sleep(0.005)
        self.inside[name] -= 1


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


def spy_on_claims(fabric: Fabric, engine: Any) -> list[tuple[frozenset[str], int]]:
    """The kinds and the limit of every claim that is made."""
    made: list[tuple[frozenset[str], int]] = []
    claim = engine.claims.claim

    async def spy(*args: Any, **kwargs: Any) -> Any:
        made.append((kwargs["kinds"], kwargs["limit"]))
        return await claim(*args, **kwargs)

    engine.claims.claim = spy
    return made


# -- how much


async def test_no_more_run_at_once_than_the_worker_has_room_for(
    fabric: Fabric, gauge: Gauge
) -> None:
    """E-T079, C-T111"""

    @fabric.task()
    async def job() -> None:
        await gauge.hold(7)

    runs = await job.submit_many([()] * 30)
    async with working(fabric, concurrency=7):
        await gather_results(runs, timeout=60)
    assert gauge.most["all"] == 7


async def test_a_claim_asks_for_as_many_as_there_is_room_for(fabric: Fabric) -> None:
    go_on = asyncio.Event()

    @fabric.task()
    async def job() -> None:
        await go_on.wait()

    made = spy_on_claims(fabric, await fabric.engine())
    await job.submit_many([()] * 4)
    async with working(fabric, concurrency=6) as worker:
        await until(lambda: len(worker.active) == 4)
        await until(lambda: made[-1] == (frozenset({"job"}), 2))
        await job.submit_many([()] * 9)
        await until(lambda: len(worker.active) == 6)
        go_on.set()
        await until(lambda: worker.completed == 13)
    a_suspect, others = made[:2]
    assert (a_suspect, others) == ((frozenset({"job"}), 1), (frozenset({"job"}), 6))


async def test_a_worker_larger_than_a_claim_fills_up_without_a_pause(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    @fabric.task()
    async def job() -> None:
        await go_on.wait()

    await job.submit_many([()] * 1100)
    async with working(fabric, concurrency=1050, ttl=Millis(30_000)) as worker:
        pauses: list[float | None] = []
        monkeypatch.setattr(worker._claimer, "_pause", pauses.append)
        await until(lambda: len(worker.active) == 1050)
        assert pauses == []
        monkeypatch.undo()
        go_on.set()
        await until(lambda: worker.completed == 1100)


async def test_a_slot_that_is_freed_during_a_claim_is_filled_without_a_hint(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that got all it asked for is followed by another one: more may wait."""
    engine = await fabric.engine()
    go_on = [asyncio.Event() for _ in range(4)]

    @fabric.task()
    async def job(n: int) -> None:
        await go_on[n].wait()

    await job.submit_many([(n,) for n in range(4)])
    claim = engine.claims.claim

    async def until_stopped(*given: Any) -> bool:
        nudges = [each for each in given if isinstance(each, Nudge)]
        return await (nudges[0] if nudges else asyncio.Event()).wait()

    async with working(fabric, concurrency=2, ttl=Millis(30_000)) as worker:
        await until(lambda: len(worker.active) == 2)

        async def slow(*args: Any, **kwargs: Any) -> Any:
            taken = await claim(*args, **kwargs)
            go_on[1].set()
            await until(lambda: worker.completed >= 2)
            return taken

        monkeypatch.setattr(engine.claims, "claim", slow)
        monkeypatch.setattr(engine.store.hints, "wait", until_stopped)
        go_on[0].set()
        await until(lambda: len(worker.active) == 2 and worker.completed == 2)
        go_on[2].set()
        go_on[3].set()
        await until(lambda: worker.completed == 4)


@pytest.mark.inside
async def test_a_slot_is_free_when_the_end_is_durable_and_before_its_report_is_over(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """The next claim is under way while the tasks of ended runs come to their end."""
    engine, go_on = await fabric.engine(), asyncio.Event()
    complete = engine.attempts.complete

    async def slow(*given: Any) -> Any:
        done = await complete(*given)
        await go_on.wait()
        return done

    @fabric.task()
    async def job(n: int) -> None:
        log.note(n)

    monkeypatch.setattr(engine.attempts, "complete", slow)
    runs = await job.submit_many([(n,) for n in range(3)])
    async with working(fabric, concurrency=1, ttl=Millis(30_000)) as worker:
        await gather_results(runs, timeout=60)
        assert (log, len(worker.active)) == ([0, 1, 2], 3)
        go_on.set()
        await until(lambda: worker.completed == 3)
        assert worker._slots.left == 1, "each slot is given back once"


async def test_a_slot_stays_taken_while_the_application_is_told_of_the_end(fabric: Fabric) -> None:
    left: list[int] = []

    async def told(end: AttemptEnd) -> None:
        await asyncio.sleep(0)
        left.append(worker._slots.left)

    @fabric.task(on_success=told)
    async def job() -> None: ...

    runs = await job.submit_many([()] * 3)
    async with working(fabric, concurrency=1) as worker:
        await gather_results(runs, timeout=60)
        await until(lambda: worker.completed == 3)
    assert left == [0, 0, 0]


async def test_a_task_may_have_a_limit_of_its_own(fabric: Fabric, gauge: Gauge) -> None:
    @fabric.task(worker_concurrency=2)
    async def narrow() -> None:
        await gauge.hold(2, "narrow")

    @fabric.task()
    async def wide() -> None:
        await gauge.hold(8, "wide")

    narrows = await narrow.submit_many([()] * 30)
    wides = await wide.submit_many([()] * 12)
    async with working(fabric, concurrency=10):
        began = asyncio.get_running_loop().time()
        await gather_results(narrows + wides, timeout=60)
        took = asyncio.get_running_loop().time() - began
    assert gauge.most["narrow"] == 2
    assert gauge.most["wide"] >= 8
    assert took < 14, "a free place for a task with a limit is filled at once, not at the next poll"


async def test_processes_are_a_limit_too(fabric: Fabric) -> None:
    """What waits for a process waits in the store, where others can take it, not in the worker."""
    square = fabric.task(process=True)(handlers.square)
    made = spy_on_claims(fabric, await fabric.engine())
    runs = await square.submit_many(range(6))
    async with working(fabric, concurrency=10, processes=2, ttl=Millis(30_000)):
        assert await gather_results(runs, timeout=40) == [x * x for x in range(6)]
    assert max(limit for _, limit in made) == 2


def test_which_claims_there_is_room_for() -> None:
    fabric = Fabric("sqlite://:memory:")
    for name, limit in (("a", None), ("b", 2), ("c", 50)):
        fabric.task(name=name, worker_concurrency=limit)(handlers.whoami)
    for name, limit in (("p", None), ("q", 1), ("r", None)):
        fabric.task(name=name, worker_concurrency=limit, process=True)(handlers.square)
    room = Slots(10, 3, fabric.tasks)
    assert room.narrow() == [
        ClaimRequest(frozenset("b"), 2),
        ClaimRequest(frozenset("q"), 1),
        ClaimRequest(frozenset("pr"), 3),
    ]
    assert room.wide() == ClaimRequest(frozenset("ac"), 10)
    for kind in "bbppq":
        room.take(kind)
    assert (room.narrow(), room.wide()) == ([], ClaimRequest(frozenset("ac"), 5))
    for _ in range(4):
        room.take("a")
    room.give("b")
    room.give("p")
    assert (room.left, room.narrow()) == (
        3,
        [ClaimRequest(frozenset("b"), 1), ClaimRequest(frozenset("pr"), 1)],
    )
    room.take("c")
    room.take("c")
    assert room.narrow() == []
    assert room.wide() == ClaimRequest(frozenset("abcpr"), 1), (
        "one place: the store's order decides"
    )
    assert room.limited


# -- what


async def test_lanes_are_served_by_weight(bench: Bench) -> None:
    order: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        order.append(ctx.info.lane)

    for lane in ("slow", "fast"):
        await job.with_options(lane=lane).submit_many([()] * 12)
    await bench.work(concurrency=4, lanes={"fast": 3, "slow": 1})
    assert Counter(order[:8]) == {"fast": 6, "slow": 2}
    assert len(order) == 24, "what one lane does not use goes to the other"


async def test_only_what_a_worker_is_there_for(bench: Bench) -> None:
    seen: list[str] = []

    @bench.fabric.task()
    async def job(word: str) -> None:
        seen.append(word)

    await job.submit("plain")
    await job.with_options(lane="other").submit("other lane")
    await job.with_options(namespace="n").submit("other namespace")
    gpu = bench.fabric.task(name="gpu", capabilities=["gpu"])(job.function)
    await gpu.submit("needs more")
    await bench.work(lanes=["default"], namespace="default")
    assert seen == ["plain"]
    await bench.work(capabilities=["gpu", "more"])
    assert sorted(seen[1:]) == ["needs more", "other lane", "other namespace"]


async def test_priority_then_age(bench: Bench) -> None:
    seen: list[int] = []

    @bench.fabric.task()
    async def job(number: int) -> None:
        seen.append(number)

    for number, priority in enumerate((0, 5, 0, 9, 5)):
        await job.with_options(priority=priority).submit(number)
    await bench.work(concurrency=1)
    assert seen == [3, 1, 4, 0, 2]


async def test_work_that_arrives_later_is_taken_at_once(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-T083: it need not wait for the next poll, which is an hour away"""
    for floor in ("execution.claims.POLL_FLOOR", "commit.watcher.POLL_FLOOR", "sweep.MAX_PAUSE"):
        monkeypatch.setattr(f"flowfabric.engine.{floor}", 3600.0)
    monkeypatch.setattr("flowfabric.engine.sweep.REST_PAUSE", 3600.0)

    @fabric.task()
    async def job(x: int) -> int:
        return x

    async with working(fabric):
        for x in range(20):
            assert await (await job.submit(x)).result(60) == x


async def test_two_workers_of_one_process_share_the_work(fabric: Fabric, gauge: Gauge) -> None:
    @fabric.task()
    async def job() -> None:
        await gauge.hold(6)

    runs = await job.submit_many([()] * 20)
    async with working(fabric, concurrency=3) as one:
        async with working(fabric, concurrency=3) as other:
            await gather_results(runs, timeout=60)
            assert one.identity.instance != other.identity.instance
        delayed = await job.with_options(delay="50ms").submit()
        await delayed.result(60)  # the other worker's end has not stopped the sweep
    assert (gauge.most["all"], one.completed + other.completed) == (6, 21)


async def test_a_store_in_memory() -> None:
    go_on = asyncio.Event()
    async with Fabric("sqlite://:memory:") as fabric:

        @fabric.task()
        async def job(x: int) -> int:
            await go_on.wait()
            return x

        runs = await job.submit_many(range(5))
        async with working(fabric) as worker:
            await until(lambda: len(worker.active) == 5)
            await renew_now(worker)
            go_on.set()
            assert await gather_results(runs, timeout=60) == list(range(5))
        assert [len(await run.attempts()) for run in runs] == [1] * 5


# -- options


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"lanes": "fast"},
        {"ttl": 0},
        {"drain": "soon"},
        {"lanes": ["ü"]},
        {"namespace": ""},
        {"lanes": {"a": 0, "b": 1}},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_options_that_make_no_sense_are_refused(
    bench: Bench, options: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        await bench.fabric.worker(WorkerOptions(**options))


# -- what it tells


async def test_log_records_carry_the_run(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flowfabric")

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        ctx.log.info("in the loop")

    @bench.fabric.task()
    def plain(ctx: SyncContext) -> None:
        ctx.log.info("in a thread")

    runs = {"job": await job.submit(), "plain": await plain.submit()}
    await bench.work()
    records = [record for record in caplog.records if record.name.startswith("flowfabric.task.")]
    assert {record.getMessage() for record in records} == {"in the loop", "in a thread"}
    for record in records:
        fields = vars(record)
        assert record.name == f"flowfabric.task.{fields['task']}"
        assert fields["run"] == fields["execution"] == str(runs[fields["task"]].id)
        assert fields["attempt"] == 1


async def test_what_a_handler_is_told_about_its_run(bench: Bench) -> None:
    """E-T082"""
    seen: list[Any] = []

    @bench.fabric.task(retries=1, priority=4, deadline="1h", lane="x", namespace="n")
    async def job(ctx: Context) -> None:
        seen.append(ctx.info)
        if ctx.info.first:
            raise ValueError

    run = await job.submit()
    await bench.work()
    await bench.pass_time(5_000)
    await bench.work()
    first, second = seen
    assert (first.id, first.task, first.lane, first.namespace) == (run.id, "job", "x", "n")
    assert (first.attempt, first.retries, second.attempt, second.retries) == (1, 0, 2, 1)
    assert (first.priority, second.first) == (4, False)
    assert (first.deadline_at - first.created_at).total_seconds() == 3600


# -- a store that is away


async def test_an_outage_is_told_once_and_ends_by_itself(
    fabric: Fabric, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task()
    async def job(x: int) -> int:
        return x

    async with working(fabric):
        assert await (await job.submit(1)).result(60) == 1
        wire.cut = True
        before = wire.made["claim"]
        await until(lambda: wire.made["claim"] - before >= 3)
        wire.cut = False
        assert await (await job.submit(2)).result(60) == 2
    told = [r.getMessage() for r in caplog.records if r.name == "flowfabric.worker"]
    assert told == [
        "the store does not answer; claiming pauses and retries: unavailable: the wire is cut",
        "the store answers again; claiming continues",
    ]


async def test_a_store_that_stumbles_does_not_end_the_worker(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task()
    async def job() -> str:
        return "done"

    engine = await fabric.engine()
    claim, failed = engine.claims.claim, list[int]()

    async def stumble(*args: Any, **kwargs: Any) -> Any:
        if len(failed) < 2:
            failed.append(1)
            raise ZeroDivisionError
        return await claim(*args, **kwargs)

    engine.claims.claim = stumble  # type: ignore[method-assign]
    async with working(fabric):
        assert await (await job.submit()).result(60) == "done"
    assert sum("claiming failed" in record.getMessage() for record in caplog.records) == 1


async def test_waiting_for_a_result_ends_with_the_engine(fabric: Fabric) -> None:
    run = await fabric.task()(handlers.square).submit(1)
    waiting = asyncio.create_task(run.result())
    await asyncio.sleep(0.01)
    await fabric.close()
    with pytest.raises(Unavailable):
        await waiting


# -- signals


async def test_signals_are_given_back_when_the_worker_is_gone(fabric: Fabric) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    running = asyncio.create_task(fabric.run_worker())
    await until(lambda: signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM])
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(running, 60)
    after = {number: signal.getsignal(number) for number in before}
    assert after[signal.SIGTERM] == before[signal.SIGTERM]
    assert after[signal.SIGINT] == signal.default_int_handler


async def test_threads_end_with_the_worker(fabric: Fabric, log: Log) -> None:
    @fabric.task()
    def job() -> None:
        log.note(threading.current_thread())

    async with working(fabric):
        await gather_results(await job.submit_many([()] * 5), timeout=60)
        assert any(thread.is_alive() for thread in log)
    await until(lambda: not any(thread.is_alive() for thread in log))
    assert not [t for t in threading.enumerate() if t.name == "flowfabric-heartbeat"]


async def test_a_run_can_be_cancelled_before_it_starts(bench: Bench) -> None:
    """E-T154"""
    run = await bench.fabric.task()(handlers.square).submit(2)
    await run.cancel()
    assert await bench.work() == 0
    assert await run.state() is PublicState.CANCELLED
