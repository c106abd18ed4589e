"""Holding runs back, in every state in which they wait."""

import pytest

from flowfabric.core.base.errors import NotActive, NotEligible
from tests.kit import situations
from tests.kit.flow_lab import declare
from tests.kit.lab import Lab
from tests.kit.limiting import define, finish, one, settled
from tests.kit.situations import ALL, ENDED

ELSEWHERE = {"blocked", "rate_limited", "depending", "waiting_children"}
"""Blocked already, or made by hand: their tests are below."""


async def held(lab: Lab, id: str) -> None:
    """Held back, nothing takes it, and why says so."""
    await lab.engine.executions.hold(id, "not today")
    again = await lab.engine.executions.hold(id)
    assert again.id == id
    assert (await lab.vector(id)).eligibility != "eligible_now"
    reasons = (await lab.engine.explain(id)).reasons
    assert any(each.text == "an operator holds it back: not today" for each in reasons)


@pytest.mark.parametrize("name", sorted(ALL.keys() - ENDED.keys() - ELSEWHERE))
async def test_a_waiting_run_is_held_and_let_go_as_it_was(lab: Lab, name: str) -> None:
    """E-T200: a hold is no state of its own: what the run waits for besides is what it was."""
    id = await ALL[name](lab)
    before = await lab.vector(id)
    if before.phase == "active" or before.ownership.startswith("lease"):
        with pytest.raises(NotEligible):
            await lab.engine.executions.hold(id)
        return
    await held(lab, id)
    await lab.engine.executions.unhold(id)
    assert await lab.vector(id) == before
    with pytest.raises(NotEligible):
        await lab.engine.executions.unhold(id)


@pytest.mark.parametrize("name", sorted(ENDED))
async def test_what_has_ended_is_not_held(lab: Lab, name: str) -> None:
    id = await ALL[name](lab)
    with pytest.raises(NotActive):
        await lab.engine.executions.hold(id)


async def test_one_that_is_blocked_for_another_reason_is_not_held(lab: Lab) -> None:
    id = await lab.submit()
    await lab.engine.executions.block(id, "paused_by_policy")
    for refused in (lab.engine.executions.hold, lab.engine.executions.unhold):
        with pytest.raises(NotEligible):
            await refused(id)


async def test_what_it_waits_for_comes_meanwhile(lab: Lab) -> None:
    """Time passes, upstreams end and limits open; it starts when it is let go."""
    delayed = await lab.submit(delay_until=lab.clock.now() + 1000)
    flow = await declare(lab, "a>b")
    await held(lab, delayed)
    await held(lab, flow["b"])
    await lab.pass_time(1000)
    for claim in await lab.claim(limit=5):
        await lab.complete(claim)
    await flow.settled()
    assert await lab.claim(limit=5) == []
    for id in (delayed, flow["b"]):
        await lab.engine.executions.unhold(id)
        assert (await lab.claim_one()).id == id


async def test_one_that_is_held_takes_no_slot(lab: Lab) -> None:
    """C-T96: whether it had one or waited for one."""
    await define(lab, concurrency=1)
    first, second, third = [await one(lab, "q") for _ in range(3)]
    await held(lab, second)
    await lab.engine.executions.hold(first)
    await settled(lab)
    claim = await lab.claim_one()
    assert claim.id == third
    await lab.engine.executions.unhold(first)
    await finish(lab, claim)
    assert (await lab.claim_one()).id == first


async def test_a_suspended_run_does_not_go_on_while_it_is_held(lab: Lab) -> None:
    """The signal is heard; the run goes on when it is let go."""
    id = await situations.suspended(lab)
    await held(lab, id)
    await lab.engine.executions.resume(id)
    assert await lab.claim() == []
    await lab.engine.executions.unhold(id)
    assert (await lab.claim_one()).id == id
