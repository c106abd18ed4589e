"""One task for every way a run can end, to be run by a worker and in the harness."""

import asyncio
import time
from typing import Any

from flowfabric import Context, Fabric, Fail, Retry, SyncContext
from flowfabric.core.execution.retry import FixedBackoff

SHORT = "200ms"
LONG = 2.0
"""Seconds a handler takes that is to be given up before."""

AT_ONCE: dict[str, Any] = {"backoff": FixedBackoff(delay=0)}


async def returns() -> dict[str, int]:
    return {"answer": 42}


async def raises() -> None:
    raise ValueError("boom")


async def fails_for_good() -> None:
    raise Fail("for good")


async def asks_to_be_retried(ctx: Context) -> str:
    if ctx.info.first:
        raise Retry("soon", after=0)
    return "second"


async def hangs() -> None:
    await asyncio.sleep(60)


async def swallows_its_timeout() -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "too late"
    return ""


async def hangs_in_a_step(ctx: Context) -> None:
    await ctx.step(hangs)


async def raises_when_timed_out() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        raise ValueError("while cleaning up")


def dozes() -> None:
    time.sleep(LONG)


def dozes_in_a_step(ctx: SyncContext) -> None:
    ctx.step(dozes)


async def sleeps(ctx: Context) -> None:
    await ctx.sleep("1h")


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def exits() -> None:
    raise SystemExit(3)


def exits_plainly() -> None:
    raise SystemExit(3)


async def returns_what_cannot_be_stored() -> Any:
    return object()


def returns_what_no_process_can_store() -> Any:
    return object()


async def is_cancelled(ctx: Context) -> None:
    await ctx._scope.engine.executions.cancel(ctx.info.id, reason="enough")
    await asyncio.sleep(60)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "returned": (returns, {}),
    "raised": (raises, {}),
    "raised, retried": (raises, {"retries": 2, **AT_ONCE}),
    "failed for good": (fails_for_good, {"retries": 2, **AT_ONCE}),
    "asked for a retry": (asks_to_be_retried, {"retries": 1}),
    "timed out": (hangs, {"timeout": SHORT}),
    "timed out, retried": (hangs, {"timeout": SHORT, "retries": 1, **AT_ONCE}),
    "timed out, swallowed": (swallows_its_timeout, {"timeout": SHORT}),
    "timed out, raised": (raises_when_timed_out, {"timeout": SHORT}),
    "timed out in a step": (hangs_in_a_step, {"timeout": SHORT}),
    "timed out in a thread": (dozes, {"timeout": SHORT}),
    "timed out in a step of a thread": (dozes_in_a_step, {"timeout": SHORT}),
    "timed out in a process": (dozes, {"timeout": SHORT, "process": True}),
    "deadline while it runs": (hangs, {"deadline": "2s"}),
    "deadline while it sleeps": (sleeps, {"deadline": SHORT}),
    "cancelled itself": (cancels_itself, {}),
    "cancelled": (is_cancelled, {}),
    "exited": (exits, {}),
    "exited in a thread": (exits_plainly, {}),
    "exited in a process": (exits_plainly, {"process": True}),
    "not storable": (returns_what_cannot_be_stored, {"retries": 2, **AT_ONCE}),
    "not storable in a process": (
        returns_what_no_process_can_store,
        {"process": True, "retries": 2, **AT_ONCE},
    ),
}


def add(fabric: Fabric, case: str) -> Any:
    function, options = CASES[case]
    return fabric.task(name="job", **options)(function)
