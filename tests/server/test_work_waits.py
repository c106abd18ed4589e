"""Waitpoints and suspending over HTTP (execution.md, suspend; server-sdk.md 1.3 d, 3.3)."""

import base64
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid
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
    Wildcard,
)
from flowfabric.server.worker.work.conditions import parse_condition, reason_code
from flowfabric.store.clock import ManualClock
from tests.kit.http_work import HttpWorker, error_of
from tests.kit.signalling import fresh

GO = {"Single": {"waitpoint_key": "k", "matcher": {"ByName": "go"}}}


async def test_a_signal_resumes_the_run(worker: HttpWorker) -> None:
    claim = await worker.take()
    id = claim["execution_id"]
    answer = await worker.do(claim, "suspend", signal="approved")
    assert answer["outcome"] == "suspended"
    (waitpoint,) = answer["waitpoints"]
    assert waitpoint["waitpoint_key"] == "approved"
    assert await worker.state(id) == "suspended"
    assert await worker.claim() == []
    await worker.signal(
        id, waitpoint, "approved", payload=b'{"by":"ada"}', encoding="json", source="ada"
    )
    (again,) = await worker.claim()
    assert (again["started_as"], again["attempt_index"]) == ("resume", 0)
    (signal,) = again["signals"]
    assert signal["name"] == "approved"
    assert signal["payload_json"] == {"by": "ada"}
    assert signal["source_identity"] == "ada"
    assert signal["waitpoint_id"] == waitpoint["waitpoint_id"]
    assert error_of(await worker.post(claim, "complete")) == (409, "stale_lease")
    assert (await worker.do(again, "complete"))["outcome"] == "completed"


@pytest.mark.rules
async def test_a_signal_that_is_nested_deeply_does_not_keep_work_from_workers(
    worker: HttpWorker,
) -> None:
    """Who has the token of one waitpoint must not be able to stop all workers."""
    claim = await worker.take()
    answer = await worker.do(claim, "suspend", signal="approved")
    payload = b"[" * 5000 + b"]" * 5000
    (waitpoint,) = answer["waitpoints"]
    await worker.signal(
        claim["execution_id"], waitpoint, "approved", payload=payload, encoding="json", source="eve"
    )
    await worker.submit()
    resumed, _ = await worker.claim(limit=2)
    assert base64.b64decode(resumed["signals"][0]["payload"]) == payload


async def test_a_repeated_suspend_gets_the_first_answer(worker: HttpWorker) -> None:
    claim = await worker.take()
    first = await worker.do(claim, "suspend", signal="go", timeout_ms=5_000)
    again = await worker.do(claim, "suspend", signal="go", timeout_ms=5_000)
    assert again == first
    other = await worker.post(claim, "suspend", signal="stop")
    assert error_of(other) == (409, "execution_not_active")
    item = {"op": "suspend", "handle": claim["handle"], "signal": "go", "timeout_ms": 5_000}
    (result,) = await worker.batch(item)
    assert result["answer"] == first


async def test_the_handle_of_a_suspended_run_owns_nothing(worker: HttpWorker) -> None:
    claim = await worker.take()
    answer = await worker.do(claim, "suspend", signal="go")
    held = {**claim, "handle": answer["handle"]}
    assert error_of(await worker.post(held, "complete")) == (409, "execution_not_active")
    assert error_of(await worker.post(held, "suspend", signal="go")) == (409, "already_suspended")


async def test_an_idempotency_key_finds_the_first_answer(worker: HttpWorker) -> None:
    claim = await worker.take()
    first = await worker.do(claim, "suspend", signal="go", idempotency_key="once")
    again = await worker.do(claim, "suspend", signal="halt", idempotency_key="once")
    assert again["suspension_id"] == first["suspension_id"]


async def test_a_pending_waitpoint_keeps_signals(worker: HttpWorker) -> None:
    claim = await worker.take()
    id = claim["execution_id"]
    made = await worker.do(claim, "waitpoints", waitpoint_key="payment")
    assert await worker.do(claim, "waitpoints", waitpoint_key="payment") == made
    other = await worker.do(claim, "waitpoints", waitpoint_key="other")
    assert other["waitpoint_id"] != made["waitpoint_id"]
    await worker.signal(id, made, "paid")
    wait = {
        "signal": "paid",
        "waitpoint_key": "payment",
        "waitpoint_id": made["waitpoint_id"],
    }
    answer = await worker.do(claim, "suspend", **wait)
    assert answer["outcome"] == "already_satisfied"
    assert [signal["name"] for signal in answer["signals"]] == ["paid"]
    assert "handle" not in answer
    assert await worker.do(claim, "suspend", **wait) == answer
    assert await worker.state(id) == "active"
    assert (await worker.do(claim, "complete"))["outcome"] == "completed"


async def test_waitpoints_that_cannot_be_used(worker: HttpWorker, clock: ManualClock) -> None:
    claim = await worker.take()
    made = await worker.do(claim, "waitpoints", waitpoint_key="k", expires_in_ms=100)
    at = {"signal": "go", "waitpoint_id": made["waitpoint_id"]}
    assert error_of(await worker.post(claim, "suspend", **at)) == (400, "invalid_input")
    wrong = await worker.post(claim, "suspend", **at, waitpoint_key="other")
    assert error_of(wrong) == (400, "invalid_input")
    unknown = {**at, "waitpoint_key": "k", "waitpoint_id": str(fresh())}
    found = error_of(await worker.post(claim, "suspend", **unknown))
    assert found == (404, "waitpoint_not_found")
    clock.advance(100)
    late = await worker.post(claim, "suspend", **at, waitpoint_key="k")
    assert error_of(late) == (409, "pending_waitpoint_expired")
    assert error_of(await worker.post(claim, "waitpoints", waitpoint_key="")) == (
        400,
        "invalid_input",
    )
    reply = await worker.post(claim, "waitpoints", waitpoint_key="k", waitpoint_id="x")
    assert error_of(reply) == (400, "invalid_id")
    assert await worker.state(claim["execution_id"]) == "active"


async def test_a_waitpoint_of_another_run(worker: HttpWorker) -> None:
    """§3.31 checks 5 and 7: neither made again nor bound. The id of a suspension is its run's
    own, so two runs may use the same one."""
    claim, other = await worker.take(), await worker.take()
    theirs = await worker.do(other, "waitpoints", waitpoint_key="k")
    id = theirs["waitpoint_id"]
    made = await worker.post(claim, "waitpoints", waitpoint_key="k", waitpoint_id=id)
    assert error_of(made) == (409, "waitpoint_already_exists")
    bound = await worker.post(claim, "suspend", condition=GO, waitpoint_key="k", waitpoint_id=id)
    assert error_of(bound) == (400, "invalid_waitpoint_for_execution")
    shared = str(fresh())
    for each in (claim, other):
        answer = await worker.do(each, "suspend", signal="go", suspension_id=shared)
        assert (answer["outcome"], answer["suspension_id"]) == ("suspended", shared)


async def test_a_waitpoint_keeps_the_key_it_was_made_with(worker: HttpWorker) -> None:
    """E-T229: an answer never names another key than the waitpoint has."""
    claim = await worker.take()
    id = str(fresh())
    made = await worker.do(claim, "waitpoints", waitpoint_key="payment", waitpoint_id=id)
    other = await worker.post(claim, "waitpoints", waitpoint_key="refund", waitpoint_id=id)
    assert error_of(other) == (409, "waitpoint_already_exists")
    repeat = await worker.do(claim, "waitpoints", waitpoint_key="payment", waitpoint_id=id)
    assert repeat == made


async def test_a_used_waitpoint_is_not_made_again(worker: HttpWorker) -> None:
    claim = await worker.take()
    id = claim["execution_id"]
    made = await worker.do(claim, "waitpoints", waitpoint_key="k")
    await worker.signal(id, made, "go")
    await worker.do(
        claim, "suspend", signal="go", waitpoint_key="k", waitpoint_id=made["waitpoint_id"]
    )
    reply = await worker.post(claim, "waitpoints", waitpoint_key="k")
    assert error_of(reply) == (409, "waitpoint_already_exists")
    other = await worker.do(claim, "waitpoints", waitpoint_key="k", waitpoint_id=str(fresh()))
    assert other["token"]


@pytest.mark.parametrize(
    ("wait", "needed"),
    [
        ({"all_of": ["a", "b"]}, 2),
        ({"any_of": ["a", "b"]}, 1),
        ({"condition": {"Composite": {"kind": "AllOf", "members": [GO]}}}, 1),
        (
            {
                "condition": {
                    "Composite": {
                        "kind": "Count",
                        "n": 2,
                        "count_kind": "DistinctWaitpoints",
                        "waitpoints": ["a", "b", "c"],
                    }
                }
            },
            2,
        ),
    ],
)
async def test_several_waitpoints(worker: HttpWorker, wait: dict[str, Any], needed: int) -> None:
    claim = await worker.take()
    id = claim["execution_id"]
    answer = await worker.do(claim, "suspend", **wait)
    for waitpoint in answer["waitpoints"][:needed]:
        assert await worker.state(id) == "suspended"
        await worker.signal(id, waitpoint, "go")
    (again,) = await worker.claim()
    assert len(again["signals"]) == needed


@pytest.mark.parametrize(
    ("behavior", "state"),
    [
        ("fail", "failed"),
        ("Cancel", "cancelled"),
        ("expire", "expired"),
        ("AutoResumeWithTimeoutSignal", "waiting"),
        ("auto_resume_with_timeout_signal", "waiting"),
        ("AutoResume", "waiting"),
        ("auto_resume", "waiting"),
        ("escalate", "suspended"),
        ("EXPIRE", "expired"),
        ("explode", "failed"),
    ],
)
async def test_timeouts(worker: HttpWorker, clock: ManualClock, behavior: str, state: str) -> None:
    """§3.39: a behaviour that is not known is `fail`."""
    claim = await worker.take()
    await worker.do(claim, "suspend", timeout_ms=1_000, timeout_behavior=behavior)
    clock.advance(1_000)
    await worker.engine.sweep.once()
    assert await worker.state(claim["execution_id"]) == state


async def test_a_condition_from_before_composite_ones(
    worker: HttpWorker, clock: ManualClock
) -> None:
    """§4.1: names of signals at the one waitpoint."""
    claim = await worker.take()
    id = claim["execution_id"]
    wanted = {
        "condition_type": "signal_set",
        "required_signal_names": ["paid", "packed"],
        "signal_match_mode": "all",
        "minimum_signal_count": 1,
        "timeout_behavior": "expire",
        "allow_operator_override": True,
    }
    answer = await worker.do(claim, "suspend", condition=wanted, waitpoint_key="order")
    (waitpoint,) = answer["waitpoints"]
    assert waitpoint["waitpoint_key"] == "order"
    for name in ("lost", "packed"):
        await worker.signal(id, waitpoint, name)
        assert await worker.state(id) == "suspended"
    await worker.signal(id, waitpoint, "paid")
    (again,) = await worker.claim()
    assert [signal["name"] for signal in again["signals"]] == ["packed", "paid"]
    await worker.do(again, "suspend", condition=wanted, timeout_ms=1_000)
    clock.advance(1_000)
    await worker.engine.sweep.once()
    assert await worker.state(id) == "expired"


async def test_a_delayed_resume(worker: HttpWorker, clock: ManualClock) -> None:
    claim = await worker.take()
    policy = {"resume_delay_ms": 700}
    answer = await worker.do(
        claim, "suspend", signal="go", resume_policy=policy, timeout_at=clock.now() + 9_000
    )
    await worker.signal(claim["execution_id"], answer["waitpoints"][0], "go")
    assert await worker.claim() == []
    clock.advance(700)
    await worker.engine.sweep.once()
    assert len(await worker.claim()) == 1


@pytest.mark.rules
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_input"),
        ({"signal": "a", "any_of": ["b"]}, "invalid_input"),
        ({"signal": ""}, "invalid_input"),
        ({"condition": "Nothing"}, "invalid_input"),
        ({"condition": "TimeoutOnly"}, "invalid_input"),
        ({"condition": 7}, "invalid_input"),
        ({"condition": {"Single": {"waitpoint_key": 1}}}, "invalid_input"),
        ({"signal": "a", "timeout_ms": 1, "timeout_at": 1}, "invalid_input"),
        ({"signal": "a", "timeout_at": 1}, "invalid_input"),
        ({"condition": {"required_signal_names": "a"}}, "invalid_input"),
        ({"condition": {"required_signal_names": ["a"], "color": 1}}, "invalid_input"),
        (
            {"condition": {"required_signal_names": ["a"], "minimum_signal_count": 2}},
            "invalid_input",
        ),
        ({"signal": "a", "suspension_id": "x"}, "invalid_id"),
        ({"signal": "a", "reason_code": "\0"}, "invalid_input"),
    ],
)
async def test_bad_suspends_change_nothing(
    worker: HttpWorker, body: dict[str, Any], code: str
) -> None:
    claim = await worker.take()
    assert error_of(await worker.post(claim, "suspend", **body)) == (400, code)
    assert await worker.state(claim["execution_id"]) == "active"


# -- spellings


def _count(**members: Any) -> dict[str, Any]:
    return {"Composite": {"kind": "Count", **members}}


@pytest.mark.parametrize(
    ("spelling", "condition"),
    [
        ("OperatorOnly", OperatorOnly()),
        ("TimeoutOnly", TimeoutOnly()),
        (GO, Single("k", ByName("go"))),
        ({"Single": {"waitpoint_key": "k"}}, Single("k", Wildcard())),
        ({"Single": {"waitpoint_key": "k", "matcher": "Wildcard"}}, Single("k", Wildcard())),
        ({"kind": "Single", "waitpoint": "k"}, Single("k", Wildcard())),
        (
            {"Composite": {"kind": "AllOf", "members": [GO, "OperatorOnly"]}},
            AllTrue((Single("k", ByName("go")), OperatorOnly())),
        ),
        (
            {"Composite": {"kind": "AnyOf", "members": [GO]}},
            AnyTrue((Single("k", ByName("go")),)),
        ),
        (
            _count(n=2, count_kind="DistinctSources", matcher="Wildcard", waitpoints=["a"]),
            Count(2, CountKind.SOURCES, ("a",), Wildcard()),
        ),
        (
            _count(n=1, count_kind="DistinctSignals", waitpoints=["a"], matcher=None),
            Count(1, CountKind.SIGNALS, ("a",)),
        ),
    ],
)
def test_spellings_of_conditions(spelling: object, condition: Condition) -> None:
    assert parse_condition(spelling) == condition


@pytest.mark.parametrize(
    "spelling",
    [
        None,
        [],
        {},
        "Single",
        {"Single": "k"},
        {"Single": {"waitpoint_key": "k", "matcher": "ByName"}},
        {"Single": {"waitpoint_key": "k", "matcher": {"ByName": 1}}},
        {"Single": {"waitpoint_key": "k", "color": "red"}},
        {"Single": {"waitpoint_key": "k"}, "Composite": {}},
        {"Composite": {"kind": "AllOf"}},
        {"Composite": {"kind": "NoneOf", "members": []}},
        _count(n=True, count_kind="DistinctSignals", waitpoints=["a"]),
        _count(n=1, count_kind="distinct_signals", waitpoints=["a"]),
        _count(n=1, count_kind="DistinctSignals", waitpoints=[1]),
    ],
)
def test_what_is_no_condition(spelling: object) -> None:
    with pytest.raises(Invalid):
        parse_condition(spelling)


def test_deep_conditions_are_refused() -> None:
    nested: Any = GO
    for _ in range(200):
        nested = {"Composite": {"kind": "AllOf", "members": [nested]}}
    with pytest.raises(Invalid, match="nested deeper"):
        parse_condition(nested)


def test_words() -> None:
    assert reason_code("WaitingForToolResult") == "waiting_for_tool_result"
    assert reason_code("step_boundary") == "step_boundary"
    assert reason_code("Überprüfung") == "Überprüfung"
