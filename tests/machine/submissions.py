"""A wish of the model as a submission to an engine."""

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Submission
from tests.machine.words import Wish


def submission(wish: Wish, id: ExecutionId) -> Submission:
    return Submission(
        kind=wish.kind,
        id=id,
        namespace=wish.namespace,
        lane=wish.lane,
        priority=wish.priority,
        key=wish.key,
        policy=_policy(wish),
        delay_until=None if wish.delay_until is None else Millis(wish.delay_until),
        deadline_at=None if wish.deadline_at is None else Millis(wish.deadline_at),
    )


def _policy(wish: Wish) -> dict[str, object] | None:
    """The policy document of a wish, None when it asks for nothing special."""
    if wish == Wish(
        lane=wish.lane,
        namespace=wish.namespace,
        kind=wish.kind,
        priority=wish.priority,
        key=wish.key,
        delay_until=wish.delay_until,
        deadline_at=wish.deadline_at,
        grace=wish.grace,
    ):
        return None
    document: dict[str, object] = {
        "max_reclaim_count": wish.reclaims,
        "max_replay_count": wish.replays,
        "dedup_window_ms": wish.window,
        "routing_requirements": {"required_capabilities": sorted(wish.needs)},
        "timeout_policy": _present(
            attempt_timeout_ms=wish.timeout, execution_deadline_ms=wish.deadline_in
        ),
        "stream_policy": _present(retention_ttl_ms=wish.keep),
    }
    if wish.retries is not None:
        backoff = {
            "type": "exponential",
            "initial_delay_ms": wish.retries.first,
            "max_delay_ms": wish.retries.longest,
            "multiplier": wish.retries.factor,
        }
        document["retry_policy"] = {
            "max_retries": wish.retries.most,
            "backoff": backoff,
            "retryable_categories": sorted(wish.retries.only),
        }
    return document


def _present(**members: object) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}
