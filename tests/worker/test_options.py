"""Options are checked where they are made: every member, its type and its range."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric import Context, Exponential, Fabric, Fixed, Options, WorkerOptions
from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.grant import Granted
from flowfabric.core.execution.retry import ExponentialBackoff, FixedBackoff, RetryPolicy
from flowfabric.core.execution.schedule import Schedule
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.engine.context import EngineOptions
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from flowfabric.worker.api.limits import Limits
from flowfabric.worker.api.options import CallOptions, TaskOptions
from flowfabric.worker.run.options import WorkerSettings
from flowfabric.worker.run.steps import StepOptions
from tests.kit.fuzzing import JUNK
from tests.kit.lab import W1, Lab
from tests.worker.bench import Bench

DAY = 86_400_000
MAKERS: tuple[type[Any], ...] = (
    Options, WorkerOptions, TaskOptions, CallOptions, StepOptions, Limits,
)  # fmt: skip
MEMBERS = [(make, name) for make in MAKERS for name in make.__struct_fields__]

RIGHT: dict[str, Callable[[Any], bool]] = {
    "connection": lambda value: True,
    "rate_key": lambda value: isinstance(value, str) or callable(value),
    "concurrency_key": lambda value: isinstance(value, str) or callable(value),
    "on_success": callable,
    "on_failure": callable,
    "quotas": lambda value: not isinstance(value, int | float | str | bytes),
    "priority": lambda value: type(value) is int,
    "id": lambda value: isinstance(value, UUID),
    "tags": lambda value: value == {},
}
"""What is right beside texts for texts, spans for spans and so on."""


def is_right(name: str, value: Any) -> bool:
    """Whether a member may be that at all, roughly: enough to tell a hole from a check."""
    if name in RIGHT:
        return value is None or RIGHT[name](value)
    match value:
        case None | bool():
            return True
        case int() | float() | str() | timedelta():
            return True
        case list() | tuple() | set() | dict():
            return name in ("lanes", "capabilities", "budgets", "rate")
        case _:
            return False


@pytest.mark.parametrize(
    ("make", "name"), MEMBERS, ids=lambda each: getattr(each, "__name__", each)
)
def test_a_member_of_a_wrong_type_is_refused(make: type[Any], name: str) -> None:
    """What is refused is refused by an error of FlowFabric, and most junk is."""
    accepted: list[Any] = []
    for value in JUNK:
        try:
            make(**{name: value})
        except FlowFabricError:
            continue
        accepted.append(value)
    assert all(is_right(name, value) for value in accepted), accepted
    if name not in RIGHT:
        assert len(accepted) < len(JUNK) / 2


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Options, {"retention": -1}),
        (Options, {"retention": "soon"}),
        (Options, {"retention": 10**15}),
        (Options, {"reclaim_grace": -1}),
        (Options, {"reclaim_grace": "-5s"}),
        (Options, {"make_keys": 1}),
        (Options, {"waitpoint_secret": 7}),
        (WorkerOptions, {"name": "two words"}),
        (WorkerOptions, {"instance": ""}),
        (WorkerOptions, {"concurrency": 1.5}),
        (WorkerOptions, {"concurrency": True}),
        (WorkerOptions, {"capabilities": "gpu"}),
        (WorkerOptions, {"capabilities": {"gpu": 1}.keys()}),
        (WorkerOptions, {"processes": 0}),
        (WorkerOptions, {"ttl": "25h"}),
        (WorkerOptions, {"ttl": 0}),
        (WorkerOptions, {"ttl": True}),
        (WorkerOptions, {"ttl": 86_401}),
        (WorkerOptions, {"ttl": None}),
        (WorkerOptions, {"drain": float("nan")}),
        (Options, {"aging": 0}),
        (Options, {"aging": 0.0001}),
        (Options, {"retention": float("inf")}),
        (Options, {"retention": 86_400 * 3_654}),
        (WorkerOptions, {"drain": -1}),
        (WorkerOptions, {"heartbeat": "no"}),
        (TaskOptions, {"retries": -1}),
        (TaskOptions, {"retries": "3"}),
        (TaskOptions, {"backoff": 5}),
        (TaskOptions, {"backoff": Fixed(delay=-1)}),
        (TaskOptions, {"backoff": Fixed(delay=float("nan"))}),
        (TaskOptions, {"backoff": Fixed(delay=1e300)}),
        (TaskOptions, {"backoff": Fixed(delay=True)}),
        (TaskOptions, {"backoff": Exponential(maximum=86_400 * 3_654)}),
        (TaskOptions, {"backoff": Exponential(multiplier=float("nan"))}),
        (StepOptions, {"backoff": Fixed(delay=-0.001)}),
        (TaskOptions, {"timeout": 0}),
        (TaskOptions, {"deadline": "0s"}),
        (TaskOptions, {"retention": -1}),
        (TaskOptions, {"capabilities": "gpu"}),
        (TaskOptions, {"tags": [("app.a", "1")]}),
        (TaskOptions, {"process": "yes"}),
        (TaskOptions, {"worker_concurrency": 0}),
        (TaskOptions, {"catch_up": "some"}),
        (TaskOptions, {"every": 0}),
        (CallOptions, {"at": "tomorrow"}),
        (CallOptions, {"at": datetime(2030, 1, 1)}),  # noqa: DTZ001 - the point
        (CallOptions, {"delay": "1s", "at": datetime(2030, 1, 1, tzinfo=UTC)}),
        (CallOptions, {"priority": "high"}),
        (CallOptions, {"id": "nonsense"}),
        (CallOptions, {"namespace": ""}),
        (CallOptions, {"budgets": "team"}),
        (StepOptions, {"retries": -1}),
        (StepOptions, {"timeout": 0}),
        (StepOptions, {"name": ""}),
        (StepOptions, {"name": 7}),
        (StepOptions, {"backoff": None}),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_made(
    make: type[Any], options: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        make(**options)


def test_the_decorators_refuse_at_once() -> None:
    fabric = Fabric("sqlite://:memory:")
    wrong: tuple[dict[str, Any], ...]
    wrong = ({"capabilities": "gpu"}, {"retries": "3"}, {"tags": 7}, {"quotas": 7})
    for options in wrong:
        with pytest.raises(Invalid):
            fabric.task(**options)
    wrong = ({"retries": "3"}, {"timeout": "soon"}, {"backoff": 5})
    for options in wrong:
        with pytest.raises(Invalid):
            fabric.step(**options)
    decorators: tuple[Any, ...] = (fabric.task(), fabric.step())
    for decorator in decorators:
        with pytest.raises(Invalid):
            decorator(7)


def test_spans_may_be_written_in_words() -> None:
    options = Options(retention="7d", reclaim_grace=timedelta(seconds=5), aging="1m")
    assert (options.kept_for, options.grace, options.rank_step) == (7 * DAY, 5_000, 60_000)
    assert Exponential(initial="1s", maximum="1m") == Exponential()
    assert StepOptions(timeout=timedelta(seconds=2)).seconds == 2


@pytest.mark.parametrize("span", ["90s", "1m30s", 90, 90.0, timedelta(seconds=90)])
def test_a_span_is_text_seconds_or_a_timedelta_and_read_as_a_timedelta(span: Any) -> None:
    wanted = timedelta(seconds=90)
    options = Options(retention=span, reclaim_grace=span, aging=span)
    assert (options.retention, options.reclaim_grace, options.aging) == (wanted,) * 3
    worker = WorkerOptions(ttl=span, drain=span)
    assert (worker.ttl, worker.drain) == (wanted, wanted)
    assert (Fixed(span).delay, Exponential(span, span).initial) == (wanted, wanted)
    backoff = Exponential(initial=span, maximum=span)
    task = Fabric("sqlite://:memory:").task(retries=1, backoff=backoff)(_nothing)
    assert task.policy.retry_policy == RetryPolicy(1, ExponentialBackoff(90_000, 90_000))
    for made in (options, worker, Fixed(span), backoff):
        assert replace(made) == made  # a timedelta is not converted twice


def test_the_engines_own_forms_count_milliseconds() -> None:
    """They are accepted as well, by programs that work with the engine."""
    options = EngineOptions(retention=Millis(90), reclaim_grace=Millis(90))
    assert (options.kept_for, options.grace) == (90, 90)
    fabric = Fabric("sqlite://:memory:", options=options)
    task = fabric.task(retries=1, backoff=cast(Any, FixedBackoff(90)))(_nothing)
    assert task.policy.retry_policy == RetryPolicy(1, FixedBackoff(90))
    assert WorkerSettings(ttl=Millis(90)).ttl == 90


async def test_a_worker_and_a_backoff_in_seconds_do_what_they_say(bench: Bench) -> None:
    fabric = bench.fabric

    @fabric.task(retries=1, backoff=Fixed(1.5))
    async def job(ctx: Context) -> timedelta:
        if ctx.info.first:
            raise ConnectionError
        (worker,) = await fabric.workers.list()
        return worker.ttl

    worker = await fabric.worker(WorkerOptions(ttl=2.5))
    await bench.engine.workers.register(worker.presence)
    run = await job.submit()
    assert await worker.run_until_idle() == 1
    await bench.pass_time(1_499)
    assert await worker.run_until_idle() == 0
    await bench.pass_time(1)
    assert await worker.run_until_idle() == 1
    assert await run.result() == timedelta(seconds=2.5)


def test_a_manual_clock_is_set_and_moved_in_every_way() -> None:
    begun = datetime(2030, 1, 1, tzinfo=UTC)
    clock = ManualClock(begun)
    for span in ("1m30s", timedelta(seconds=90), 90_000):
        before = clock.now()
        assert clock.advance(span) == clock.now() == before + 90_000
    assert to_datetime(clock.now()) == begun + timedelta(seconds=270)
    with pytest.raises(Invalid):
        clock.advance("soon")
    with pytest.raises(Invalid):
        ManualClock(datetime(2030, 1, 1))  # noqa: DTZ001 - the point


@pytest.mark.inside
async def test_spans_in_words_do_what_spans_in_milliseconds_do(
    store_url: str,
) -> None:
    """Retention, the grace before a reclaim, leases."""
    clock = ManualClock()
    lab = await Lab.open(
        await open_store(store_url, clock=clock), clock, retention="7d", reclaim_grace="5s"
    )
    engine = lab.engine
    ended = await lab.running()
    await lab.complete(ended)
    await lab.submit()
    claim = (await engine.claims.claim(W1, ttl="10s"))[0]
    assert claim.expires_at == clock.now() + 10_000
    await lab.pass_time(10_000)
    assert await lab.claim() == []
    await lab.pass_time(5_000)
    assert len(await lab.claim()) == 1
    await engine.sweep.trim()
    assert await engine.views.info(ended.id) is not None
    await lab.pass_time(7 * DAY)
    await engine.sweep.trim()
    assert await engine.views.info(ended.id) is None
    await engine.close()


@pytest.mark.inside
async def test_so_do_those_of_grants_limits_and_schedules(store_url: str) -> None:
    clock = ManualClock()
    lab = await Lab.open(await open_store(store_url, clock=clock), clock)
    engine = lab.engine
    id = await lab.submit(lane="other")
    granted = await engine.grants.issue(id, "w1", ttl="30s")
    assert isinstance(granted, Granted)
    words: Any = "1m"
    await engine.quotas.define(Quota(name="q", rate=Rate(5, words)))
    assert (await engine.quotas.get("q")).rate == Rate(5, Millis(60_000))
    await engine.budgets.define(Budget(name="b", limits={"t": Limit(hard=5)}, every=words))
    assert (await engine.budgets.get("b")).every == 60_000
    schedule = await engine.schedules.put(Schedule(name="s", kind="job", every=words))
    assert schedule.every == 60_000
    with pytest.raises(TimeoutError):
        await engine.views.wait(id, "10ms")
    await engine.close()


async def test_a_run_is_kept_as_long_as_its_task_says_even_not_at_all(store_url: str) -> None:
    """`retention=0` is no way to say nothing."""
    fabric = Fabric(store_url)
    task = fabric.task(retention=0)(_nothing)
    assert task.policy.retention == 0


async def _nothing() -> None: ...
