"""Events as subscribers see them: one document per event, with a part for each of its families.

One event may belong to two families: the end of a run that was running is a completion, and it
releases a lease. It is one document with two parts, so that a cursor never stands between them.

What is never reported: a heartbeat writes no event, because it comes every few seconds and changes
nothing. A renewal of a lease is an event, except where the caller switches it off, as a worker does
by default for the same reason. A signal that was recognised as a repeat changes nothing either, so
`deduped` is the effect of one that was counted as a repeat by its waitpoint only.
"""

from collections.abc import Collection
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import without_tags
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import (
    EventKind,
    Family,
    LeaseChange,
    RegistryChange,
    StoredEvent,
)
from flowfabric.core.execution.event_filter import EventGap, encode_cursor
from flowfabric.core.execution.model import Outcome
from flowfabric.core.wait.model import Effect

ALL_FAMILIES = frozenset(Family)
CompletionWord = Literal["success", "failure", "cancelled", "expired", "skipped"]


class LeasePart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`epoch` identifies the lease within its execution. `worker_id` and `worker_instance` are its
    owner: the new one of an acquired or reclaimed lease, the last one otherwise."""

    change: LeaseChange
    epoch: int
    worker_id: str | None = None
    worker_instance: str | None = None
    revoked_by: Literal["operator", "reconciler"] | None = None


class CompletionPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`state` is the run's own word for its `outcome`: `failed` where that is `failure`. `message`
    is the reason that a cancel was given."""

    outcome: CompletionWord
    state: str
    message: str | None = None


class SignalPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`detail` is the exact effect."""

    effect: Literal["satisfied", "buffered", "deduped", "other"]
    detail: str
    signal_id: UUID
    waitpoint_id: UUID | None = None
    name: str | None = None
    source_identity: str | None = None


class OperatorPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    action: str
    detail: dict[str, Any] | None = None


class WorkerPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`worker_id` is unknown of an entry that could not be read. A worker that registers or
    changes says what it offers; no lanes or no kinds means any."""

    change: RegistryChange
    worker_instance: str
    worker_id: str | None = None
    lanes: list[str] | None = None
    kinds: list[str] | None = None
    capabilities: list[str] | None = None
    concurrency: int | None = None


class EventView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`cursor` continues after this event. `at` is in milliseconds, `attempt_index` counts from 0.
    An event of the worker registry has no execution."""

    cursor: str
    kind: str
    at: Millis
    namespace: str
    lane: str | None = None
    execution_id: UUID | None = None
    flow_id: UUID | None = None
    attempt_index: int | None = None
    reason: str | None = None
    lease: LeasePart | None = None
    completion: CompletionPart | None = None
    signal: SignalPart | None = None
    operator: OperatorPart | None = None
    worker: WorkerPart | None = None


class GapView(Struct, frozen=True, kw_only=True):
    """Events after `after` and up to `cursor` may be missing: retention has deleted some of them
    before they were read."""

    cursor: str
    after: str
    kind: Literal["gap"] = "gap"


def gap_view(gap: EventGap) -> GapView:
    return GapView(cursor=encode_cursor(gap.until), after=encode_cursor(gap.after))


def view(event: StoredEvent, families: Collection[Family] = ALL_FAMILIES) -> EventView:
    """An event with its parts of these families (none: all of them)."""
    wanted = families or ALL_FAMILIES
    return EventView(
        cursor=encode_cursor(event.seq),
        kind=event.kind.name.lower(),
        at=event.at,
        namespace=event.namespace,
        lane=event.lane or None,
        execution_id=None if event.id is None else event.id.uuid,
        flow_id=event.flow,
        attempt_index=event.attempt,
        reason=None if event.reason is None else without_tags(event.reason),
        lease=lease_part(event) if Family.LEASE in wanted else None,
        completion=completion_part(event) if Family.COMPLETION in wanted else None,
        signal=signal_part(event) if Family.SIGNAL in wanted else None,
        operator=operator_part(event) if Family.OPERATOR in wanted else None,
        worker=worker_part(event) if Family.WORKER in wanted else None,
    )


def lease_part(event: StoredEvent) -> LeasePart | None:
    if event.lease is None:
        return None
    worker = event.worker
    return LeasePart(
        change=event.lease,
        epoch=event.epoch,
        worker_id=None if worker is None else worker.id,
        worker_instance=None if worker is None else worker.instance,
        revoked_by=_REVOKED_BY.get(event.kind),
    )


def completion_part(event: StoredEvent) -> CompletionPart | None:
    outcome = event.completion
    if outcome is None:
        return None
    return CompletionPart(
        outcome=_OUTCOMES[outcome],
        state=outcome.name.lower(),
        message=_cancel_message(event) if outcome is Outcome.CANCELLED else None,
    )


def _cancel_message(event: StoredEvent) -> str | None:
    detail = event.detail or {}
    found = detail.get("message", detail.get("reason"))
    return None if found is None else without_tags(str(found))


def signal_part(event: StoredEvent) -> SignalPart | None:
    if event.kind is not EventKind.SIGNALLED:
        return None
    detail = event.detail or {}
    effect = str(detail.get("effect", ""))
    waitpoint = detail.get("waitpoint")
    return SignalPart(
        effect=_EFFECTS.get(effect, "other"),
        detail=effect,
        signal_id=UUID(detail["signal"]),
        waitpoint_id=None if waitpoint is None else UUID(waitpoint),
        name=detail.get("name"),
        source_identity=detail.get("source") or None,
    )


def operator_part(event: StoredEvent) -> OperatorPart | None:
    if event.operator is None:
        return None
    detail = event.detail and {name: _plain(value) for name, value in event.detail.items()}
    return OperatorPart(action=event.operator, detail=detail)


def worker_part(event: StoredEvent) -> WorkerPart | None:
    if event.registry is None or event.worker is None:
        return None
    detail = event.detail or {}
    return WorkerPart(
        change=event.registry,
        worker_instance=event.worker.instance,
        worker_id=event.worker.id or None,
        lanes=detail.get("lanes"),
        kinds=detail.get("kinds"),
        capabilities=detail.get("capabilities"),
        concurrency=detail.get("concurrency"),
    )


def _plain(value: Any) -> Any:
    return without_tags(value) if isinstance(value, str) else value


_REVOKED_BY: dict[EventKind, Literal["operator", "reconciler"]] = {
    EventKind.LEASE_REVOKED: "operator",
    EventKind.RECLAIMS_EXCEEDED: "reconciler",
}

_OUTCOMES: dict[Outcome, CompletionWord] = {
    Outcome.SUCCESS: "success",
    Outcome.FAILED: "failure",
    Outcome.CANCELLED: "cancelled",
    Outcome.EXPIRED: "expired",
    Outcome.SKIPPED: "skipped",
}

_EFFECTS: dict[str, Literal["satisfied", "buffered", "deduped"]] = {
    Effect.SATISFIED: "satisfied",
    Effect.BUFFERED: "buffered",
    Effect.REPEATED: "deduped",
}
