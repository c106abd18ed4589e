"""Runs that go back to a chosen step: forks, and replays from there."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import Context, Fabric, Fixed, Run, RunFailed, SyncContext
from flowfabric.core.base.errors import Invalid, MaxReplays, NotFound, NotTerminal
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.fork import FORKED_FROM
from tests.worker.bench import Bench

pytestmark = pytest.mark.rules


class Shop:
    """A task whose steps say when they are run."""

    def __init__(self, bench: Bench) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()

        @bench.fabric.task(name="order")
        async def order(ctx: Context, number: int = 1) -> list[Any]:
            return [
                await ctx.step(self.act("reserve"), number),
                await ctx.step(self.act("charge"), number),
                await ctx.step(self.act("ship"), number),
            ]

        self.order = order

    def act(self, name: str) -> Callable[[int], str]:
        def step(number: int) -> str:
            self.ran.append(name)
            if name in self.broken:
                raise ValueError(name)
            return f"{name} {number}"

        step.__qualname__ = name
        return step

    def took(self) -> list[str]:
        """What ran since this was last asked."""
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def shop(bench: Bench) -> Shop:
    return Shop(bench)


async def done(bench: Bench, run: Run[Any]) -> Any:
    await bench.work_through(run)
    return await run.result(60)


async def test_a_fork_has_the_steps_before_the_chosen_one(bench: Bench, shop: Shop) -> None:
    run = await shop.order.submit(7)
    assert await done(bench, run) == ["reserve 7", "charge 7", "ship 7"]
    shop.took()
    fork = await run.fork(from_step="charge")
    assert fork.id != run.id
    assert await done(bench, fork) == ["reserve 7", "charge 7", "ship 7"]
    assert shop.took() == ["charge", "ship"]
    facts = await fork.describe()
    assert (facts.forked_from, facts.forked_at) == (run.id, "charge")
    assert facts.tags[FORKED_FROM] == run.id
    assert (await run.describe()).replays == 0
    assert await run.result(60) == ["reserve 7", "charge 7", "ship 7"]


async def test_a_fork_may_have_other_arguments_and_options(bench: Bench, shop: Shop) -> None:
    run = await shop.order.with_options(tags={"app.a": "1"}, priority=3).submit(7)
    await done(bench, run)
    options: dict[str, Any] = {"tags": {"app.b": "2"}, "lane": "slow", "key": "once"}
    fork = await run.fork("ship", arguments={"number": 8}, **options)
    facts = await fork.describe()
    assert (facts.lane, facts.key, facts.priority) == ("slow", "once", 3)
    assert facts.tags == {"app.a": "1", "app.b": "2", FORKED_FROM: run.id}
    again = await run.fork("ship", key="once")
    assert (again.id, again.duplicate) == (fork.id, True)
    await bench.work(lanes=("slow",))
    assert await fork.result(60) == ["reserve 7", "charge 7", "ship 8"]


async def test_a_fork_can_be_pinned_to_another_version(bench: Bench) -> None:
    async def price() -> int:
        return 10

    @bench.fabric.task(name="bill", version="1")
    async def first(ctx: Context) -> str:
        return f"one {await ctx.step(price)}"

    @bench.fabric.task(name="bill", version="2")
    async def second(ctx: Context) -> str:
        return f"two {await ctx.step(price)} {await ctx.step(price)}"

    run = await first.submit()
    assert await done(bench, run) == "one 10"
    fork = await run.fork("price", version="2")
    assert (await fork.describe()).version == "2"
    assert await done(bench, fork) == "two 10 10"
    assert await done(bench, await run.fork("price")) == "one 10"


async def test_without_a_step_a_fork_begins_at_the_start(bench: Bench, shop: Shop) -> None:
    run = await shop.order.submit(7)
    await done(bench, run)
    shop.took()
    await done(bench, await run.fork())
    assert shop.took() == ["reserve", "charge", "ship"]


async def test_a_fork_of_a_fork_keeps_what_both_have(bench: Bench, shop: Shop) -> None:
    run = await shop.order.submit(7)
    await done(bench, run)
    fork = await run.fork("charge")
    await done(bench, fork)
    shop.took()
    last = await fork.fork("ship")
    assert await done(bench, last) == ["reserve 7", "charge 7", "ship 7"]
    assert shop.took() == ["ship"]
    assert (await last.describe()).forked_from == fork.id


async def test_a_replay_forgets_the_chosen_step_and_the_later_ones(
    bench: Bench, shop: Shop
) -> None:
    run = await shop.order.submit(7)
    await done(bench, run)
    shop.took()
    await run.replay(from_step="charge")
    assert await bench.engine.views.steps(run.id) != []
    assert await done(bench, run) == ["reserve 7", "charge 7", "ship 7"]
    assert shop.took() == ["charge", "ship"]
    replayed = [each for each in await run.events() if each.kind is EventKind.REPLAYED]
    assert [each.detail for each in replayed] == [
        {"branch": "normal", "groups_reset": 0, "from_step": "charge"}
    ]


async def test_a_failed_run_goes_back_further_than_to_the_step_that_failed(
    bench: Bench, shop: Shop
) -> None:
    shop.broken = {"ship"}
    run = await shop.order.submit(7)
    with pytest.raises(RunFailed):
        await done(bench, run)
    assert shop.took() == ["reserve", "charge", "ship"]
    shop.broken = set()
    await run.replay(from_step="charge")
    await done(bench, run)
    assert shop.took() == ["charge", "ship"]


@pytest.mark.parametrize("way", ["fork", "replay"])
async def test_the_step_that_failed_can_be_chosen(bench: Bench, shop: Shop, way: str) -> None:
    """It is not recorded: everything recorded comes before it."""
    shop.broken = {"charge"}
    run = await shop.order.submit(7)
    with pytest.raises(RunFailed):
        await done(bench, run)
    shop.took()
    shop.broken = set()
    if way == "fork":
        run = await run.fork(from_step="charge")
    else:
        await run.replay(from_step="charge")
    assert await done(bench, run) == ["reserve 7", "charge 7", "ship 7"]
    assert shop.took() == ["charge", "ship"]


async def test_without_a_step_replay_is_what_it_was(bench: Bench, shop: Shop) -> None:
    run = await shop.order.submit(7)
    await done(bench, run)
    shop.took()
    await run.replay()
    await done(bench, run)
    assert shop.took() == ["reserve", "charge", "ship"]
    await run.replay(from_step="ship")
    shop.broken = {"ship"}
    with pytest.raises(RunFailed):
        await done(bench, run)
    shop.broken = set()
    shop.took()
    await run.replay()
    await done(bench, run)
    assert shop.took() == ["ship"]


async def test_a_step_is_named_by_its_call_or_its_position(bench: Bench) -> None:
    ran: list[int] = []

    async def fetch(page: int) -> int:
        ran.append(page)
        return page

    @bench.fabric.task()
    async def crawl(ctx: Context) -> int:
        return sum([await ctx.step(fetch, page) for page in range(3)])

    run = await crawl.submit()
    assert await done(bench, run) == 3
    for chosen, again in (("fetch#2", [1, 2]), ("fetch#3", [2]), ("fetch", [0, 1, 2]), (1, [1, 2])):
        ran.clear()
        await done(bench, await run.fork(from_step=chosen))
        assert ran == again, chosen


@pytest.mark.parametrize("wrong", ["nothing", "charge#2", 3, "0/charge"])
async def test_a_step_that_is_unknown_is_an_error_that_names_those_there_are(
    bench: Bench, shop: Shop, wrong: str | int
) -> None:
    run = await shop.order.submit(7)
    await done(bench, run)
    for act in (run.fork, run.replay):
        with pytest.raises(NotFound, match="reserve, charge, ship"):
            await act(from_step=wrong)
    assert (await run.state()).value == "completed"


@pytest.mark.parametrize("wrong", ["", -1, 1.5, b"x", "x" * 5000])
async def test_what_is_no_step_at_all(bench: Bench, shop: Shop, wrong: Any) -> None:
    run = await shop.order.submit(7)
    await done(bench, run)
    with pytest.raises(Invalid):
        await run.fork(from_step=wrong)
    with pytest.raises(Invalid):
        await run.replay(from_step=wrong)
    with pytest.raises(Invalid):
        await run.fork(arguments=[1])  # type: ignore[arg-type]


async def test_only_an_ended_run_is_replayed_and_any_run_is_forked(bench: Bench) -> None:
    ran: list[str] = []

    async def first() -> str:
        ran.append("first")
        return "first"

    @bench.fabric.task()
    async def sleepy(ctx: Context) -> str:
        found = await ctx.step(first)
        await ctx.sleep("1d")
        return found

    run = await sleepy.submit()
    with pytest.raises(NotFound):
        await run.fork("first")
    await bench.work()
    with pytest.raises(NotTerminal):
        await run.replay("sleep")
    fork = await run.fork("sleep")
    await bench.work()
    assert ran == ["first"]
    assert (await fork.state()).value == "delayed"
    await bench.pass_time(90_000_000)
    await bench.work()
    assert [await run.result(60), await fork.result(60)] == ["first", "first"]


async def test_a_thousand_steps(bench: Bench) -> None:
    ran: list[int] = []

    async def act(number: int) -> str:
        ran.append(number)
        return "x" * 100

    @bench.fabric.task()
    async def job(ctx: Context) -> int:
        for first in range(0, 1000, 250):
            steps = [ctx.step(act, number) for number in range(first, first + 250)]
            await ctx.gather(*steps)
        return 1000

    run = await job.submit()
    assert await done(bench, run) == 1000
    ran.clear()
    fork = await run.fork("act#1000")
    await run.replay("act#999")
    assert [await done(bench, each) for each in (fork, run)] == [1000, 1000]
    assert sorted(ran) == [998, 999, 999]


async def test_replays_from_a_step_are_counted_like_others(bench: Bench, shop: Shop) -> None:
    run = await shop.order.submit(7)
    await done(bench, run)
    for _ in range(10):
        await run.replay("ship")
        await done(bench, run)
    with pytest.raises(MaxReplays):
        await run.replay("ship")


async def test_of_two_replays_at_once_one_counts(bench: Bench, shop: Shop) -> None:
    run = await shop.order.submit(7)
    await done(bench, run)
    answers = await asyncio.gather(
        run.replay("charge"), run.replay("ship"), run.replay(), return_exceptions=True
    )
    assert len([each for each in answers if isinstance(each, NotTerminal)]) == 2
    assert (await run.describe()).replays == 1


# -- steps that the run is at


@pytest.mark.parametrize("way", ["fork", "replay"])
async def test_a_step_that_is_tried_again_later_can_be_chosen(
    bench: Bench, shop: Shop, way: str
) -> None:
    """It is not recorded, but its failed try is. It starts over, with all of its tries."""
    charge = bench.fabric.step(retries=2, backoff=Fixed(delay="1h"))(shop.act("charge"))

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [await ctx.step(shop.act("reserve"), 1), await ctx.step(charge, 1)]

    shop.broken = {"charge"}
    run = await job.submit()
    await bench.work()
    assert (await run.state()).value == "delayed"
    fork = await run.fork("charge") if way == "fork" else None
    await run.cancel()
    if fork is None:
        await run.replay("charge")
    with pytest.raises(RunFailed):
        await done(bench, fork or run)
    assert shop.took() == ["reserve", *["charge"] * 4]


async def test_a_fork_waits_itself_for_what_the_run_waits_for(bench: Bench, shop: Shop) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        await ctx.step(shop.act("reserve"), 1)
        callback = await ctx.callback("call")
        paid, verdict, called = await ctx.gather(
            ctx.wait_for_signal("paid", timeout="2h"), ctx.approval("ok"), callback.result()
        )
        return [paid, verdict.approved, called]

    run = await job.submit()
    await bench.work()
    await bench.pass_time(3_600_000)
    forks = [await run.fork(step) for step in ("signal:paid", "approval:ok", "callback:call")]
    await bench.work()
    await bench.pass_time(3_600_000)  # the time of the run is over, that of the forks is not
    for fork in forks:
        await bench.fabric.signal(fork.id, "paid", 1)
        await bench.fabric.approve(fork.id, "ok", approver="ada")
        await bench.fabric.signal(fork.id, "call", 2)
        assert await done(bench, fork) == [1, True, 2]
    assert shop.took() == ["reserve"]
    with pytest.raises(RunFailed, match="nothing came in time"):
        await done(bench, run)


@pytest.mark.parametrize("way", ["fork", "replay"])
async def test_a_wait_beside_the_step_that_failed_starts_over(
    bench: Bench, shop: Shop, way: str
) -> None:
    async def charge_later(ctx: Context) -> str:
        await ctx.sleep("1h")
        return str(await ctx.step(shop.act("charge"), 1))

    @bench.fabric.task()
    async def job(ctx: Context) -> tuple[Any, str]:
        return await ctx.gather(ctx.wait_for_signal("paid", timeout="1d"), charge_later(ctx))

    shop.broken = {"charge"}
    run = await job.submit()
    with pytest.raises(RunFailed):
        await done(bench, run)
    shop.broken = set()
    await bench.pass_time(10 * 86_400_000)  # the time of that wait is over
    if way == "fork":
        run = await run.fork("charge")
    else:
        await run.replay("charge")
    await bench.work()
    await bench.fabric.signal(run.id, "paid", 3)
    assert await done(bench, run) == (3, "charge 1")


# -- branches


async def test_before_a_step_of_a_branch_come_the_branches_before_it(bench: Bench) -> None:
    ran: list[str] = []

    def act(name: str) -> Callable[[], str]:
        def step() -> str:
            ran.append(name)
            return name

        step.__qualname__ = name
        return step

    async def branch(ctx: Context, *names: str) -> str:
        return "".join([await ctx.step(act(name)) for name in names])

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        await ctx.step(act("load"))
        found = await ctx.gather(branch(ctx, "box", "label"), branch(ctx, "invoice", "mail"))
        await ctx.step(act("send"))
        await ctx.gather(branch(ctx, "tidy"))
        return "".join(found)

    run = await job.submit()
    assert await done(bench, run) == "boxlabelinvoicemail"
    names = [view.name for view in await bench.engine.views.steps(run.id)]
    assert names == ["load", "box", "label", "invoice", "mail", "send", "tidy"]
    for at, name in enumerate(names):
        ran.clear()
        assert await done(bench, await run.fork(name)) == "boxlabelinvoicemail"
        assert sorted(ran) == sorted(names[at:]), name


async def test_a_name_in_two_branches_needs_its_branch(bench: Bench) -> None:
    async def fetch(page: int) -> int:
        return page

    async def branch(ctx: Context, page: int) -> int:
        return await ctx.step(fetch, page)

    @bench.fabric.task()
    async def job(ctx: Context) -> int:
        return sum(await ctx.gather(branch(ctx, 1), branch(ctx, 2)))

    run = await job.submit()
    await done(bench, run)
    with pytest.raises(Invalid, match=r"give one of 0/.*fetch, 1/.*fetch"):
        await run.fork("fetch")
    assert await done(bench, await run.fork("1/fetch")) == 3


# -- what else is recorded


async def test_waits_before_the_step_keep_their_signals_and_later_ones_wait_again(
    bench: Bench,
) -> None:
    ran: list[str] = []

    async def act() -> None:
        ran.append("act")

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        one = await ctx.wait_for_signal("one")
        both = await ctx.wait_for_all("a", "b")
        verdict = await ctx.approval("ok", about=5)
        await ctx.step(act)
        two = await ctx.wait_for_signal("one")
        return [one, both, verdict.approved, two]

    run = await job.submit()
    await bench.work()
    for name, value in (("one", 1), ("a", 2), ("b", 3)):
        await bench.fabric.signal(run.id, name, value)
        await bench.work()
    await bench.fabric.approve(run.id, "ok", approver="ada", about=5)
    await bench.work()
    await bench.fabric.signal(run.id, "one", 4)
    expected = [1, {"a": 2, "b": 3}, True]
    assert await done(bench, run) == [*expected, 4]
    fork = await run.fork("act")
    await run.replay("act")
    await bench.work()
    assert ran == ["act"] * 3
    for each, value in ((run, 5), (fork, 6)):
        assert (await each.state()).value == "suspended"
        await bench.fabric.signal(each.id, "one", value)
        assert await done(bench, each) == [*expected, value]


async def test_a_signal_that_nothing_has_used_is_there_after_a_replay(bench: Bench) -> None:
    broken = [True]

    async def act() -> None:
        if broken.pop():
            raise ValueError("broken")

    async def first() -> None: ...

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        await ctx.step(first)
        await ctx.step(act)
        return await ctx.wait_for_signal("go")

    run = await job.submit()
    await bench.fabric.signal(run.id, "go", 1)
    with pytest.raises(RunFailed):
        await done(bench, run)
    broken.append(False)
    await run.replay("first")
    assert await done(bench, run) == 1


async def test_a_callback_that_was_handed_out_can_still_be_answered(bench: Bench) -> None:
    handed: list[Any] = []
    broken = [True]

    async def hand_out(id: str) -> None:
        handed.append(id)

    async def act() -> None:
        if broken:
            raise ValueError("broken")

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        callback = await ctx.callback("pay")
        await ctx.step(hand_out, callback.id)
        await ctx.step(act)
        return await callback.result()

    run = await job.submit()
    with pytest.raises(RunFailed):
        await done(bench, run)
    broken.clear()
    fork = await run.fork("act")
    await run.replay("act")
    await bench.work()
    for each, value in ((run, 1), (fork, 2)):
        await bench.fabric.signal(each.id, "pay", value)
        assert await done(bench, each) == value
    again = await run.fork("callback:pay")
    await run.replay("callback:pay")
    await bench.work()
    for each, value in ((run, 3), (again, 4)):
        await bench.fabric.signal(each.id, "pay", value)
        assert await done(bench, each) == value
    assert len(handed) == 1


async def test_children_before_the_step_are_the_same_and_later_ones_are_new(bench: Bench) -> None:
    ran: list[Any] = []

    @bench.fabric.task()
    async def child(number: int) -> int:
        ran.append(number)
        return number

    async def act() -> None:
        ran.append("act")

    @bench.fabric.task()
    async def parent(ctx: Context) -> list[Any]:
        first = await ctx.submit(child, 1)
        found = await ctx.map(child, [2, 3])
        await ctx.step(act)
        last = await ctx.submit(child, 4)
        return [str(first.id), found, str(last.id)]

    run = await parent.submit()
    first, found, last = await done(bench, run)
    await bench.work()
    assert sorted(map(str, ran)) == ["1", "2", "3", "4", "act"]
    ran.clear()
    fork = await run.fork("act")
    await run.replay("act")
    for each in (fork, run):
        assert (await done(bench, each))[:2] == [first, found]
        assert (await each.result(60))[2] != last
    await bench.work()
    assert sorted(map(str, ran)) == ["4", "4", "act", "act"]


@pytest.mark.parametrize("chosen", ["flow-result:map:child", "flow:map:child"])
async def test_between_a_flow_and_its_results_those_of_the_flow_are_used(
    bench: Bench, chosen: str
) -> None:
    ran: list[int] = []

    @bench.fabric.task()
    async def child(number: int) -> int:
        ran.append(number)
        return number

    @bench.fabric.task()
    async def parent(ctx: Context) -> list[int]:
        return await ctx.map(child, [2, 3])

    run = await parent.submit()
    assert await done(bench, run) == [2, 3]
    fork = await run.fork(chosen)
    await run.replay(chosen)
    for each in (fork, run):
        assert await done(bench, each) == [2, 3]
    assert len(ran) == (2 if chosen.startswith("flow-result") else 6)


async def test_a_patch_is_kept_with_what_follows_it(bench: Bench, shop: Shop) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        patched = bool(ctx.patched("new"))
        await ctx.step(shop.act("a"), 1)
        return [patched, await ctx.step(shop.act("b"), 1)]

    run = await job.submit()
    await done(bench, run)
    for name in ("a", "b"):
        assert await done(bench, await run.fork(name)) == [True, "b 1"]


async def test_compensations_are_kept_and_a_run_that_was_undone_starts_over(
    bench: Bench, shop: Shop
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        await ctx.step(shop.act("reserve"), 1)
        await ctx.compensate(shop.act("release"), 1)
        return await ctx.step(shop.act("charge"), 1)

    run = await job.submit()
    await done(bench, run)
    shop.took()
    shop.broken = {"charge"}
    fork = await run.fork("charge")
    with pytest.raises(RunFailed):
        await done(bench, fork)
    assert shop.took() == ["charge", "release"]
    for act in (fork.fork, fork.replay):
        with pytest.raises(Invalid, match="from the beginning, without a step"):
            await act("charge")
    shop.broken = set()
    await fork.replay()
    assert await done(bench, fork) == "charge 1"
    assert shop.took() == ["reserve", "charge"]


# -- plain functions


async def test_plain_functions_go_back_too(bench: Bench, shop: Shop) -> None:
    @bench.fabric.task()
    def plain(ctx: SyncContext) -> str:
        return ctx.step(shop.act("a"), 1) + ctx.step(shop.act("b"), 2)

    run = await plain.submit()
    await done(bench, run)
    shop.took()
    fork = await run.fork("b")
    assert await done(bench, fork) == "a 1b 2"
    assert shop.took() == ["b"]


def test_code_without_an_event_loop(store_url: str) -> None:
    fabric = Fabric(store_url)

    @fabric.task()
    async def job() -> int:
        return 1

    run = job.submit_sync()
    fork = run.fork_sync()
    assert fork.id != run.id
    fork.cancel_sync()
    assert fork.replay_sync().state.value == "waiting"
    fabric.close_sync()
