"""Options are checked where they are made: every member, its type and its range."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric import Exponential, Fabric, Fixed, Options, WorkerOptions
from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.grant import Granted
from flowfabric.core.execution.schedule import Schedule
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from flowfabric.worker.api.limits import Limits
from flowfabric.worker.api.options import CallOptions, TaskOptions
from flowfabric.worker.run.steps import StepOptions
from tests.kit.fuzzing import JUNK
from tests.kit.lab import W1, Lab

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
        (Options, {"retention": 1.5}),
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
        (WorkerOptions, {"drain": -1}),
        (WorkerOptions, {"heartbeat": "no"}),
        (TaskOptions, {"retries": -1}),
        (TaskOptions, {"retries": "3"}),
        (TaskOptions, {"backoff": 5}),
        (TaskOptions, {"backoff": Fixed(delay=-1)}),
        (TaskOptions, {"backoff": Exponential(multiplier=float("nan"))}),
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
    assert (options.retention, options.reclaim_grace, options.aging) == (7 * DAY, 5_000, 60_000)
    assert WorkerOptions(ttl="30s", drain=timedelta(minutes=1)).ttl == 30_000
    assert Fixed(delay="5s") == Fixed(delay=5_000)
    assert Exponential(initial="1s", maximum="1m") == Exponential()
    assert StepOptions(timeout=timedelta(seconds=2)).seconds == 2


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
