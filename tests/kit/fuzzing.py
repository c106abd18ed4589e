"""Values of every wrong type for every argument of every operation: nothing untyped may escape."""

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from copy import copy
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.wait.model import Waitpoint
from flowfabric.core.wait.suspend import NowSuspended
from flowfabric.engine.execution.claims import Claim

SOME = UUID("018f4c3e-0000-7000-8000-0123456789ab")


class Odd:
    """A value of a class that no operation knows, and that cannot be a key."""

    __hash__ = None  # type: ignore[assignment]


JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**70, 1.5, math.nan, math.inf, "", "x", "\0", "\ud800", b"x",
    bytearray(b"x"), [], ["x"], [None], [[]], (), ("x",), ("x", "y"), (1, 2), {}, {"x": 1},
    {"x": None}, {1: "x"}, {"x": []}, {1}, {"x": 1}.keys(), {"x": 1}.items(), range(3), SOME,
    timedelta(seconds=1), timedelta.max, 1j, Odd(), object, iter(("x",)), lambda: None,
)  # fmt: skip


PLAIN = tuple(value for value in JUNK if isinstance(value, int | float | str | bytes | UUID | None))
"""What could reach a store; the others are refused long before it."""


async def settled(answer: Any, patience: float = 0.2) -> Any:
    """What a call comes to, whatever kind of function it is; one that only waits was accepted."""
    if isinstance(answer, AsyncGenerator):
        stream, answer = answer, anext(answer)
        try:
            return await asyncio.wait_for(answer, patience)
        except (TimeoutError, StopAsyncIteration):
            return None
        finally:
            await stream.aclose()
    if inspect.isawaitable(answer):
        try:
            async with asyncio.timeout(patience * 10) as limit:
                return await answer
        except TimeoutError:
            if limit.expired():
                return None
            raise
    return answer


def variants(
    value: Any, outer: tuple[Any, ...] = JUNK, inner: tuple[Any, ...] = JUNK, depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Junk instead of a value (`outer`), and instead of each of its members (`inner`)."""
    for other in outer:
        yield f"={_shown(other)}", other
    if isinstance(value, Claim | NowSuspended | Waitpoint):
        return  # what the engine itself has made
    if isinstance(value, msgspec.Struct) and depth < 3:
        for name in value.__struct_fields__:
            for path, junk in variants(getattr(value, name), inner, inner, depth + 1):
                yield f".{name}{path}", changed(value, name, junk)
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        for path, junk in variants(value[0], outer, inner, depth):
            yield f"[0]{path}", (junk, *value[1:])


def changed(value: msgspec.Struct, name: str, inner: Any) -> Any:
    """A copy with another member, whatever it says itself about that."""
    other = copy(value)
    force_setattr(other, name, inner)
    return other


async def escaped(
    call: Callable[..., Any], arguments: dict[str, Any], name: str, value: Any
) -> tuple[bool, str | None]:
    """Whether a call with one other argument was accepted, and what escaped from it."""
    try:
        await settled(call(**{**arguments, name: value}))
    except FlowFabricError as error:
        text = str(error)
        assert text.encode(), "the text can be written down"
        return False, None
    except TimeoutError:
        return True, None
    except Exception as error:
        return False, f"{type(error).__name__}: {error!s:.120}"
    return True, None


def public(thing: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, method in inspect.getmembers(thing, callable):
        if not name.startswith("_"):
            yield name, method


def _shown(value: Any) -> str:
    return f"{type(value).__name__}({value!r:.40})" if not isinstance(value, int) else hex(value)
