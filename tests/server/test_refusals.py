"""Errors of the engine as answers: every line of the table in server-sdk.md 1.5."""

from unittest.mock import AsyncMock
from uuid import UUID

import httpx
import pytest

from flowfabric.core.base import errors
from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.ids import ExecutionId
from flowfabric.engine.engine import Engine
from flowfabric.server.http.errors import answer_to
from tests.kit.http import NOBODY, error_of

pytestmark = pytest.mark.rules

A = UUID(int=1)
INACTIVE = errors.NotActive(phase="terminal", outcome="success", epoch=3, attempt_id=A)
TAKEN = errors.EdgeExists(A, A, A, flow=A, on="on_success", input=None, created_at=1)

TABLE: list[tuple[FlowFabricError, int, str | None, bool | None]] = [
    (errors.NotFound("execution", A), 404, None, None),
    (errors.WaitpointNotFound("waitpoint", A), 404, None, None),
    (errors.Invalid("x"), 400, None, None),
    (errors.InvalidId("missing_tag", "x"), 400, None, None),
    (errors.InvalidCapabilities("x"), 400, None, None),
    (errors.InvalidPolicy("x"), 400, None, None),
    (errors.InvalidTag("x"), 400, None, None),
    (errors.PayloadTooLarge("payload", 2, 1), 400, None, None),
    (errors.FenceRequired("x"), 400, None, None),
    (errors.PartialFence("x"), 400, None, None),
    (errors.CapabilityMismatch(("a",)), 400, None, None),
    (errors.InvalidLeaseForSuspend("x"), 400, None, None),
    (errors.InvalidWaitpoint("x"), 400, None, None),
    (errors.InvalidBlockingReason("x"), 400, None, None),
    (errors.SignalLimitExceeded("x"), 400, None, None),
    (errors.InvalidGraph("x"), 400, None, None),
    (errors.InvalidKid("x"), 400, None, None),
    (errors.InvalidSecretHex("x"), 400, None, None),
    (errors.InvalidGrace("x"), 400, None, None),
    (errors.MissingToken("x"), 400, None, None),
    (errors.InvalidToken("x"), 400, None, None),
    (errors.TokenExpired("x"), 400, None, None),
    (errors.CycleDetected("x"), 409, "cycle_detected", False),
    (errors.SelfEdge("x"), 409, "self_referencing_edge", False),
    (errors.AlreadyInFlow(A), 409, "execution_already_in_flow", False),
    (TAKEN, 409, "dependency_already_exists", False),
    (errors.WaitpointExists("x"), 409, "waitpoint_already_exists", False),
    (errors.RotationConflict("x"), 409, "rotation_conflict", False),
    (errors.FlowConflict("x"), 409, "conflict", False),
    (errors.StaleRevision("x"), 409, "contention", True),
    (errors.NotEligible("x"), 409, "contention", True),
    (errors.NotLeaseable("x"), 409, "contention", True),
    (errors.UseClaimResumed("x"), 409, "contention", True),
    (errors.NotResumed("x"), 409, "contention", True),
    (errors.LeaseConflict("x"), 409, "contention", True),
    (errors.InvalidGrant("x"), 409, "contention", True),
    (errors.GrantExpired("x"), 409, "contention", True),
    (errors.Locked("x"), 409, "contention", True),
    (INACTIVE, 409, "contention", True),
    (errors.RetryExhausted("x"), 503, "retry_exhausted", True),
    (errors.NotTerminal("x"), 409, "execution_not_terminal", False),
    (errors.MaxReplays("x"), 409, "max_replays_exhausted", False),
    (errors.FlowTerminal("x"), 409, "flow_already_terminal", False),
    (errors.BudgetExceeded("b", "d", 1, 1), 409, "budget_exceeded", False),
    (errors.LeaseExpired("x"), 409, "already_satisfied", False),
    (errors.LeaseRevoked("x"), 409, "already_satisfied", False),
    (errors.StaleLease("x"), 409, "state_conflict", False),
    (errors.NotSuspended("x"), 409, "state_conflict", False),
    (errors.AlreadySuspended("x"), 409, "state_conflict", False),
    (errors.NotSignalable("x"), 409, "state_conflict", False),
    (errors.WaitpointClosed("x"), 409, "state_conflict", False),
    (errors.WaitpointNotPending("x"), 409, "state_conflict", False),
    (errors.WaitpointExpired("x"), 409, "state_conflict", False),
    (errors.GrantExists("x"), 409, "state_conflict", False),
    (errors.NotInFlow("x"), 409, "state_conflict", False),
    (errors.Overloaded("x", retry_after=1.0), 429, "resource_exhausted", True),
    (errors.Unavailable("x"), 503, "unavailable", True),
    (errors.NoSigningKey("x"), 503, "unavailable", False),
    (errors.Corruption("x"), 500, None, False),
]


@pytest.mark.parametrize(("error", "status", "kind", "retryable"), TABLE)
def test_the_table(
    error: FlowFabricError, status: int, kind: str | None, retryable: bool | None
) -> None:
    found, body = answer_to(error)
    assert found == status
    assert (body.kind or None) == kind
    assert (None if status in (400, 404) else body.retryable) is retryable
    assert body.error
    assert body.code
    if status in (409, 429, 503) and not isinstance(error, errors.NotActive):
        # Execution 5.1: who calls the engine is told the same. Of an execution that is not active
        # only clients of the original are told to try again (5.3 and 5.4).
        assert error.retryable is retryable


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.NotFound("execution", "{fp:1}:x"), "execution not found: {fp:1}:x"),
        (errors.NotFound("execution", ExecutionId.anywhere(A)), f"execution not found: {A}"),
        (errors.NotFound("execution"), "not found: execution"),
        (errors.NotFound("flow", A), "not found: flow"),
        (errors.NotFound("budget", "b"), "not found: budget"),
        (errors.NotFound("quota", "q"), "not found: quota_policy"),
        (errors.NotFound("waitpoint", A), "not found: waitpoint"),
        (errors.NotFound("stream", A), "not found: stream"),
        (errors.Invalid("why"), "invalid_input: why"),
        (errors.InvalidToken(), "invalid_token"),
        (errors.CapabilityMismatch(("a", "b")), "capability_mismatch: a,b"),
        (errors.InvalidGraph("why"), "invalid_dependency: why"),
        (errors.StaleRevision("why"), "contention: StaleGraphRevision: why"),
        (errors.LeaseConflict(), "contention: LeaseConflict"),
        (errors.UseClaimResumed("why"), "contention: UseClaimResumedExecution: why"),
        (errors.NotResumed(), "contention: NotAResumedExecution"),
        (errors.Locked("why"), "contention: Locked: why"),
        (INACTIVE, "contention: ExecutionNotActive: phase terminal, outcome success, epoch 3"),
        (errors.RetryExhausted(), "contention: RetryExhausted"),
        (errors.CycleDetected("why"), "cycle_detected: why"),
    ],
)
def test_texts_that_clients_look_for(error: FlowFabricError, text: str) -> None:
    assert answer_to(error)[1].error == text


def test_details_have_the_names_of_the_original() -> None:
    assert answer_to(INACTIVE)[1].details == {
        "lifecycle_phase": "terminal",
        "terminal_outcome": "success",
        "lease_epoch": 3,
        "attempt_id": str(A),
    }


def test_an_id_without_a_partition_is_shown_as_it_was_given() -> None:
    details = answer_to(errors.NotFound("execution", ExecutionId.anywhere(A)))[1].details
    assert details == {"entity": "execution", "key": str(A)}


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/executions/a/b/c", "/nothing"])
async def test_an_unknown_route_says_so(http: httpx.AsyncClient, path: str) -> None:
    refused = error_of(await http.get(path), 404)
    assert (refused["error"], refused["code"]) == ("not found: route", "route_not_found")


async def test_a_wrong_method_says_which_ones_are_right(http: httpx.AsyncClient) -> None:
    reply = await http.delete("/v1/executions")
    assert error_of(reply, 405)["code"] == "method_not_allowed"
    assert reply.headers["allow"] == "GET, HEAD, OPTIONS, POST"


async def test_a_race_lost_too_often_is_503_with_a_hint(
    engine: Engine, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of execution.md 5.4, C-T52 over HTTP."""
    lost = AsyncMock(side_effect=errors.RetryExhausted("changed by others 10 times in a row"))
    monkeypatch.setattr(engine.executions, "change_priority", lost)
    reply = await http.put(f"/v1/executions/{A}/priority", json={"new_priority": 1})
    refused = error_of(reply, 503)
    assert (refused["kind"], refused["retryable"]) == ("retry_exhausted", True)
    assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/executions?partition=1&partition=2",
        "/v1/executions?partition=1&limit=&limit=5",
        f"/v1/executions/{NOBODY}/attempts/0/stream/tail?after=1-0&block_ms=0&after=2-0",
        "/v1/executions/search?lane=a&lane=b",
    ],
)
async def test_a_parameter_that_stands_twice_is_refused(http: httpx.AsyncClient, path: str) -> None:
    """The original refuses it where it reads the query: §1.5"""
    body = error_of(await http.get(path), 400)
    assert body["code"] == "invalid_parameter"
    assert "more than once" in body["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/executions?partition=1&other=1&other=2",
        "/v1/executions?partition=1&request=1&request=2&data=1&data=2",
        "/v1/executions/search?state=waiting&state=active",
        "/v1/events?family=lease&family=completion",
        f"/v1/executions/{NOBODY}/attempts/0/stream?id=1&id=2",
    ],
)
async def test_lists_and_unknown_parameters_may_stand_twice(
    http: httpx.AsyncClient, path: str
) -> None:
    assert (await http.get(path)).status_code == 200
