"""One execution in the depth wanted, from its first state to its last.

E-T320 to E-T328, E-T341, E-X28, INV-6, INV-7, INV-28; §3.48 to §3.61, §3.68.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    Corruption,
    InvalidId,
    NotActive,
    NotFound,
)
from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.model import (
    AttemptOutcome,
    Failure,
    Gate,
    Next,
    Start,
    Waiting,
)
from flowfabric.core.execution.status import PublicState, Vector
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.described import Description, ExecutionContext
from flowfabric.store.queries import Progress, Query
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.situations import ALL, DELAY, ENDED, described, is_legal, missing_ids, put, suspend

Read = Callable[[str], Awaitable[Any]]


# -- one execution


async def test_what_does_not_exist_is_in_no_view(lab: Lab) -> None:
    """E-T320, E-T325, E-T341: nothing where nothing is an answer, NotFound elsewhere"""
    views, executions, claims = lab.engine.views, lab.engine.executions, lab.engine.claims
    grants = lab.engine.grants
    nothing: list[Read] = [
        views.describe,
        views.info,
        views.state,
        views.vector,
        views.result,
        views.namespace,
    ]
    refused: list[Read] = [
        views.context,
        views.attempts,
        views.current_attempt,
        views.attempts_made,
        lambda id: views.wait(id, timeout=20),
        lambda id: executions.cancel(id, reason="r"),
        lambda id: executions.change_priority(id, 1),
        executions.replay,
        lambda id: executions.block(id, "paused_by_operator"),
        executions.unblock,
        executions.resume,
        lambda id: executions.set_tag(id, "app.x", "v"),
        lambda id: claims.revoke(id, reason="r"),
        lambda id: grants.issue(id, "w1"),
        lambda id: grants.issue_reclaim(id, "w1"),
        lambda id: grants.claim(id, W1),
        lambda id: grants.claim_resumed(id, W1),
        grants.take,
    ]
    for id in await missing_ids(lab):
        for read in nothing:
            assert await read(id) is None
        for call in refused:
            with pytest.raises(NotFound) as caught:
                await call(id)
            assert caught.value.entity == "execution"
        assert await executions.expire(id) == AlreadySatisfied("already_terminal")
        assert await claims.mark_expired(id) == AlreadySatisfied("execution_not_found")
    for read in nothing + refused:
        with pytest.raises(InvalidId):
            await read("nonsense")


async def test_a_fresh_execution_is_described(lab: Lab) -> None:
    """E-T321"""
    id = await lab.submit(
        "send",
        namespace="shop",
        lane="mail",
        priority=7,
        key="order-1",
        creator="tests",
        encoding="json",
        tags={"z.z": "2", "a.a": "1"},
        policy={"routing_requirements": {"required_capabilities": ["smtp", "eu"]}},
    )
    seen = await described(lab, id)
    assert seen == Description(
        id=id,
        kind="send",
        namespace="shop",
        lane="mail",
        flow=None,
        priority=7,
        vector=seen.vector,
        state=PublicState.WAITING,
        blocking=seen.vector.blocking,
        blocking_detail=None,
        attempt=None,
        attempt_id=None,
        attempts_made=0,
        lease=None,
        retries=0,
        reclaims=0,
        replays=0,
        epoch=0,
        created_at=lab.clock.now(),
        started_at=None,
        ended_at=None,
        deadline_at=None,
        touched_at=lab.clock.now(),
        failure=None,
        cancel_reason=None,
        cancelled_by=None,
        progress=None,
        capabilities=("eu", "smtp"),
        creator="tests",
        encoding="json",
        key="order-1",
        tags={"a.a": "1", "z.z": "2"},
    )
    assert seen.blocking == "waiting_for_worker"
    assert list(seen.tags) == ["a.a", "z.z"]


async def test_a_delay_is_described_with_its_end(lab: Lab) -> None:
    """E-T322"""
    for situation, reason, text in (
        (situations.delayed, "waiting_for_delay", "delayed until"),
        (situations.worker_delayed, "waiting_for_delay", "delayed until"),
        (situations.resume_delayed, "waiting_for_resume_delay", "resume delayed until"),
        (situations.backing_off, "waiting_for_retry_backoff", "attempt 0 failed, retry after"),
    ):
        seen = await described(lab, await situation(lab))
        assert seen.blocking == reason
        assert seen.blocking_detail == f"{text} {lab.clock.now() + DELAY}"


async def test_a_running_execution_is_described_with_its_lease(lab: Lab) -> None:
    """E-T323"""
    id = await lab.submit()
    lab.clock.advance(5)
    claim = await lab.claim_one()
    seen = await described(lab, id)
    assert (seen.attempt, seen.attempt_id, seen.attempts_made) == (0, claim.attempt_id, 1)
    assert (seen.started_at, seen.touched_at) == (lab.clock.now(), lab.clock.now())
    assert seen.lease is not None
    assert (seen.lease.lease_id, seen.lease.epoch) == (claim.lease.id, 1)
    assert (seen.lease.worker, seen.lease.instance) == (W1.id, W1.instance)
    assert (seen.lease.attempt, seen.lease.expires_at) == (0, lab.clock.now() + TTL)
    assert seen.lease.renewed_at is None
    assert (seen.blocking, seen.blocking_detail) == ("none", None)
    renewed_at = lab.clock.advance(100)
    await lab.engine.claims.renew(claim)
    seen = await described(lab, id)
    assert seen.lease is not None
    assert (seen.lease.renewed_at, seen.lease.expires_at) == (renewed_at, renewed_at + TTL)
    assert seen.touched_at == renewed_at


async def test_progress_is_described_and_what_is_not_said_stays(lab: Lab) -> None:
    """§3.13"""
    claim = await lab.running()
    progress = lab.engine.attempts.progress
    await progress(claim, 10, "begun")
    await progress(claim, 20)
    assert (await described(lab, claim.id)).progress == Progress(20, "begun")
    touched_at = lab.clock.advance(3)
    await progress(claim, message="nearly")
    seen = await described(lab, claim.id)
    assert (seen.progress, seen.touched_at) == (Progress(20, "nearly"), touched_at)


async def test_an_ending_is_described(lab: Lab) -> None:
    claim = await lab.running()
    ended_at = lab.clock.advance(9)
    await lab.engine.attempts.fail(claim, Failure("broken", "permanent", b"trace"))
    seen = await described(lab, claim.id)
    assert (seen.state, seen.ended_at, seen.touched_at) == (PublicState.FAILED, ended_at, ended_at)
    assert seen.failure == Failure("broken", "permanent", b"trace")
    assert (seen.attempt, seen.attempt_id, seen.lease) == (0, claim.attempt_id, None)


async def test_a_state_no_rule_writes_is_told_and_not_guessed(lab: Lab) -> None:
    """E-T324, INV-6"""
    id = await lab.submit()
    await put(lab, id, Waiting(Gate.BACKOFF, Next(Start.INITIAL, 0), lab.clock.now()))
    reads: list[Read] = [
        lab.engine.views.describe,
        lab.engine.views.info,
        lab.engine.views.state,
        lab.engine.views.vector,
    ]
    for read in reads:
        with pytest.raises(Corruption, match="waiting_for_retry_backoff"):
            await read(id)


@pytest.mark.parametrize("name", ALL)
async def test_every_view_tells_the_same_story(lab: Lab, name: str) -> None:
    """E-T325, E-X28, INV-6, INV-7: what is derived is what is listed and counted"""
    id = await ALL[name](lab, namespace="shop", lane="mail")
    views = lab.engine.views
    seen, info = await described(lab, id), await views.info(id)
    assert info is not None
    assert is_legal(seen.vector)
    assert seen.vector == info.vector == await views.vector(id)
    assert seen.state == info.state == await views.state(id) == seen.vector.public
    for member in (
        "id",
        "kind",
        "namespace",
        "lane",
        "priority",
        "created_at",
        "started_at",
        "ended_at",
        "attempt",
        "attempts_made",
        "flow",
        "blocking_detail",
    ):
        assert getattr(seen, member) == getattr(info, member), member
    assert await views.namespace(id) == "shop"
    assert await views.attempts_made(id) == seen.attempts_made
    assert await views.current_attempt(id) == max(0, seen.attempts_made - 1)
    assert (seen.lease is not None) == (name == "running")
    assert (seen.ended_at is not None) == (name in ENDED)
    assert len(await views.attempts(id)) == seen.attempts_made
    for state in PublicState:
        page = await views.list(Query(states=(state,)))
        assert page.items == ((info,) if state == seen.state else ()), state
        assert page.cursor is None
    counts = await views.counts()
    assert {word: count for word, count in counts.by_state.items() if count} == {seen.state: 1}
    assert not counts.capped


async def test_started_is_the_first_start_and_ended_the_last_end(lab: Lab) -> None:
    """E-T326, INV-28"""
    id = await lab.submit(policy=situations.RETRY_AT_ONCE)
    started_at = lab.clock.advance(5)
    await lab.fail(await lab.claim_one())
    lab.clock.advance(5)
    claim = await lab.claim_one()
    assert claim.attempt == 1
    assert (await described(lab, id)).started_at == started_at
    ended_at = lab.clock.advance(5)
    await lab.complete(claim)
    seen = await described(lab, id)
    assert (seen.started_at, seen.ended_at) == (started_at, ended_at)
    assert (seen.vector.phase, seen.vector.outcome) == ("terminal", "success")


async def test_a_result_is_exactly_what_was_given(lab: Lab) -> None:
    """§3.48"""
    for result in (bytes(range(256)), b"", b"\0", b"x" * (1 << 20)):
        claim = await lab.running()
        assert await lab.engine.views.result(claim.id) is None
        await lab.complete(claim, result)
        assert await lab.engine.views.result(claim.id) == result


async def test_only_a_completed_execution_has_a_result(lab: Lab) -> None:
    claim = await lab.running()
    await lab.complete(claim)
    assert await lab.engine.views.result(claim.id) is None
    for name in set(ALL) - {"completed"}:
        assert await lab.engine.views.result(await ALL[name](lab)) is None


async def test_a_handler_gets_what_was_submitted(lab: Lab) -> None:
    """read_execution_context"""
    payload = bytes(range(256)) * 16
    members: dict[str, Any] = {"payload": payload, "encoding": "raw", "tags": {"a.a": "1"}}
    id = await lab.submit("render", **members)
    assert await lab.engine.views.context(id) == ExecutionContext(
        "render", payload, "raw", {"a.a": "1"}
    )
    claim = await lab.claim_one()
    assert (claim.payload, claim.kind) == (payload, "render")
    await lab.complete(claim)
    assert (await lab.engine.views.context(id)).payload == payload
    bare = await lab.submit()
    assert await lab.engine.views.context(bare) == ExecutionContext("job", b"", None, {})


async def test_attempts_are_told_in_order_with_what_became_of_them(lab: Lab) -> None:
    """INV-9, INV-10: failed, lost, interrupted and continued, and the one in hand"""
    id = await lab.submit(policy=situations.RETRY_AT_ONCE)
    views = lab.engine.views
    assert await views.attempts(id) == []
    first = await lab.claim_one()
    assert [attempt.outcome for attempt in await views.attempts(id)] == [AttemptOutcome.STARTED]
    failed_at = lab.clock.advance(1)
    await lab.fail(first)
    second = await lab.claim_one()
    await lab.lose(second)
    assert [attempt.outcome for attempt in await views.attempts(id)] == [
        AttemptOutcome.FAILURE,
        AttemptOutcome.STARTED,
    ]
    third = await lab.claim_one(W2)
    reclaimed_at = lab.clock.now()
    await lab.engine.attempts.hand_back(third)
    assert (await views.attempts(id))[2].outcome is AttemptOutcome.SUSPENDED
    lab.clock.advance(1)
    await lab.complete(await lab.claim_one(), b"ok")
    one, two, three = await views.attempts(id)
    assert (one.type, one.outcome, one.ended_at) == (
        Start.INITIAL,
        AttemptOutcome.FAILURE,
        failed_at,
    )
    assert (one.failure, one.previous, one.worker) == (Failure("boom"), None, W1)
    assert (two.type, two.outcome, two.ended_at) == (
        Start.RETRY,
        AttemptOutcome.RECLAIMED,
        reclaimed_at,
    )
    assert (three.type, three.outcome, three.previous) == (
        Start.RECLAIM,
        AttemptOutcome.SUCCESS,
        1,
    )
    assert (three.started_at, three.result) == (third.lease.started_at, b"ok")


# -- a whole life


def vector_text(shape: Vector) -> str:
    members = (
        shape.phase,
        shape.ownership,
        shape.eligibility,
        shape.blocking,
        shape.outcome,
        shape.attempt,
        shape.public,
    )
    return " ".join(members)


def event_text(event: StoredEvent) -> str:
    completion = None if event.completion is None else event.completion.name.lower()
    return "+".join(word for word in (event.lease, completion, event.operator) if word)


READY = "runnable unowned eligible_now waiting_for_worker none"
RUNNING = "active leased not_applicable none none running_attempt active"
SUSPENDED = "suspended unowned not_applicable waiting_for_signal none attempt_interrupted suspended"
BACKOFF = "runnable unowned not_eligible_until_time waiting_for_retry_backoff none"
GONE = "not_applicable waiting_for_worker none attempt_interrupted active"
OVER = "terminal unowned not_applicable none"

# What happens, then the vector, the attempt and the epoch seen after it.
TRACE: list[tuple[str, str, int | None, int]] = [
    ("submit", f"{READY} pending_first_attempt waiting", None, 0),
    ("claim", RUNNING, 0, 1),
    ("suspend", SUSPENDED, 0, 1),
    ("resume", f"{READY} attempt_interrupted waiting", 0, 1),
    ("claim", RUNNING, 0, 2),
    ("fail", f"{BACKOFF} pending_retry_attempt delayed", None, 2),
    ("wait", f"{READY} pending_retry_attempt waiting", None, 2),
    ("claim", RUNNING, 1, 3),
    ("lose", f"active lease_expired_reclaimable {GONE}", 1, 3),
    ("claim", RUNNING, 2, 4),
    ("complete", f"{OVER} success attempt_terminal completed", 2, 4),
    ("replay", f"{READY} pending_replay_attempt waiting", None, 4),
    ("claim", RUNNING, 3, 5),
    ("revoke", f"active lease_revoked {GONE}", 3, 5),
    ("cancel", f"{OVER} cancelled attempt_terminal cancelled", 3, 5),
]
TOLD = [
    ("acquired", 1),
    ("released", 1),
    ("", 1),  # an operator's resume moves no lease and ends nothing
    ("acquired", 2),
    ("released", 2),
    ("acquired", 3),
    ("expired", 3),
    ("reclaimed", 4),
    ("released+success", 4),
    ("replayed", 4),
    ("acquired", 5),
    ("revoked", 5),
    ("cancelled", 5),
]


class Life:
    """One execution and what can happen to it, each by its word."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.id = ExecutionId.solo("default", new_uuid7(lab.clock.now(), 1))
        self.held: list[Claim] = []

    async def happen(self, act: str) -> None:
        lab, executions = self.lab, self.lab.engine.executions
        match act:
            case "submit":
                retry = {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 10}}
                await lab.submit(id=self.id, policy={"retry_policy": retry})
            case "claim":
                self.held.append(await lab.claim_one())
            case "suspend":
                await suspend(lab, self.held[-1])
            case "resume":
                await executions.resume(self.id)
            case "fail":
                await lab.fail(self.held[-1])
            case "wait":
                await lab.pass_time(10)
            case "lose":
                await lab.lose(self.held[-1])
            case _:
                await self._end(act)

    async def _end(self, act: str) -> None:
        match act:
            case "complete":
                await self.lab.complete(self.held[-1])
            case "replay":
                await self.lab.engine.executions.replay(self.id)
            case "revoke":
                await self.lab.engine.claims.revoke(self.id, reason="maintenance")
            case _:
                await self.lab.engine.executions.cancel(self.id, reason="enough")


async def test_a_whole_life_shows_the_documented_vectors(lab: Lab) -> None:
    """E-T328, §3.68: every step of the worked trace, its attempt, its epoch and its events"""
    life = Life(lab)
    for act, expected, attempt, epoch in TRACE:
        await life.happen(act)
        seen = await described(lab, life.id)
        assert (act, vector_text(seen.vector)) == (act, expected)
        assert (act, seen.attempt, seen.epoch) == (act, attempt, epoch)
        if act == "revoke":
            assert seen.blocking_detail == "lease revoked: maintenance"
    told = [(event_text(event), event.epoch) for event in await lab.events(life.id)]
    assert told == TOLD
    outcomes = [attempt.outcome for attempt in await lab.engine.views.attempts(life.id)]
    assert outcomes == [
        AttemptOutcome.FAILURE,
        AttemptOutcome.RECLAIMED,
        AttemptOutcome.SUCCESS,
        AttemptOutcome.CANCELLED,
    ]


async def test_a_repeated_end_says_how_it_ended(lab: Lab) -> None:
    """§3.0.3: what a client needs to find out that its own call succeeded"""
    claim = await lab.running()
    await lab.complete(claim)
    with pytest.raises(NotActive) as caught:
        await lab.fail(claim)
    error = caught.value
    assert (error.phase, error.outcome, error.epoch) == ("terminal", "success", 1)
    assert error.attempt_id == claim.attempt_id


async def test_submitting_tells_the_state_it_is_in(lab: Lab) -> None:
    soon = Millis(lab.clock.now() + 1)
    now = await lab.engine.executions.submit(Submission(kind="job"))
    later = await lab.engine.executions.submit(Submission(kind="job", delay_until=soon))
    for answer, state in ((now, PublicState.WAITING), (later, PublicState.DELAYED)):
        assert isinstance(answer, Submitted)
        assert answer.state is state is await lab.state(answer.id)
