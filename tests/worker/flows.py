"""What the flows of these tests are made of, and how they are run to their end."""

from typing import Any

from msgspec import Struct

from flowfabric import Fabric, Fail
from flowfabric.worker.api.flow import FlowBuilder
from tests.kit.flow_lab import settle
from tests.worker.bench import Bench, Log


class Row(Struct):
    id: int
    tags: list[str] = []


async def work(bench: Bench) -> int:
    """Works until nothing is left to do, also what becomes possible meanwhile."""
    done = 0
    await settle(bench.engine)
    while count := await bench.work():
        done += count
        await settle(bench.engine)
    return done


async def flows(bench: Bench) -> list[Any]:
    return await bench.engine.flow_views.page()


async def members(bench: Bench) -> int:
    """How many members all flows have."""
    return sum([len(await bench.engine.flow_views.members(f.id)) for f in await flows(bench)])


async def states(flow: FlowBuilder) -> dict[str, str]:
    return {member.name: member.state.value for member in (await flow.graph()).members}


class Tasks:
    """What flows of these tests are made of."""

    def __init__(self, fabric: Fabric, log: Log) -> None:
        @fabric.task()
        async def one(word: str = "one") -> str:
            return str(log.note(word))

        @fabric.task()
        async def rows(number: int) -> list[Row]:
            return [Row(n, [str(n)]) for n in range(number)]

        @fabric.task()
        async def total(rows: list[Row], plus: int = 0) -> int:
            return sum(row.id for row in rows) + plus

        @fabric.task()
        async def boom(*seen: Any) -> str:
            raise Fail("boom")

        @fabric.task()
        async def show(value: Any = None, **more: Any) -> Any:
            log.note(value)
            return [value, more] if more else value

        @fabric.task()
        def plain(number: int) -> int:
            return number + 1

        self.one, self.rows, self.total, self.boom = one, rows, total, boom
        self.show, self.plain = show, plain
