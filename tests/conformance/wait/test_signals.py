"""Signals that are accepted: what each one does, what is kept of it, what is told of it.

E-T262 to E-T264, E-T269 to E-T271, E-T336, INV-13, INV-14; §3.34, §3.35, §3.37, FLAW-18, FLAW-19,
FLAW-27, FLAW-28.
"""

from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import PayloadTooLarge, SignalLimitExceeded, WaitpointClosed
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.model import AttemptOutcome, Start
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.condition.model import (
    AllTrue,
    ByName,
    Count,
    CountKind,
    OperatorOnly,
    Single,
    TimeoutOnly,
)
from flowfabric.core.wait.model import Behaviour, Effect, ReceivedSignal, ResumePolicy
from flowfabric.core.wait.signal import DEDUP_TTL, MAX_SIGNAL_PAYLOAD, Accepted, DuplicateSignal
from tests.kit.lab import W2, Lab
from tests.kit.race import kinds
from tests.kit.signalling import deliver, effect, fresh, kept, names, waiting
from tests.kit.situations import completions, described, load
from tests.kit.waits import create_waitpoint, in_, named, suspend, wait_at, wait_on

TWO = AllTrue((named("a"), named("b")))


# -- what a signal does


async def test_a_signal_resumes_what_waits_for_it(lab: Lab) -> None:
    """E-T250, E-T262: runnable and waiting, the same attempt goes on"""
    claim, answer = await waiting(lab, named("done"))
    sent = await deliver(lab, claim.id, answer.primary, "done")
    assert isinstance(sent, Accepted)
    assert (sent.effect, sent.number) == (Effect.SATISFIED, 1)
    seen = await described(lab, claim.id)
    assert (seen.state, seen.vector.attempt) == (PublicState.WAITING, "attempt_interrupted")
    assert (await load(lab, claim.id)).alarm_at is None
    again = await lab.claim_one(W2)
    assert (again.attempt, again.epoch, again.lease.start) == (0, 2, Start.CONTINUE)
    await lab.complete(again)
    (attempt,) = await lab.engine.views.attempts(claim.id)
    assert attempt.outcome is AttemptOutcome.SUCCESS


async def test_a_signal_of_another_name_is_recorded_and_does_not_count(lab: Lab) -> None:
    """D-4, names are compared exactly"""
    claim, answer = await waiting(lab, named("done"))
    for name in ("Done", "done ", "donee", "don"):
        assert await effect(lab, claim.id, answer.primary, name) is Effect.NO_OP
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert await effect(lab, claim.id, answer.primary, "done") is Effect.SATISFIED
    assert await names(lab, claim.id) == ["Done", "done ", "donee", "don", "done"]
    found = await kept(lab, claim.id)
    assert [heard.suspension for heard in found] == [None] * 4 + [answer.suspension]


async def test_no_signal_ends_what_waits_for_an_operator_or_a_timeout(lab: Lab) -> None:
    for condition in (OperatorOnly(), TimeoutOnly()):
        claim, answer = await waiting(lab, condition, timeout_at=in_(lab, 1_000))
        for _ in range(2):
            given = await effect(lab, claim.id, answer.primary)
            assert given is Effect.NOT_IN_CONDITION
        assert await lab.state(claim.id) is PublicState.SUSPENDED
        await lab.engine.executions.cancel(claim.id, reason="enough")


async def test_every_effect_of_a_composite_condition(lab: Lab) -> None:
    """§4.4; the signal is recorded, counted and told in all of them"""
    claim, answer = await waiting(lab, TWO)
    names = ["c", "a", "a", "b"]
    effects = [await effect(lab, claim.id, answer.primary, name) for name in names]
    assert effects == [Effect.MATCHER_FAILED, Effect.APPENDED, Effect.REPEATED, Effect.SATISFIED]
    found = await kept(lab, claim.id)
    assert [heard.signal.number for heard in found] == [1, 2, 3, 4]
    assert [heard.signal.effect for heard in found] == effects
    assert [bool(heard.suspension) for heard in found] == [False, True, False, True]
    told = await lab.events(claim.id, family=Family.SIGNAL)
    assert [(event.detail or {})["effect"] for event in told] == effects


async def test_a_signal_at_a_waitpoint_outside_the_condition_is_ignored(lab: Lab) -> None:
    """§4.4: a pending one nobody waits at is kept for later instead"""
    claim = await lab.running()
    aside = await create_waitpoint(lab, claim, "aside")
    await suspend(lab, claim)
    assert await effect(lab, claim.id, aside) is Effect.BUFFERED
    assert await lab.state(claim.id) is PublicState.SUSPENDED


# -- what is told


async def test_a_signal_event_says_which_where_who_and_what(lab: Lab) -> None:
    """E-T264, E-T336: one event for each, the effect as it really was; a cursor continues"""
    claim, answer = await waiting(lab, named("done"))
    first = await deliver(lab, claim.id, answer.primary, "other", source="ann")
    at = lab.clock.advance(5)
    second = await deliver(lab, claim.id, answer.primary, "done", source="bob")
    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    told = await lab.events(claim.id, family=Family.SIGNAL)
    assert [event.kind for event in told] == [EventKind.SIGNALLED] * 2
    assert told[0].detail == {
        "signal": str(first.signal),
        "waitpoint": str(answer.primary.id),
        "name": "other",
        "source": "ann",
        "effect": "no_op",
    }
    detail = told[1].detail or {}
    assert detail["signal"] == str(second.signal)
    assert detail["effect"] == "resume_condition_satisfied"
    assert (told[1].id, told[1].at, told[1].attempt) == (claim.id, at, 0)
    assert await lab.events(claim.id, family=Family.SIGNAL, after=told[0].seq) == told[1:]


async def test_a_resume_is_no_completion(lab: Lab) -> None:
    """FLAW-18: nothing has ended"""
    claim, answer = await waiting(lab)
    await deliver(lab, claim.id, answer.primary)
    assert await completions(lab, claim.id) == []
    assert await kinds(lab, claim.id) == [
        EventKind.CLAIMED,
        EventKind.SUSPENDED,
        EventKind.SIGNALLED,
    ]


async def test_signal_events_are_told_to_the_readers_of_their_namespace_only(lab: Lab) -> None:
    """E-T337, FLAW-19"""
    claim = await lab.running(namespace="mine", tags={"cairn.instance_id": "i1"})
    answer = await suspend(lab, claim)
    await deliver(lab, claim.id, answer.primary)
    read = lab.engine.events.read
    assert len((await read(namespace="mine", family=Family.SIGNAL)).events) == 1
    assert (await read(namespace="other", family=Family.SIGNAL)).events == ()
    tag = ("cairn.instance_id", "i1")
    assert len((await read(tag=tag, family=Family.SIGNAL)).events) == 1


# -- repeats


async def test_a_repeated_key_is_a_duplicate_of_the_first(lab: Lab) -> None:
    """E-T263, E-T285: still suspended, nothing recorded, nothing told"""
    claim, answer = await waiting(lab, Count(2, CountKind.SIGNALS, ("go",)))
    first = await deliver(lab, claim.id, answer.primary, idempotency_key="k")
    assert isinstance(first, Accepted)
    repeat = await deliver(lab, claim.id, answer.primary, idempotency_key="k")
    assert repeat == DuplicateSignal(first.signal)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert len(await kept(lab, claim.id)) == 1
    assert len(await lab.events(claim.id, family=Family.SIGNAL)) == 1
    other = await deliver(lab, claim.id, answer.primary, idempotency_key="K")
    assert isinstance(other, Accepted)
    assert other.effect is Effect.SATISFIED


async def test_a_repeated_signal_id_is_a_duplicate(lab: Lab) -> None:
    """INV-14: with another key, another name, another payload"""
    claim, answer = await waiting(lab, Count(2, CountKind.SIGNALS, ("go",)))
    id = fresh()
    await deliver(lab, claim.id, answer.primary, id=id, idempotency_key="k")
    lab.clock.advance(30 * DEDUP_TTL)
    several: list[dict[str, Any]] = [
        {},
        {"idempotency_key": "other"},
        {"name": "x"},
        {"payload": b"x"},
    ]
    for changes in several:
        repeat = await deliver(lab, claim.id, answer.primary, **{"id": id, **changes})
        assert repeat == DuplicateSignal(id)
    assert len(await kept(lab, claim.id)) == 1


@pytest.mark.parametrize("by", ["key", "id"])
async def test_the_signal_that_satisfied_is_a_duplicate_when_repeated(lab: Lab, by: str) -> None:
    """E-X16: whatever became of the execution meanwhile"""
    claim, answer = await waiting(lab)
    id = fresh()

    async def repeat() -> object:
        members: dict[str, Any] = {"id": id} if by == "id" else {"idempotency_key": "k"}
        return await deliver(lab, claim.id, answer.primary, **members)

    await deliver(lab, claim.id, answer.primary, id=id, idempotency_key="k")
    assert await repeat() == DuplicateSignal(id)
    again = await lab.claim_one()
    assert await repeat() == DuplicateSignal(id)
    await lab.complete(again)
    assert await repeat() == DuplicateSignal(id)
    assert len(await kept(lab, claim.id)) == 1


async def test_an_empty_key_is_no_key(lab: Lab) -> None:
    """§1.9"""
    claim, answer = await waiting(lab, Count(2, CountKind.SIGNALS, ("go",)))
    for expected in (Effect.APPENDED, Effect.SATISFIED):
        assert await effect(lab, claim.id, answer.primary, idempotency_key="") is expected


async def test_a_key_belongs_to_its_waitpoint(lab: Lab) -> None:
    """§1.9: the same key and the same signal id at another waitpoint are another signal"""
    claim, answer = await waiting(lab, AllTrue((Single("a"), Single("b"))))
    id = fresh()
    one, other = answer.waitpoints
    assert await effect(lab, claim.id, one, id=id, idempotency_key="k") is Effect.APPENDED
    assert await effect(lab, claim.id, other, id=id, idempotency_key="k") is Effect.SATISFIED


@pytest.mark.parametrize("ttl", [1, 1_000, DEDUP_TTL])
async def test_a_key_is_free_again_when_its_window_is_over(lab: Lab, ttl: int) -> None:
    claim, answer = await waiting(lab, Count(3, CountKind.SIGNALS, ("go",)))
    members: dict[str, Any] = {"idempotency_key": "k", "dedup_ttl": Millis(ttl)}
    await deliver(lab, claim.id, answer.primary, **members)
    lab.clock.advance(ttl - 1)
    assert isinstance(await deliver(lab, claim.id, answer.primary, **members), DuplicateSignal)
    lab.clock.advance(1)
    assert await effect(lab, claim.id, answer.primary, **members) is Effect.APPENDED
    repeat = await deliver(lab, claim.id, answer.primary, **members)
    newest = (await kept(lab, claim.id))[-1].signal.id
    assert repeat == DuplicateSignal(newest)


async def test_a_window_of_no_time_lets_everything_through(lab: Lab) -> None:
    claim, answer = await waiting(lab, Count(2, CountKind.SIGNALS, ("go",)))
    for expected in (Effect.APPENDED, Effect.SATISFIED):
        given = await effect(
            lab, claim.id, answer.primary, idempotency_key="k", dedup_ttl=Millis(0)
        )
        assert given is expected


# -- limits


async def test_more_signals_than_the_limit_are_refused(lab: Lab) -> None:
    """§3.34 check 14: a duplicate is told first, 0 means no limit"""
    claim, answer = await waiting(lab, named("never"))
    for _ in range(3):
        await deliver(lab, claim.id, answer.primary, max_signals=3, idempotency_key=None)
    id = (await kept(lab, claim.id))[0].signal.id
    with pytest.raises(SignalLimitExceeded):
        await deliver(lab, claim.id, answer.primary, max_signals=3)
    repeat = await deliver(lab, claim.id, answer.primary, max_signals=3, id=id)
    assert repeat == DuplicateSignal(id)
    assert await effect(lab, claim.id, answer.primary, max_signals=0) is Effect.NO_OP
    assert await effect(lab, claim.id, answer.primary, max_signals=5) is Effect.NO_OP
    assert len(await kept(lab, claim.id)) == 5


async def test_the_limit_counts_every_signal_of_the_execution(lab: Lab) -> None:
    """Buffered ones and those of earlier suspensions too"""
    claim = await lab.running()
    aside = await create_waitpoint(lab, claim, "aside")
    await deliver(lab, claim.id, aside)
    answer = await suspend(lab, claim)
    await deliver(lab, claim.id, answer.primary)
    again = await lab.claim_one()
    answer = await suspend(lab, again)
    with pytest.raises(SignalLimitExceeded):
        await deliver(lab, claim.id, answer.primary, max_signals=2)
    assert await effect(lab, claim.id, answer.primary, max_signals=3) is Effect.SATISFIED


async def test_the_engine_s_own_signals_do_not_count_against_the_limit(lab: Lab) -> None:
    """§3.34 check 14: a timeout has a number, but nobody sent it"""
    claim = await lab.running()
    for _ in range(3):
        over = Millis(lab.clock.now() + 1_000)
        await suspend(lab, claim, wait_on(lab, timeout_at=over, behaviour=Behaviour.AUTO_RESUME))
        await lab.pass_time(1_000)
        claim = await lab.claim_one()
    answer = await suspend(lab, claim, wait_on(lab, named("never")))
    assert await effect(lab, claim.id, answer.primary, max_signals=1) is Effect.NO_OP
    with pytest.raises(SignalLimitExceeded, match="has accepted 1 of at most 1 signals"):
        await deliver(lab, claim.id, answer.primary, max_signals=1)
    assert [heard.signal.number for heard in await kept(lab, claim.id)] == [1, 2, 3, 4]


# -- payloads


@pytest.mark.parametrize("payload", [None, b"", b"{}", b"\0\xff", b"x" * MAX_SIGNAL_PAYLOAD])
async def test_a_payload_arrives_as_it_was_sent(lab: Lab, payload: bytes | None) -> None:
    """E-T271: an absent one stays absent, an empty one stays empty"""
    claim, answer = await waiting(lab)
    await deliver(lab, claim.id, answer.primary, payload=payload)
    (observed,) = await lab.engine.suspensions.observe(await lab.claim_one())
    assert observed.payload == payload


async def test_a_payload_of_more_than_256_kib_is_refused(lab: Lab) -> None:
    claim, answer = await waiting(lab)
    before = await load(lab, claim.id)
    with pytest.raises(PayloadTooLarge) as caught:
        await deliver(lab, claim.id, answer.primary, payload=b"x" * (MAX_SIGNAL_PAYLOAD + 1))
    assert (caught.value.size, caught.value.limit) == (262_145, 262_144)
    assert await load(lab, claim.id) == before


# -- the delay of a resume


@pytest.mark.parametrize(
    ("policy", "call", "delay"),
    [(None, None, 0), (None, 50, 50), (70, None, 70), (70, 50, 50), (70, 0, 0), (0, None, 0)],
)
async def test_the_delay_of_the_call_goes_before_that_of_the_policy(
    lab: Lab, policy: int | None, call: int | None, delay: int
) -> None:
    """§3.31, FLAW-52, FLAW-53: it is written down, and wakes by itself"""
    given = None if policy is None else Millis(policy)
    claim, answer = await waiting(lab, policy=ResumePolicy(resume_delay=given))
    assert await effect(lab, claim.id, answer.primary, delay=call) is Effect.SATISFIED
    if delay:
        seen = await described(lab, claim.id)
        assert seen.state is PublicState.DELAYED
        assert seen.vector.blocking == "waiting_for_resume_delay"
        await lab.pass_time(delay - 1)
        assert await lab.claim() == []
        await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.WAITING
    assert (await lab.claim_one()).id == claim.id


# -- buffering


async def test_a_signal_that_comes_before_the_suspension_is_kept(lab: Lab) -> None:
    """E-T257: the execution runs on, the suspend finds it"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    assert await effect(lab, claim.id, ticket, "early") is Effect.BUFFERED
    assert await lab.state(claim.id) is PublicState.ACTIVE
    answer = await suspend(lab, claim, wait_at(ticket, Single("go", ByName("early"))))
    assert answer.satisfied
    (observed,) = await lab.engine.suspensions.observe(claim)
    assert observed.name == "early"
    await lab.complete(claim)


async def test_a_repeat_of_a_buffered_signal_is_a_duplicate(lab: Lab) -> None:
    """Before the suspension, in it and after it"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    first = await deliver(lab, claim.id, ticket, "a", idempotency_key="k")
    assert isinstance(first, Accepted)
    expected = DuplicateSignal(first.signal)
    assert await deliver(lab, claim.id, ticket, "a", idempotency_key="k") == expected
    await suspend(lab, claim, wait_at(ticket, TWO))
    assert await deliver(lab, claim.id, ticket, "a", idempotency_key="k") == expected
    assert await effect(lab, claim.id, ticket, "b") is Effect.SATISFIED
    assert await deliver(lab, claim.id, ticket, "a", idempotency_key="k") == expected


async def test_buffering_ends_with_the_waitpoint(lab: Lab) -> None:
    """E-T260, INV-13: closed by hand, or run out"""
    claim = await lab.running()
    closed, brief = (
        await create_waitpoint(lab, claim, "a"),
        await create_waitpoint(lab, claim, "b", expires_in=Millis(10)),
    )
    await lab.engine.suspensions.close_waitpoint(claim.id, closed.id)
    lab.clock.advance(10)
    for ticket in (closed, brief):
        with pytest.raises(WaitpointClosed):
            await deliver(lab, claim.id, ticket)
    await lab.engine.sweep.once()
    with pytest.raises(WaitpointClosed):
        await deliver(lab, claim.id, brief)
    assert await kept(lab, claim.id) == []


async def test_a_closed_waitpoint_keeps_the_signals_it_had(lab: Lab) -> None:
    """FLAW-28"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "a")
    await deliver(lab, claim.id, ticket)
    await lab.engine.suspensions.close_waitpoint(claim.id, ticket.id)
    assert len(await kept(lab, claim.id)) == 1
    again = await create_waitpoint(lab, claim, "a")
    assert await effect(lab, claim.id, again) is Effect.BUFFERED
    assert not (await suspend(lab, claim)).satisfied


# -- what is kept


async def test_all_that_was_said_of_a_signal_is_kept(lab: Lab) -> None:
    """E-T269"""
    claim, answer = await waiting(lab)
    sent: dict[str, Any] = {
        "category": "callback",
        "source_type": "service",
        "source": "billing",
        "payload": b"{}",
        "encoding": "json",
        "correlation": "c-1",
        "idempotency_key": "k",
        "scope": "execution",
        "created_at": Millis(7),
    }
    at = lab.clock.advance(3)
    id = fresh()
    await deliver(lab, claim.id, answer.primary, "paid", id=id, **sent)
    (observed,) = await lab.engine.suspensions.observe(await lab.claim_one())
    assert {name: getattr(observed, name) for name in sent} == sent
    assert (observed.id, observed.name, observed.accepted_at) == (id, "paid", at)
    assert (observed.waitpoint, observed.key) == (answer.primary.id, "go")


async def test_the_signals_of_an_execution_are_listed_in_pages(lab: Lab) -> None:
    claim, answer = await waiting(lab, named("never"))
    ids: list[UUID] = []
    for _ in range(5):
        ids.append(fresh())
        await deliver(lab, claim.id, answer.primary, id=ids[-1])
    found: list[UUID] = []
    while page := await lab.engine.signals.of(claim.id, after=len(found), limit=2):
        found += [heard.signal.id for heard in page]
    assert found == ids
    assert await lab.engine.signals.of(claim.id, limit=0) == []


@pytest.mark.inside
@pytest.mark.parametrize("damaged", [None, 2])
async def test_a_handler_sees_the_signals_of_all_pages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, damaged: int | None
) -> None:
    """INV-13: one that cannot be read, so that its page is short, hides no other"""
    wanted, read = [f"s{number}" for number in range(1, 6)], lab.engine.store.signals

    async def readable(*args: Any, **query: Any) -> list[ReceivedSignal]:
        return [each for each in await read(*args, **query) if each.signal.number != damaged]

    monkeypatch.setattr(lab.engine.store, "signals", readable)
    monkeypatch.setattr("flowfabric.engine.wait.signals.MAX_PAGE", 4)
    claim, answer = await waiting(lab, AllTrue(tuple(map(named, wanted))))
    for name in wanted:
        await deliver(lab, claim.id, answer.primary, name)
    observed = await lab.engine.suspensions.observe(await lab.claim_one())
    assert [each.name for each in observed] == [name for name in wanted if name != f"s{damaged}"]
