"""Bad input gets a clear typed error and changes nothing: numbers, durations, texts, shapes.

Identifiers, fences, handles, addresses and policies are in `test_bad_input.py`.
"""

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    InvalidBlockingReason,
    InvalidCapabilities,
    InvalidId,
    InvalidTag,
    PayloadTooLarge,
)
from flowfabric.core.base.time import MAX_MILLIS, MAX_SPAN
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import Query
from tests.kit.lab import W1, Lab
from tests.kit.picture import refuses

pytestmark = pytest.mark.rules

SOME = UUID("018f4c3e-0000-7000-8000-0123456789ab")
HUGE = [2**63, 2**70, 10**5000]
NO_NUMBERS = [b"1", "1", True, 1.5, 1.0, math.nan, math.inf, [1], object()]
NO_TEXT = ["a\0b", "\0", "\ud800", "x\udfff", b"bytes", 7, 1.5, True, ["x"], object()]

Use = Callable[[Lab, Claim, Any], Awaitable[Any]]


async def submit(lab: Lab, **members: Any) -> Any:
    return await lab.engine.executions.submit(Submission(**{"kind": "job", **members}))


def step(**members: Any) -> Step:
    whole = {"generation": 0, "position": 0, "name": "s", "occurrence": 0, "doc": b"{}"}
    return Step(**{**whole, **members})


# -- numbers

TTLS = [0, -1, 86_400_001, *HUGE, *NO_NUMBERS, "", "soon", "-1s", "25h", timedelta(days=2)]
GRANT_TTLS = [None, 0, -1, 86_400_001, *HUGE, *NO_NUMBERS, "25h", "soon"]
SPANS = [-1, MAX_SPAN + 1, *HUGE, *NO_NUMBERS]
MOMENTS = [-1, MAX_MILLIS + 1, *HUGE, *NO_NUMBERS]
LIMITS = [None, *NO_NUMBERS]
COUNTS = [None, -1, *HUGE, *NO_NUMBERS]

NUMBERS: dict[str, tuple[Use, list[Any]]] = {
    "submit priority": (lambda lab, c, v: submit(lab, priority=v), NO_NUMBERS),
    "change_priority": (
        lambda lab, c, v: lab.engine.executions.change_priority(c.id, v),
        [None, *NO_NUMBERS],
    ),
    "submit delay": (lambda lab, c, v: submit(lab, delay_until=v), MOMENTS),
    "submit deadline": (lambda lab, c, v: submit(lab, deadline_at=v), MOMENTS),
    "claim limit": (lambda lab, c, v: lab.claim(limit=v), [None, 0, -1, 501, *HUGE, *NO_NUMBERS]),
    "claim ttl": (lambda lab, c, v: lab.claim(ttl=v), [None, *TTLS]),
    "claim max_wait": (
        lambda lab, c, v: lab.claim(max_wait=v),
        [None, "1", b"1", math.nan, math.inf, True, -1, -0.5, [1]],
    ),
    "claim weights": (
        lambda lab, c, v: lab.claim(lanes={"a": v, "b": 2}),
        [None, 0, -1, 10**5000, *NO_NUMBERS],
    ),
    "renew": (lambda lab, c, v: lab.engine.claims.renew(c, v), TTLS),
    "renew by fence": (
        lambda lab, c, v: lab.engine.attempts.renew(FencedExecution(c.id, c.owner), v),
        [None, *TTLS],
    ),
    "renew by handle": (
        lambda lab, c, v: lab.engine.attempts.renew(lab.engine.attempts.seal(c), v),
        TTLS,
    ),
    "grant ttl": (lambda lab, c, v: lab.engine.grants.issue(c.id, "w1", ttl=v), GRANT_TTLS),
    "reclaim grant ttl": (
        lambda lab, c, v: lab.engine.grants.issue_reclaim(c.id, "w1", ttl=v),
        GRANT_TTLS,
    ),
    "find_and_issue ttl": (
        lambda lab, c, v: lab.engine.grants.find_and_issue("w1", lane="default", ttl=v),
        GRANT_TTLS,
    ),
    "grants.claim ttl": (lambda lab, c, v: lab.engine.grants.claim(c.id, W1, ttl=v), [None, *TTLS]),
    "claim_resumed ttl": (
        lambda lab, c, v: lab.engine.grants.claim_resumed(c.id, W1, ttl=v),
        [None, *TTLS],
    ),
    "take ttl": (lambda lab, c, v: lab.engine.grants.take(c.id, ttl=v), [None, *TTLS]),
    "reclaim ttl": (lambda lab, c, v: lab.engine.grants.reclaim(c.id, W1, ttl=v), [None, *TTLS]),
    "issue_reclaim cap": (
        lambda lab, c, v: lab.engine.grants.issue_reclaim(c.id, "w1", max_reclaims=v),
        [-1, *NO_NUMBERS],
    ),
    "reclaim cap": (
        lambda lab, c, v: lab.engine.grants.reclaim(c.id, W1, max_reclaims=v),
        [-1, *NO_NUMBERS],
    ),
    "expected attempt": (
        lambda lab, c, v: lab.engine.grants.claim(c.id, W1, expected_attempt=v),
        [-1, *NO_NUMBERS],
    ),
    "progress": (
        lambda lab, c, v: lab.engine.attempts.progress(c, v),
        [-1, 101, *HUGE, *NO_NUMBERS],
    ),
    "retry_after": (
        lambda lab, c, v: lab.engine.attempts.fail(c, Failure("boom"), retry_after=v),
        SPANS,
    ),
    "delay": (lambda lab, c, v: lab.engine.attempts.delay(c, v), [None, *MOMENTS]),
    "resume delay": (lambda lab, c, v: lab.engine.executions.resume(c.id, delay=v), [None, *SPANS]),
    "step generation": (
        lambda lab, c, v: lab.engine.attempts.record_step(c, step(generation=v)),
        COUNTS,
    ),
    "step occurrence": (
        lambda lab, c, v: lab.engine.attempts.delay(c, MAX_MILLIS, step=step(occurrence=v)),
        COUNTS,
    ),
    "steps of": (
        lambda lab, c, v: lab.engine.attempts.steps(c.uuid, v),
        COUNTS,
    ),
    "eligible limit": (lambda lab, c, v: lab.engine.grants.eligible("default", limit=v), LIMITS),
    "lanes limit": (lambda lab, c, v: lab.engine.lanes.list(limit=v), LIMITS),
    "list limit": (lambda lab, c, v: lab.engine.views.list(Query(limit=v)), LIMITS),
    "list from": (lambda lab, c, v: lab.engine.views.list(Query(created_from=v)), MOMENTS),
    "list until": (lambda lab, c, v: lab.engine.views.list(Query(created_until=v)), MOMENTS),
    "expired limit": (lambda lab, c, v: lab.engine.claims.expired(limit=v), LIMITS),
    "expired as_of": (lambda lab, c, v: lab.engine.claims.expired(as_of=v), MOMENTS),
    "expired after": (
        lambda lab, c, v: lab.engine.claims.expired(after=(v, c.id)),
        [None, *MOMENTS],
    ),
    "held_by limit": (lambda lab, c, v: lab.engine.claims.held_by("w1-a", v), LIMITS),
    "events limit": (lambda lab, c, v: lab.engine.events.read(limit=v), LIMITS),
    "events after": (
        lambda lab, c, v: lab.engine.events.read(after=v),
        COUNTS,
    ),
    "wait timeout": (
        lambda lab, c, v: lab.engine.views.wait(c.id, v),
        ["1", b"1", math.nan, True, -1, [1]],
    ),
}


async def test_a_number_that_makes_no_sense_is_refused(lab: Lab) -> None:
    claim = await lab.running()
    await lab.submit()
    for name, (use, values) in NUMBERS.items():
        await refuses(lab, name, partial(use, lab, claim), values)
    assert len(await lab.claim()) == 1
    await lab.complete(claim)


@pytest.mark.inside
async def test_a_limit_beyond_any_page_is_cut_and_one_of_nothing_gives_nothing(lab: Lab) -> None:
    claim = await lab.running()
    id = await lab.submit()
    engine = lab.engine
    for limit in HUGE:
        assert await engine.grants.eligible("default", limit=limit) == [id]
        assert await engine.lanes.list(limit=limit) == ["default"]
        assert len((await engine.views.list(Query(limit=limit))).items) == 2
        assert await engine.claims.held_by("w1-a", limit) == [claim.id]
        assert await engine.claims.expired(limit=limit) == []
        assert len((await engine.events.read(limit=limit)).events) == 1
    for limit in (0, -1, -(2**70)):
        assert await engine.grants.eligible("default", limit=limit) == []
        assert await engine.lanes.list(limit=limit) == []
        assert (await engine.views.list(Query(limit=limit))).items == ()
        assert await engine.claims.held_by("w1-a", limit) == []
        assert await engine.claims.expired(limit=limit) == []


# -- texts

TEXTS: dict[str, Use] = {
    "kind": lambda lab, c, v: submit(lab, kind=v),
    "namespace": lambda lab, c, v: submit(lab, namespace=v),
    "lane": lambda lab, c, v: submit(lab, lane=v),
    "key": lambda lab, c, v: submit(lab, key=v),
    "creator": lambda lab, c, v: submit(lab, creator=v),
    "encoding": lambda lab, c, v: submit(lab, encoding=v),
    "tag": lambda lab, c, v: submit(lab, tags={"app.a": v}),
    "set_tag": lambda lab, c, v: lab.engine.executions.set_tag(c.id, "app.a", v),
    "cancel": lambda lab, c, v: lab.engine.executions.cancel(c.id, reason=v),
    "cancel source": lambda lab, c, v: lab.engine.executions.cancel(
        c.id, reason="no", owner=Owner(c.lease.id, c.epoch, c.attempt_id, source=v)
    ),
    "cancel by owner": lambda lab, c, v: lab.engine.attempts.cancel(c, v),
    "block reason": lambda lab, c, v: lab.engine.executions.block(c.id, v),
    "block detail": lambda lab, c, v: lab.engine.executions.block(c.id, "paused_by_operator", v),
    "unblock": lambda lab, c, v: lab.engine.executions.unblock(c.id, v),
    "revoke": lambda lab, c, v: lab.engine.claims.revoke(c.id, reason=v),
    "revoke instance": lambda lab, c, v: lab.engine.claims.revoke(c.id, reason="no", instance=v),
    "fail": lambda lab, c, v: lab.engine.attempts.fail(c, Failure(v)),
    "fail category": lambda lab, c, v: lab.engine.attempts.fail(c, Failure("boom", v)),
    "progress": lambda lab, c, v: lab.engine.attempts.progress(c, 5, v),
    "step": lambda lab, c, v: lab.engine.attempts.record_step(c, step(name=v)),
    "step of a delay": lambda lab, c, v: lab.engine.attempts.delay(
        c, MAX_MILLIS, step=step(name=v)
    ),
    "claim worker": lambda lab, c, v: lab.claim(WorkerIdentity(v, "a")),
    "claim instance": lambda lab, c, v: lab.claim(WorkerIdentity("a", v)),
    "claim lane": lambda lab, c, v: lab.claim(lanes=["default", v]),
    "claim kind": lambda lab, c, v: lab.claim(kinds=["job", v]),
    "claim capability": lambda lab, c, v: lab.claim(capabilities=["gpu", v]),
    "claim namespace": lambda lab, c, v: lab.claim(namespace=v),
    "held_by": lambda lab, c, v: lab.engine.claims.held_by(v),
    "expired namespace": lambda lab, c, v: lab.engine.claims.expired(namespace=v),
    "grant": lambda lab, c, v: lab.engine.grants.issue(c.id, v),
    "reclaim grant": lambda lab, c, v: lab.engine.grants.issue_reclaim(c.id, v),
    "find_and_issue": lambda lab, c, v: lab.engine.grants.find_and_issue(v, lane="default"),
    "find_and_issue lane": lambda lab, c, v: lab.engine.grants.find_and_issue("w1", lane=v),
    "find_and_issue namespace": lambda lab, c, v: lab.engine.grants.find_and_issue(
        "w1", lane="default", namespace=v
    ),
    "eligible": lambda lab, c, v: lab.engine.grants.eligible(v),
    "eligible namespace": lambda lab, c, v: lab.engine.grants.eligible("default", namespace=v),
    "redeem": lambda lab, c, v: lab.engine.grants.claim(c.id, WorkerIdentity(v, "a")),
    "redeem instance": lambda lab, c, v: lab.engine.grants.claim(c.id, WorkerIdentity("w1", v)),
    "resume": lambda lab, c, v: lab.engine.grants.claim_resumed(c.id, WorkerIdentity(v, "a")),
    "reclaim": lambda lab, c, v: lab.engine.grants.reclaim(c.id, WorkerIdentity(v, "a")),
    "pause": lambda lab, c, v: lab.engine.lanes.pause(v),
    "resume lane": lambda lab, c, v: lab.engine.lanes.resume(v),
    "lanes after": lambda lab, c, v: lab.engine.lanes.list(after=v),
    "list namespace": lambda lab, c, v: lab.engine.views.list(Query(namespace=v)),
    "list lane": lambda lab, c, v: lab.engine.views.list(Query(lane=v)),
    "list kind": lambda lab, c, v: lab.engine.views.list(Query(kind=v)),
    "list state": lambda lab, c, v: lab.engine.views.list(Query(states=(v,))),
    "list tag": lambda lab, c, v: lab.engine.views.list(Query(tag=("app.a", v))),
    "list cursor": lambda lab, c, v: lab.engine.views.list(Query(), v),
    "counts namespace": lambda lab, c, v: lab.engine.views.counts(namespace=v),
    "counts lane": lambda lab, c, v: lab.engine.views.counts(lane=v),
    "events namespace": lambda lab, c, v: lab.engine.events.read(namespace=v),
    "events tag": lambda lab, c, v: lab.engine.events.read(tag=("app.a", v)),
    "events family": lambda lab, c, v: lab.engine.events.read(family=v),
}


async def test_text_that_no_store_can_hold_is_refused(lab: Lab) -> None:
    """Design §2, rule 5: text is checked before it is queued."""
    claim = await lab.running()
    for name, use in TEXTS.items():
        await refuses(lab, name, partial(use, lab, claim), NO_TEXT)
    await lab.complete(claim)


NO_TAG_KEYS = [
    "", "a", "a.", ".a", "A.b", "a.B", "1.a", "_a.b", "a-b.c", "a b.c", "a..b", "a.b-c", "ä.b",
    "a.b\n", "a" * 255 + ".b", *NO_TEXT,
]  # fmt: skip


BY_TAG_KEY: dict[str, Use] = {
    "submit": lambda lab, c, v: submit(lab, tags={v: "1"}),
    "set_tag": lambda lab, c, v: lab.engine.executions.set_tag(c.id, v, "1"),
    "set_tags": lambda lab, c, v: lab.engine.executions.set_tags(c.id, {"app.a": "1", v: "1"}),
    "get_tag": lambda lab, c, v: lab.engine.executions.get_tag(c.id, v),
    "list": lambda lab, c, v: lab.engine.views.list(Query(tag=(v, "1"))),
    "events": lambda lab, c, v: lab.engine.events.read(tag=(v, "1")),
}


@pytest.mark.inside
async def test_a_tag_key_that_breaks_the_pattern_is_refused(lab: Lab) -> None:
    """§1.11"""
    claim = await lab.running()
    keys = [key for key in NO_TAG_KEYS if key.__hash__ is not None]
    for name, use in BY_TAG_KEY.items():
        await refuses(lab, name, partial(use, lab, claim), keys, InvalidTag)


# -- sizes

TOO_LONG: dict[str, tuple[Use, int, type[FlowFabricError]]] = {
    "lane": (lambda lab, c, v: submit(lab, lane=v), 64, Invalid),
    "kind": (lambda lab, c, v: submit(lab, kind=v), 256, Invalid),
    "namespace": (lambda lab, c, v: submit(lab, namespace=v), 256, Invalid),
    "key": (lambda lab, c, v: submit(lab, key=v), 1024, Invalid),
    "creator": (lambda lab, c, v: submit(lab, creator=v), 256, Invalid),
    "tag": (lambda lab, c, v: submit(lab, tags={"app.a": v}), 4096, Invalid),
    "worker": (lambda lab, c, v: lab.claim(WorkerIdentity(v, "a")), 256, Invalid),
    "reason": (lambda lab, c, v: lab.engine.executions.cancel(c.id, reason=v), 4096, Invalid),
    "progress": (lambda lab, c, v: lab.engine.attempts.progress(c, 1, v), 4096, Invalid),
    "step": (lambda lab, c, v: lab.engine.attempts.record_step(c, step(name=v)), 2048, Invalid),
    "failure": (lambda lab, c, v: lab.engine.attempts.fail(c, Failure(v)), 1 << 16, Invalid),
    "payload": (lambda lab, c, v: submit(lab, payload=v.encode()), 1 << 20, PayloadTooLarge),
    "result": (
        lambda lab, c, v: lab.engine.attempts.complete(c, v.encode()),
        1 << 20,
        PayloadTooLarge,
    ),
    "step doc": (
        lambda lab, c, v: lab.engine.attempts.record_step(c, step(doc=v.encode())),
        1 << 20,
        PayloadTooLarge,
    ),
    "policy": (
        lambda lab, c, v: submit(lab, policy={"fallback_policy": {"x": v}}),
        1 << 16,
        PayloadTooLarge,
    ),
}


async def test_more_than_the_limit_allows_is_refused(lab: Lab) -> None:
    claim = await lab.running()
    for name, (use, limit, error) in TOO_LONG.items():
        texts = ["x" * (limit + 1), "x" * (limit * 2), "é" * (limit // 2 + 1)]
        await refuses(lab, name, partial(use, lab, claim), texts, error)


async def test_exactly_the_limit_is_allowed(lab: Lab) -> None:
    for name, (use, limit, _) in TOO_LONG.items():
        if name != "policy":
            await use(lab, await lab.running(), "x" * limit)
            await lab.claim(limit=500)


# -- shapes

SHAPES: dict[str, tuple[Use, list[Any], type[FlowFabricError]]] = {
    "submission": (
        lambda lab, c, v: lab.engine.executions.submit(v),
        [None, {}, "job", 7],
        Invalid,
    ),
    "submissions": (
        lambda lab, c, v: lab.engine.executions.submit_many(v),
        [None, 7, "job", [None], [Submission(kind="job"), "job"]],
        Invalid,
    ),
    "empty names": (
        lambda lab, c, v: submit(lab, **{v: ""}),
        ["kind", "lane", "namespace"],
        Invalid,
    ),
    "lane": (lambda lab, c, v: submit(lab, lane=v), [None, "é", "\x1f", "\x7f", "a\n"], Invalid),
    "worker": (
        lambda lab, c, v: lab.claim(v),
        [
            None,
            "w1",
            7,
            WorkerIdentity("", "a"),
            WorkerIdentity("a", ""),
            WorkerIdentity("a b", "a"),
            WorkerIdentity("a", "\x7f"),
        ],
        Invalid,
    ),
    "redeeming worker": (
        lambda lab, c, v: lab.engine.grants.claim(c.id, v),
        [None, "w1", WorkerIdentity("", "a")],
        Invalid,
    ),
    "lanes": (
        lambda lab, c, v: lab.claim(lanes=v),
        [None, 7, "default", b"default", [""], ["x" * 65], [None], {"": 1}, {7: 1}],
        Invalid,
    ),
    "kinds": (lambda lab, c, v: lab.claim(kinds=v), [7, "job", b"job", [""], [None]], Invalid),
    "payload": (lambda lab, c, v: submit(lab, payload=v), [None, "text", 7, {}], Invalid),
    "result": (
        lambda lab, c, v: lab.engine.attempts.complete(c, v),
        ["text", 7, {}, [b"x"]],
        Invalid,
    ),
    "tags": (
        lambda lab, c, v: lab.engine.executions.set_tags(c.id, v),
        [None, [("app.a", "1")], "app.a", 7],
        InvalidTag,
    ),
    "no tags": (lambda lab, c, v: lab.engine.executions.set_tags(c.id, v), [{}], Invalid),
    "tags of a submission": (
        lambda lab, c, v: submit(lab, tags=v),
        [[("app.a", "1")], "app.a", 7],
        InvalidTag,
    ),
    "failure": (
        lambda lab, c, v: lab.engine.attempts.fail(c, v),
        [None, "boom", Failure("boom", ""), Failure("boom", detail="text")],  # type: ignore[arg-type]
        Invalid,
    ),
    "step": (
        lambda lab, c, v: lab.engine.attempts.record_step(c, v),
        [None, "s", step(doc="text"), step(doc=None)],
        Invalid,
    ),
    "step of a delay": (
        lambda lab, c, v: lab.engine.attempts.delay(c, MAX_MILLIS, step=v),
        ["s", step(doc="text")],
        Invalid,
    ),
    "steps of": (lambda lab, c, v: lab.engine.attempts.steps(v, 0), [None, "x", 7], InvalidId),
    "lease id": (
        lambda lab, c, v: lab.engine.grants.claim(c.id, W1, lease_id=v),
        ["x", 7, b"x" * 16],
        InvalidId,
    ),
    "lease id to revoke": (
        lambda lab, c, v: lab.engine.claims.revoke(c.id, reason="no", lease_id=v),
        ["x", 7, b"x" * 16],
        InvalidId,
    ),
    "query": (lambda lab, c, v: lab.engine.views.list(v), [None, {}, "x"], Invalid),
    "states": (
        lambda lab, c, v: lab.engine.views.list(Query(states=v)),
        [None, 7, "waiting", ("resumable",)],
        Invalid,
    ),
    "tag to look for": (
        lambda lab, c, v: lab.engine.views.list(Query(tag=v)),
        ["app.a", ("app.a",), ["app.a", "1"], 7, ("app.a", "1", "2")],
        Invalid,
    ),
    "cursor": (
        lambda lab, c, v: lab.engine.views.list(Query(), v),
        ["", ".", "1", "x.y", "1.x", f"-1.{'0' * 32}", f"{10**20}.{'0' * 32}", 7],
        Invalid,
    ),
    "after": (
        lambda lab, c, v: lab.engine.views.list(Query(after=v)),
        [7, "x", (1,), (1, "x"), ("x", SOME), (2**70, SOME), (1, SOME, 2)],
        Invalid,
    ),
    "expired after": (
        lambda lab, c, v: lab.engine.claims.expired(after=v),
        [7, "x", (1,), (1, 2, 3)],
        Invalid,
    ),
}


@pytest.mark.inside
async def test_a_value_of_the_wrong_shape_is_refused(lab: Lab) -> None:
    claim = await lab.running()
    for name, (use, values, error) in SHAPES.items():
        await refuses(lab, name, partial(use, lab, claim), values, error)
    await lab.complete(claim)


async def test_a_reason_no_block_has_is_refused(lab: Lab) -> None:
    """§2.5"""
    id = await lab.submit()
    reasons = ["", "nonsense", "none", "waiting_for_signal", "waiting_for_worker", "PAUSED"]
    block = lab.engine.executions.block
    await refuses(lab, "block", lambda reason: block(id, reason), reasons, InvalidBlockingReason)


NO_TOKENS: list[tuple[Any, str]] = [
    (None, "not_array"),
    ("gpu", "not_array"),
    ({"gpu": 1}, "not_array"),
    (["gpu", 7], "non_string_token"),
    ([b"gpu"], "non_string_token"),
    (["\ud800"], "non_string_token"),
    (["gpu", ""], "empty_token"),
    (["a,b"], "comma_in_token"),
    (["a b"], "control_or_whitespace"),
    (["\0"], "control_or_whitespace"),
    ([f"t{number}" for number in range(257)], "too_many_tokens"),
    (["x" * 4097], "too_many_bytes"),
]


@pytest.mark.inside
async def test_a_worker_that_offers_nonsense_is_told_which(lab: Lab) -> None:
    """§1.6"""
    gone = (await lab.running()).id
    await lab.engine.claims.revoke(gone, reason="")
    id = await lab.submit()
    grants = lab.engine.grants
    calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "claim": lambda given: lab.claim(capabilities=given),
        "issue": lambda given: grants.issue(id, "w1", capabilities=given),
        "issue_reclaim": lambda given: grants.issue_reclaim(gone, "w1", capabilities=given),
        "find": lambda given: grants.find_and_issue("w1", lane="default", capabilities=given),
    }
    for name, call in calls.items():
        offers = [tokens for tokens, _ in NO_TOKENS]
        errors = await refuses(lab, name, call, offers, InvalidCapabilities)
        assert [error.detail for error in errors] == [f"worker:{word}" for _, word in NO_TOKENS]
