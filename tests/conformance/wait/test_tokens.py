"""Tokens that are bound to somebody, some decisions, a time or one use; taking them back; and that
none is ever shown.

E-X22, INV-21, INV-22; §1.8, §3.41.
"""

import logging
import re
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    InvalidToken,
    NotAllowed,
    NotFound,
    TokenExpired,
    TokenRevoked,
    TokenUsed,
    WaitpointClosed,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.condition.model import Count, CountKind
from flowfabric.core.wait.model import Effect, Loaded, Needs, Terms
from flowfabric.core.wait.request import Binding, Wait
from flowfabric.core.wait.signal import DuplicateSignal
from flowfabric.core.wait.token import Token
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.wait import suspensions
from tests.kit.lab import Lab
from tests.kit.signalling import (
    Answer,
    deliver,
    deliver_with,
    effect,
    effect_of,
    fresh,
    kept,
    waiting,
)
from tests.kit.situations import load, missing_ids
from tests.kit.waits import SuspendAnswer, create_waitpoint, suspend

MANY = Count(9, CountKind.SIGNALS, ("go",))
SECRET = "5e" * 32


class Desk:
    """A suspended execution and those who hold tokens of its waitpoint."""

    def __init__(self, lab: Lab, claim: Claim, answer: SuspendAnswer) -> None:
        self.lab = lab
        self.id = claim.id
        self.ticket = answer.primary

    async def issue(self, **claims: Any) -> Token:
        return await self.lab.engine.suspensions.issue_token(self.id, self.ticket.id, **claims)

    async def use(self, token: Token | str | None, name: str = "go", **members: Any) -> Answer:
        return await deliver_with(token, self.lab, self.id, self.ticket.id, name, **members)

    async def revoke(self, token: Token | str | None = None) -> None:
        await self.lab.engine.signals.revoke(self.id, self.ticket.id, token)


@pytest.fixture
async def desk(lab: Lab) -> Desk:
    return Desk(lab, *await waiting(lab, MANY))


# -- bound tokens


async def test_a_bound_token_is_a_token(desk: Desk) -> None:
    """And each is another one"""
    first, second = await desk.issue(), await desk.issue()
    assert first != second
    for token in (first, second, second.reveal(), desk.ticket.token):
        assert effect_of(await desk.use(token)) is Effect.APPENDED


async def test_a_bound_token_speaks_for_its_approver(desk: Desk) -> None:
    """Whoever presents it, and for nobody else"""
    token = await desk.issue(approver="ann")
    await desk.use(token)
    await desk.use(token, source="ann")
    with pytest.raises(NotAllowed):
        await desk.use(token, source="bob")
    found = await kept(desk.lab, desk.id)
    assert [heard.signal.source for heard in found] == ["ann", "ann"]


async def test_a_token_of_one_approver_is_one_source(lab: Lab) -> None:
    desk = Desk(lab, *await waiting(lab, Count(2, CountKind.SOURCES, ("go",))))
    ann, bob = await desk.issue(approver="ann"), await desk.issue(approver="bob")
    effects = [effect_of(await desk.use(token)) for token in (ann, ann, bob)]
    assert effects == [Effect.APPENDED, Effect.REPEATED, Effect.SATISFIED]


async def test_a_bound_token_allows_its_decisions(desk: Desk) -> None:
    token = await desk.issue(decisions=("yes", "perhaps"))
    with pytest.raises(NotAllowed):
        await desk.use(token, "no")
    for name in ("yes", "perhaps"):
        assert effect_of(await desk.use(token, name)) is Effect.APPENDED


async def test_a_token_allows_no_more_than_the_terms(lab: Lab) -> None:
    claim = await lab.running()
    terms = Terms(decisions=("yes",), approvers=("ann", "bob"))
    binding = Binding(id=fresh(), key="go", terms=terms)
    answer = await suspend(lab, claim, Wait(condition=MANY, bindings=(binding,)))
    desk = Desk(lab, claim, answer)
    with pytest.raises(NotAllowed):
        await desk.use(await desk.issue(approver="ann", decisions=("no",)), "no")
    with pytest.raises(NotAllowed):
        await desk.use(await desk.issue(approver="eve"), "yes")
    assert effect_of(await desk.use(await desk.issue(approver="ann"), "yes")) is Effect.APPENDED


async def test_a_bound_token_runs_out(desk: Desk) -> None:
    """`expires_in` is the first moment at which it is refused"""
    token = await desk.issue(expires_in=Millis(100))
    desk.lab.clock.advance(99)
    await desk.use(token)
    desk.lab.clock.advance(1)
    with pytest.raises(TokenExpired) as caught:
        await desk.use(token)
    assert caught.value.code == "token_expired"
    assert effect_of(await desk.use(desk.ticket.token)) is Effect.APPENDED


async def test_a_token_for_one_use_is_used_once(desk: Desk) -> None:
    """The repeat of that use is a duplicate; the others of its kind are untouched"""
    token, other = await desk.issue(single_use=True), await desk.issue(single_use=True)
    id = fresh()
    await desk.use(token, id=id, idempotency_key="k")
    assert await desk.use(token, id=id) == DuplicateSignal(id)
    assert await desk.use(token, idempotency_key="k") == DuplicateSignal(id)
    with pytest.raises(TokenUsed) as caught:
        await desk.use(token)
    assert caught.value.code == "token_used"
    assert effect_of(await desk.use(other)) is Effect.APPENDED


async def test_a_refused_use_does_not_use_a_token_up(desk: Desk) -> None:
    token = await desk.issue(single_use=True, decisions=("yes",))
    with pytest.raises(NotAllowed):
        await desk.use(token, "no")
    assert effect_of(await desk.use(token, "yes")) is Effect.APPENDED
    with pytest.raises(TokenUsed):
        await desk.use(token, "yes")


async def test_a_token_for_one_use_counts_when_it_is_buffered(lab: Lab) -> None:
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    token = await lab.engine.suspensions.issue_token(claim.id, ticket.id, single_use=True)
    await deliver_with(token, lab, claim.id, ticket.id)
    with pytest.raises(TokenUsed):
        await deliver_with(token, lab, claim.id, ticket.id)


async def test_claims_cannot_be_changed_taken_off_or_put_on(desk: Desk) -> None:
    """The digest covers them"""
    token = (await desk.issue(approver="ann", single_use=True)).reveal()
    other = (await desk.issue(approver="bob")).reveal()
    plain = desk.ticket.token.reveal() if desk.ticket.token else ""
    head, claims = token.split(".")
    for forged in (
        head,
        f"{head}.{other.split('.')[1]}",
        f"{plain}.{claims}",
        f"{head}.{claims[:-1]}",
        f"{head}.{claims}A",
        f"{head}.{claims}=",
    ):
        with pytest.raises(InvalidToken):
            await desk.use(forged)
    assert await kept(desk.lab, desk.id) == []


async def test_tokens_are_issued_for_open_waitpoints_only(lab: Lab) -> None:
    claim, answer = await waiting(lab)
    _, others = await waiting(lab)
    issue = lab.engine.suspensions.issue_token
    wrong = [(claim.id, fresh()), (claim.id, others.primary.id)]
    wrong += [(id, answer.primary.id) for id in await missing_ids(lab)]
    for id, waitpoint in wrong:
        with pytest.raises(NotFound):
            await issue(id, waitpoint)
    await deliver(lab, claim.id, answer.primary)
    with pytest.raises(NotFound):
        await issue(claim.id, answer.primary.id)


@pytest.mark.rules
async def test_claims_have_to_make_sense(desk: Desk) -> None:
    wrong: list[dict[str, Any]] = [
        {"approver": 5},
        {"approver": "\0"},
        {"approver": "a" * 10_000},
        {"decisions": "yes"},
        {"decisions": ("\0",)},
        {"decisions": tuple(f"decision-{n}" * 5 for n in range(100))},
        {"expires_in": 0},
        {"expires_in": -1},
        {"expires_in": 1.5},
    ]
    for claims in wrong:
        with pytest.raises(Invalid):
            await desk.issue(**claims)


# -- taking back


async def test_one_token_is_taken_back(desk: Desk) -> None:
    token, other = await desk.issue(approver="ann"), await desk.issue(approver="ann")
    await desk.revoke(token)
    await desk.revoke(token)
    with pytest.raises(TokenRevoked) as caught:
        await desk.use(token)
    assert caught.value.code == "token_revoked"
    for good in (other, desk.ticket.token):
        assert effect_of(await desk.use(good)) is Effect.APPENDED


async def test_all_tokens_are_taken_back(desk: Desk) -> None:
    """Those issued so far, the waitpoint's own included; later ones are good"""
    token = await desk.issue()
    await desk.revoke()
    for refused in (token, desk.ticket.token):
        with pytest.raises(TokenRevoked):
            await desk.use(refused)
    for _ in range(3):  # all at the same moment
        later = await desk.issue()
        assert effect_of(await desk.use(later)) is Effect.APPENDED
        await desk.revoke()
        with pytest.raises(TokenRevoked):
            await desk.use(later)


async def test_taking_back_concerns_one_waitpoint_and_no_trusted_caller(desk: Desk) -> None:
    lab = desk.lab
    other, answer = await waiting(lab)
    await desk.revoke()
    assert await effect(lab, other.id, answer.primary) is Effect.SATISFIED
    approved = await lab.engine.signals.approve(
        desk.id, "default", desk.ticket.id, "go", suffix="1"
    )
    assert effect_of(approved) is Effect.APPENDED


async def test_a_repeat_with_a_token_that_was_taken_back_is_refused(desk: Desk) -> None:
    """Whoever lost the right to speak learns nothing, not even of what it said"""
    id = fresh()
    await desk.use(desk.ticket.token, id=id)
    await desk.revoke()
    with pytest.raises(TokenRevoked):
        await desk.use(desk.ticket.token, id=id)


async def test_a_bad_token_does_not_learn_that_tokens_were_taken_back(desk: Desk) -> None:
    """INV-21"""
    await desk.revoke()
    with pytest.raises(InvalidToken):
        await desk.use("kid:" + "a" * 64)


async def test_what_can_be_taken_back(desk: Desk) -> None:
    revoke = desk.lab.engine.signals.revoke
    with pytest.raises(Invalid):
        await desk.revoke(desk.ticket.token)
    with pytest.raises(Invalid):
        await desk.revoke("nonsense")
    with pytest.raises(NotFound) as caught:
        await revoke(desk.id, fresh())
    assert caught.value.entity == "waitpoint"
    for id in await missing_ids(desk.lab):
        with pytest.raises(NotFound):
            await revoke(id, desk.ticket.id)


async def test_taking_back_what_is_over_changes_nothing(desk: Desk) -> None:
    await desk.lab.engine.executions.cancel(desk.id, reason="enough")
    before = await load(desk.lab, desk.id)
    await desk.revoke()
    assert await load(desk.lab, desk.id) == before


async def test_taking_back_disturbs_no_worker(lab: Lab) -> None:
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    await lab.engine.signals.revoke(claim.id, ticket.id)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    with pytest.raises(TokenRevoked):
        await deliver(lab, claim.id, ticket)
    await lab.complete(claim)


# -- reading


async def test_a_token_can_be_read_while_its_waitpoint_is_open(lab: Lab) -> None:
    """§3.41: the same text every time; nothing for a stranger, nothing when closed"""
    claim, answer = await waiting(lab)
    other, _ = await waiting(lab)
    read = lab.engine.suspensions.token
    for _ in range(2):
        assert await read(claim.id, answer.primary.id) == answer.primary.token
    assert await read(other.id, answer.primary.id) is None
    assert await read(claim.id, fresh()) is None
    for id in await missing_ids(lab):
        assert await read(id, answer.primary.id) is None
    await deliver(lab, claim.id, answer.primary)
    assert await read(claim.id, answer.primary.id) is None


async def test_the_token_of_a_waitpoint_that_expired_cannot_be_read(lab: Lab) -> None:
    """§3.41: from the moment on at which its signals are refused, before any sweep"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go", expires_in=1_000)
    assert ticket.token is not None
    lab.clock.advance(999)
    assert await lab.engine.suspensions.token(claim.id, ticket.id) == ticket.token
    assert (await lab.engine.signals.look(claim.id, ticket.id, ticket.token)).open
    lab.clock.advance(1)
    assert await lab.engine.suspensions.token(claim.id, ticket.id) is None
    assert not (await lab.engine.signals.look(claim.id, ticket.id, ticket.token)).open
    with pytest.raises(NotFound):
        await lab.engine.suspensions.issue_token(claim.id, ticket.id)
    with pytest.raises(WaitpointClosed):
        await deliver(lab, claim.id, ticket)


# -- never shown


async def test_no_token_and_no_secret_is_ever_shown(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """E-X22, INV-22: not in logs, lists, events, views, representations, errors"""
    caplog.set_level(logging.DEBUG)
    await lab.engine.keys.seed("first", SECRET)
    claim, answer = await waiting(lab, MANY)
    desk = Desk(lab, claim, answer)
    bound = await desk.issue(approver="ann", single_use=True)
    shown: list[object] = [answer, bound, str(bound), f"{bound}", f"{bound!r:>99}"]
    shown.append(await desk.use(bound))
    shown.append(await desk.use(desk.ticket.token))
    for token in (bound, bound.reveal()[:-1], desk.ticket.token):
        shown.append(await said(desk.use(token, max_signals=1)))
    await desk.revoke(bound)
    shown.append(await said(desk.use(bound)))
    await lab.engine.keys.rotate("second", "6f" * 32)
    shown.append(await said(lab.engine.keys.seed("third", SECRET[:-1])))
    shown.append(await said(lab.engine.keys.rotate("second", SECRET)))
    await lab.engine.executions.resume(claim.id)
    shown.append(await said(desk.use(desk.ticket.token), WaitpointClosed))
    shown += await seen(desk)
    text = "\n".join(map(repr, shown)) + caplog.text
    for token in (bound, desk.ticket.token):
        assert token is not None
        digest = re.split("[:.]", token.reveal())[1]
        assert digest not in text
        assert digest[16:] not in text
    for secret in (SECRET, SECRET[:32], "6f" * 16):
        assert secret not in text


async def seen(desk: Desk) -> list[object]:
    """All that can be looked at."""
    engine = desk.lab.engine
    return [
        await desk.lab.events(desk.id),
        await kept(desk.lab, desk.id),
        await engine.suspensions.waitpoints(desk.id),
        await engine.views.describe(desk.id),
        await load(desk.lab, desk.id),
        await engine.keys.kids(),
        engine._context.options,
        await engine._context.ring.read(fresh=True),
    ]


async def said(call: Any, kind: type[FlowFabricError] = FlowFabricError) -> list[object]:
    """All that an error says, its causes included."""
    with pytest.raises(kind) as caught:
        await call
    error: BaseException | None = caught.value
    told: list[object] = []
    while error is not None:
        told += [error, str(error), error.args, vars(error)]
        error = error.__cause__ or error.__context__
    return told


async def test_the_list_of_waitpoints_shows_a_fingerprint_only(lab: Lab) -> None:
    claim, answer = await waiting(lab)
    (listed,) = await lab.engine.suspensions.waitpoints(claim.id)
    token = answer.primary.token
    assert token is not None
    assert (listed.token_kid, listed.token_fingerprint) == (token.kid, token.fingerprint)
    assert len(listed.token_fingerprint) == 16


async def test_the_token_is_the_same_without_a_read_where_the_waitpoint_was_made(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of waitpoints are written once, so the process that made or read one keeps it."""
    reads: list[str] = []

    def counted(name: str, engine: Engine) -> None:
        honest = engine.suspensions._loads.put

        async def put(needs: Needs) -> Loaded:
            reads.append(name)
            return await honest(needs)

        monkeypatch.setattr(engine.suspensions._loads, "put", put)

    counted("first", lab.engine)
    counted("second", second_lab.engine)
    monkeypatch.setattr(suspensions, "KNOWN", 2)
    claim = await lab.running()
    made = [
        (await lab.engine.suspensions.make_waitpoint(claim, key, lasting=True)).waitpoint
        for key in ("a", "b", "c")
    ]
    tokens = [
        [(await each.engine.suspensions.token_again(claim.uuid, row.id)).reveal() for row in made]
        for each in (lab, second_lab, lab)
    ]
    assert tokens[0] == tokens[1] == tokens[2]
    assert len(set(tokens[0])) == 3
    assert reads.count("second") == 3
    again = (await lab.engine.suspensions.token_again(claim.uuid, made[-1].id)).reveal()
    before = len(reads)
    assert (await lab.engine.suspensions.token_again(claim.uuid, made[-1].id)).reveal() == again
    assert len(reads) == before


async def test_a_handler_gets_a_token_of_the_current_key_once_the_old_one_has_run_out(
    lab: Lab,
) -> None:
    """E-T304, E-T308: a token that was signed before is not kept beyond its key."""
    await lab.engine.keys.seed("first", SECRET)
    claim = await lab.running()
    row = (await lab.engine.suspensions.make_waitpoint(claim, "a", lasting=True)).waitpoint

    async def asked() -> str:
        return (await lab.engine.suspensions.token_again(claim.uuid, row.id)).kid

    assert await asked() == "first"
    await lab.engine.keys.rotate("second", "6f" * 32, grace=Millis(1_000))
    assert await asked() == "first"
    lab.clock.advance(2_000)
    assert await asked() == "second"
