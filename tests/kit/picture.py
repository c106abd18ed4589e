"""What a store holds, as far as anybody can see: to prove that a refusal changed nothing."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.store.queries import Query
from tests.kit.lab import Lab


async def picture(lab: Lab) -> object:
    """Everything visible: states, facts, tags, progress, attempts, steps, events, lanes."""
    engine = lab.engine
    infos = (await engine.views.list(Query(limit=1000))).items
    counts = await engine.views.counts()
    return (
        {state: count for state, count in counts.by_state.items() if count},
        await engine.lanes.list(),
        await engine.events.tail(),
        [await engine.views.describe(info.id) for info in infos],
        await engine.store.load([info.id.uuid for info in infos]),
        [await engine.store.attempts(info.id.uuid) for info in infos],
        await engine.store.steps([(info.id.uuid, 0) for info in infos]),
    )


async def refuses(
    lab: Lab,
    name: str,
    call: Callable[[Any], Awaitable[Any]],
    values: Iterable[Any],
    error: type[FlowFabricError] = Invalid,
) -> list[FlowFabricError]:
    """Calls with each value in turn: each is refused by that very error, in words, and nothing
    changes. Returns the errors; `name` is for the reader of a failure."""
    before = await picture(lab)
    found = [await _refusal(name, call, value, error) for value in values]
    assert await picture(lab) == before, f"{name} changed something"
    return found


async def _refusal(
    name: str,
    call: Callable[[Any], Awaitable[Any]],
    value: Any,
    expected: type[FlowFabricError],
) -> FlowFabricError:
    try:
        answer = await call(value)
    except expected as error:
        text = str(error)
        assert text.encode(), "the text can be written down"
        assert len(text) < 1000, "the text does not repeat a long input"
        return error
    except Exception as error:
        pytest.fail(f"{name}: {_shown(value)} escaped as {type(error).__name__}: {error!s:.500}")
    pytest.fail(f"{name}: {_shown(value)} was accepted: {answer!r:.500}")


def _shown(value: Any) -> str:
    """A number may have more digits than Python prints."""
    return (
        f"{value.bit_length()} bits"
        if isinstance(value, int) and value > 2**64
        else repr(value)[:200]
    )
