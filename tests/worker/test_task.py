"""Tasks: registering functions and submitting runs of them."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import (
    Context,
    Exponential,
    Fabric,
    Fixed,
    Invalid,
    NotFound,
    PublicState,
    RunExpired,
    SyncContext,
)
from flowfabric.core.execution.policy import Policy
from flowfabric.core.execution.retry import FixedBackoff
from flowfabric.worker.api.task import Mode
from tests.worker.bench import Bench, gather_results


@pytest.fixture
def plain() -> Fabric:
    """A fabric nobody opens: registering needs no store."""
    return Fabric("sqlite://:memory:")


def print_it(text: str = "") -> str:
    return text


# -- registering


def test_a_task_is_named_after_its_function_or_as_told(plain: Fabric) -> None:
    @plain.task()
    async def one() -> None: ...

    @plain.task(name="mail.send")
    async def two() -> None: ...

    assert (one.name, two.name) == ("one", "mail.send")
    assert plain.tasks == {"one": one, "mail.send": two}
    assert plain.get_task("one") is one
    assert repr(two) == "Task('mail.send')"


def test_an_unknown_task_is_told_with_those_that_are_known(plain: Fabric) -> None:
    with pytest.raises(NotFound, match="registered: none"):
        plain.get_task("one")
    plain.task(name="b")(print_it)
    plain.task(name="a")(print_it)
    with pytest.raises(NotFound, match="registered: a, b"):
        plain.get_task("one")


def test_two_tasks_cannot_have_one_name(plain: Fabric) -> None:
    plain.task()(print_it)
    with pytest.raises(Invalid, match="'print_it' is already registered"):
        plain.task()(print_it)


def test_where_a_function_runs(plain: Fabric) -> None:
    async def coroutine() -> None: ...

    class Callable_:
        async def __call__(self) -> None: ...

    def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    assert plain.task(name="a")(coroutine).mode is Mode.ASYNC
    assert plain.task(name="b")(passed_on(coroutine)).mode is Mode.ASYNC
    assert plain.task(name="c")(functools.partial(coroutine)).mode is Mode.ASYNC
    assert plain.task(name="d")(Callable_()).mode is Mode.ASYNC
    assert plain.task(name="e")(print_it).mode is Mode.THREAD
    assert plain.task(name="f", process=True)(print_it).mode is Mode.PROCESS


class Foreign:
    class Context:
        """Somebody else's."""

    def method(self) -> None: ...


def stream() -> Iterator[int]:
    yield 1


async def async_stream() -> AsyncIterator[int]:
    yield 1


async def named(ctx, a): ...  # type: ignore[no-untyped-def]
async def annotated(c: Context, a: int) -> None: ...
async def written(c: "Context", a: int) -> None: ...
async def dotted(c: "flowfabric.Context", a: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def blocking(c: SyncContext, a: int) -> None: ...
async def foreign(c: Foreign.Context, a: int) -> None: ...
async def second(a: int, ctx: Context) -> None: ...
async def nothing() -> None: ...


def test_who_receives_a_context(plain: Fabric) -> None:
    functions = (named, annotated, written, dotted, blocking, foreign, nothing)
    takes = [plain.task(name=f.__name__)(f).takes_context for f in functions]
    assert takes == [True, True, True, True, True, False, False]
    assert plain.tasks["annotated"].signature.parameters == {"a"}


def test_a_context_in_another_place_is_refused(plain: Fabric) -> None:
    """No caller could give it."""
    with pytest.raises(Invalid, match="only the first parameter can be the context"):
        plain.task()(second)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": ""}, "kind"),
        ({"name": "x" * 300}, "kind"),
        ({"lane": ""}, "lane"),
        ({"lane": "ü"}, "lane"),
        ({"namespace": ""}, "namespace"),
        ({"retries": -1}, "retries|max_retries"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"deadline": "never"}, "deadline"),
        ({"retention": "x"}, "retention"),
        ({"capabilities": ["a,b"]}, "capabilit"),
        ({"tags": {"Not A Key": "x"}}, "key"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_when_it_is_given(
    plain: Fabric, options: dict[str, Any], told: str
) -> None:
    named = {"name": "x", **options}
    with pytest.raises(Invalid, match=rf"(?i){told}"):
        plain.task(**named)(print_it)
    assert plain.tasks == {}


def test_functions_that_cannot_be_tasks_are_refused_when_they_are_registered(
    plain: Fabric,
) -> None:
    async def coroutine() -> None: ...
    async def wrong(ctx: SyncContext) -> None: ...
    def wrong_too(ctx: Context) -> None: ...
    def local() -> None: ...
    def with_context(ctx: SyncContext) -> None: ...

    with pytest.raises(Invalid, match="must be a plain function"):
        plain.task(process=True)(coroutine)
    with pytest.raises(Invalid, match="is given a Context"):
        plain.task()(wrong)
    with pytest.raises(Invalid, match="is given a SyncContext"):
        plain.task()(wrong_too)
    with pytest.raises(Invalid, match="must be a module's function"):
        plain.task(process=True)(local)
    with pytest.raises(Invalid, match="must be a module's function"):
        plain.task(process=True)(Foreign().method)
    with pytest.raises(Invalid, match="cannot take a context"):
        plain.task(process=True)(with_context)
    for generator in (stream, async_stream):
        with pytest.raises(Invalid, match="a generator cannot be a task"):
            plain.task()(generator)
    with pytest.raises(Invalid, match="the name of a task must not be empty"):
        plain.task()(functools.partial(print_it))
    assert plain.tasks == {}


def test_a_fabric_needs_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWFABRIC_URL", raising=False)
    with pytest.raises(Invalid, match="FLOWFABRIC_URL"):
        Fabric()
    monkeypatch.setenv("FLOWFABRIC_URL", "sqlite://:memory:")
    assert Fabric().url == "sqlite://:memory:"


def test_calling_a_task_calls_the_function(plain: Fabric) -> None:
    task = plain.task()(print_it)
    assert task("here") == "here"

    @plain.task()
    async def later(x: int) -> int:
        return x + 1

    assert asyncio.run(later(1)) == 2


# -- submitting


async def test_what_a_task_asks_for_is_what_its_runs_get(bench: Bench) -> None:
    task = bench.fabric.task(
        name="mail",
        lane="post",
        namespace="shop",
        retries=3,
        backoff=Fixed(delay=0.07),
        timeout="10s",
        deadline=timedelta(hours=1),
        priority=7,
        capabilities=["gpu", "arm"],
        tags={"app.team": "a"},
        retention="1d",
    )(print_it)
    run = await task.submit("x")
    about = await run.describe()
    assert (about.kind, about.lane, about.namespace) == ("mail", "post", "shop")
    assert (about.priority, about.capabilities) == (7, ("arm", "gpu"))
    assert about.tags == {"app.team": "a"}
    assert about.deadline_at == bench.moment(3_600_000)
    assert about.encoding == "json"
    (snapshot,) = (await bench.engine.store.load([run.id.uuid])).values()
    rules = snapshot.execution.rules
    assert rules.retry_policy is not None
    assert (rules.retry_policy.max_retries, rules.retry_policy.backoff) == (3, FixedBackoff(70))
    assert (rules.attempt_timeout, rules.retention) == (10_000, 86_400_000)


def test_a_task_that_asks_for_nothing_has_no_rules_of_its_own(plain: Fabric) -> None:
    assert plain.task(backoff=Exponential(initial=3))(print_it).policy == Policy()


async def test_options_of_one_submission(bench: Bench) -> None:
    task = bench.fabric.task(priority=1, tags={"app.a": "1", "app.b": "1"})(print_it)
    now = bench.moment()
    run = await task.with_options(
        priority=9, tags={"app.b": "2"}, lane="other", namespace="n", deadline="2h", delay="5s"
    ).submit("x")
    about = await run.describe()
    assert (about.priority, about.lane, about.namespace) == (9, "other", "n")
    assert about.tags == {"app.a": "1", "app.b": "2"}
    assert about.deadline_at == now + timedelta(hours=2)
    assert about.state is PublicState.DELAYED
    assert await bench.work() == 0
    await bench.pass_time(5_000)
    assert await bench.work() == 1
    assert (await (await task.submit("y")).describe()).priority == 1


async def test_a_moment_to_start_at_and_a_deadline_as_moments(bench: Bench) -> None:
    task = bench.fabric.task()(print_it)
    now = datetime.fromtimestamp(bench.clock.now() / 1000, UTC)
    run = await task.with_options(
        at=now + timedelta(seconds=5), deadline=now + timedelta(seconds=9)
    ).submit("x")
    assert await run.state() is PublicState.DELAYED
    assert (await run.describe()).deadline_at == now + timedelta(seconds=9)
    await bench.pass_time(9_000)
    assert await run.state() is PublicState.EXPIRED
    with pytest.raises(RunExpired):
        await run.result()
    with pytest.raises(Invalid, match="not both"):
        await task.with_options(at=now, delay=1).submit("x")
    with pytest.raises(Invalid, match="time zone"):
        await task.with_options(at=now.replace(tzinfo=None)).submit("x")


async def test_a_key_names_one_run(bench: Bench) -> None:
    task = bench.fabric.task()(print_it)
    first = await task.with_options(key="k").submit("a")
    again = await task.with_options(key="k").submit("b")
    other = await task.with_options(key="k", namespace="elsewhere").submit("c")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert first.id == again.id != other.id
    await bench.work()
    assert await again.result() == "a"
    assert (await task.with_options(key="k").submit("d")).id == first.id


async def test_an_id_of_ones_own(bench: Bench) -> None:
    task = bench.fabric.task()(print_it)
    id = (await task.submit("x")).id
    assert (await task.with_options(id=id).submit("y")).duplicate
    with pytest.raises(Invalid):
        await task.with_options(id="what").submit("y")


async def test_options_may_stand_beside_the_arguments(bench: Bench) -> None:
    task = bench.fabric.task()(print_it)
    first = await task.submit("a", key="k")  # type: ignore[call-arg]
    assert (await task.submit("b", key="k")).id == first.id  # type: ignore[call-arg]


async def test_a_functions_own_parameters_come_before_options(bench: Bench) -> None:
    @bench.fabric.task()
    async def own(key: str, priority: int = 0) -> list[Any]:
        return [key, priority]

    @bench.fabric.task()
    async def greedy(**fields: Any) -> dict[str, Any]:
        return fields

    run = await own.submit(key="mine", priority=3)
    other = await greedy.submit(id=5, delay="x", tags=1)
    await bench.work()
    assert await run.result() == ["mine", 3]
    assert (await run.describe()).priority == 0
    assert await other.result() == {"id": 5, "delay": "x", "tags": 1}


async def test_many_at_once_in_every_form(bench: Bench) -> None:
    @bench.fabric.task()
    async def add(a: int, b: int = 0) -> int:
        return a + b

    runs = await add.submit_many([1, (2,), (3, 4), {"a": 5}, {"a": 6, "b": 7}])
    await bench.work()
    assert await gather_results(runs) == [1, 2, 7, 5, 13]
    assert await add.submit_many([]) == []


async def test_many_at_once_with_a_key_each(bench: Bench) -> None:
    @bench.fabric.task()
    async def add(a: int) -> int:
        return a

    calls = [{"a": number, "key": f"k{number % 3}"} for number in range(6)]
    runs = await add.submit_many(calls)
    assert [run.duplicate for run in runs] == [False] * 3 + [True] * 3
    assert [run.id for run in runs[:3]] == [run.id for run in runs[3:]]
    assert all(run.duplicate for run in await add.submit_many(calls))


async def test_one_wrong_call_among_many_submits_nothing(bench: Bench) -> None:
    @bench.fabric.task()
    async def add(a: int) -> int:
        return a

    with pytest.raises(Invalid, match="add does not accept this") as refused:
        await add.submit_many([1, 2, "three"])
    assert refused.value.__notes__ == ["in calls[2] of submit_many; no run was submitted"]
    with pytest.raises(TypeError, match="too many positional"):
        await add.submit_many([(1,), (1, 2)])
    with pytest.raises(Invalid, match="cannot name many runs"):
        await add.with_options(key="k").submit_many([1, 2])
    assert (await bench.engine.views.counts()).by_state.get("waiting", 0) == 0


async def test_options_for_many(bench: Bench) -> None:
    @bench.fabric.task()
    async def add(a: int) -> int:
        return a

    runs = await add.with_options(lane="bulk", delay="1h").submit_many(range(3))
    assert [(await run.describe()).lane for run in runs] == ["bulk"] * 3
    assert {await run.state() for run in runs} == {PublicState.DELAYED}


async def test_a_call_that_does_not_fit_reaches_no_store(bench: Bench) -> None:
    @bench.fabric.task()
    async def charge(order: int) -> None: ...

    with pytest.raises(TypeError, match=r"charge: missing a required argument: 'order'"):
        await charge.submit()  # type: ignore[call-arg]
    with pytest.raises(Invalid, match=r"argument 'order' of .*charge cannot be sent"):
        await charge.submit(object())  # type: ignore[arg-type]
    assert await bench.work() == 0
