"""Counts what the engine, the workers and the server of this process do."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from prometheus_client import Counter as Instrument

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Lost,
    Outcome,
    Ready,
    Snapshot,
    Start,
    Suspended,
    Waiting,
)
from flowfabric.core.flow.join import AllOf, AnyOf, JoinPolicy, JoinState
from flowfabric.engine.commit.observer import Observer, watch, watching
from flowfabric.metrics import instruments as of

METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
)
_OUTCOMES = ("ok", "error", "cancelled", "timeout", "")
"""By number. Skipped runs never ran and are not counted."""
_FAILURES = (Outcome.FAILED, Outcome.EXPIRED)
_FOLLOWED = {"stream": of.READERS, "sse": of.CONNECTIONS, "cancel": of.CANCEL_BACKLOG}


def enable() -> None:
    """From now on this process is measured. Calling it again changes nothing."""
    if not isinstance(watching(), _Recorder):
        watch(_Recorder())


def disable() -> None:
    """Stops measuring; what was counted stays."""
    if isinstance(watching(), _Recorder):
        watch(Observer())


@cache
def _of(counter: Instrument, *labels: str) -> Instrument:
    """The counter with these labels: finding it takes longer than counting."""
    return counter.labels(*labels)


class _Recorder(Observer):
    def __init__(self) -> None:
        """Alerts need series that begin at zero."""
        for outcome in ("ok", "err"):
            _of(of.LEASE_RENEWALS, outcome)
        for reason in ("rate", "concurrency"):
            _of(of.QUOTA_HITS, reason)
        for policy in ("all_of", "any_of", "quorum"):
            _of(of.JOINS, policy)
        for reason in ("satisfied", "impossible"):
            _of(of.SIBLINGS_DISPATCHED, f"sibling_quorum_{reason}")
        for disposition in ("cancelled", "already_terminal", "not_found"):
            _of(of.SIBLING_DISPOSITIONS, disposition)
        for action in ("completed_drain", "no_op"):
            _of(of.SIBLING_RECONCILES, action)
        for reason in ("expired", "revoked"):
            _of(of.LEASES_LOST, reason)

    def flushed(self, batch: str, size: int, seconds: float) -> None:
        of.BATCH_SIZE.add((batch,), (size,))
        of.BATCH_DURATION.add((batch,), (seconds,))

    def created(self, snapshots: Sequence[Snapshot]) -> None:
        _count_lanes(of.SUBMITTED, snapshots)

    def looked(self, lanes: Sequence[str], seconds: float) -> None:
        asked = of.lanes(lanes[0]) if len(lanes) == 1 else "all"
        of.CLAIM_DURATION.add((asked,), (seconds,))

    def claimed(self, snapshots: Sequence[Snapshot]) -> None:
        _count_lanes(of.CLAIMED, snapshots)
        waits: dict[str, list[float]] = {}
        for snapshot in snapshots:
            state = snapshot.state
            if isinstance(state, Active) and state.lease.start is Start.INITIAL:
                waited = max(0, state.lease.started_at - _could_start_at(snapshot)) / 1000
                waits.setdefault(snapshot.execution.route.lane, []).append(waited)
        for lane, seen in waits.items():
            of.QUEUE_WAIT.add((of.lanes(lane),), seen)

    def applied(self, changes: Sequence[Change[Any]]) -> None:
        tally = _Tally()
        for change in changes:
            if change.before is not None and change.after is not None:
                tally.count(change, change.before, change.after)
        tally.write()

    def renewed(self, kept: int, lost: int) -> None:
        if kept:
            _of(of.LEASE_RENEWALS, "ok").inc(kept)
        if lost:
            _of(of.LEASE_RENEWALS, "err").inc(lost)

    def swept(self, part: str, seconds: float) -> None:
        _of(of.SCANNER_CYCLES, part).inc()
        of.SCANNER_DURATION.add((part,), (seconds,))

    def refused_by_budget(self, dimension: str) -> None:
        _of(of.BUDGET_HITS, of.dimensions(dimension)).inc()

    def refused_by_quota(self, reason: str) -> None:
        _of(of.QUOTA_HITS, reason).inc()

    def cancelled_siblings(self, reason: str, answers: Sequence[str]) -> None:
        _of(of.SIBLINGS_DISPATCHED, reason).inc(len(answers))
        for disposition, count in Counter(answers).items():
            _of(of.SIBLING_DISPOSITIONS, disposition).inc(count)

    def resolved_flows(self, count: int) -> None:
        action = "completed_drain" if count else "no_op"
        _of(of.SIBLING_RECONCILES, action).inc(max(1, count))

    def at_capacity(self) -> None:
        of.AT_CAPACITY.inc()

    def shutdown_timed_out(self) -> None:
        of.SHUTDOWN_TIMEOUTS.inc()

    def requested(self, method: str, path: str | None, status: int, seconds: float) -> None:
        labels = (method if method in METHODS else "OTHER", path or "unknown", str(status))
        _of(of.HTTP_REQUESTS, *labels).inc()
        of.HTTP_DURATION.add(labels, (seconds,))

    def following(self, kind: str, change: int) -> None:
        _FOLLOWED[kind].inc(change)


def _could_start_at(snapshot: Snapshot) -> Millis:
    """When nothing but a worker was missing: after its delay, its limits and its upstreams."""
    join = snapshot.life.join
    fired_at = None if join is None else join.fired_at
    delay_until = snapshot.execution.facts.delay_until
    return max(snapshot.admitted_at, fired_at or Millis(0), delay_until or Millis(0))


def _count_lanes(counter: Instrument, snapshots: Sequence[Snapshot]) -> None:
    for lane, count in Counter([each.execution.route.lane for each in snapshots]).items():
        _of(counter, of.lanes(lane)).inc(count)


class _Tally:
    """What one batch of changes means: added up first, because counting takes long."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Instrument, tuple[str, ...]]] = Counter()
        self._ended: dict[tuple[str, int], list[float]] = {}

    def count(self, change: Change[Any], before: Snapshot, after: Snapshot) -> None:
        if change.signals:
            self._counts[(of.SIGNALS, ())] += len(change.signals)
        if after.execution.flow is not None:
            self._join(before, after)
        state = after.state
        if not isinstance(state, Ended):
            if isinstance(before.state, Active) or _left_by_timer(before, after):
                self._left(change, after)
        elif not isinstance(before.state, Ended):
            execution, outcome = after.execution, state.outcome
            seconds = (state.ended_at - execution.created_at) / 1000
            self._ended.setdefault((execution.route.lane, int(outcome)), []).append(seconds)
            if outcome in _FAILURES:
                self._failure(change, after)

    def write(self) -> None:
        for (lane, outcome), durations in self._ended.items():
            if _OUTCOMES[outcome]:
                labels = of.lanes(lane), _OUTCOMES[outcome]
                _of(of.ATTEMPT_OUTCOMES, *labels).inc(len(durations))
                of.DURATION.add(labels, durations)
        for (counter, more), count in self._counts.items():
            (_of(counter, *more) if more else counter).inc(count)

    def _left(self, change: Change[Any], after: Snapshot) -> None:
        """An attempt has lost or given up its lease, and the run goes on."""
        lane = of.lanes(after.execution.route.lane)
        match after.state:
            case Suspended():
                self._counts[(of.SUSPENSIONS, (lane,))] += 1
            case Lost(revoked=revoked):
                self._counts[(of.LEASES_LOST, ("revoked" if revoked else "expired",))] += 1
            case Waiting(next=next) | Ready(next=next) if next.start is Start.RETRY:
                self._counts[(of.ATTEMPT_OUTCOMES, (lane, "retry"))] += 1
                self._failure(change, after)
            case _:
                pass

    def _failure(self, change: Change[Any], after: Snapshot) -> None:
        """Of a run that is retried, the attempt before knows why."""
        failures = [after.life.failure, *(each.failure for each in reversed(change.attempts))]
        failure = next((each for each in failures if each is not None), None)
        category = "unknown" if failure is None else of.categories(failure.category)
        self._counts[(of.FAILURES, (of.tasks(after.execution.kind), category))] += 1

    def _join(self, before: Snapshot, after: Snapshot) -> None:
        now, then = after.life.join, before.life.join
        if now is None or now.state is JoinState.PENDING:
            return
        if then is None or then.state is JoinState.PENDING:
            self._counts[(of.JOINS, (_policy(now.policy),))] += 1


def _left_by_timer(before: Snapshot, after: Snapshot) -> bool:
    """Whether an attempt whose lease was revoked before has exceeded its timeout now."""
    return isinstance(before.state, Lost) and isinstance(after.state, Waiting | Ready)


def _policy(policy: JoinPolicy) -> str:
    if isinstance(policy, AllOf):
        return "all_of"
    return "any_of" if isinstance(policy, AnyOf) else "quorum"
