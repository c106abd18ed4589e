"""The log of attempts: one record for each that ended, with fields for programs.

Failures that are retried are warnings, failures for good are errors. Timeouts, cancels and
hand-backs are ordinary and logged at INFO, success at DEBUG.
"""

import logging
from datetime import UTC, datetime

from flowfabric.core.execution.retry import Category
from flowfabric.engine.execution.claims import Claim
from flowfabric.worker.api.hooks import AttemptEnd

log = logging.getLogger("flowfabric.worker")

_TIMEOUTS = {
    "attempt_timeout": "the attempt took longer than its timeout",
    "execution_deadline": "the run has passed its deadline",
}
"""What the engine's words for an expired run mean to people."""


def is_logged(outcome: str) -> bool:
    return outcome != "completed" or log.isEnabledFor(logging.DEBUG)


def log_attempt(end: AttemptEnd) -> None:
    level = _level(end)
    if not log.isEnabledFor(level):
        return
    fields = {
        "run": str(end.run.id),
        "task": end.task,
        "attempt": end.attempt,
        "outcome": end.outcome,
        "error": end.message or None,
        "error_type": end.error_type or None,
        "category": end.category or None,
        "retry_at": end.retry_at,
    }
    failed = level >= logging.WARNING
    log.log(level, "%s", _text(end), extra=fields, exc_info=end.error if failed else None)


def log_takeover(claim: Claim) -> None:
    """Logs the attempt before the one that a claim starts: its worker has lost it, and so could
    not log anything itself."""
    lost = claim.snapshot.life.lapsed
    if lost is None:
        return
    run, attempt, reason = str(claim.uuid), lost.index + 1, lost.reason
    log.warning(
        "run %s of task %s was lost by worker %s in attempt %d%s; attempt %d starts here",
        run,
        claim.kind,
        lost.worker.instance,
        attempt,
        f" ({reason})" if reason else "",
        claim.attempt + 1,
        extra={
            "run": run,
            "task": claim.kind,
            "attempt": attempt,
            "outcome": "lost",
            "error": reason or None,
        },
    )


def _level(end: AttemptEnd) -> int:
    if end.outcome == "completed":
        return logging.DEBUG
    if end.outcome in ("handed_back", "cancelled") or end.category == Category.TIMEOUT:
        return logging.INFO
    return logging.WARNING if end.outcome == "retrying" else logging.ERROR


def _text(end: AttemptEnd) -> str:
    what = f"run {end.run.id} of task {end.task}"
    match end.outcome:
        case "completed":
            return f"{what} completed in attempt {end.attempt}"
        case "handed_back":
            return f"{what} was handed back in attempt {end.attempt}; another worker continues it"
        case "cancelled":
            reason = f": {first_line(end.message)}" if end.message else ""
            return f"{what} was cancelled in attempt {end.attempt}; its handler was stopped{reason}"
        case _:
            return f"{what} {_failure(end)}; {_next(end)}"


def _failure(end: AttemptEnd) -> str:
    if end.category == Category.TIMEOUT:
        why = _TIMEOUTS.get(end.message, first_line(end.message))
        return f"ran out of time in attempt {end.attempt}: {why}"
    return f"failed in attempt {end.attempt}: {first_line(end.message)}"


def _next(end: AttemptEnd) -> str:
    if end.outcome == "retrying" and end.retry_at is not None:
        return f"attempt {end.attempt + 1} starts at {moment(end.retry_at)}"
    return "it has expired" if end.outcome == "expired" else "it has failed and is not retried"


def moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def first_line(text: str) -> str:
    """The rest is in the traceback, and in the fields of the record."""
    return text.partition("\n")[0]
