"""What a request to suspend must look like; each fault is refused before the store is touched."""

from typing import Any

import pytest

from flowfabric.core.base.errors import AlreadySuspended, Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
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
    any_waitpoint,
)
from flowfabric.core.wait.model import ResumePolicy
from flowfabric.core.wait.request import (
    MAX_BINDINGS,
    PAST_TOLERANCE,
    Binding,
    Suspend,
    Wait,
    WaitpointUse,
)
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab
from tests.kit.owners import everything
from tests.kit.waits import GO, fresh_id, in_, suspend, wait_on

pytestmark = pytest.mark.rules

SECOND = 1_000


def bindings(lab: Lab, *keys: str, use: WaitpointUse = WaitpointUse.FRESH) -> tuple[Binding, ...]:
    return tuple(Binding(id=fresh_id(lab), key=key, use=use) for key in keys)


def wait(lab: Lab, condition: Condition, *keys: str, **members: Any) -> Wait:
    return Wait(condition=condition, bindings=bindings(lab, *keys), **members)


async def refusal(lab: Lab, claim: Claim, *waits: Wait, **members: Any) -> str:
    """What a request is refused with; nothing may have changed."""
    before = await everything(lab, claim.id)
    with pytest.raises(Invalid) as refused:
        await suspend(lab, claim, *waits, **members)
    assert await everything(lab, claim.id) == before
    assert await lab.engine.suspensions.waitpoints(claim.id) == []
    return refused.value.detail


async def test_a_handle_of_the_suspended_kind_is_refused_before_anything_else(lab: Lab) -> None:
    """E-T215: V1 comes first, whatever else is wrong."""
    claim = await lab.running()
    answer = await suspend(lab, claim)
    assert answer.handle is not None
    empty = Suspend(id=fresh_id(lab), waits=())
    with pytest.raises(AlreadySuspended):
        await lab.engine.suspensions.suspend(answer.handle, empty)


async def test_something_must_be_waited_for(lab: Lab) -> None:
    """V2"""
    claim = await lab.running()
    nothing = Suspend(id=fresh_id(lab), waits=())
    with pytest.raises(Invalid, match="waitpoints_empty"):
        await lab.engine.suspensions.suspend(claim, nothing)
    no_door = Wait(condition=Single(GO), bindings=())
    assert await refusal(lab, claim, no_door) == "waitpoints_empty"
    assert await refusal(lab, claim, wait_on(lab), no_door) == "waitpoints_empty"


async def test_a_single_condition_names_the_primary_waitpoint(lab: Lab) -> None:
    """E-T216"""
    claim = await lab.running()
    mismatch = wait(lab, Single("other"), GO)
    assert (await refusal(lab, claim, mismatch)).startswith("waitpoint_key_mismatch")


async def test_the_key_of_a_fresh_waitpoint_made_of_its_id(lab: Lab) -> None:
    """E-T219"""
    claim = await lab.running()
    id = fresh_id(lab)
    binding = Binding.fresh(id)
    assert binding.key == f"wpk:{id}"
    answer = await suspend(lab, claim, wait_on(lab, binding.key, binding))
    assert answer.primary.key == binding.key


async def test_a_waitpoint_needs_a_key(lab: Lab) -> None:
    """V4"""
    claim = await lab.running()
    nameless = wait(lab, OperatorOnly(), "")
    assert await refusal(lab, claim, nameless) == "waitpoint_key_empty"
    second = wait(lab, all_waitpoints("a", "b"), "a", "")
    found = await refusal(lab, claim, second)
    assert found == "additional_waitpoint_binding_empty_key: waitpoints[1]"


async def test_only_the_first_waitpoint_may_be_a_pending_one(lab: Lab) -> None:
    """V4"""
    claim = await lab.running()
    pending = bindings(lab, "c", use=WaitpointUse.PENDING)
    both = (*bindings(lab, "a", "b"), *pending)
    found = await refusal(lab, claim, Wait(condition=all_waitpoints("a", "b", "c"), bindings=both))
    assert found == "additional_waitpoint_binding_must_be_fresh: waitpoints[2]"


@pytest.mark.parametrize("keys", [("a",), ("a", "c")])
async def test_every_key_of_the_condition_has_a_waitpoint(lab: Lab, keys: tuple[str, ...]) -> None:
    """V5, also with a single waitpoint"""
    claim = await lab.running()
    found = await refusal(lab, claim, wait(lab, all_waitpoints("a", "b"), *keys))
    assert found == "referenced_waitpoint_key_missing_binding: b"


@pytest.mark.parametrize("keys", [("a", "x"), ("x", "a")])
async def test_every_waitpoint_is_named_by_the_condition(lab: Lab, keys: tuple[str, ...]) -> None:
    """V6, the primary one included"""
    claim = await lab.running()
    found = await refusal(lab, claim, wait(lab, AllTrue((Single("a"),)), *keys))
    assert found == "extra_binding_not_referenced_by_condition: x"


async def test_conditions_without_keys_have_one_waitpoint(lab: Lab) -> None:
    """V6"""
    claim = await lab.running()
    at = in_(lab, SECOND)
    for condition in (OperatorOnly(), TimeoutOnly()):
        two = wait(lab, condition, "a", "b", timeout_at=at)
        found = await refusal(lab, claim, two)
        assert found == "extra_binding_not_referenced_by_condition: a"
    await suspend(lab, claim, wait(lab, OperatorOnly(), "a"))


async def test_two_waitpoints_of_one_condition_differ_in_their_keys(lab: Lab) -> None:
    claim = await lab.running()
    twins = wait(lab, AllTrue((Single("a"),)), "a", "a")
    assert await refusal(lab, claim, twins) == "duplicate_waitpoint_key"


async def test_waiting_for_a_timeout_only_needs_one(lab: Lab) -> None:
    """E-T217"""
    claim = await lab.running()
    assert (
        await refusal(lab, claim, wait(lab, TimeoutOnly(), GO)) == "timeout_only_without_deadline"
    )
    await suspend(lab, claim, wait(lab, TimeoutOnly(), GO, timeout_at=in_(lab, SECOND)))


@pytest.mark.parametrize(
    "condition",
    [
        Single(GO, ByName("")),
        AllTrue((Single(GO, ByName("")),)),
        Count(1, CountKind.SIGNALS, (GO,), ByName("")),
    ],
)
async def test_an_empty_signal_name_is_no_wildcard(lab: Lab, condition: Condition) -> None:
    """V8, also inside composites"""
    claim = await lab.running()
    found = await refusal(lab, claim, wait(lab, condition, GO))
    assert "name is empty" in found
    assert "wildcard" in found


async def test_a_timeout_may_lie_ten_minutes_back_and_no_more(lab: Lab) -> None:
    """E-T218"""
    claim = await lab.running()
    long_ago = wait_on(lab, timeout_at=in_(lab, -PAST_TOLERANCE - 1))
    assert await refusal(lab, claim, long_ago) == "timeout_at_in_past"
    await suspend(lab, claim, wait_on(lab, timeout_at=in_(lab, -PAST_TOLERANCE)))
    await lab.pass_time(0)
    assert await lab.state(claim.id) is PublicState.FAILED


@pytest.mark.parametrize(
    ("condition", "detail"),
    [
        (AllTrue(()), "allof_empty_members"),
        (AnyTrue(()), "anyof_empty_members"),
        (Count(0, CountKind.SIGNALS, (GO,)), "count_n_zero"),
        (Count(1, CountKind.SIGNALS, ()), "count_waitpoints_empty"),
        (Count(2, CountKind.WAITPOINTS, (GO,)), "count_exceeds_waitpoint_set"),
        (
            AllTrue((AnyTrue((AllTrue((AnyTrue((AllTrue((Single(GO),)),)),)),)),)),
            "nesting depth 5",
        ),
    ],
)
async def test_a_condition_must_be_well_formed(lab: Lab, condition: Condition, detail: str) -> None:
    """V10"""
    claim = await lab.running()
    assert detail in await refusal(lab, claim, wait(lab, condition, GO))


async def test_the_first_fault_is_told(lab: Lab) -> None:
    """V3, V4, V10, V5, V6, V7, V8, V9: each row is at fault in every later way as well."""
    claim = await lab.running()
    past = in_(lab, -PAST_TOLERANCE - 1)
    pending = bindings(lab, "p", use=WaitpointUse.PENDING)
    keyless = (*bindings(lab, "x"), *pending)
    nameless = Single("y", ByName(""))
    order = [
        (Wait(condition=nameless, bindings=keyless), "waitpoint_key_mismatch"),
        (
            Wait(condition=AllTrue(()), bindings=keyless),
            "additional_waitpoint_binding_must_be_fresh",
        ),
        (wait(lab, AllTrue((nameless, AnyTrue(()))), "x"), "anyof_empty_members"),
        (wait(lab, AllTrue((nameless,)), "x"), "referenced_waitpoint_key_missing_binding: y"),
        (
            wait(lab, AllTrue((nameless,)), "y", "x"),
            "extra_binding_not_referenced_by_condition: x",
        ),
        (wait(lab, TimeoutOnly(), "x"), "timeout_only_without_deadline"),
        (wait(lab, nameless, "y"), "the signal name is empty"),
        (wait(lab, Single("x"), "x", timeout_at=past), "timeout_at_in_past"),
    ]
    for number, (faulty, word) in enumerate(order):
        late = word == "timeout_only_without_deadline"
        made = (
            faulty
            if late
            else Wait(condition=faulty.condition, bindings=faulty.bindings, timeout_at=past)
        )
        assert (await refusal(lab, claim, made)).startswith(word), number


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({"requested_by": "nobody"}, "requested_by"),
        ({"reason": "x" * 10_000}, "reason"),
        ({"continuation": "x" * 10_000}, "continuation"),
        ({"idempotency_key": "x" * 10_000}, "idempotency key"),
        ({"idempotency_key": "\x00"}, "idempotency key"),
        ({"id": "no uuid"}, "suspension"),
        ({"until": -1}, "until"),
        ({"until": "soon"}, "until"),
        ({"waits": ("no wait",)}, "wait"),
        ({"steps": ("no step",)}, "step"),
    ],
)
@pytest.mark.inside
async def test_members_that_cannot_be_stored_are_refused(
    lab: Lab, members: dict[str, Any], word: str
) -> None:
    claim = await lab.running()
    assert word in await refusal(lab, claim, **members)


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({"policy": ResumePolicy(resume_delay=Millis(-1))}, "resume_delay"),
        ({"policy": "slowly"}, "policy"),
        ({"behaviour": "explode"}, "behaviour"),
        ({"step": "one"}, "step"),
        ({"timeout_at": 1.5}, "timeout_at"),
    ],
)
async def test_arms_that_cannot_be_stored_are_refused(
    lab: Lab, members: dict[str, Any], word: str
) -> None:
    claim = await lab.running()
    assert word in await refusal(lab, claim, wait_on(lab, **members))


@pytest.mark.parametrize("who", ["worker", "operator", "policy", "system_timeout_policy"])
async def test_every_caller_who_may_request_is_accepted(lab: Lab, who: str) -> None:
    claim = await lab.running()
    await suspend(lab, claim, requested_by=who, continuation="step 7")
    assert await lab.state(claim.id) is PublicState.SUSPENDED


async def test_there_may_be_as_many_waitpoints_as_a_condition_can_name(lab: Lab) -> None:
    claim = await lab.running()
    keys = [f"k{number}" for number in range(MAX_BINDINGS)]
    too_many = wait(lab, any_waitpoint(*keys), *keys, "one more")
    assert str(MAX_BINDINGS) in await refusal(lab, claim, too_many)
    answer = await suspend(lab, claim, wait(lab, any_waitpoint(*keys), *keys))
    assert len(answer.waitpoints) == MAX_BINDINGS


async def test_something_else_than_a_request_is_refused(lab: Lab) -> None:
    claim = await lab.running()
    nonsense: list[Any] = [None, "suspend", {"waits": []}, wait_on(lab)]
    for request in nonsense:
        with pytest.raises(Invalid):
            await lab.engine.suspensions.suspend(claim, request)
    assert await lab.state(claim.id) is PublicState.ACTIVE
