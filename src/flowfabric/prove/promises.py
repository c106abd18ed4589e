"""What is checked with tasks and workers of this process, as an application has them."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.ids import RunId
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.core.wait.token import Token
from flowfabric.fabric import Fabric
from flowfabric.prove.ground import FLOWS, Ground
from flowfabric.prove.report import ProofTally
from flowfabric.worker.api.context import Context
from flowfabric.worker.api.history import RunEvent
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.task import Task
from flowfabric.worker.errors import WaitTimeout

LIMIT = 2


async def ended_once(runs: Iterable[Run[int]]) -> list[str]:
    """Complaints about runs that have not exactly one end among their events."""
    found = []
    for run in runs:
        ends = sum(event.completion is not None for event in await run.events())
        if ends != 1:
            found.append(f"run {run.id} ended {ends} times")
    return found


# -- exactly once


async def once(ground: Ground) -> ProofTally:
    """The same keys are submitted by two processes, twice each: every key is one run."""
    place, calls = ground.place, Counter[int]()

    def app(fabric: Fabric) -> Task[[int], int]:
        @place.task(fabric, "once", name="double")
        async def double(number: int) -> int:
            calls[number] += 1
            return number * 2

        return double

    numbers = range(25 * ground.rounds)
    async with place.fabric() as one, place.fabric() as two:
        tasks = app(one), app(two)
        runs = await asyncio.gather(
            *(
                task.with_options(key=f"{place.name}-{number}").submit(number)
                for number in numbers
                for task in (*tasks, *tasks)
            )
        )
        async with place.worker(one, "once"), place.worker(two, "once"):
            results = await asyncio.gather(*(run.result(ground.patience) for run in runs))
        problems = _once_problems(runs, results, calls)
        first = {run.id: run for run in runs}
        problems += await ended_once(first.values())
    return ProofTally(count=len(numbers), unit="keys", problems=problems)


def _once_problems(runs: list[Run[int]], results: list[int], calls: Counter[int]) -> list[str]:
    problems = []
    for number in range(len(runs) // 4):
        ids = {run.id for run in runs[4 * number : 4 * number + 4]}
        if len(ids) > 1:
            problems.append(f"key {number} became {len(ids)} runs")
        elif calls[number] != 1:
            problems.append(f"the run with key {number} was executed {calls[number]} times")
        if set(results[4 * number : 4 * number + 4]) != {number * 2}:
            problems.append(f"the run with key {number} has another result")
    return problems


# -- waiting


async def waiting(ground: Ground) -> ProofTally:
    """A run that waits goes on with its token, with no other, and when its time is over."""
    place = ground.place
    handed: dict[RunId, tuple[str, Token]] = {}
    async with place.fabric() as fabric:

        @place.task(fabric, "waiting", name="ask")
        async def ask(ctx: Context) -> str:
            callback = await ctx.callback("answer")
            handed[ctx.info.id] = callback.id, callback.token
            answer: str = await callback.result(str, timeout="1h")
            return answer

        @place.task(fabric, "waiting", name="give_up")
        async def give_up(ctx: Context) -> str:
            try:
                await ctx.wait_for_signal("never", timeout=0.5)
            except WaitTimeout:
                return "timed out"
            return "signalled"

        late = await give_up.submit()
        runs = [await ask.submit() for _ in range(3 * ground.rounds)]
        async with place.worker(fabric, "waiting"):
            await ground.wait_for(lambda: len(handed) == len(runs), "the callbacks")
            for run in runs:
                await ground.wait_for(partial(_is_suspended, run), "a run that waits")
            problems = await _forged(fabric, handed)
            for run in runs:
                id, token = handed[run.id]
                await fabric.signal(id, payload=f"for {run.id}", token=token)
                if (result := await run.result(ground.patience)) != f"for {run.id}":
                    problems.append(f"a run got {result!r}, which was not its answer")
            if (result := await late.result(ground.patience)) != "timed out":
                problems.append(f"a wait of half a second ended as {result!r}")
    return ProofTally(count=len(runs) + 1, unit="waits", problems=problems)


async def _is_suspended(run: Run[str]) -> bool:
    return await run.state() == "suspended"


async def _forged(fabric: Fabric, handed: dict[RunId, tuple[str, Token]]) -> list[str]:
    """Tries tokens that are not those of the waitpoint."""
    problems, tokens = [], [token for _, token in handed.values()]
    for number, (id, token) in enumerate(handed.values()):
        text = token.reveal()
        digit = "0" if text[-1] != "0" else "1"
        for name, other in (("forged", text[:-1] + digit), ("foreign", tokens[number - 1])):
            try:
                await fabric.signal(id, payload="forged", token=other)
            except FlowFabricError:
                continue
            problems.append(f"a {name} token was accepted")
    return problems


# -- flows and limits


async def flows(ground: Ground) -> ProofTally:
    """The last node of a diamond runs once, after all before it."""
    place, calls = ground.place, Counter[str]()
    async with place.fabric() as one, place.fabric() as two:

        def app(fabric: Fabric) -> Task[[str, list[int]], int]:
            @place.task(fabric, FLOWS, name="add")
            async def add(name: str, numbers: list[int]) -> int:
                calls[name] += 1
                return sum(numbers) + 1

            return add

        add, _ = app(one), app(two)
        built, problems, count = [], [], 3
        for number in range(count):
            async with one.flow(f"{place.name}.diamond", namespace=place.name) as flow:
                top = flow.add(add, f"{number}-top", [], name="top")
                left = flow.add(add, f"{number}-left", [top.output], name="left")
                right = flow.add(add, f"{number}-right", [top.output], name="right")
                flow.add(add, f"{number}-end", [left.output, right.output], name="end")
            built.append(flow)
        async with place.worker(one, FLOWS), place.worker(two, FLOWS):
            for flow in built:
                if (result := await flow.result(ground.patience)) != 5:
                    problems.append(f"a diamond ended with {result!r} instead of 5")
    problems += [f"node {name} ran {times} times" for name, times in calls.items() if times != 1]
    return ProofTally(count=count, unit="flows", problems=problems)


async def limits(ground: Ground) -> ProofTally:
    """Two workers together never run more at once than the limit of the task allows."""
    place, inside, most = ground.place, 0, 0

    def app(fabric: Fabric) -> Task[[int], int]:
        @place.task(fabric, "limits", name="alone", concurrency=LIMIT)
        async def alone(number: int) -> int:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.05)
            inside -= 1
            return number

        return alone

    async with place.fabric() as one, place.fabric() as two:
        task, _ = app(one), app(two)
        async with place.worker(one, "limits"), place.worker(two, "limits"):
            runs = [await task.submit(number) for number in range(10 * ground.rounds)]
            await asyncio.gather(*(run.result(ground.patience) for run in runs))
    problems = [f"{most} ran at once, {LIMIT} were allowed"] if most > LIMIT else []
    return ProofTally(count=len(runs), unit="runs", problems=problems)


# -- events


async def events(ground: Ground) -> ProofTally:
    """A subscription sees every transition once and in order while two processes commit."""
    place = ground.place
    async with place.fabric() as one, place.fabric() as two:

        def app(fabric: Fabric) -> Task[[int], int]:
            @place.task(fabric, "events", name="echo")
            async def echo(number: int) -> int:
                return number

            return echo

        tasks = app(one), app(two)
        engine, count = await one.engine(), 40 * ground.rounds
        seen: list[StoredEvent] = []
        after = await engine.events.tail()

        async def follow() -> None:
            async for event in engine.events.subscribe(after=after, namespace=place.name):
                if event.id is not None and event.lane == place.lane("events"):
                    seen.append(event)

        follower = asyncio.create_task(follow())
        try:
            async with place.worker(one, "events"), place.worker(two, "events"):
                runs = await asyncio.gather(
                    *(tasks[number % 2].submit(number) for number in range(count))
                )
                await asyncio.gather(*(run.result(ground.patience) for run in runs))
            recorded = {run.id: await run.events() for run in runs}
            last = max(event.seq for events in recorded.values() for event in events)
            with suppress(TimeoutError):  # then the last ones are missing
                await ground.wait_for(
                    lambda: any(event.seq >= last for event in seen), "the last event"
                )
        finally:
            follower.cancel()
        problems = _order_problems(seen) + _missing(recorded, seen)
    return ProofTally(count=len(seen), unit="events", problems=problems)


def _order_problems(seen: list[StoredEvent]) -> list[str]:
    numbers = [event.seq for event in seen]
    problems = []
    if len(set(numbers)) != len(numbers):
        problems.append(f"{len(numbers) - len(set(numbers))} events came twice")
    if numbers != sorted(numbers):
        problems.append("events came out of order")
    return problems


def _missing(recorded: Mapping[RunId, Sequence[RunEvent]], seen: list[StoredEvent]) -> list[str]:
    """What is recorded of the runs, but was not seen."""
    got: dict[str, set[int]] = defaultdict(set)
    for event in seen:
        if event.id is not None:
            got[RunId(event.id)].add(event.seq)
    missing = 0
    for id, events in recorded.items():
        missing += len({event.seq for event in events} - got[id])
        if sum(event.kind is EventKind.COMPLETED for event in events) != 1:
            return [f"run {id} has not exactly one end among its events"]
    return [f"{missing} events did not come"] if missing else []
