"""What an engine answers, in the words of the model."""

import re
from collections.abc import Awaitable

from flowfabric.core.base.errors import FlowFabricError, Unavailable
from flowfabric.core.execution.attempt import RetryScheduled
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.core.execution.grant import Granted, ReclaimCapExceeded
from flowfabric.core.execution.lease import Renewed, Revoked
from flowfabric.core.execution.operator import Changed, Replayed
from flowfabric.core.execution.status import outcome_word
from flowfabric.core.execution.submission import Duplicate, Submitted
from flowfabric.core.wait.keyring import Rotated
from flowfabric.core.wait.model import Waitpoint
from flowfabric.core.wait.resume import Resumed, SuspensionExpired
from flowfabric.core.wait.signal import Accepted
from flowfabric.core.wait.suspend import AlreadyMet, NowSuspended
from flowfabric.core.wait.waitpoint import WaitpointsClosed
from flowfabric.engine.execution.claims import Claim
from tests.machine.words import Answer

DIGEST = re.compile(r"[0-9a-f]{64}")


async def answer_of(call: Awaitable[object]) -> tuple[Answer, object]:
    """What came of a call in the words of the model, and the thing itself."""
    try:
        outcome = await call
    except Unavailable:
        raise
    except FlowFabricError as error:
        return (type(error).__name__,), error
    return (_name(outcome), *_figures(outcome)), outcome


def _name(outcome: object) -> str:
    return "Recorded" if outcome is None else type(outcome).__name__


def _figures(outcome: object) -> Answer:
    return tuple(getattr(outcome, member) for member in _FIGURES.get(type(outcome), ()))


_FIGURES: dict[type, tuple[str, ...]] = {
    Submitted: ("id", "state"),
    Duplicate: ("id",),
    Claim: ("epoch",),
    Renewed: ("expires_at", "epoch"),
    Revoked: ("epoch",),
    RetryScheduled: ("delay_until", "next_attempt"),
    Granted: ("expires_at",),
    ReclaimCapExceeded: ("reclaims",),
    Changed: ("priority",),
    Replayed: ("state",),
    NowSuspended: ("suspension",),
    AlreadyMet: ("suspension",),
    Waitpoint: ("id",),
    Accepted: ("effect", "number"),
    Resumed: ("state",),
    SuspensionExpired: ("behaviour", "state"),
    WaitpointsClosed: ("ids",),
    Rotated: ("previous", "kid", "collected"),
}
"""What of an outcome must be right, apart from what it is."""


def words_of(event: StoredEvent) -> list[str]:
    """What an event tells; a token it may never tell."""
    assert DIGEST.search(repr(event.detail)) is None, "an event tells a token"
    end = event.completion
    words = [event.lease, None if end is None else f"end:{outcome_word(end)}", event.operator]
    return [*(word for word in words if word is not None), *_about_waiting(event)]


def _about_waiting(event: StoredEvent) -> list[str]:
    match event.kind:
        case EventKind.SUSPENDED:
            return ["suspended"]
        case EventKind.SIGNALLED:
            return [f"signal:{(event.detail or {}).get('effect')}"]
        case EventKind.WOKEN:
            return [f"woken:{event.reason}"]
        case EventKind.ESCALATED:
            return ["woken:escalated"]
        case EventKind.WAITPOINT_CLOSED:
            return ["closed"]
        case _:
            return []
