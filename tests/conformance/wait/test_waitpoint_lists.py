"""What can be seen of waiting: open waitpoints, their tokens, suspended executions, signals heard.
Also the ways an interrupted attempt is taken up again."""

import pytest

from flowfabric.core.base.errors import (
    GrantExpired,
    Invalid,
    InvalidGrant,
    NotFound,
    NotLeaseable,
    NotResumed,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.condition.codec import read_condition
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    OperatorOnly,
    Single,
    TimeoutOnly,
    all_waitpoints,
)
from flowfabric.core.wait.model import Terms
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.owners import FORMS, every_form
from tests.kit.situations import missing_ids, take
from tests.kit.waits import GO, create_waitpoint, fresh_id, in_, named, signal, suspend, wait_on


async def suspended(lab: Lab, condition: Condition | str = GO) -> Claim:
    claim = await take(lab, await lab.submit())
    await suspend(lab, claim, wait_on(lab, condition, timeout_at=in_(lab, 3_600_000)))
    return claim


async def resumed(lab: Lab) -> Claim:
    """The claim of an attempt that was suspended and may go on."""
    claim = await suspended(lab)
    await lab.engine.executions.resume(claim.id)
    return claim


# -- open waitpoints


async def test_an_active_waitpoint_shows_everything_but_its_token(lab: Lab) -> None:
    """E-T246, E-T247"""
    claim = await lab.running()
    lab.clock.advance(500)
    at = in_(lab, 5_000)
    answer = await suspend(lab, claim, wait_on(lab, named("yes"), timeout_at=at))
    [seen] = await lab.engine.suspensions.waitpoints(claim.id)
    token = answer.primary.token
    assert token is not None
    assert (seen.id, seen.execution, seen.key) == (answer.primary.id, claim.id, GO)
    assert (seen.state, seen.required_signal_names) == ("active", ("yes",))
    assert (seen.created_at, seen.activated_at) == (lab.clock.now(), lab.clock.now())
    assert (seen.expires_at, seen.terms) == (at, None)
    assert (seen.token_kid, seen.token_fingerprint) == (token.kid, token.fingerprint)
    assert len(seen.token_fingerprint) == 16
    assert int(seen.token_fingerprint, 16) >= 0
    digits = token.reveal().partition(":")[2]
    assert digits not in repr(seen)


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        (named("yes"), {GO: ("yes",)}),
        (Single(GO), {GO: ()}),
        (AnyTrue((named("no"), named("yes"), named("no"))), {GO: ("no", "yes")}),
        (AnyTrue((named("a1", "a"), named("b1", "b"))), {"a": ("a1",), "b": ("b1",)}),
        (all_waitpoints("a", "b"), {"a": (), "b": ()}),
        (AllTrue((Single(GO), named("yes"))), {GO: ("yes",)}),
        (Count(2, CountKind.SIGNALS, ("a", "b"), ByName("n")), {"a": ("n",), "b": ("n",)}),
        (OperatorOnly(), {GO: ("__operator_only__",)}),
        (TimeoutOnly(), {GO: ("__timeout_only__",)}),
    ],
)
async def test_the_names_a_waitpoint_waits_for(
    lab: Lab, condition: Condition, names: dict[str, tuple[str, ...]]
) -> None:
    """E-T247: by name each once in their order; none means any signal."""
    claim = await suspended(lab, condition)
    found = await lab.engine.suspensions.waitpoints(claim.id)
    assert {item.key: item.required_signal_names for item in found} == names


@pytest.mark.inside
async def test_a_condition_is_read_once_for_all_its_waitpoints(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-T247: a run may wait at a thousand, and the list of them must not hold up other calls"""
    read = []

    def counted(members: object) -> Condition:
        read.append(members)
        return read_condition(members)

    monkeypatch.setattr("flowfabric.core.wait.waitpoint.read_condition", counted)
    claim = await suspended(lab, AllTrue((named("a1", "a"), named("b1", "b"), Single("c"))))
    found = await lab.engine.suspensions.waitpoints(claim.id)
    names = {item.key: item.required_signal_names for item in found}
    assert (names, len(read)) == ({"a": ("a1",), "b": ("b1",), "c": ()}, 1)


async def test_waitpoints_are_read_page_by_page(lab: Lab) -> None:
    """E-T246: by id, the cursor itself left out; active and pending ones together."""
    claim = await lab.running()
    early = await create_waitpoint(lab, claim, "pending", lasting=True)
    keys = [f"k{number}" for number in range(5)]
    answer = await suspend(lab, claim, wait_on(lab, all_waitpoints(*keys)))
    ids = sorted([early.id, *(ticket.id for ticket in answer.waitpoints)])
    listed = lab.engine.suspensions.waitpoints
    everything = await listed(claim.id)
    assert [item.id for item in everything] == ids
    assert {item.key: item.state for item in everything}["pending"] == "pending"
    first = await listed(claim.id, limit=4)
    second = await listed(claim.id, after=first[-1].id, limit=4)
    assert [item.id for item in [*first, *second]] == ids
    assert await listed(claim.id, after=second[-1].id) == []


async def test_at_least_one_waitpoint_and_at_most_a_thousand_are_shown(lab: Lab) -> None:
    """E-T246: the limit is moved into its bounds."""
    claim = await suspended(lab, all_waitpoints("a", "b"))
    listed = lab.engine.suspensions.waitpoints
    for limit in (0, -5):
        assert len(await listed(claim.id, limit=limit)) == 1
    assert len(await listed(claim.id, limit=1_000_000)) == 2
    with pytest.raises(Invalid):
        await listed(claim.id, limit="many")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await listed(claim.id, after="no uuid")  # type: ignore[arg-type]


async def test_a_waitpoint_that_has_expired_is_not_shown(lab: Lab) -> None:
    """3.40 beside 3.41: what is shown has a token, and takes signals. E-T248"""
    claim = await take(lab, await lab.submit())
    made = await create_waitpoint(lab, claim, "soon", expires_in=Millis(1_000))
    lab.clock.advance(999)
    assert [each.id for each in await lab.engine.suspensions.waitpoints(claim.id)] == [made.id]
    lab.clock.advance(1)  # the sweep has not closed it yet
    assert await lab.engine.suspensions.token(claim.id, made.id) is None
    assert await lab.engine.suspensions.waitpoints(claim.id) == []


async def test_waitpoints_of_nothing(lab: Lab) -> None:
    """E-T246: none for one that never waited, an error for one that does not exist."""
    claim = await lab.running()
    assert await lab.engine.suspensions.waitpoints(claim.id) == []
    for id in await missing_ids(lab):
        with pytest.raises(NotFound) as refusal:
            await lab.engine.suspensions.waitpoints(id)
        assert refusal.value.entity == "execution"


async def test_the_terms_of_an_approval_are_shown(lab: Lab) -> None:
    claim = await lab.running()
    terms = Terms(about="sha256:1", decisions=("approve", "reject"), approvers=("ann",))
    await create_waitpoint(lab, claim, "approval", terms=terms)
    [seen] = await lab.engine.suspensions.waitpoints(claim.id)
    assert seen.terms == terms


# -- tokens


async def test_the_token_of_an_open_waitpoint_can_be_read(lab: Lab) -> None:
    """E-T249: pending or active, always the same one."""
    claim = await lab.running()
    pending = await create_waitpoint(lab, claim, "early")
    answer = await suspend(lab, claim)
    for ticket in (pending, answer.primary):
        assert ticket.token is not None
        assert await lab.engine.suspensions.token(claim.id, ticket.id) == ticket.token


async def test_there_is_no_token_of_what_is_closed_or_not_there(lab: Lab) -> None:
    """E-T249: unknown, of another execution, closed by a signal, ended, missing."""
    claim, other = await lab.running(), await lab.running()
    answer = await suspend(lab, claim)
    token, id = lab.engine.suspensions.token, answer.primary.id
    assert await token(claim.id, fresh_id(lab)) is None
    assert await token(other.id, id) is None
    for missing in await missing_ids(lab):
        assert await token(missing, id) is None
    await signal(lab, claim.id, answer.primary)
    assert await token(claim.id, id) is None
    pending = await create_waitpoint(lab, other, GO, lasting=True)
    await lab.complete(other)
    assert await token(other.id, pending.id) is None


# -- suspended executions


async def test_suspended_executions_are_listed_by_how_long_they_wait(lab: Lab) -> None:
    """E-T245: ascending, with their reasons, page by page; the last page is empty."""
    ids: list[ExecutionId] = []
    for reason in ("waiting_for_signal", "", "my own"):
        claim = await lab.running()
        await suspend(lab, claim, reason=reason)
        ids.append(claim.id)
        lab.clock.advance(10)
    listed = lab.engine.suspensions.suspended
    found = await listed()
    assert [item.id for item in found] == ids
    assert [item.reason for item in found] == ["waiting_for_signal", "", "my own"]
    assert [found[0].since + 10, found[0].since + 20] == [found[1].since, found[2].since]
    assert {(item.namespace, item.due_at) for item in found} == {("default", None)}
    first = await listed(limit=2)
    second = await listed(limit=2, after=(first[-1].since, first[-1].id))
    assert [item.id for item in [*first, *second]] == ids
    assert await listed(after=(second[-1].since, second[-1].id)) == []
    assert await listed(limit=0) == []


async def test_suspended_at_the_same_moment_none_is_lost_between_pages(lab: Lab) -> None:
    """E-T245"""
    expected = {(await suspended(lab)).id for _ in range(5)}
    found: list[ExecutionId] = []
    after = None
    while page := await lab.engine.suspensions.suspended(limit=2, after=after):
        found += [item.id for item in page]
        after = (page[-1].since, page[-1].id)
    assert len(found) == 5
    assert set(found) == expected


async def test_what_is_no_longer_suspended_is_not_listed(lab: Lab) -> None:
    """E-T245, FLAW-6"""
    claims = [await suspended(lab) for _ in range(3)]
    await lab.engine.executions.resume(claims[0].id)
    await lab.engine.executions.cancel(claims[1].id, reason="enough")
    assert [item.id for item in await lab.engine.suspensions.suspended()] == [claims[2].id]


async def test_suspended_executions_of_one_namespace(lab: Lab) -> None:
    """E-T245"""
    for namespace in ("blue", "red", "blue"):
        claim = await take(lab, await lab.submit(namespace=namespace))
        await suspend(lab, claim)
    listed = lab.engine.suspensions.suspended
    assert [item.namespace for item in await listed(namespace="blue")] == ["blue", "blue"]
    assert await listed(namespace="green") == []
    assert len(await listed()) == 3


@pytest.mark.rules
async def test_a_cursor_that_is_none_is_refused(lab: Lab) -> None:
    for cursor in ("x", (1,), (-1, "x"), (Millis(1), "x"), 7):
        with pytest.raises(Invalid):
            await lab.engine.suspensions.suspended(after=cursor)  # type: ignore[arg-type]


# -- signals heard


@every_form
async def test_an_attempt_observes_what_satisfied_its_last_suspension(lab: Lab, form: str) -> None:
    """All satisfiers in the order they came, and nothing that did not count."""
    claim = await lab.running()
    both = AnyTrue((named("a", GO), named("b", GO)))
    answer = await suspend(lab, claim, wait_on(lab, both))
    await signal(lab, claim.id, answer.primary, "noise")
    members = {"category": "c", "source_type": "user", "source": "ann", "correlation": "7"}
    await signal(lab, claim.id, answer.primary, "b", **members)
    again = await lab.claim_one(W2)
    [heard] = await lab.engine.suspensions.observe(FORMS[form](lab, again))
    assert (heard.name, heard.category, heard.source_type) == ("b", "c", "user")
    assert (heard.source, heard.correlation, heard.payload) == ("ann", "7", None)
    assert heard.accepted_at == lab.clock.now()


async def test_only_the_last_suspension_of_this_attempt_is_observed(lab: Lab) -> None:
    claim = await lab.running()
    assert await lab.engine.suspensions.observe(claim) == []
    for payload in (b"1", b""):
        answer = await suspend(lab, claim)
        await signal(lab, claim.id, answer.primary, payload=payload)
        claim = await lab.claim_one()
        [heard] = await lab.engine.suspensions.observe(claim)
        assert heard.payload == payload
    await lab.lose(claim)
    assert await lab.engine.suspensions.observe(await lab.claim_one(W2)) == []
    for id in await missing_ids(lab):
        assert await lab.engine.suspensions.observe(FencedExecution(id, claim.owner)) == []


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_an_attempt_that_has_ended_observes_what_resumed_it(lab: Lab, end: str) -> None:
    """§3.37: of the last suspension of the attempt, whatever became of the attempt."""
    claim = await lab.running()
    answer = await suspend(lab, claim)
    await signal(lab, claim.id, answer.primary, "first")
    again = await lab.claim_one()
    if end == "cancel":
        await lab.engine.executions.cancel(claim.id, reason="enough")
    else:
        await (lab.complete if end == "complete" else lab.fail)(again)
    assert [heard.name for heard in await lab.engine.suspensions.observe(again)] == ["first"]
    await lab.engine.executions.replay(claim.id)
    assert await lab.engine.suspensions.observe(await lab.claim_one()) == []


async def test_nothing_is_observed_of_a_suspension_that_ended_with_its_execution(lab: Lab) -> None:
    """§3.37: the last one was not resumed, though one before it was."""
    claim = await lab.running()
    answer = await suspend(lab, claim)
    await signal(lab, claim.id, answer.primary)
    again = await lab.claim_one()
    await suspend(lab, again)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    assert await lab.engine.suspensions.observe(again) == []


# -- taking it up again


async def test_a_resume_grant_continues_the_attempt(lab: Lab) -> None:
    """E-T236, E-T238, E-T243: same attempt, higher epoch, the lease id that was asked for."""
    claim = await resumed(lab)
    await lab.engine.grants.issue(claim.id, W2.id)
    lease_id = fresh_id(lab)
    again = await lab.engine.grants.claim_resumed(claim.id, W2, ttl=TTL, lease_id=lease_id)
    assert (again.attempt, again.attempt_id) == (0, claim.attempt_id)
    assert (again.epoch, again.lease.id) == (2, lease_id)
    assert again.handle_kind is HandleKind.RESUMED
    assert again.expires_at == in_(lab, TTL)
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_a_resume_grant_runs_out(lab: Lab) -> None:
    """E-T239"""
    claim = await resumed(lab)
    await lab.engine.grants.issue(claim.id, W1.id, ttl=Millis(50))
    lab.clock.advance(51)
    with pytest.raises(GrantExpired):
        await lab.engine.grants.claim_resumed(claim.id, W1)
    assert await lab.state(claim.id) is PublicState.WAITING


async def test_a_resume_grant_is_for_one_worker_and_one_use(lab: Lab) -> None:
    """E-T240, E-T242, §3.9: the second redemption finds it with its worker, not leaseable."""
    claim = await resumed(lab)
    await lab.engine.grants.issue(claim.id, W1.id)
    with pytest.raises(InvalidGrant):
        await lab.engine.grants.claim_resumed(claim.id, W2)
    again = await lab.engine.grants.claim_resumed(claim.id, W1)
    assert again.epoch == 2
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.claim_resumed(claim.id, W1)


async def test_only_what_was_resumed_can_be_continued(lab: Lab) -> None:
    """E-T237, E-T241: neither a fresh execution nor one that is still suspended."""
    id = await lab.submit()
    await lab.engine.grants.issue(id, W1.id)
    with pytest.raises(NotResumed):
        await lab.engine.grants.claim_resumed(id, W1)
    claim = await suspended(lab)
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.claim_resumed(claim.id, W1)
