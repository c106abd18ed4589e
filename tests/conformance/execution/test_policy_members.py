"""What the policy of an execution says is what happens: §1.7, member by member. Those about
retries, deadlines, reclaims, replays, limits and keys have tests of their own."""

from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, SignalLimitExceeded
from flowfabric.core.base.text import MAX_SIGNAL_NAME
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.model import Behaviour
from flowfabric.core.wait.signal import Accepted
from tests.kit.lab import Lab
from tests.kit.waits import in_, named, signal, suspend, wait_on

pytestmark = pytest.mark.rules

MINUTE = 60_000

# -- suspension_policy


async def parked(lab: Lab, policy: dict[str, Any], **members: Any) -> str:
    claim = await lab.running(policy={"suspension_policy": policy})
    await suspend(lab, claim, wait_on(lab, **members))
    return claim.id


@pytest.mark.parametrize(
    ("behaviour", "state"),
    [
        (None, PublicState.FAILED),
        ("fail", PublicState.FAILED),
        ("cancel", PublicState.CANCELLED),
        ("expire", PublicState.EXPIRED),
        ("auto_resume_with_timeout_signal", PublicState.WAITING),
        ("auto_resume", PublicState.WAITING),
        ("escalate", PublicState.SUSPENDED),
        ("odd", PublicState.FAILED),
        ("", PublicState.FAILED),
    ],
)
async def test_a_suspension_without_a_timeout_has_that_of_the_policy(
    lab: Lab, behaviour: str | None, state: PublicState
) -> None:
    """§1.7: defaults for suspend; §3.39: an unknown behaviour fails the run"""
    policy = {"default_timeout_ms": MINUTE}
    named_too = policy if behaviour is None else {**policy, "timeout_behavior": behaviour}
    id = await parked(lab, named_too)
    await lab.pass_time(MINUTE - 1)
    assert await lab.state(id) is PublicState.SUSPENDED
    await lab.pass_time(1)
    assert await lab.state(id) is state


async def test_what_the_request_says_comes_first(lab: Lab) -> None:
    policy = {"default_timeout_ms": MINUTE, "timeout_behavior": "cancel"}
    early = await parked(lab, policy, timeout_at=in_(lab, 1_000))
    late = await parked(lab, policy, timeout_at=in_(lab, 2 * MINUTE))
    other = await parked(lab, policy, behaviour=Behaviour.EXPIRE)
    await lab.pass_time(1_000)
    assert await lab.state(early) is PublicState.CANCELLED
    await lab.pass_time(MINUTE)
    assert await lab.state(other) is PublicState.EXPIRED
    assert await lab.state(late) is PublicState.SUSPENDED


async def test_without_a_word_about_it_a_suspension_waits_for_ever(lab: Lab) -> None:
    id = await parked(lab, {"timeout_behavior": "cancel"})
    await lab.pass_time(365 * 86_400_000)
    assert await lab.state(id) is PublicState.SUSPENDED


# -- max_signals_per_execution


async def test_an_execution_accepts_as_many_signals_as_its_policy_says(lab: Lab) -> None:
    """§1.7, §3.34 check 14"""
    claim = await lab.running(policy={"max_signals_per_execution": 2})
    answer = await suspend(lab, claim, wait_on(lab, named("never")))
    for _ in range(2):
        assert isinstance(await signal(lab, claim.id, answer.primary, "other"), Accepted)
    with pytest.raises(SignalLimitExceeded):
        await signal(lab, claim.id, answer.primary, "other")
    assert isinstance(await signal(lab, claim.id, answer.primary, "other", max_signals=3), Accepted)
    with pytest.raises(SignalLimitExceeded):
        await lab.engine.signals.send(claim.id, "go", lab.engine.signals.delivery()(name="other"))


async def test_a_policy_of_no_limit_sets_none(lab: Lab) -> None:
    """§3.34: 0 disables the limit"""
    claim = await lab.running(policy={"max_signals_per_execution": 0})
    answer = await suspend(lab, claim, wait_on(lab, named("never")))
    for _ in range(5):
        assert isinstance(await signal(lab, claim.id, answer.primary, "other"), Accepted)


# -- names of signals


@pytest.mark.parametrize("letter", ["x", "é", "信", "🔔"])
async def test_a_name_has_so_many_characters_in_any_script(lab: Lab, letter: str) -> None:
    """The same limit for those who wait and those who send."""
    longest, longer = letter * MAX_SIGNAL_NAME, letter * (MAX_SIGNAL_NAME + 1)
    claim = await lab.running()
    with pytest.raises(Invalid):
        await suspend(lab, claim, wait_on(lab, named(longer)))
    with pytest.raises(Invalid):
        await suspend(lab, claim, wait_on(lab, longer))
    with pytest.raises(Invalid):
        await lab.engine.suspensions.create_waitpoint(claim, longer)
    answer = await suspend(lab, claim, wait_on(lab, named(longest, longest)))
    deliver, send = lab.engine.signals.deliver, lab.engine.signals.send
    make = lab.engine.signals.delivery
    with pytest.raises(Invalid):
        await deliver(claim.id, make(answer.primary.id)(name=longer), answer.primary.token)
    with pytest.raises(Invalid):
        await send(claim.id, longer, make()(name="x"))
    sent = await deliver(claim.id, make(answer.primary.id)(name=longest), answer.primary.token)
    assert isinstance(sent, Accepted)
    assert await lab.state(claim.id) is PublicState.WAITING
