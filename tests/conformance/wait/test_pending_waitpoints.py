"""Pending waitpoints: made while the attempt runs, handed out, and bound by a later suspend."""

import asyncio
from functools import partial
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    Invalid,
    InvalidToken,
    InvalidWaitpoint,
    LeaseExpired,
    NoSigningKey,
    NotActive,
    NotFound,
    PayloadTooLarge,
    StaleLease,
    WaitpointClosed,
    WaitpointExists,
    WaitpointExpired,
    WaitpointNotFound,
    WaitpointNotPending,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.lease import AlreadySatisfied, Owner
from flowfabric.core.execution.model import Source
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.condition.model import (
    AllTrue,
    Count,
    CountKind,
    Single,
    all_waitpoints,
)
from flowfabric.core.wait.model import Effect, Terms
from flowfabric.core.wait.request import Binding, Wait, WaitpointUse
from flowfabric.core.wait.signal import Accepted
from flowfabric.core.wait.waitpoint import WaitpointsClosed
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.wait.suspensions import Ticket
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit.lab import W2, Lab
from tests.kit.owners import FORMS, every_form, everything
from tests.kit.race import Race
from tests.kit.situations import RETRY_AT_ONCE, described, missing_ids, take
from tests.kit.waits import GO, create_waitpoint, fresh_id, in_, signal, suspend, wait_at, wait_on

MINUTE = Millis(60_000)


async def pending(lab: Lab, claim: Claim, key: str = GO, **options: object) -> Ticket:
    return await create_waitpoint(lab, claim, key, **options)


async def open_keys(lab: Lab, id: str) -> list[str]:
    return [item.key for item in await lab.engine.suspensions.waitpoints(id)]


# -- making them


@every_form
async def test_a_pending_waitpoint_is_made_by_the_owner(lab: Lab, form: str) -> None:
    """E-T229: its token carries the current kid; the lease is kept."""
    claim = await lab.running()
    owned = FORMS[form](lab, claim)
    ticket = await create_waitpoint(lab, owned, GO, expires_in=MINUTE)
    kids = await lab.engine.keys.kids()
    assert ticket.token is not None
    assert ticket.token.kid == kids.current_kid
    [seen] = await lab.engine.suspensions.waitpoints(claim.id)
    assert (seen.id, seen.execution, seen.key) == (ticket.id, claim.id, GO)
    assert (seen.state, seen.created_at) == ("pending", lab.clock.now())
    assert (seen.expires_at, seen.activated_at) == (in_(lab, MINUTE), None)
    assert (seen.required_signal_names, seen.token_kid) == ((), kids.current_kid)
    assert seen.token_fingerprint == ticket.token.fingerprint
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.complete(claim)


async def test_a_token_opens_its_waitpoint_and_a_changed_one_does_not(lab: Lab) -> None:
    """E-T230"""
    claim = await lab.running()
    ticket = await pending(lab, claim)
    assert ticket.token is not None
    text = ticket.token.reveal()
    forged = text[:-1] + ("0" if text[-1] != "0" else "1")
    with pytest.raises(InvalidToken):
        await signal(lab, claim.id, ticket, token=forged)
    heard = await signal(lab, claim.id, ticket)
    assert isinstance(heard, Accepted)
    assert heard.effect is Effect.BUFFERED


async def test_two_calls_make_two_waitpoints(lab: Lab) -> None:
    """E-T231: the same key makes no repeat."""
    claim = await lab.running()
    one, two = await pending(lab, claim), await pending(lab, claim)
    assert one.id != two.id
    assert one.token != two.token
    assert await open_keys(lab, claim.id) == [GO, GO]


async def test_without_a_key_to_sign_with_there_is_no_waitpoint(
    store: Store, clock: ManualClock
) -> None:
    """E-T232"""
    lab = await Lab.open(store, clock, make_keys=False)
    claim = await lab.running()
    before = await everything(lab, claim.id)
    with pytest.raises(NoSigningKey):
        await pending(lab, claim)
    with pytest.raises(NoSigningKey):
        await suspend(lab, claim)
    assert await everything(lab, claim.id) == before
    await lab.engine.keys.seed("k1", "ab" * 32)
    assert (await suspend(lab, claim)).primary.token is not None
    await lab.engine.close()


async def test_the_id_of_a_waitpoint_is_used_once(lab: Lab) -> None:
    claim = await lab.running()
    ticket = await pending(lab, claim)
    with pytest.raises(WaitpointExists):
        await pending(lab, claim, id=ticket.id)
    await lab.engine.suspensions.close_waitpoint(claim.id, ticket.id)
    with pytest.raises(WaitpointExists):
        await pending(lab, claim, id=ticket.id)


async def test_the_id_of_a_waitpoint_is_used_by_one_execution(lab: Lab) -> None:
    """§3.31 check 7, §3.33, FLAW-26: pending, active or closed, given by a caller or minted"""
    claim, other = await lab.running(), await lab.running()
    taken = [(await pending(lab, other)).id, (await pending(lab, other, id=fresh_id(lab))).id]
    await lab.engine.suspensions.close_waitpoint(other.id, taken[-1])
    suspended = await lab.running()
    taken.append((await suspend(lab, suspended)).primary.id)
    for id in taken:
        with pytest.raises(WaitpointExists):
            await pending(lab, claim, id=id)
        with pytest.raises(WaitpointExists):
            await suspend(lab, claim, wait_on(lab, GO, Binding(id=id, key=GO)))
        either = Binding(id=id, key=GO, use=WaitpointUse.EITHER)
        with pytest.raises(WaitpointExists):
            await suspend(lab, claim, wait_on(lab, GO, either))
    assert await lab.engine.suspensions.waitpoints(claim.id) == []
    own = await pending(lab, claim)
    for id in taken:
        with pytest.raises(WaitpointExists):
            await suspend(lab, claim, wait_on(lab, GO, Binding(id=id, key=GO)))
        with pytest.raises(InvalidWaitpoint):
            await suspend(lab, claim, wait_at(Ticket(id, GO, None)))
    assert not (await suspend(lab, claim, wait_at(own))).satisfied


@pytest.mark.inside
@pytest.mark.parametrize("how", ["create", "suspend"])
async def test_of_two_executions_that_want_one_id_one_gets_it(
    lab: Lab, second_lab: Lab, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§3.31 check 7: the rival commits after the id was looked for; what else is written at the
    same time is written."""
    claim, other, third = await lab.running(), await lab.running(), await lab.running()
    id = fresh_id(lab)

    async def use_it(by: Lab, owned: Claim) -> object:
        if how == "create":
            return await pending(by, owned, id=id)
        return await suspend(by, owned, wait_on(by, GO, Binding(id=id, key=GO)))

    Race(lab, monkeypatch).before("apply", partial(use_it, second_lab, other))
    answers = await asyncio.gather(use_it(lab, claim), pending(lab, third), return_exceptions=True)
    assert isinstance(answers[0], WaitpointExists)
    assert isinstance(answers[1], Ticket)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    assert await lab.engine.suspensions.waitpoints(claim.id) == []
    assert [w.id for w in await lab.engine.suspensions.waitpoints(other.id)] == [id]


async def test_two_executions_that_ask_at_once_for_one_id(lab: Lab) -> None:
    """§3.31 check 7: in one batch"""
    claims = [await lab.running() for _ in range(3)]
    id = fresh_id(lab)
    made = [pending(lab, claim, id=id) for claim in claims]
    answers = await asyncio.gather(*made, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == [
        "Ticket",
        "WaitpointExists",
        "WaitpointExists",
    ]


async def test_the_id_of_a_waitpoint_is_free_after_its_execution_was_deleted(lab: Lab) -> None:
    """INV-27"""
    claim = await lab.running()
    ticket = await pending(lab, claim)
    await lab.complete(claim)
    lab.clock.advance(8 * 86_400_000)
    await lab.engine.sweep.trim()
    assert await lab.engine.views.state(claim.id) is None
    again = await lab.running()
    assert (await pending(lab, again, id=ticket.id)).id == ticket.id


async def test_asking_again_for_a_lasting_one_gives_the_same_one(lab: Lab) -> None:
    """Open or not: asking does not open it"""
    claim = await lab.running()
    first = await pending(lab, claim, id=fresh_id(lab), lasting=True)
    assert await pending(lab, claim, id=first.id, lasting=True) == first
    await lab.engine.suspensions.close_waitpoint(claim.id, first.id)
    assert await pending(lab, claim, id=first.id, lasting=True) == first
    assert await open_keys(lab, claim.id) == []


async def test_one_with_the_same_slot_takes_the_place_of_the_one_before(lab: Lab) -> None:
    claim, slot = await lab.running(), fresh_id(lab)
    old = await pending(lab, claim, slot=slot, lasting=True)
    other = await pending(lab, claim, "other", slot=fresh_id(lab), lasting=True)
    new = await pending(lab, claim, slot=slot, lasting=True)
    found = await lab.engine.suspensions.waitpoints(claim.id)
    assert {each.id for each in found} == {other.id, new.id}
    with pytest.raises(WaitpointClosed):
        await signal(lab, claim.id, old)
    last = Binding(id=fresh_id(lab), key=GO, use=WaitpointUse.EITHER, lasting=True, slot=slot)
    await suspend(lab, claim, wait_on(lab, GO, last))
    found = await lab.engine.suspensions.waitpoints(claim.id)
    assert {each.id for each in found} == {other.id, last.id}
    with pytest.raises(Invalid):
        await pending(lab, claim, slot="no uuid")


async def test_only_the_current_owner_makes_one(lab: Lab) -> None:
    """FLAW-30: every caller passes the gate."""
    claim = await lab.running()
    create = lab.engine.suspensions.create_waitpoint
    with pytest.raises(FenceRequired):
        await create(FencedExecution(claim.id, Owner(source=Source.OPERATOR)), GO)
    with pytest.raises(StaleLease):
        await create(FencedExecution(claim.id, replace(claim.owner, epoch=9)), GO)
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await create(FencedExecution(id, claim.owner), GO)
    lab.clock.advance(claim.ttl)
    with pytest.raises(LeaseExpired):
        await create(claim, GO)
    again = await lab.engine.claims.claim(W2, ttl=Millis(30_000), limit=2)
    with pytest.raises(StaleLease):
        await create(claim, GO)
    [mine] = [held for held in again if held.id == claim.id]
    await lab.complete(mine)
    with pytest.raises(NotActive):
        await create(mine, GO)


@pytest.mark.rules
async def test_what_cannot_be_a_waitpoint_is_refused(lab: Lab) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid, match="waitpoint_key_empty"):
        await pending(lab, claim, "")
    for key in ("x" * 10_000, None, "\ud800", 7):
        with pytest.raises((Invalid, PayloadTooLarge)):
            await pending(lab, claim, key)  # type: ignore[arg-type]
    for span in (0, -1, 1.5, "long"):
        with pytest.raises(Invalid):
            await pending(lab, claim, expires_in=span)
    for terms in (Terms(decisions=("",)), Terms(approvers=("a", "a")), "anything"):
        with pytest.raises(Invalid):
            await pending(lab, claim, terms=terms)
    with pytest.raises(Invalid):
        await pending(lab, claim, id="no uuid")
    assert await open_keys(lab, claim.id) == []


# -- binding them


async def test_a_bound_waitpoint_keeps_its_key_and_its_token(lab: Lab) -> None:
    """E-T228: not minted anew, although the key was rotated; its expiry becomes the timeout."""
    claim = await lab.running()
    ticket = await pending(lab, claim, expires_in=MINUTE)
    await lab.engine.keys.rotate("newer", "cd" * 32)
    answer = await suspend(lab, claim, wait_at(ticket, timeout_at=in_(lab, 5 * MINUTE)))
    assert answer.primary == ticket
    [seen] = await lab.engine.suspensions.waitpoints(claim.id)
    assert (seen.state, seen.activated_at) == ("active", lab.clock.now())
    assert seen.expires_at == in_(lab, 5 * MINUTE)
    await lab.pass_time(2 * MINUTE)
    await signal(lab, claim.id, ticket)
    assert await lab.state(claim.id) is PublicState.WAITING


async def test_a_signal_that_came_before_keeps_the_lease(lab: Lab) -> None:
    """E-T228: satisfied at once, the state vector does not change, the waitpoint is closed."""
    claim = await lab.running()
    ticket = await pending(lab, claim)
    await signal(lab, claim.id, ticket, payload=b"early")
    before = await described(lab, claim.id)
    answer = await suspend(lab, claim, wait_at(ticket))
    assert (answer.satisfied, answer.handle) == (True, None)
    assert answer.waitpoints == (ticket,)
    after = await described(lab, claim.id)
    assert (after.vector, after.lease, after.epoch) == (before.vector, before.lease, 1)
    [heard] = await lab.engine.suspensions.observe(claim)
    assert heard.payload == b"early"
    assert await open_keys(lab, claim.id) == []
    with pytest.raises(WaitpointClosed):
        await signal(lab, claim.id, ticket)
    await lab.complete(claim, b"done")
    assert await lab.state(claim.id) is PublicState.COMPLETED


async def test_an_answer_that_was_satisfied_is_remembered_too(lab: Lab) -> None:
    """E-T213"""
    claim = await lab.running()
    ticket = await pending(lab, claim)
    await signal(lab, claim.id, ticket)
    first = await suspend(lab, claim, wait_at(ticket), idempotency_key="k")
    second = await suspend(lab, claim, idempotency_key="k")
    assert first == second
    assert second.satisfied
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_early_signals_count_for_any_condition(lab: Lab) -> None:
    """E-T228: what is missing is waited for, what came before is not asked for again."""
    claim = await lab.running()
    ticket = await pending(lab, claim)
    await signal(lab, claim.id, ticket, "one")
    count = Count(2, CountKind.SIGNALS, (GO,))
    answer = await suspend(lab, claim, wait_at(ticket, count))
    assert not answer.satisfied
    await signal(lab, claim.id, ticket, "two")
    assert await lab.state(claim.id) is PublicState.WAITING
    heard = await lab.engine.suspensions.observe(await lab.claim_one())
    assert [item.name for item in heard] == ["one", "two"]


async def test_early_signals_are_heard_in_the_order_they_came(lab: Lab) -> None:
    claim = await lab.running()
    ticket = await pending(lab, claim)
    for name in ("one", "two", "three"):
        await signal(lab, claim.id, ticket, name)
    answer = await suspend(lab, claim, wait_at(ticket, Count(2, CountKind.SIGNALS, (GO,))))
    assert answer.satisfied
    heard = await lab.engine.suspensions.observe(claim)
    assert [item.name for item in heard] == ["one", "two"]


async def test_a_pending_waitpoint_and_fresh_ones_in_one_condition(lab: Lab) -> None:
    claim = await lab.running()
    ticket = await pending(lab, claim, "a")
    both = (Binding(id=ticket.id, use=WaitpointUse.PENDING), Binding(id=fresh_id(lab), key="b"))
    answer = await suspend(lab, claim, Wait(condition=all_waitpoints("a", "b"), bindings=both))
    assert answer.primary == ticket
    for item in answer.waitpoints:
        await signal(lab, claim.id, item)
    assert await lab.state(claim.id) is PublicState.WAITING


@pytest.mark.rules
async def test_the_key_of_a_pending_waitpoint_must_fit_the_condition(lab: Lab) -> None:
    claim = await lab.running()
    ticket = await pending(lab, claim, "a")
    with pytest.raises(Invalid, match="referenced_waitpoint_key_missing_binding: b"):
        await suspend(lab, claim, wait_at(ticket, Single("b")))
    two = (Binding(id=ticket.id, use=WaitpointUse.PENDING), Binding(id=fresh_id(lab), key="b"))
    with pytest.raises(Invalid, match="extra_binding_not_referenced_by_condition: a"):
        await suspend(lab, claim, Wait(condition=AllTrue((Single("b"),)), bindings=two))
    assert await open_keys(lab, claim.id) == ["a"]


async def test_a_waitpoint_that_cannot_be_bound_is_told_why(lab: Lab) -> None:
    """§3.31 check 5: unknown, of another execution, closed, run out: nothing changes."""
    claim, other = await lab.running(), await lab.running()
    mine, theirs = await pending(lab, claim), await pending(lab, other)
    nowhere = Ticket(fresh_id(lab), GO, None)
    with pytest.raises(WaitpointNotFound, match="waitpoint_not_found"):
        await suspend(lab, claim, wait_at(nowhere))
    with pytest.raises(InvalidWaitpoint):
        await suspend(lab, claim, wait_at(theirs))
    await lab.engine.suspensions.close_waitpoint(claim.id, mine.id)
    with pytest.raises(WaitpointNotPending):
        await suspend(lab, claim, wait_at(mine))
    short = await pending(lab, claim, expires_in=Millis(10))
    lab.clock.advance(10)
    with pytest.raises(WaitpointExpired):
        await suspend(lab, claim, wait_at(short))
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_a_waitpoint_that_may_or_may_not_be_there(lab: Lab) -> None:
    """EITHER makes it, or binds the pending one with what came before."""
    claim = await lab.running()
    binding = Binding(id=fresh_id(lab), key=GO, use=WaitpointUse.EITHER, lasting=True)
    ticket = await pending(lab, claim, id=binding.id, lasting=True)
    await signal(lab, claim.id, ticket)
    assert (await suspend(lab, claim, wait_on(lab, GO, binding))).satisfied
    other = replace(binding, id=fresh_id(lab))
    assert not (await suspend(lab, claim, wait_on(lab, GO, other))).satisfied


# -- how they close


async def test_one_sweep_closes_a_waitpoint_and_wakes_its_execution(lab: Lab) -> None:
    """INV-18: every timer that is due acts, also where one execution has two of them"""
    claim = await lab.running()
    await pending(lab, claim, expires_in=Millis(1_000))
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 1_000))
    assert await open_keys(lab, claim.id) == [GO]
    await lab.pass_time(1_000)
    assert await lab.state(claim.id) is PublicState.WAITING
    assert await open_keys(lab, claim.id) == []
    assert (await lab.claim_one()).id == claim.id


async def test_an_unused_waitpoint_is_closed_by_the_sweep(lab: Lab) -> None:
    """INV-13: while the attempt goes on; nothing else happens to it."""
    claim = await lab.running()
    ticket = await pending(lab, claim, expires_in=Millis(1_000))
    lasting = await pending(lab, claim, "lasting", lasting=True)
    await lab.pass_time(999)
    assert len(await open_keys(lab, claim.id)) == 2
    lab.clock.advance(1)
    with pytest.raises(WaitpointClosed):
        await signal(lab, claim.id, ticket)
    await lab.pass_time(0)
    assert await open_keys(lab, claim.id) == [lasting.key]
    with pytest.raises(WaitpointClosed):
        await signal(lab, claim.id, ticket)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.complete(claim)


@pytest.mark.parametrize("how", ["suspended", "delayed", "lost"])
async def test_a_waitpoint_runs_out_in_any_state(lab: Lab, how: str) -> None:
    """INV-13: one that outlives the attempt."""
    claim = await lab.running()
    ticket = await pending(lab, claim, "door", expires_in=4 * MINUTE, lasting=True)
    if how == "suspended":
        await suspend(lab, claim)
    elif how == "delayed":
        await lab.engine.attempts.delay(claim, in_(lab, 60 * MINUTE))
    else:
        await lab.lose(claim)
    state = await lab.state(claim.id)
    assert "door" in await open_keys(lab, claim.id)
    await lab.pass_time(4 * MINUTE)
    assert "door" not in await open_keys(lab, claim.id)
    assert await lab.engine.suspensions.token(claim.id, ticket.id) is None
    assert await lab.state(claim.id) is state


@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
async def test_every_waitpoint_closes_with_the_execution(lab: Lab, how: str) -> None:
    claim = await lab.running()
    mine = await pending(lab, claim)
    lasting = await pending(lab, claim, "lasting", lasting=True)
    if how == "complete":
        await lab.complete(claim)
    elif how == "fail":
        await lab.fail(claim, "permanent")
    else:
        await lab.engine.executions.cancel(claim.id, reason="enough")
    assert await open_keys(lab, claim.id) == []
    for ticket in (mine, lasting):
        assert await lab.engine.suspensions.token(claim.id, ticket.id) is None
        closing = await lab.engine.suspensions.close_waitpoint(claim.id, ticket.id)
        assert closing == AlreadySatisfied("already_closed")


@pytest.mark.parametrize("how", ["retry", "reclaim"])
async def test_a_waitpoint_closes_with_its_attempt_unless_it_lasts(lab: Lab, how: str) -> None:
    """INV-13: what came to a lasting one is there for the next attempt."""
    claim = await take(lab, await lab.submit(policy=RETRY_AT_ONCE))
    mine = await pending(lab, claim, "mine")
    lasting = await pending(lab, claim, "lasting", lasting=True)
    await signal(lab, claim.id, mine)
    await signal(lab, claim.id, lasting, payload=b"kept")
    if how == "retry":
        await lab.fail(claim)
    else:
        await lab.lose(claim)
    assert await open_keys(lab, claim.id) == ["lasting"]
    with pytest.raises(WaitpointClosed):
        await signal(lab, claim.id, mine)
    again = await lab.claim_one(W2)
    assert again.attempt == 1
    with pytest.raises(WaitpointNotPending):
        await suspend(lab, again, wait_at(mine))
    assert (await suspend(lab, again, wait_at(lasting))).satisfied
    [heard] = await lab.engine.suspensions.observe(again)
    assert heard.payload == b"kept"


async def test_a_waitpoint_stays_open_while_its_attempt_is_only_interrupted(lab: Lab) -> None:
    claim = await lab.running()
    ticket = await pending(lab, claim)
    await lab.engine.attempts.hand_back(claim)
    await signal(lab, claim.id, ticket)
    assert (await suspend(lab, await lab.claim_one(W2), wait_at(ticket))).satisfied


async def test_closing_a_waitpoint_is_final(lab: Lab) -> None:
    """INV-13: pending or active; the second time there is nothing to do."""
    claim = await lab.running()
    ticket = await pending(lab, claim, "early")
    close = lab.engine.suspensions.close_waitpoint
    assert await close(claim.id, ticket.id) == WaitpointsClosed((ticket.id,))
    assert await close(claim.id, ticket.id) == AlreadySatisfied("already_closed")
    answer = await suspend(lab, claim)
    assert await close(claim.id, answer.primary.id) == WaitpointsClosed((answer.primary.id,))
    for closed in (ticket, answer.primary):
        with pytest.raises(WaitpointClosed):
            await signal(lab, claim.id, closed)
    assert await open_keys(lab, claim.id) == []
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await lab.engine.executions.resume(claim.id)
    assert await lab.state(claim.id) is PublicState.WAITING


async def test_only_a_waitpoint_of_this_execution_can_be_closed(lab: Lab) -> None:
    claim, other = await lab.running(), await lab.running()
    ticket = await pending(lab, claim)
    close = lab.engine.suspensions.close_waitpoint
    for id, waitpoint in [(other.id, ticket.id), (claim.id, fresh_id(lab))]:
        with pytest.raises(NotFound):
            await close(id, waitpoint)
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await close(id, ticket.id)
    assert await open_keys(lab, claim.id) == [GO]


# -- binding one that was just made


def at(id: UUID, use: WaitpointUse) -> Wait:
    return Wait(condition=Single(GO), bindings=(Binding(id=id, key=GO, use=use),))


@pytest.mark.parametrize("use", [WaitpointUse.PENDING, WaitpointUse.EITHER])
async def test_a_suspend_at_a_waitpoint_that_was_just_made_reads_nothing_beside(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch, use: WaitpointUse
) -> None:
    made = await lab.engine.suspensions.make_waitpoint(await lab.running(), GO, lasting=True)
    assert made.claim is not None
    monkeypatch.setattr(store, "load_needs", None)
    answer = await suspend(lab, made.claim, at(made.waitpoint.id, use))
    assert not answer.satisfied
    assert [ticket.id for ticket in answer.waitpoints] == [made.waitpoint.id]
    monkeypatch.undo()
    sent = await signal(lab, made.claim.id, answer.primary)
    assert isinstance(sent, Accepted)
    assert sent.effect is Effect.SATISFIED


@pytest.mark.parametrize("use", [WaitpointUse.PENDING, WaitpointUse.EITHER])
async def test_a_suspend_that_reads_nothing_misses_no_signal(
    lab: Lab, second_lab: Lab, use: WaitpointUse
) -> None:
    """The signal comes by another process, so that the claim is out of date"""
    made = await lab.engine.suspensions.make_waitpoint(await lab.running(), GO, lasting=True)
    assert made.claim is not None
    [ticket] = await lab.engine.suspensions.tickets((made.waitpoint,))
    await signal(second_lab, made.claim.id, ticket)
    answer = await suspend(lab, made.claim, at(made.waitpoint.id, use))
    assert answer.satisfied


@pytest.mark.parametrize("use", [WaitpointUse.PENDING, WaitpointUse.EITHER])
async def test_a_suspend_that_reads_nothing_sees_that_the_waitpoint_was_closed(
    lab: Lab, second_lab: Lab, use: WaitpointUse
) -> None:
    made = await lab.engine.suspensions.make_waitpoint(await lab.running(), GO, lasting=True)
    assert made.claim is not None
    await second_lab.engine.suspensions.close_waitpoint(made.claim.id, made.waitpoint.id)
    with pytest.raises(WaitpointNotPending):
        await suspend(lab, made.claim, at(made.waitpoint.id, use))
