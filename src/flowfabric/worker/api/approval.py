"""How an approval ended, and the exact thing it was about."""

import json
from base64 import b64encode
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from flowfabric.core.base.errors import ApprovalOutdated
from flowfabric.core.base.time import to_datetime
from flowfabric.core.execution.step import Recorded
from flowfabric.core.wait.model import MAX_VALUE, Signal, Waited
from flowfabric.core.wait.token import digest_of
from flowfabric.worker.codec import Undecodable, decode, plain

APPROVED = "approved"
REJECTED = "rejected"
DECISIONS = (APPROVED, REJECTED)


class ApprovalEnd(StrEnum):
    """How an approval ended."""

    APPROVED = "approved"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    RESUMED = "resumed"
    CLOSED = "closed"


class ApproverDecision(Struct, frozen=True):
    """What one approver decided, and when."""

    approver: str
    decision: str
    comment: str
    at: datetime


class Verdict(Struct, frozen=True):
    """How an approval ended. Only `approved` is a yes. A timeout is not, nor is an operator who
    resumed the run without a decision or closed the approval (`reason` says why)."""

    name: str
    ended: ApprovalEnd
    decisions: tuple[ApproverDecision, ...] = ()
    about: str | None = None
    reason: str = ""

    @property
    def approved(self) -> bool:
        return self.ended is ApprovalEnd.APPROVED

    def __bool__(self) -> bool:
        """So that `if await ctx.approval(…)` is no yes to a refusal."""
        return self.approved

    def check(self, value: object) -> None:
        """Raises ApprovalOutdated unless exactly this value was approved. Call it right before
        doing what was approved."""
        if not self.approved:
            raise ApprovalOutdated(f"{self.name!r} was not approved but {self.ended}")
        if self.about != about_digest(value):
            raise ApprovalOutdated(f"{self.name!r} was approved for something else")


def about_digest(value: object) -> str:
    """The digest of the exact thing to be approved: of its JSON, so that the run that asks and the
    approver get the same digest, whatever class each of them uses."""
    return digest_of(value if isinstance(value, bytes) else plain(value))


def about_text(value: object) -> str | None:
    """The thing to be approved as JSON, for approvers to read; None if it is too large."""
    shown = {"base64": b64encode(value).decode()} if isinstance(value, bytes) else plain(value)
    text = json.dumps(shown, ensure_ascii=False)
    return text if len(text.encode()) <= MAX_VALUE else None


def how_ended(record: Recorded, signals: list[Signal]) -> ApprovalEnd:
    """How it ended: the last decision is the one that decided it."""
    if record.waited != Waited.SIGNALLED:
        return ApprovalEnd(record.waited)
    return (
        ApprovalEnd.APPROVED if signals and signals[-1].name == APPROVED else ApprovalEnd.REJECTED
    )


def decisions_of(signals: list[Signal]) -> tuple[ApproverDecision, ...]:
    return tuple(
        ApproverDecision(
            signal.source,
            signal.name,
            _comment(signal.payload),
            to_datetime(signal.accepted_at),
        )
        for signal in signals
    )


def _comment(payload: bytes | None) -> str:
    """The comment on a decision. Bytes that are not JSON text are shown as they were sent and do
    not fail the run: the holder of a token may send any bytes."""
    sent = payload or b'""'
    try:
        comment = decode(sent, str | None)
    except Undecodable:
        return sent.decode(errors="replace")
    return comment or ""
