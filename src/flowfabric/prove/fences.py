"""What is checked with claims: who may change a run, and who may no longer do so."""

import asyncio
from collections.abc import Awaitable, Callable

from flowfabric.core.base.errors import LeaseLost, NotActive
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import NewFrame
from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.policy import Policy, StreamPolicy
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.prove.ground import Ground, Place
from flowfabric.prove.report import CannotCheck, ProofTally

SHORT = Millis(700)
_LANE = "fence"

Operation = Callable[[Engine, Claim], Awaitable[object]]

OPERATIONS: dict[str, Operation] = {
    "renew its lease": lambda engine, claim: engine.attempts.renew(claim, SHORT),
    "record a step": lambda engine, claim: engine.attempts.record_step(claim, _step(b'"late"')),
    "append a frame": lambda engine, claim: engine.streams.append(claim, NewFrame(payload=b"late")),
    "report progress": lambda engine, claim: engine.attempts.progress(claim, 99, "late"),
    "fail the run": lambda engine, claim: engine.attempts.fail(claim, Failure("late")),
    "hand the run back": lambda engine, claim: engine.attempts.hand_back(claim),
    "complete the run": lambda engine, claim: engine.attempts.complete(claim, b'"late"'),
}


async def fence(ground: Ground) -> ProofTally:
    """An owner that lost its lease changes nothing; the next owner ends the run."""
    place, refused, problems = ground.place, 0, list[str]()
    async with place.fabric() as old, place.fabric() as new:
        engines = await old.engine(), await new.engine()
        for engine in engines:
            engine.sweep.start()  # an expired lease is found by a sweep
        for round in range(ground.rounds):
            for revoked in (False, True):
                count, found = await _one(ground, *engines, revoked=revoked)
                refused += count
                problems += [f"round {round + 1}: {problem}" for problem in found]
    return ProofTally(count=refused, unit="refusals", problems=problems)


async def _one(ground: Ground, old: Engine, new: Engine, *, revoked: bool) -> tuple[int, list[str]]:
    place, how = ground.place, "revoked" if revoked else "expired"
    id = await _submit(old, place)
    stale = await _claim(ground, old, "first", Millis(30_000) if revoked else SHORT)
    if revoked:
        await new.claims.revoke(id, reason="prove")
    else:
        await asyncio.sleep(SHORT / 1000 + 0.05)
    problems = await _trespasses(old, stale, f"after its lease {how}")
    owner = await _claim(ground, new, "second", Millis(30_000))
    problems += await _trespasses(old, stale, "while the next owner works")
    await new.attempts.record_step(owner, _step(b'"mine"'))
    await new.streams.append(owner, NewFrame(payload=b"mine"))
    await new.attempts.renew(owner, Millis(30_000))
    await new.attempts.complete(owner, b'"mine"')
    problems += await _trespasses(old, stale, "after the run ended")
    if (result := await new.views.result(id)) != b'"mine"':
        problems.append(f"the result is {result!r}, not that of the owner")
    steps = [step.doc for step in await new.attempts.steps(id.uuid, 0)]
    if steps != [b'"mine"']:
        problems.append(f"the recorded steps are {steps!r}, not that of the owner")
    return 3 * len(OPERATIONS) - len(problems), problems


async def _trespasses(engine: Engine, stale: Claim, when: str) -> list[str]:
    """What the one without a lease could do."""
    found = []
    for name, operation in OPERATIONS.items():
        try:
            await operation(engine, stale)
        except (LeaseLost, NotActive):
            continue
        found.append(f"a worker could {name} {when}")
    return found


async def _submit(engine: Engine, place: Place) -> ExecutionId:
    kept = StreamPolicy(retention_ttl_ms=int(place.kept * 1000))
    submitted = await engine.executions.submit(
        Submission(
            kind=f"{place.name}.fence",
            namespace=place.name,
            lane=place.lane(_LANE),
            policy=Policy(stream_policy=kept),
        )
    )
    return submitted.id


async def _claim(ground: Ground, engine: Engine, name: str, ttl: Millis) -> Claim:
    place = ground.place
    claims = await engine.claims.claim(
        WorkerIdentity(f"{place.name}-{name}", f"{place.name}-{name}-1"),
        lanes=[place.lane(_LANE)],
        namespace=place.name,
        ttl=ttl,
        max_wait=ground.patience,
    )
    if not claims:
        raise CannotCheck(f"the {name} worker got no claim within {ground.patience:.0f} s")
    return claims[0]


def _step(doc: bytes) -> Step:
    return Step(generation=0, position=0, name="paid", occurrence=0, doc=doc)
