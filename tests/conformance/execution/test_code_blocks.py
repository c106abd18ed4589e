"""Blocked by code: parked with its attempt, released to other code, never passed back and forth."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    LeaseLost,
    NotActive,
    NotEligible,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.mismatch import MAX_TRIED, Mismatch
from flowfabric.core.execution.model import Start
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.hints import Topic, Topics
from flowfabric.store.queries import Query
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.race import Race
from tests.kit.situations import RETRY_AT_ONCE, described

OLD, NEW, NEWEST = "code-1", "code-2", "code-3"


def mismatch(fingerprint: str = OLD, **more: Any) -> Mismatch:
    message = "step 1 was recorded as 'b' (call 1) but the code now asks for 'c' (call 1)"
    return Mismatch(message=message, fingerprint=fingerprint, expected="b", asked="c", **more)


async def block(lab: Lab, claim: Claim, fingerprint: str = OLD) -> PublicState:
    return (await lab.engine.attempts.block_by_code(claim, mismatch(fingerprint))).state


async def alive(lab: Lab, fingerprint: str = NEW, instance: str = "w2-a", **more: Any) -> None:
    """A worker with this code is in the registry."""
    presence = Presence(
        worker="w2", instance=instance, kinds=("job",), code={"job": fingerprint}, **more
    )
    await lab.engine.workers.register(presence)


def there(lab: Lab, fingerprint: str = NEW) -> None:
    """A worker with this code runs in the process of the lab."""
    presence = Presence(worker="w2", instance="w2-a", code={"job": fingerprint})
    lab.engine.code_gate.join(W2, lambda: presence)


async def blocked(lab: Lab) -> Claim:
    claim = await lab.running()
    await block(lab, claim)
    return claim


async def test_a_run_blocked_by_code_waits_and_keeps_its_attempt(lab: Lab) -> None:
    claim = await lab.running(policy=RETRY_AT_ONCE)
    assert await block(lab, claim) is PublicState.WAITING
    seen = await described(lab, claim.id)
    assert (seen.state, seen.blocking) == (PublicState.WAITING, "waiting_for_capable_worker")
    assert (seen.attempt, seen.attempts_made, seen.retries, seen.lease) == (0, 1, 0, None)
    assert seen.blocking_detail is not None
    assert "blocked by code: step 1 was recorded as 'b'" in seen.blocking_detail
    assert await lab.claim() == []
    events = await lab.events(claim.id)
    assert [event.kind for event in events] == [EventKind.CLAIMED, EventKind.BLOCKED_BY_CODE]
    assert (events[-1].lease, events[-1].reason) == ("released", "blocked_by_code")


async def test_explain_names_both_steps_and_the_worker_whose_code_does_not_fit(lab: Lab) -> None:
    claim = await blocked(lab)
    reason = (await lab.engine.explain(claim.id)).main
    assert reason.code == "blocked_by_code"
    assert "'b'" in reason.text
    assert "'c'" in reason.text
    assert W1.id in reason.text
    assert "waits for a worker with other code of job" in reason.text
    assert (reason.detail["expected"], reason.detail["asked"]) == ("b", "c")
    assert (reason.detail["worker"], reason.detail["tried"]) == (W1.id, [OLD])


async def test_the_explanation_of_a_lane_counts_them(lab: Lab) -> None:
    await blocked(lab)
    found = await lab.engine.explain.lane("default")
    assert [(share.code, share.count) for share in found.shares] == [("blocked_by_code", 1)]


async def test_it_is_in_the_lists_and_counts_of_what_waits(lab: Lab) -> None:
    claim = await blocked(lab)
    page = await lab.engine.views.list(Query(states=(PublicState.WAITING,)))
    assert [info.id for info in page.items] == [claim.id]
    counts = await lab.engine.views.counts()
    assert counts.by_state[PublicState.WAITING] == 1


async def test_a_worker_with_other_code_gets_the_same_attempt(lab: Lab) -> None:
    claim = await blocked(lab)
    await lab.engine.sweep.once()
    assert await lab.claim(W2) == []
    await alive(lab)
    await lab.engine.sweep.once()
    again = await lab.claim_one(W2)
    assert (again.id, again.lease.attempt, again.lease.start) == (claim.id, 0, Start.CONTINUE)
    await lab.complete(again, b"1")
    assert await lab.state(claim.id) is PublicState.COMPLETED


async def test_the_worker_that_comes_releases_it_without_a_sweep(lab: Lab) -> None:
    await blocked(lab)
    await alive(lab)
    assert len(await lab.claim(W2)) == 1


async def test_a_release_wakes_the_workers_of_its_own_process_and_no_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose code does not fit may be faster than the one it was released for."""
    await blocked(lab)
    hints, sent = lab.engine.store.hints, list[Topics]()
    seen, send = hints.count, hints.send

    def told(topics: Topics) -> None:
        sent.append(topics)
        send(topics)

    monkeypatch.setattr(hints, "send", told)
    await alive(lab)
    assert Topic.WORK & hints.since(seen)
    assert not any(Topic.WORK & topics for topics in sent)


@pytest.mark.inside
async def test_a_worker_that_is_there_already_gets_it_with_the_next_sweep(lab: Lab) -> None:
    await alive(lab)
    there(lab)
    await blocked(lab)
    await lab.engine.sweep.once()
    assert len(await lab.claim(W2)) == 1


async def test_a_worker_that_has_left_gets_nothing(lab: Lab) -> None:
    there(lab)
    lab.engine.code_gate.leave(W2)
    await blocked(lab)
    await lab.engine.sweep.once()
    assert await lab.claim(W2) == []


@pytest.mark.inside
async def test_a_process_does_not_release_runs_for_workers_of_others(
    lab: Lab, second_lab: Lab
) -> None:
    """It would be the first to claim them, and have to give them back."""
    await alive(lab)
    there(second_lab)
    await blocked(lab)
    await lab.engine.sweep.once()
    assert await lab.claim(W1) == []
    await second_lab.engine.sweep.once()
    assert len(await second_lab.claim(W2)) == 1


async def test_every_process_sees_that_runs_are_blocked(lab: Lab) -> None:
    store, now = lab.engine.store, lab.clock.now()
    assert not (await store.glance("sweep", "me", now, Millis(now + 1000))).blocked
    await blocked(lab)
    assert (await store.glance("sweep", "me", now, Millis(now + 1000))).blocked
    assert (await store.glance("sweep", "other", now, Millis(now + 1000))).blocked
    id = await lab.submit()
    await lab.engine.executions.block(id, "paused_by_operator")
    await alive(lab)
    assert not (await store.glance("sweep", "other", now, Millis(now + 1000))).blocked


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": OLD},
        {"namespace": "elsewhere"},
        {"lanes": ("another",)},
    ],
    ids=["same code", "namespace", "lane"],
)
async def test_it_is_not_released_to_a_worker_that_cannot_help(
    lab: Lab, other: dict[str, Any]
) -> None:
    claim = await blocked(lab)
    await alive(lab, **other)
    await lab.pass_time(10)
    assert await lab.claim(W2) == []
    assert (await lab.engine.explain(claim.id)).main.code == "blocked_by_code"


async def test_a_worker_of_another_task_or_without_fingerprints_does_not_release_it(
    lab: Lab,
) -> None:
    await blocked(lab)
    for number, kinds in enumerate([("other",), (), ("job",)]):
        entry = Presence(worker="w", instance=f"i{number}", kinds=kinds, code={"other": NEW})
        await lab.engine.workers.register(entry)
    await lab.engine.sweep.once()
    assert await lab.claim(W2) == []


async def test_two_versions_do_not_hand_it_to_each_other(lab: Lab) -> None:
    """Each is tried once; then it waits for a third."""
    claim = await blocked(lab)
    await alive(lab, OLD, "old")
    await alive(lab, NEW, "new")
    await lab.engine.sweep.once()
    await block(lab, await lab.claim_one(W2), NEW)
    for _ in range(5):
        await lab.pass_time(120_000)
        await alive(lab, OLD, "old")
        await alive(lab, NEW, "new")
        await lab.engine.sweep.once()
        assert await lab.claim(W2) == []
    await alive(lab, NEWEST, "newest")
    await lab.engine.sweep.once()
    assert (await lab.claim_one(W2)).id == claim.id


@pytest.mark.inside
async def test_a_worker_whose_code_did_not_fit_gives_it_back_with_growing_pauses(lab: Lab) -> None:
    claim = await blocked(lab)
    there(lab)
    await lab.engine.sweep.once()
    for pause in (1_000, 2_000, 4_000, 4_000, 4_000):
        again = await lab.claim_one(W1)
        assert (await lab.engine.attempts.return_untried(again, OLD)).state is PublicState.WAITING
        await lab.pass_time(pause - 1)
        assert await lab.claim(W1) == []
        await lab.pass_time(1)
    taken = await lab.claim_one(W2)
    assert taken.lease.attempt == claim.lease.attempt
    await lab.engine.attempts.hand_back(taken)
    await lab.engine.attempts.return_untried(await lab.claim_one(W1), OLD)
    await lab.pass_time(1_000)
    assert len(await lab.claim(W2)) == 1, "another worker had it in between: pauses start over"


async def test_it_remembers_what_was_tried_while_it_runs_elsewhere(lab: Lab) -> None:
    await blocked(lab)
    await alive(lab)
    await lab.engine.sweep.once()
    taken = await lab.claim_one(W2)
    code = taken.snapshot.life.code
    assert code is not None
    assert code.tried == (OLD,)


async def test_no_more_are_released_than_workers_have_room_for(lab: Lab) -> None:
    for _ in range(5):
        await blocked(lab)
    await alive(lab, concurrency=3, running=1)
    await lab.engine.sweep.once()
    await lab.engine._limits.drain()
    waiting = await lab.engine.explain.lane("default")
    left = sum(share.count for share in waiting.shares if share.code == "blocked_by_code")
    assert 1 <= left < 5


async def test_many_fingerprints_do_not_grow_without_end(lab: Lab) -> None:
    claim = await lab.running()
    for number in range(MAX_TRIED + 3):
        await block(lab, claim, f"code-{number}")
        await lab.engine.code_gate.release_to(
            Presence(worker="w", instance="i", code={"job": f"code-{number + 1}"})
        )
        claim = await lab.claim_one()
    code = claim.snapshot.life.code
    assert code is not None
    assert (len(code.tried), code.tried[-1]) == (MAX_TRIED, f"code-{MAX_TRIED + 2}")


# -- operators


async def test_an_operator_unblocks_it_for_every_worker(lab: Lab) -> None:
    claim = await blocked(lab)
    await lab.engine.executions.unblock(claim.id)
    again = await lab.claim_one()
    assert (again.id, again.snapshot.life.code) == (claim.id, None)


async def test_unblock_can_expect_the_reason(lab: Lab) -> None:
    claim = await blocked(lab)
    with pytest.raises(NotEligible):
        await lab.engine.executions.unblock(claim.id, "paused_by_operator")
    await lab.engine.executions.unblock(claim.id, "waiting_for_capable_worker")


async def test_a_block_by_an_operator_is_not_released_by_code(lab: Lab) -> None:
    id = await lab.submit()
    await lab.engine.executions.block(id, "waiting_for_capable_worker")
    await alive(lab)
    await lab.engine.sweep.once()
    assert await lab.claim(W2) == []
    assert (await lab.engine.explain(id)).main.code == "blocked_by_operator"


async def test_it_can_be_cancelled_and_its_deadline_passes(lab: Lab) -> None:
    claim = await blocked(lab)
    await lab.engine.executions.cancel(claim.id, reason="not needed")
    assert await lab.state(claim.id) is PublicState.CANCELLED
    other = await lab.running(deadline_at=Millis(lab.clock.now() + 1_000))
    await block(lab, other)
    await lab.pass_time(1_000)
    assert await lab.state(other.id) is PublicState.EXPIRED


async def test_a_replay_forgets_what_was_tried(lab: Lab) -> None:
    claim = await blocked(lab)
    await lab.engine.executions.cancel(claim.id, reason="again")
    await lab.engine.executions.replay(claim.id)
    assert (await lab.claim_one()).snapshot.life.code is None


# -- owners, repeats, races, bad input


async def test_only_the_owner_of_the_lease_can_do_it(lab: Lab) -> None:
    claim = await lab.running()
    await lab.lose(claim)
    with pytest.raises(LeaseLost):
        await block(lab, claim)
    with pytest.raises(LeaseLost):
        await lab.engine.attempts.return_untried(claim, OLD)
    done = await lab.claim_one()
    await lab.complete(done)
    with pytest.raises((NotActive, LeaseLost)):
        await block(lab, done)


async def test_a_repeat_gets_the_first_answer_whatever_became_of_the_run_since(lab: Lab) -> None:
    """INV-23"""
    claim = await blocked(lab)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    assert await block(lab, claim) is PublicState.WAITING
    assert await lab.state(claim.id) is PublicState.CANCELLED


async def test_a_repeat_after_a_lost_reply_changes_nothing(lab: Lab) -> None:
    claim = await blocked(lab)
    assert await block(lab, claim) is PublicState.WAITING
    assert len(await lab.events(claim.id)) == 2


async def test_a_cancel_that_came_first_stays(lab: Lab, second_lab: Lab) -> None:
    claim = await lab.running()
    await second_lab.engine.executions.cancel(claim.id, reason="first")
    with pytest.raises(FlowFabricError):
        await block(lab, claim)
    assert await lab.state(claim.id) is PublicState.CANCELLED


async def test_two_engines_release_it_once(lab: Lab, second_lab: Lab) -> None:
    claim = await blocked(lab)
    worker = Presence(worker="w", instance="i", code={"job": NEW})
    counts = await asyncio.gather(
        *(each.engine.code_gate.release_to(worker) for each in (lab, second_lab, lab, second_lab))
    )
    assert sum(counts) == 1
    claims = await asyncio.gather(lab.claim(W1), second_lab.claim(W2))
    assert [each.id for found in claims for each in found] == [claim.id]


async def test_an_unblock_and_a_release_at_once_make_one_run_ready(
    lab: Lab, second_lab: Lab
) -> None:
    claim = await blocked(lab)
    worker = Presence(worker="w", instance="i", code={"job": NEW})
    await asyncio.gather(
        lab.engine.code_gate.release_to(worker),
        second_lab.engine.executions.unblock(claim.id),
        return_exceptions=True,
    )
    assert len(await lab.claim(limit=5)) == 1


async def test_an_unblock_just_before_a_release_stays(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await blocked(lab)
    race.after_load(lambda: second_lab.engine.executions.unblock(claim.id))
    worker = Presence(worker="w", instance="i", code={"job": NEW})
    assert await lab.engine.code_gate.release_to(worker) == 0
    assert (await lab.claim_one()).snapshot.life.code is None


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "text",
        Mismatch(message=5, fingerprint="x"),  # type: ignore[arg-type]
        Mismatch(message="x" * 5_000, fingerprint="x"),
        Mismatch(message="x", fingerprint="x" * 300),
        Mismatch(message="x", fingerprint=None),  # type: ignore[arg-type]
        Mismatch(message="\ud800", fingerprint="x"),
    ],
)
async def test_bad_mismatches_are_refused(lab: Lab, bad: Any) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.block_by_code(claim, bad)
    assert await lab.state(claim.id) is PublicState.ACTIVE


@pytest.mark.parametrize("code", [None, [], {"job": 5}, {5: "x"}, {"job": "x" * 300}])
async def test_a_presence_with_bad_fingerprints_is_refused(lab: Lab, code: Any) -> None:
    with pytest.raises(Invalid):
        await lab.engine.workers.register(Presence(worker="w", instance="i", code=code))


async def test_a_suspect_that_reaches_its_steps_is_cleared(lab: Lab) -> None:
    claim = await lab.running()
    await lab.lose(claim)
    again = await lab.claim_one(ttl=TTL)
    await block(lab, again)
    await alive(lab)
    await lab.engine.sweep.once()
    assert len(await lab.claim(W2)) == 1
