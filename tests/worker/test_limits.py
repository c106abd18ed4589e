"""Limits as an application declares them: with a task, by name, for one call."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric import Context, Fabric, Invalid, NotFound, PublicState, Run, RunFailed
from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.store.queries import Query
from tests.kit.connections import libraries
from tests.worker.bench import TTL, Bench, Log

MINUTE = 60_000
SOMEBODY = WorkerIdentity("somebody", "somebody-1")


async def uses(bench: Bench, run: Run[Any]) -> dict[str, str]:
    """The quotas a run uses, with their keys."""
    found = await bench.engine.store.load([run.id.uuid])
    return {use.quota: use.key for use in found[run.id.uuid].execution.uses}


async def budgets(bench: Bench, run: Run[Any]) -> tuple[str, ...]:
    found = await bench.engine.store.load([run.id.uuid])
    return found[run.id.uuid].execution.rules.budget_ids


async def take(bench: Bench, limit: int = 100) -> list[str]:
    """What a worker gets that takes whatever it can."""
    await bench.engine._limits.drain()
    claims = await bench.engine.claims.claim(SOMEBODY, limit=limit, ttl=TTL)
    return [str(claim.id) for claim in claims]


# -- declared with a task


async def test_a_rate_counts_starts_in_any_span(bench: Bench, log: Log) -> None:
    """C-T95: two a minute, a retry is a start, and going on after a sleep is none."""

    @bench.fabric.task(rate="2/m")
    async def job(ctx: Context, n: int) -> None:
        log.note(n)
        if n == 0:
            await ctx.sleep("1s")

    runs = await job.submit_many([0, 1, 2, 3, 4])
    await bench.work()
    assert log == [0, 1]
    assert await runs[2].state() is PublicState.RATE_LIMITED
    await bench.pass_time(1_000)
    await bench.work()
    assert log == [0, 1, 0], "going on is no start"
    await bench.pass_time(MINUTE - 1_001)
    assert await bench.work() == 0
    await bench.pass_time(1)
    await bench.work()
    assert log[3:] == [2, 3]
    await bench.pass_time(MINUTE)
    await bench.work()
    assert log[5:] == [4]


async def test_a_slot_stays_with_a_run_whose_worker_died(bench: Bench) -> None:
    """C-T95, I-23: so many at once, and a crash neither loses nor makes a slot."""

    @bench.fabric.task(concurrency=2)
    async def job() -> None: ...

    runs = [run.id.tagged for run in await job.submit_many([()] * 5)]
    first = await take(bench)
    assert sorted(first) == sorted(runs[:2])
    assert await take(bench) == []
    await bench.lose()
    assert sorted(await take(bench)) == sorted(first), "the same are taken over"
    await bench.engine.executions.cancel(first[0], reason="enough")
    assert await take(bench) == [runs[2]]


async def test_every_key_has_a_limit_of_its_own(bench: Bench) -> None:
    """C-T95: one customer's flood is nobody else's."""

    @bench.fabric.task(concurrency=1, concurrency_key="customer")
    async def job(customer: str) -> str:
        return customer

    await job.submit_many(["acme"] * 50)
    few = await job.submit_many(["bolt", "cora"])
    taken = await take(bench)
    assert len(taken) == 3
    assert {run.id.tagged for run in few} < set(taken)


async def test_a_key_is_an_argument_or_a_function_of_them(bench: Bench) -> None:
    fabric, id = bench.fabric, UUID(int=7)

    @fabric.task(concurrency=1, concurrency_key="who")
    async def named(ctx: Context, n: int, who: str = "nobody") -> None: ...

    @fabric.task(rate="5/s", rate_key=lambda url: url.split("/")[2])
    async def computed(url: str, depth: int = 1) -> None: ...

    @fabric.task(rate="5/s", concurrency=3, concurrency_key="id")
    async def both(id: UUID) -> None: ...

    @fabric.task(rate="5/s", concurrency=3, rate_key="n", concurrency_key="n")
    async def together(n: int) -> None: ...

    assert await uses(bench, await named.submit(1, "ada")) == {"task:named": "ada"}
    assert await uses(bench, await named.submit(1, who="bob")) == {"task:named": "bob"}
    assert await uses(bench, await named.submit(1)) == {"task:named": "nobody"}
    (run,) = await computed.submit_many([("http://a.org/x", 2)])
    assert await uses(bench, run) == {"task:computed": "a.org"}
    found = await uses(bench, await both.submit(id))
    assert found == {"task:both:rate": "", "task:both:concurrency": str(id)}
    assert await uses(bench, await together.submit(4)) == {"task:together": "4"}
    quota = await bench.engine.quotas.get("task:together")
    assert (quota.concurrency_per_key, quota.rate_per_key) == (3, Rate(5, Millis(1_000)))
    assert (quota.concurrency, quota.rate) == (None, None)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rate": "soon"}, "rate is not a rate such as '100/m' or '5/30s'"),
        ({"rate": "0/m"}, "the count of rate"),
        ({"rate": "5/"}, "the span of rate is not a duration"),
        ({"rate": (5, 0)}, "the span of rate must not be empty"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"concurrency": 1, "concurrency_key": "x"}, "job: concurrency_key 'x' is not a parameter"),
        ({"concurrency": 1, "concurrency_key": 7}, "must be the name of a parameter or a function"),
        ({"rate": "1/s", "rate_key": lambda m: m}, "job: rate_key takes 'm', not a parameter"),
        ({"concurrency_key": "n"}, "job: concurrency_key needs a concurrency"),
        ({"concurrency": 1, "rate_key": "n"}, "job: rate_key needs a rate"),
        ({"worker_concurrency": 0}, "worker_concurrency must be 1 to"),
        ({"quotas": "api"}, "quotas must be a list of names or a mapping"),
        ({"quotas": [""]}, "the name of a quota must be printable text"),
        ({"quotas": ["a", "a"]}, "quota 'a' is used twice"),
        ({"quotas": [f"q{n}" for n in range(9)]}, "a run uses at most 8 quotas"),
        ({"budgets": "team"}, "budgets must be a list of names"),
        ({"budgets": [7]}, "the name of a budget"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(
    options: dict[str, Any], complaint: str
) -> None:
    fabric = Fabric("sqlite://:memory:")
    with pytest.raises(Invalid, match=complaint):

        @fabric.task(**options)
        async def job(n: int = 1) -> None: ...

    assert fabric.tasks == {}


async def test_a_key_that_cannot_be_is_refused_by_submit(bench: Bench) -> None:
    @bench.fabric.task(concurrency=1, concurrency_key="key")
    async def job(key: Any) -> None: ...

    @bench.fabric.task(rate="1/s", rate_key=lambda n: None)
    async def none(n: int) -> None: ...

    @bench.fabric.task(rate="1/s", rate_key=lambda n: 1 // n)
    async def odd(n: int) -> None: ...

    for key in (None, True, 1.5, ["a"]):
        with pytest.raises(Invalid, match="a key of a limit must be text, a number or a UUID"):
            await job.submit(key)
    with pytest.raises(Invalid, match="the limit is 256"):
        await job.submit("x" * 257)
    with pytest.raises(Invalid, match="not NoneType"):
        await none.submit(1)
    with pytest.raises(Invalid, match="that gives the key of a limit failed: ZeroDivisionError"):
        await odd.submit(0)
    assert (await bench.engine.views.list(Query())).items == ()


# -- by name


async def test_quotas_and_budgets_are_named_by_task_and_by_call(bench: Bench) -> None:
    """C-T96: what a task names and what a call names hold together."""
    fabric = bench.fabric
    for name in ("api", "disk"):
        await fabric.quota(name, concurrency=1)
    for name in ("team", "extra"):
        await fabric.budget(name, tokens=10)

    @fabric.task(quotas=["api"], budgets=["team"])
    async def job() -> None: ...

    plain = await job.submit()
    assert (await uses(bench, plain), await budgets(bench, plain)) == ({"api": ""}, ("team",))
    more = job.with_options(quotas={"api": "ada", "disk": ""}, budgets=["extra", "team"])
    run = await more.submit()
    assert await uses(bench, run) == {"api": "ada", "disk": ""}
    assert await budgets(bench, run) == ("team", "extra")
    with pytest.raises(NotFound, match="quota apii"):
        await job.with_options(quotas=["apii"]).submit()
    with pytest.raises(NotFound, match="budget teem"):
        await job.with_options(budgets=["teem"]).submit()
    with pytest.raises(Invalid, match="quotas must be a list"):
        await job.with_options(quotas="api").submit()
    with pytest.raises(Invalid, match="budgets must be a list"):
        await job.with_options(budgets="team").submit()
    assert await bench.work() == 2


async def test_what_the_code_says_wins_when_a_worker_starts(bench: Bench) -> None:
    @bench.fabric.task(concurrency=3)
    async def job() -> None: ...

    quotas = bench.engine.quotas
    await quotas.define(Quota(name="task:job", concurrency=1))
    await bench.work()
    assert (await quotas.get("task:job")).concurrency == 3


async def test_a_raised_limit_and_a_deleted_quota_let_through_at_once(bench: Bench) -> None:
    """C-T93: who waits need not be told."""
    fabric = bench.fabric
    await fabric.quota("api", concurrency=1, rate="1/h")

    @fabric.task(quotas=["api"])
    async def job() -> None: ...

    await job.submit_many([()] * 4)
    assert len(await take(bench)) == 1
    status = await fabric.quota_status("api")
    assert (status.running, status.waiting) == (1, 3)
    assert status.opens_at == to_datetime(bench.clock.now()) + timedelta(hours=1)
    await fabric.quota("api", concurrency=2)
    assert len(await take(bench)) == 1
    await bench.engine.quotas.delete("api")
    assert len(await take(bench)) == 2


# -- wherever runs come from


async def test_members_of_flows_and_runs_of_schedules_have_their_limits(bench: Bench) -> None:
    fabric = bench.fabric
    await fabric.budget("team", tokens=10)

    @fabric.task(concurrency=1, concurrency_key="who", budgets=["team"])
    async def member(who: str, n: int = 1) -> int:
        return n

    @fabric.task(every="1m", concurrency=1, concurrency_key="who")
    async def tick(who: str = "clock") -> None: ...

    async with fabric.flow("pair") as flow:
        first = flow.add(member, "ada")
        flow.add(member, "ada", n=first.output)
    await flow.declare()
    await bench.work()
    await bench.pass_time(MINUTE)
    found = (await bench.engine.views.list(Query())).items
    runs = {info.kind: await fabric.run(info.id) for info in found}
    assert await uses(bench, runs["member"]) == {"task:member": "ada"}
    assert await budgets(bench, runs["member"]) == ("team",)
    assert await uses(bench, runs["tick"]) == {"task:tick": "clock"}
    with pytest.raises(Invalid, match="'who' is the key of a limit and must be known when"):
        async with fabric.flow("unknown") as flow:
            flow.add(member, who=flow.add(member, "ada").output)


@pytest.mark.inside
async def test_runs_of_a_transaction_have_their_limits(bench: Bench, store_url: str) -> None:
    """C-T95: they arrive with their keys, and unknown quotas are refused when they arrive."""

    @bench.fabric.task(concurrency=1, concurrency_key="who")
    async def job(who: str) -> str:
        return who

    connect = libraries(store_url)[0]
    async with connect() as connection:
        told = job.with_options(connection=connection)
        runs = await told.submit_many(["ada", "ada", "bob"])
        wrong = await job.with_options(connection=connection, quotas=["nope"]).submit("eve")
    await bench.fabric.worker()  # has the store know the limits of its tasks
    await bench.engine.inbox.admit()
    assert await uses(bench, runs[0]) == {"task:job": "ada"}
    assert sorted(await take(bench)) == sorted([runs[0].id.tagged, runs[2].id.tagged])
    await bench.engine.sweep.once()
    with pytest.raises(RunFailed, match="nope"):
        await wrong.result()


# -- budgets at the door


async def test_nothing_new_starts_once_a_budget_is_spent(bench: Bench, log: Log) -> None:
    """I-27, C-T105: it waits, without an attempt, until there is room again."""
    fabric = bench.fabric
    await fabric.budget("team", tokens=5, every="1h")

    @fabric.task(budgets=["team"])
    async def job(n: int) -> None:
        log.note(n)

    await fabric.spend("team", tokens=5)
    run = await job.submit(1)
    assert await bench.work() == 0
    about = await run.describe()
    assert about.state is PublicState.RATE_LIMITED
    assert about.blocking_detail == "budget team: 5 of 5 tokens"
    assert about.attempts_made == 0
    await bench.pass_time(60 * MINUTE)
    await bench.work()
    assert log == [1]
    await fabric.spend("team", tokens=5)
    await job.submit(2)
    await bench.work()
    await fabric.budget("team", tokens=6, every="1h")
    await bench.work()
    assert log == [1, 2]


async def test_a_budget_of_a_namespace_or_run_holds_without_being_named(bench: Bench) -> None:
    fabric = bench.fabric

    @fabric.task(namespace="acme")
    async def job(ctx: Context) -> None:
        await ctx.spend(tokens=2)

    await fabric.budget("all", tokens=100)
    await fabric.budget("acme", tokens=10, scope="namespace", scope_id="acme", parent="all")
    run = await job.submit()
    await fabric.budget("one", tokens=10, scope="run", scope_id=run.id)
    await bench.work()
    await run.result()
    used = [(await fabric.budget_status(name)).used for name in ("all", "acme", "one")]
    assert used == [{"tokens": 2}] * 3


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"tokens": -1}, "the hard limit of tokens"),
        ({"tokens": 1.5}, "the hard limit of tokens"),
        ({"more": {"tokens": 5}}, "more of tokens needs a soft limit of tokens"),
        ({"tokens": 5, "on_hard": "stop"}, "on_hard must be one of refuse, cancel_pending"),
        ({"tokens": 5, "scope": "team"}, "scope must be one of organisation, tenant, namespace"),
        ({"tokens": 5, "scope": "flow", "scope_id": "x"}, "needs the id of the flow, not 'x'"),
        ({"tokens": 5, "scope": "run"}, "a budget of a run needs its id"),
        ({"tokens": 5, "every": "soon"}, "every is not a duration"),
        ({"tokens": 5, "parent": "team"}, "a budget cannot be part of itself"),
    ],
)
async def test_a_budget_that_makes_no_sense_is_refused(
    bench: Bench, given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(Invalid, match=complaint):
        await bench.fabric.budget("team", **given)
    with pytest.raises(NotFound):
        await bench.fabric.budget_status("team")
