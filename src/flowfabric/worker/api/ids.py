"""Ids of runs as applications and people give them: with the partition or, usually, without."""

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import InvalidId, NotFound
from flowfabric.core.base.ids import RunId, parse_run_id
from flowfabric.core.base.pages import in_pages
from flowfabric.core.execution.fork import FORKED_FROM
from flowfabric.core.limit.budget import Budget, Scope
from flowfabric.engine.engine import Engine

AT_ONCE = 1000


async def find_id(engine: Engine, given: object) -> RunId:
    """The id of a run, of which `given` may be the uuid alone. Raises InvalidId if it is not an id.
    The id of a run that does not exist names nothing."""
    parsed = parse_run_id(given)
    if isinstance(parsed, UUID):
        (parsed,) = await engine.views.locate([parsed])
    return RunId(parsed)


async def find_ids(engine: Engine, given: Sequence[str]) -> list[str]:
    """The same for many at once. Text that is not an id stays as it is, and the engine refuses
    it."""
    read = [_read(text) for text in given]
    unknown = [each for each in read if isinstance(each, UUID)]
    known: dict[UUID, RunId] = {}
    for page in in_pages(unknown, AT_ONCE):
        found = await engine.views.locate(page)
        known |= {uuid: RunId(id) for uuid, id in zip(page, found, strict=True)}
    return [known[each] if isinstance(each, UUID) else each for each in read]


def _read(text: str) -> str | UUID:
    try:
        parsed = parse_run_id(text)
    except InvalidId:
        return text
    return parsed if isinstance(parsed, UUID) else RunId(parsed)


async def with_run(engine: Engine, budget: Budget) -> Budget:
    """The budget as the engine wants it: with the whole id of the run whose budget it is. Raises
    NotFound if there is no run of that uuid."""
    if budget.scope is not Scope.RUN or not isinstance(parse_run_id(budget.scope_id), UUID):
        return budget
    found = await find_id(engine, budget.scope_id)
    if await engine.views.namespace(found) is None:
        raise NotFound("run", found)
    return replace(budget, scope_id=found.tagged)


async def find_tag(engine: Engine, tag: tuple[str, str] | None) -> tuple[str, str] | None:
    """The tag as it is stored: the one of a fork names its source in the form of the engine."""
    if tag is None or tag[0] != FORKED_FROM:
        return tag
    (id,) = await find_ids(engine, [tag[1]])
    return tag[0], id.tagged if isinstance(id, RunId) else id
