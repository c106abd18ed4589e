"""Every public operation of a Fabric, of its tasks, runs and flows, and of a handler's context with
values of every wrong type: whatever is refused is refused by an error of FlowFabric."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from flowfabric import AnyOf, Context, Fabric, FlowFabricError, RunFailed
from flowfabric.worker.api.task import Task
from flowfabric.worker.errors import Unwind
from tests.kit.fuzzing import JUNK, escaped
from tests.worker.bench import Bench

NOT_OPERATIONS = {
    "block_on", "close", "close_sync", "engine", "tasks", "schedules", "run_worker", "signal_sync",
    "approve_sync", "reject_sync", "waitpoints_sync", "run_sync", "waitpoint_token_sync",
    "revoke_tokens_sync",
}  # fmt: skip
ANYTHING = {"payload", "about", "rate_key", "concurrency_key", "clock", "result"}
"""Parameters that take any value there is, and say no by their meaning."""


def add(x: int, y: int = 0) -> int:
    return x + y


async def goods(fabric: Fabric, task: Task[Any, Any]) -> dict[str, Any]:
    run = await task.submit(1)
    return {
        "name": "team", "lane": "default", "namespace": "default", "retries": 1, "timeout": "5s",
        "deadline": "1h", "priority": 1, "capabilities": ("gpu",), "tags": {"app.a": "1"},
        "process": False, "rate": "5/m", "concurrency": 5, "worker_concurrency": 5, "quotas": (),
        "budgets": (), "retention": "1d", "schedule": None, "every": None, "timezone": "UTC",
        "catch_up": "latest", "id": run.id, "key": "k", "options": None, "target": run,
        "run": run, "token": None, "source": "me", "delay": "1s", "approver": "ada", "comment": "x",
        "limit": 5, "decisions": (), "expires": None, "single_use": False, "hard": {"tokens": 5},
        "soft": None, "more": None, "parent": None, "scope": None, "scope_id": "", "cron": None,
        "on_hard": "refuse", "on_soft": "warn", "amounts": {"tokens": 1}, "rate_per_key": None,
        "concurrency_per_key": None, "task": task, "args": (1,), "kwargs": {}, "after": "",
        "reason": "no", "calls": [(1,)], "at": None, "connection": None, "span": 0, "percent": 5,
        "message": "x", "of": 1, "approvers": (), "names": "go", "as_type": int, "items": [1],
        "budget": None, "function": add, "join": AnyOf(), "policy": "cancel_all", "wait": False,
        "smooth": False, "value": 1,
    }  # fmt: skip


async def tried(
    call: Callable[..., Any], good: dict[str, Any], wanted: dict[str, inspect.Parameter], name: str
) -> list[str]:
    """What escapes from a call, each parameter in turn having a wrong value."""
    named = {p: good[p] for p, each in wanted.items() if _by_name(each) and p in good}
    found: list[str] = []
    for parameter in wanted.keys() - ANYTHING:
        for junk in JUNK if _by_name(wanted[parameter]) else ():
            _, escape = await escaped(call, named, parameter, junk)
            if escape is not None:
                found.append(ascii(f"{name}({parameter}={junk!r:.40}): {escape}"))
    return found


def _by_name(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def by_name(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with every argument by its name."""
    parameters = inspect.signature(method).parameters.values()
    placed = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY]

    def call(**given: Any) -> Any:
        first = [given.pop(name) for name in placed if name in given]
        return method(*first, **given)

    return call


async def of(thing: object, good: dict[str, Any], without: set[str]) -> list[str]:
    found: list[str] = []
    for name, method in inspect.getmembers(thing, callable):
        if name.startswith("_") or name in without:
            continue
        wanted = dict(inspect.signature(method).parameters)
        found += await tried(by_name(method), good, wanted, f"{type(thing).__name__}.{name}")
    return found


@pytest.fixture
def fabric() -> Fabric:
    return Fabric("sqlite://:memory:")


async def test_a_fabric_and_its_schedules(fabric: Fabric) -> None:
    task: Task[Any, Any] = fabric.task()(add)
    async with fabric:
        good = await goods(fabric, task)
        await fabric.budget("team", tokens=10**9)
        found = await of(fabric, good, NOT_OPERATIONS)
        await fabric.schedules.put("team", task, args=(1,), every="1m")
        found += await of(fabric.schedules, {**good, "every": "1m"}, {"declare"})
    assert not found, "\n".join(found)


async def test_tasks_runs_and_flows(fabric: Fabric) -> None:
    task: Task[Any, Any] = fabric.task()(add)
    async with fabric:
        good = await goods(fabric, task)
        own = {"function", "declare", "options", "submission", "policy_of", "run_of", "submit_sync"}
        found = await of(task, good, own)
        run = await task.submit(1)
        await run.cancel()
        found += await of(run, good, {"result_sync", "state_sync", "cancel_sync", "follow"})
        async with fabric.flow("nightly") as flow:
            node = flow.add(task, 1)
            wrong = [junk for junk in JUNK if not isinstance(junk, int | float)]
            for junk in wrong:
                calls: list[dict[str, Any]] = [{"after": junk}, {"name": junk}, {"on": junk}]
                for given in ({"task": junk}, *calls):
                    try:
                        flow.add(given.pop("task", task), 1, **given)
                    except FlowFabricError:
                        pass
                    except Exception as error:
                        found.append(f"flow.add({junk!r:.40}): {error!r:.200}")
            assert node is not None
    assert not found, "\n".join(found)


async def test_a_call_with_wrong_arguments_is_refused_by_both_names(fabric: Fabric) -> None:
    task: Any = fabric.task()(add)
    async with fabric:
        for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), (("x",), {})):
            with pytest.raises(FlowFabricError):
                await task.submit(*args, **kwargs)
        with pytest.raises(TypeError):
            await task.submit()


async def test_the_context_of_a_handler(bench: Bench) -> None:
    found: list[str] = []
    child: Task[Any, Any] = bench.fabric.task()(add)
    own = {
        "adopt", "close", "finish", "release", "stop", "gather", "complete_in", "log", "info",
        "compensate", "shield",
    }  # fmt: skip

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        good = {**await goods(bench.fabric, child), "name": "go"}
        for name, method in inspect.getmembers(ctx, callable):
            if name.startswith("_") or name in own:
                continue
            parameters = inspect.signature(method).parameters.items()
            wanted = {p: each for p, each in parameters if p not in ANYTHING}
            for parameter in wanted:
                for junk in JUNK:
                    found.extend(await handler_escapes(method, wanted, parameter, junk, good))

    run = await job.submit()
    await bench.work()
    with suppress(RunFailed):
        await run.result(timeout=60)
    assert not found, "\n".join(found)


async def handler_escapes(
    method: Callable[..., Any],
    wanted: dict[str, inspect.Parameter],
    parameter: str,
    junk: Any,
    good: dict[str, Any],
) -> list[str]:
    """Only what is refused at the call is looked at: a wait that begins would end the handler."""
    named = {p: good[p] for p, each in wanted.items() if p in good and _by_name(each)}
    each = wanted[parameter]
    try:
        if each.kind is each.VAR_POSITIONAL:
            answer = method(junk)
        elif each.kind is each.VAR_KEYWORD:
            answer = by_name(method)(**named, tokens=junk)
        else:
            answer = by_name(method)(**{**named, parameter: junk})
        if inspect.iscoroutine(answer):
            answer.close()
    except (FlowFabricError, Unwind):
        return []
    except Exception as error:
        return [ascii(f"{method.__name__}({parameter}={junk!r:.40}): {error!r:.150}")]
    return []
