"""Bad input gets a clear typed error and changes nothing: identifiers, fences, handles, policies,
addresses of stores.

Numbers, durations and texts are in `test_bad_values.py`.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    FenceRequired,
    FlowFabricError,
    Invalid,
    InvalidHandle,
    InvalidId,
    InvalidPolicy,
    NotFound,
    PartialFence,
    StaleLease,
    Unavailable,
)
from flowfabric.core.base.ids import PARTITIONS, ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.grant import GrantNotFound
from flowfabric.core.execution.handle import PREFIX
from flowfabric.core.execution.lease import AlreadySatisfied, Owner
from flowfabric.core.execution.model import Failure, Source
from flowfabric.core.execution.step import Step
from flowfabric.core.wait.signal import Delivery
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import FencedExecution, Owned
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.open import open_store
from tests.kit.lab import TTL, W1, Lab
from tests.kit.picture import picture, refuses

pytestmark = pytest.mark.rules

SOME = UUID("018f4c3e-0000-7000-8000-0123456789ab")
OTHER = UUID("018f4c3e-0000-7000-8000-0123456789ac")
MISSING = ExecutionId.solo("default", SOME)
OPERATOR = Owner(source=Source.OPERATOR)
STEP = Step(0, 0, "step", 0, b"{}")
BOOM = Failure("boom")
SIGNAL = Delivery(id=SOME, waitpoint=SOME, name="go")

Call = Callable[[Engine, Any], Awaitable[Any]]


async def first(events: Any) -> Any:
    return await anext(events)


BY_ID: dict[str, Call] = {
    "executions.cancel": lambda e, id: e.executions.cancel(id, reason="no"),
    "executions.fork": lambda e, id: e.executions.fork(id),
    "steps.rename": lambda e, id: e.steps.rename(id, "charge", "bill"),
    "steps.skip": lambda e, id: e.steps.skip(id, "charge", b"1"),
    "executions.await_end": lambda e, id: e.executions.await_end(id, UUID(int=1)),
    "executions.expire": lambda e, id: e.executions.expire(id),
    "executions.change_priority": lambda e, id: e.executions.change_priority(id, 5),
    "executions.replay": lambda e, id: e.executions.replay(id),
    "executions.block": lambda e, id: e.executions.block(id, "paused_by_operator"),
    "executions.unblock": lambda e, id: e.executions.unblock(id),
    "executions.hold": lambda e, id: e.executions.hold(id),
    "executions.unhold": lambda e, id: e.executions.unhold(id),
    "executions.resume": lambda e, id: e.executions.resume(id),
    "executions.set_tags": lambda e, id: e.executions.set_tags(id, {"app.a": "1"}),
    "executions.set_tag": lambda e, id: e.executions.set_tag(id, "app.a", "1"),
    "executions.get_tag": lambda e, id: e.executions.get_tag(id, "app.a"),
    "claims.renew_as": lambda e, id: e.claims.renew_as(id, Owner(SOME, 1, SOME), TTL),
    "claims.revoke": lambda e, id: e.claims.revoke(id, reason="no"),
    "claims.mark_expired": lambda e, id: e.claims.mark_expired(id),
    "grants.issue": lambda e, id: e.grants.issue(id, "w1"),
    "grants.issue_reclaim": lambda e, id: e.grants.issue_reclaim(id, "w1"),
    "grants.claim": lambda e, id: e.grants.claim(id, W1),
    "grants.claim_resumed": lambda e, id: e.grants.claim_resumed(id, W1),
    "grants.try_resume": lambda e, id: e.grants.try_resume(id, W1),
    "grants.take": lambda e, id: e.grants.take(id),
    "grants.reclaim": lambda e, id: e.grants.reclaim(id, W1),
    "grants.identity": lambda e, id: e.grants.identity(id),
    "quotas.check_admission": lambda e, id: e.quotas.check_admission("q", id),
    "quotas.release_admission": lambda e, id: e.quotas.release_admission("q", id),
    "views.describe": lambda e, id: e.views.describe(id),
    "views.info": lambda e, id: e.views.info(id),
    "views.state": lambda e, id: e.views.state(id),
    "views.vector": lambda e, id: e.views.vector(id),
    "views.result": lambda e, id: e.views.result(id),
    "views.context": lambda e, id: e.views.context(id),
    "views.attempts": lambda e, id: e.views.attempts(id),
    "views.steps": lambda e, id: e.views.steps(id),
    "views.state_value": lambda e, id: e.views.state_value(id),
    "views.current_attempt": lambda e, id: e.views.current_attempt(id),
    "views.attempts_made": lambda e, id: e.views.attempts_made(id),
    "views.namespace": lambda e, id: e.views.namespace(id),
    "views.wait": lambda e, id: e.views.wait(id, 5),
    "suspensions.expire": lambda e, id: e.suspensions.expire(id),
    "suspensions.waitpoints": lambda e, id: e.suspensions.waitpoints(id),
    "suspensions.close_waitpoint": lambda e, id: e.suspensions.close_waitpoint(id, SOME),
    "suspensions.token": lambda e, id: e.suspensions.token(id, SOME),
    "suspensions.issue_token": lambda e, id: e.suspensions.issue_token(id, SOME),
    "signals.of": lambda e, id: e.signals.of(id),
    "signals.deliver": lambda e, id: e.signals.deliver(id, SIGNAL, "k:00"),
    "signals.approve": lambda e, id: e.signals.approve(id, "default", SOME, "yes", suffix="1"),
    "signals.send": lambda e, id: e.signals.send(id, "go", SIGNAL),
    "signals.decide": lambda e, id: e.signals.decide(id, "go", SIGNAL),
    "signals.decide_at": lambda e, id: e.signals.decide_at(id, SIGNAL),
    "signals.revoke": lambda e, id: e.signals.revoke(id, SOME),
    "budgets.attached_to": lambda e, id: e.budgets.attached_to(id),
    "views.recorded": lambda e, id: e.views.recorded(id),
    "streams.read": lambda e, id: e.streams.read(id, 0),
    "streams.tail": lambda e, id: e.streams.tail(id, 0),
    "streams.summary": lambda e, id: e.streams.summary(id, 0),
}
OF_ANOTHER_THING = {
    "claims.claim",
    "claims.taken",
    "signals.look",  # says nothing about ids to a caller with a wrong token
    "budgets.reserve",
    "suspensions.create_waitpoint",
    "suspensions.make_waitpoint",
    "flows.create",
    "flows.declare",
    "flow_views.get",
    "flow_views.describe",
    "flow_views.edges",
    "flow_views.graph",
    "flow_views.groups",
    "flow_views.members",
    "flow_views.wait",
    "flow_views.flow_of",  # these four answer in their own way: see the tests of flows
    "flow_views.eligibility",
    "flows.acknowledge",
    "flows.join",
}
"""Methods whose id is not that of an execution."""

Use = Callable[[Engine, Owned], Awaitable[Any]]

BY_OWNER: dict[str, Use] = {
    "complete": lambda e, owned: e.attempts.complete(owned, b"{}"),
    "fail": lambda e, owned: e.attempts.fail(owned, BOOM),
    "delay": lambda e, owned: e.attempts.delay(owned, Millis(e.now() + 1)),
    "hand_back": lambda e, owned: e.attempts.hand_back(owned),
    "cancel": lambda e, owned: e.attempts.cancel(owned, "no"),
    "renew": lambda e, owned: e.attempts.renew(owned, TTL),
    "progress": lambda e, owned: e.attempts.progress(owned, 5),
    "record_step": lambda e, owned: e.attempts.record_step(owned, STEP),
}
OVERRIDABLE = ("complete", "fail", "delay", "hand_back", "cancel")

MALFORMED: dict[str, list[Any]] = {
    "missing_tag": [None, 7, b"{fp:7}:x", True, "", "x", str(SOME), f"{{b:7}}:{SOME}", SOME],
    "invalid_partition_index": [f"{{fp:{index}}}:{SOME}" for index in ("", "x", "-1", 65_536)],
    "partition_out_of_range": [f"{{fp:{index}}}:{SOME}" for index in (PARTITIONS, 65_535)],
    "invalid_uuid": [f"{{fp:7}}:{rest}" for rest in ("", "x", f"{SOME}0", "\0", "\ud800", "é")],
}


# -- identifiers


def methods_by_id(engine: Engine) -> Iterator[str]:
    """Every public method of every noun that takes an id."""
    for noun, value in vars(engine).items():
        for name, method in inspect.getmembers(value, inspect.iscoroutinefunction):
            if not name.startswith("_") and "id" in inspect.signature(method).parameters:
                yield f"{noun}.{name}"


@pytest.mark.inside
async def test_every_method_that_takes_an_id_is_tried_here(lab: Lab) -> None:
    assert set(methods_by_id(lab.engine)) == BY_ID.keys() | OF_ANOTHER_THING


@pytest.mark.inside
async def test_a_malformed_id_is_told_what_is_wrong_with_it(lab: Lab) -> None:
    """§1.1"""
    await lab.submit()
    for name, call in BY_ID.items():
        for reason, ids in MALFORMED.items():
            errors = await refuses(lab, name, partial(call, lab.engine), ids, InvalidId)
            assert {getattr(error, "reason", "") for error in errors} == {reason}


@pytest.mark.inside
async def test_an_owner_with_a_malformed_id_is_told_what_is_wrong_with_it(lab: Lab) -> None:
    claim = await lab.running()
    for reason, ids in MALFORMED.items():
        held = [FencedExecution(id, claim.owner) for id in ids]
        errors = await refuse_owners(lab, held, InvalidId)
        assert {getattr(error, "reason", "") for error in errors} == {reason}


async def refuse_owners(
    lab: Lab, owned: Sequence[Any], error: type[FlowFabricError]
) -> list[FlowFabricError]:
    """Every operation of an owner refuses every one of `owned`."""
    return [
        refusal
        for name, use in BY_OWNER.items()
        for refusal in await refuses(lab, name, partial(use, lab.engine), owned, error)
    ]


@pytest.mark.inside
async def test_other_ways_to_name_an_execution_are_checked_as_well(lab: Lab) -> None:
    await lab.submit()
    engine = lab.engine
    calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "submit": lambda id: lab.submit(id=id),
        "events": lambda id: engine.events.read(execution=id),
        "subscribe": lambda id: first(engine.events.subscribe(execution=id)),
        "expired": lambda id: engine.claims.expired(after=(Millis(0), id)),
    }
    for ids, (name, call) in product(MALFORMED.values(), calls.items()):
        given = [id for id in ids if id is not None]
        await refuses(lab, name, call, given, InvalidId)


async def test_a_partition_that_is_not_the_ids_own_names_nothing(lab: Lab) -> None:
    """§1.1; design §4: another partition is not found."""
    claim = await lab.running(tags={"app.a": "1"})
    elsewhere = ExecutionId.of((claim.id.partition_index + 1) % PARTITIONS, claim.uuid)
    before = await picture(lab)
    for name, call in BY_ID.items():
        if name not in AUTHENTICATED | LIMIT_FIRST:
            assert await missing(call(lab.engine, elsewhere)), name
    for name, use in BY_OWNER.items():
        assert await missing(use(lab.engine, FencedExecution(elsewhere, claim.owner))), name
    assert (await lab.engine.events.read(execution=elsewhere)).events == ()
    assert await picture(lab) == before


async def missing(answer: Awaitable[Any]) -> bool:
    """Whether a call says that the execution does not exist, in its way."""
    try:
        return await answer in (None, *NO_OPS)
    except NotFound as error:
        return error.entity == "execution"


NO_OPS = (
    AlreadySatisfied("execution_not_found"),
    AlreadySatisfied("not_found"),
    AlreadySatisfied("already_terminal"),
    GrantNotFound(),
)
AUTHENTICATED = {"signals.deliver"}
"""They say nothing of an execution before they have seen a valid token."""

LIMIT_FIRST = {"quotas.release_admission"}
"""The quota is looked for first; that a run has no room in it is what the caller wants."""

SILENT = {
    "grants.reclaim",
    "executions.expire",
    "executions.get_tag",
    "claims.mark_expired",
    "views.describe",
    "views.info",
    "views.state",
    "views.vector",
    "views.result",
    "views.namespace",
    "suspensions.expire",
    "suspensions.token",
}
"""Reads that answer None, timers that have nothing to do, and the redemption that asks for its
grant first (§3.11, §3.24, §3.29, §3.39, §3.41)."""


async def test_a_missing_execution_is_not_found(lab: Lab) -> None:
    """The error names it, whichever operation looks for it"""
    before = await picture(lab)
    for name, call in BY_ID.items():
        if name in SILENT:
            assert await call(lab.engine, MISSING) in (None, *NO_OPS)
        elif name not in AUTHENTICATED | LIMIT_FIRST:
            [error] = await refuses(lab, name, partial(call, lab.engine), [MISSING], NotFound)
            assert getattr(error, "entity", "") == "execution"
            assert ExecutionId(MISSING).uuid.hex in str(error).replace("-", ""), (name, error)
    assert await picture(lab) == before


async def test_a_missing_execution_has_no_owner(lab: Lab) -> None:
    """G1 comes before every other check of the gate."""
    owners = [Owner(SOME, 1, SOME), Owner(), Owner(SOME), OPERATOR]
    await refuse_owners(lab, [FencedExecution(MISSING, owner) for owner in owners], NotFound)


# -- fences


def partial_fences(claim: Claim) -> list[Owner]:
    """Every fence with one or two of its members."""
    fence = claim.fence
    kept = [keep for keep in product((True, False), repeat=3) if 0 < sum(keep) < 3]
    return [
        Owner(
            fence.lease_id if lease else None,
            fence.epoch if epoch else None,
            fence.attempt_id if attempt else None,
            source=source,
        )
        for (lease, epoch, attempt), source in product(kept, (Source.LEASE_HOLDER, Source.OPERATOR))
    ]


async def test_a_part_of_a_fence_is_refused_and_never_taken_for_none(lab: Lab) -> None:
    """§1.3"""
    claim = await lab.running()
    owners = partial_fences(claim)
    await refuse_owners(lab, [FencedExecution(claim.id, owner) for owner in owners], PartialFence)
    cancel = partial(lab.engine.executions.cancel, claim.id, reason="no")
    await refuses(lab, "cancel", lambda owner: cancel(owner=owner), owners, PartialFence)
    await lab.complete(claim)


async def test_without_a_fence_an_owner_can_do_nothing(lab: Lab) -> None:
    """§1.3"""
    claim = await lab.running()
    owners = [Owner(), Owner(source=Source.SYSTEM_TIMEOUT), Owner(source="somebody")]
    await refuse_owners(lab, [FencedExecution(claim.id, owner) for owner in owners], FenceRequired)
    await lab.complete(claim)


async def test_not_even_an_operator_renews_or_writes_beside_a_lease_without_a_fence(
    lab: Lab,
) -> None:
    """§1.3"""
    claim = await lab.running()
    for name in sorted(set(BY_OWNER) - set(OVERRIDABLE)):
        use, held = BY_OWNER[name], [FencedExecution(claim.id, OPERATOR)]
        await refuses(lab, name, partial(use, lab.engine), held, FenceRequired)


async def test_a_fence_with_one_wrong_member_is_stale(lab: Lab) -> None:
    """INV-3, design §4: all three are checked."""
    claim = await lab.running()
    lease_id, epoch, attempt_id = claim.fence.lease_id, claim.fence.epoch, claim.fence.attempt_id
    owners = [
        Owner(OTHER, epoch, attempt_id),
        Owner(lease_id, 0, attempt_id),
        Owner(lease_id, -1, attempt_id),
        Owner(lease_id, epoch + 1, attempt_id),
        Owner(lease_id, 2**70, attempt_id),
        Owner(lease_id, epoch, OTHER),
        Owner(attempt_id, epoch, lease_id),
    ]
    await refuse_owners(lab, [FencedExecution(claim.id, owner) for owner in owners], StaleLease)
    await lab.complete(claim)


async def test_a_fence_of_the_wrong_types_is_refused(lab: Lab) -> None:
    claim = await lab.running()
    lease_id, epoch, attempt_id = claim.fence.lease_id, claim.fence.epoch, claim.fence.attempt_id
    owners: list[Any] = [
        Owner(str(lease_id), epoch, attempt_id),  # type: ignore[arg-type]
        Owner(lease_id, str(epoch), attempt_id),  # type: ignore[arg-type]
        Owner(lease_id, float(epoch), attempt_id),  # type: ignore[arg-type]
        Owner(lease_id, True, attempt_id),
        Owner(lease_id, epoch, attempt_id.bytes),  # type: ignore[arg-type]
        None,
        claim.fence,
    ]
    await refuse_owners(lab, [FencedExecution(claim.id, owner) for owner in owners], Invalid)
    await lab.complete(claim)


async def test_the_fence_of_an_older_attempt_can_change_nothing(lab: Lab) -> None:
    """INV-3"""
    old = await lab.running(policy={"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 0}}})
    await lab.fail(old)
    new = await lab.claim_one()
    handle = lab.engine.attempts.seal(old)
    owned: list[Owned] = [old, handle, FencedExecution(old.id, old.owner)]
    mixed = Owner(new.lease.id, new.epoch, old.attempt_id)
    await refuse_owners(lab, [*owned, FencedExecution(new.id, mixed)], StaleLease)
    await lab.complete(new)


# -- handles


def forgeries(handle: str) -> list[Any]:
    middle = len(handle) // 2
    flipped = "A" if handle[middle] != "A" else "B"
    return [
        None, 7, b"", handle.encode(), "", "x", "\ud800", "\0", PREFIX, PREFIX + "\0",
        PREFIX + "é", PREFIX + "A" * 10_000, "ffh2." + handle[5:], handle.upper(),
        handle[:-1], handle[:-4], handle[:20], handle + "A", handle + "\n", " " + handle,
        handle[:middle] + flipped + handle[middle + 1 :], handle[:-1] + "!",
    ]  # fmt: skip


@pytest.mark.inside
async def test_a_forged_or_truncated_handle_owns_nothing(lab: Lab) -> None:
    """§1.4, E-T018"""
    claim = await lab.running()
    handle = lab.engine.attempts.seal(claim)
    errors = await refuse_owners(lab, forgeries(handle), InvalidHandle)
    assert not any(handle[10:30] in str(error) for error in errors)
    await lab.engine.attempts.complete(handle)


async def test_a_handle_of_another_database_owns_nothing(lab: Lab, tmp_path: Path) -> None:
    """§1.4"""
    other = await Lab.open(
        await open_store(f"sqlite:///{tmp_path / 'other.db'}", clock=lab.clock), lab.clock
    )
    claim = await other.running(id=MISSING)
    foreign = other.engine.attempts.seal(claim)
    await lab.running(id=MISSING)
    await refuse_owners(lab, [foreign], InvalidHandle)
    await other.engine.attempts.complete(foreign)
    await other.engine.close()


# -- policies

NO_POLICIES: list[Any] = [
    7, True, [], "", "text", b"", bytearray(b"{}"), object(), {"priority": None},
    {"priority": 1.5}, {"max_replay_count": -1}, {"retry_policy": []},
    {"retry_policy": {"max_retries": -1}}, {"retry_policy": {"backoff": {"type": 7}}},
    {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": -1}}},
    {"retry_policy": {"retryable_categories": [""]}}, {"dedup_window_ms": 2**50},
    {"timeout_policy": {"attempt_timeout_ms": 0}}, {"timeout_policy": "1s"},
    {"timeout_policy": {"execution_deadline_ms": 2**70}}, {"delay_until": -1},
    {"delay_until": math.nan}, {"routing_requirements": []}, {"budget_ids": [""]},
    {"quotas": [{"quota": "a"}, {"quota": "a"}]}, {"quotas": [{"quota": ""}]}, {"quotas": ["a"]},
    {"suspension_policy": {"timeout_behavior": 7}}, {"stream_policy": 7},
    {"fallback_policy": {"x": "\ud800"}}, {"fallback_policy": {"x": object()}},
    b'{"fallback_policy": {"x": "\\ud800"}}', b'{"priority": NaN}', b"\xff", b"{" * 9999,
]  # fmt: skip


@pytest.mark.inside
async def test_a_policy_of_an_unknown_shape_is_refused(lab: Lab) -> None:
    """§1.7, E-T038"""
    await lab.submit()
    await refuses(lab, "policy", lambda given: lab.submit(policy=given), NO_POLICIES, InvalidPolicy)


# -- addresses of stores


@pytest.mark.parametrize(
    "url",
    [
        None, 7, b"sqlite://:memory:", Path("work.db"), "", " ", "work.db", "/tmp/work.db",
        "sqlite", "sqlite:work.db", "sqlite:/work.db", "sqlite://work.db", "sqlite:///", "sqlite:///a\0b.db",
        "sqlite:///a%00b.db", "sqlite:///\ud800.db", "mysql://root@localhost/x", "http://x/y",
        "postgresql", "postgresql:", "postgresql:/x", "postgresql://[::1/x",
        "postgresql://u:secret@[::1/x", "postgresql://u:secret@h:port/x",
        "postgresql://u:secret@h:99999/x", "postgresql://u:secret@h/x\0", "://", "\ud800://x",
    ],
)  # fmt: skip
async def test_an_address_that_names_no_store_is_refused(url: Any) -> None:
    with pytest.raises(Invalid) as caught:
        await open_store(url)
    assert "secret" not in str(caught.value)
    assert str(caught.value).encode()


async def test_a_store_that_cannot_be_reached_is_unavailable(
    tmp_path: Path, fresh_database: Callable[..., str]
) -> None:
    no_database = tmp_path / "text.db"
    no_database.write_text("this is no database, " * 500)
    urls = [
        f"sqlite:///{tmp_path}",
        f"sqlite:///{tmp_path / 'no such folder' / 'work.db'}",
        f"sqlite:///{no_database}",
        "postgresql://u:secret@127.0.0.1:1/x",
        "postgresql://u:secret@/x?host=/nowhere",
        fresh_database() + "_of_nobody",
    ]
    for url in urls:
        with pytest.raises(Unavailable) as caught:
            await open_and_migrate(url)
        assert "secret" not in str(caught.value)


async def open_and_migrate(url: str) -> None:
    store = await open_store(url)
    try:
        await store.migrate()
    finally:
        await store.close()
