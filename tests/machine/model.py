"""A reference model of executions, small enough to be checked by eye.

It is written from the tables of the specification and shares no rule with the engine: one mutable
object per execution, plain words instead of types, time as a number. Each operation changes the
object and returns the answers an engine may give, each a name followed by the figures that count;
a refusal is an answer like any other.
"""

from dataclasses import dataclass, field
from uuid import UUID

from tests.machine.words import (
    BLOCKS,
    ENDS,
    HIGHEST_PRIORITY,
    PENDING,
    Answer,
    Answers,
    Fence,
    Refused,
    Row,
    Stage,
    Try,
    Wish,
    one,
)


@dataclass
class Life:
    """One execution: what was asked for and how it stands."""

    id: str
    uuid: UUID
    wish: Wish
    created_at: int
    priority: int = 0
    stage: Stage = Stage.WAITING
    start: str = "initial"
    until: int | None = None
    why: str = "waiting_for_delay"
    epoch: int = 0
    retries: int = 0
    reclaims: int = 0
    replays: int = 0
    generation: int = 0
    tries: list[Try] = field(default_factory=list)
    owner: Fence | None = None
    worker: str | None = None
    started_at: int | None = None
    expires_at: int = 0
    times_out_at: int | None = None
    time_left: int | None = None
    revoked: bool = False
    held_for: str | None = None
    held_until: int = 0
    deadline_at: int | None = None
    outcome: str = "none"
    result: bytes | None = None
    ended_at: int | None = None
    ended_in_hand: bool = False
    steps: dict[tuple[int, str], bytes] = field(default_factory=dict)
    percent: int | None = None
    told: list[str] = field(default_factory=list)
    effects: dict[tuple[str, Fence], Answer] = field(default_factory=dict)
    latest: tuple[str, Fence] | None = None
    changes: int = 0
    asked: int = 0

    @classmethod
    def born(cls, id: str, uuid: UUID, wish: Wish, now: int) -> "Life":
        life = cls(id, uuid, wish, now, priority=_clamp(wish.priority), time_left=wish.timeout)
        life.deadline_at = wish.deadline_at
        if wish.deadline_at is None and wish.deadline_in is not None:
            life.deadline_at = now + wish.deadline_in
        if wish.delay_until is not None and wish.delay_until > now:
            life.stage, life.until = Stage.DELAYED, wish.delay_until
        return life

    # -- what an observer sees

    @property
    def public(self) -> str:
        match self.stage:
            case Stage.BLOCKED:
                return BLOCKS[self.why][1]
            case Stage.RUNNING | Stage.LOST:
                return "active"
            case Stage.ENDED:
                return ENDS[self.outcome][0]
            case _:
                return self.stage.name.lower()

    @property
    def row(self) -> Row:
        """Phase, ownership, eligibility, blocking reason, outcome, attempt state."""
        match self.stage:
            case Stage.WAITING:
                return self._runnable("eligible_now", "waiting_for_worker")
            case Stage.DELAYED:
                return self._runnable("not_eligible_until_time", self.why)
            case Stage.BLOCKED:
                return self._runnable(BLOCKS[self.why][0], self.why)
            case Stage.RUNNING:
                return ("active", "leased", "not_applicable", "none", "none", "running_attempt")
            case Stage.LOST:
                lost = "lease_revoked" if self.revoked else "lease_expired_reclaimable"
                wait = "waiting_for_worker"
                return ("active", lost, "not_applicable", wait, "none", "attempt_interrupted")
            case _:
                attempt = "attempt_terminal" if self.ended_in_hand else PENDING[self.start]
                return ("terminal", "unowned", "not_applicable", "none", self.outcome, attempt)

    @property
    def final(self) -> bool:
        return self.stage in (Stage.ENDED, Stage.GONE)

    def moments(self) -> list[int]:
        """When time alone will change something."""
        if self.final:
            return []
        found = [self.deadline_at]
        if self.stage is Stage.DELAYED:
            found.append(self.until)
        if self.stage is Stage.RUNNING:
            found += [self.expires_at, self.times_out_at]
        return [moment for moment in found if moment is not None]

    def due(self, now: int) -> bool:
        return any(moment <= now for moment in self.moments())

    # -- becoming the owner

    def take(self, worker: str, lease_id: UUID, ttl: int, now: int) -> None:
        """A worker gets the lease of a waiting or lost execution."""
        if self.stage is Stage.LOST:
            self.tries[-1].outcome = "interrupted_reclaimed"
            self.reclaims += 1
        if self.start == "continue":
            self.tries[-1].outcome = "started"
        else:
            self.tries.append(Try(self.start))
        self._move(Stage.RUNNING)
        self.epoch += 1
        self.owner, self.worker = Fence(lease_id, self.epoch, len(self.tries) - 1), worker
        self.expires_at = now + ttl
        self.times_out_at = None if self.time_left is None else now + self.time_left
        self.started_at = now if self.started_at is None else self.started_at
        self.told.append("reclaimed" if self.start == "reclaim" else "acquired")

    def grant(self, worker: str, offers: frozenset[str], ttl: int, now: int) -> Answers:
        self._must_be(Stage.WAITING, "NotEligible")
        self._not_held(now)
        if self.wish.needs - offers:
            raise Refused("CapabilityMismatch")
        return self._hold(worker, now + ttl)

    def claim_granted(self, worker: str, lease_id: UUID, ttl: int, now: int) -> Answers:
        self._leaseable()
        if self.start == "continue":
            raise Refused("UseClaimResumed")
        return self._redeem(worker, lease_id, ttl, now)

    def claim_resumed(self, worker: str, lease_id: UUID, ttl: int, now: int) -> Answers:
        self._leaseable()
        if self.start != "continue":
            raise Refused("NotResumed")
        return self._redeem(worker, lease_id, ttl, now)

    def operator_takes(self, lease_id: UUID, ttl: int, now: int) -> Answers:
        if self.stage is Stage.RUNNING:
            raise Refused("LeaseConflict")
        self._must_be(Stage.WAITING, "NotEligible")
        self._not_held(now)
        self.take("operator", lease_id, ttl, now)
        return one("Claim", self.epoch)

    def grant_reclaim(self, worker: str, offers: frozenset[str], ttl: int, now: int) -> Answers:
        if self.stage is Stage.RUNNING and self.expires_at <= now:
            self._lose(now, revoked=False)
            if self.final:
                return one("ReclaimCapExceeded", self.reclaims)
        self._must_be(Stage.LOST, "NotReclaimable")
        if self.reclaims >= self.wish.reclaims:
            return one("ReclaimCapExceeded", self.reclaims)
        self._not_held(now)
        if self.wish.needs - offers:
            raise Refused("NotReclaimable")
        return self._hold(worker, now + ttl)

    def reclaim(
        self, worker: str, lease_id: UUID, ttl: int, now: int, most: int | None = None
    ) -> Answers:
        if self.stage is not Stage.LOST or self.held_for is None:
            raise Refused("GrantNotFound")
        if self.held_for != worker:
            raise Refused("Invalid")
        if self.held_until <= now:
            raise Refused("GrantNotFound")
        if most is not None and self.reclaims + 1 > most:
            self._end_over_cap(now)
            return one("ReclaimCapExceeded", self.reclaims)
        self.take(worker, lease_id, ttl, now)
        return one("Claim", self.epoch)

    # -- what an owner does

    def renew(self, fence: Fence, now: int, ttl: int) -> Answers:
        self._gate(fence, now)
        self.expires_at = max(self.expires_at, now + ttl)
        self.changes += 1
        return one("Renewed", self.expires_at, self.epoch)

    def complete(self, fence: Fence, now: int, result: bytes | None) -> Answers:
        if again := self._again("complete", fence):
            return again
        self._gate(fence, now)
        self._end("success", now)
        self.result = result
        return self._effect("complete", fence, ("Completed",))

    def fail(self, fence: Fence, now: int, category: str, after: int | None = None) -> Answers:
        if again := self._again("fail", fence):
            return again
        self._gate(fence, now)
        if self._may_retry(category):
            return self._effect("fail", fence, self._retry(now, after))
        self._end("failed", now)
        return self._effect("fail", fence, ("TerminalFailed",))

    def delay(
        self, fence: Fence, now: int, until: int, step: tuple[str, bytes] | None = None
    ) -> Answers:
        if again := self._again("delay", fence):
            return again
        self._gate(fence, now)
        if step is not None:
            self.steps.setdefault((self.generation, step[0]), step[1])
        return self._pause("delay", fence, now, until)

    def hand_back(self, fence: Fence, now: int) -> Answers:
        if again := self._again("hand_back", fence):
            return again
        self._gate(fence, now)
        return self._pause("hand_back", fence, now, now)

    def owner_cancels(self, fence: Fence, now: int) -> Answers:
        if self.outcome == "cancelled":
            if self.latest == ("cancel", fence):
                return one("Cancelled")
            return one("Cancelled") | one("NotActive")
        self._gate(fence, now)
        self._end("cancelled", now)
        return self._effect("cancel", fence, ("Cancelled",))

    def record(self, fence: Fence, now: int, name: str, doc: bytes) -> Answers:
        """A step beside the lease; the first record of a name stays."""
        self.asked += 1
        self._gate(fence, now)
        self.steps.setdefault((self.generation, name), doc)
        return one("Recorded")

    def report(self, fence: Fence, now: int, percent: int) -> Answers:
        """Progress beside the lease; the last report stays."""
        self.asked += 1
        self._gate(fence, now)
        self.percent = percent
        return one("Recorded")

    # -- what others do

    def cancel(self, now: int) -> Answers:
        if self.stage is Stage.ENDED:
            if self.outcome == "cancelled":
                return one("Cancelled")
            raise Refused("NotActive")
        self._end("cancelled", now)
        return one("Cancelled")

    def revoke(self, now: int) -> Answers:
        if self.stage is Stage.LOST:
            return one("AlreadySatisfied")
        self._must_be(Stage.RUNNING, "NotActive")
        epoch = self.epoch
        self._lose(now, revoked=True)
        return one("Revoked", epoch)

    def change_priority(self, priority: int, *, anywhere: bool) -> Answers:
        allowed = (Stage.WAITING, Stage.DELAYED, Stage.BLOCKED) if anywhere else (Stage.WAITING,)
        if self.stage not in allowed:
            raise Refused("NotEligible")
        self.priority = _clamp(priority)
        self._moved()
        self.told.append("priority_changed")
        return one("Changed", self.priority)

    def replay(self, now: int) -> Answers:
        self._must_be(Stage.ENDED, "NotTerminal")
        if self.replays >= self.wish.replays:
            raise Refused("MaxReplays")
        self.generation += self.outcome == "success"
        self._move(Stage.WAITING, start="replay", time_left=self.wish.timeout)
        self.replays, self.retries = self.replays + 1, 0
        self.reclaims = min(self.reclaims, self.wish.reclaims)
        self.outcome, self.result, self.ended_at = "none", None, None
        relative = self.wish.deadline_in
        self.deadline_at = None if relative is None else now + relative
        self.effects.clear()
        self.told.append("replayed")
        return one("Replayed", "waiting")

    def block(self, reason: str) -> Answers:
        if self.stage is Stage.ENDED:
            raise Refused("NotActive")
        self._must_be(Stage.WAITING, "NotEligible")
        self._move(Stage.BLOCKED)
        self.why = reason
        return one("Blocked")

    def unblock(self, expected: str | None = None) -> Answers:
        self._must_be(Stage.BLOCKED, "NotEligible")
        if expected not in (None, self.why):
            raise Refused("NotEligible")
        self._move(Stage.WAITING)
        return one("Unblocked")

    # -- what time does

    def expire(self, now: int) -> Answers:
        """Acts on a deadline or an attempt timeout that has passed."""
        if not self.final and self.deadline_at is not None and self.deadline_at <= now:
            self._end("expired", now)
            return one("Expired")
        if self.stage is not Stage.RUNNING or self.times_out_at is None or self.times_out_at > now:
            return one("AlreadySatisfied")
        fence = self.owner
        if not self._may_retry("timeout"):
            self._end("expired", now)
            return one("Expired")
        answer = self._retry(now, None)
        self._could_answer(fence, answer)
        return one(*answer)

    def mark_expired(self, now: int) -> Answers:
        """A lease that ran out is lost; nobody may take the execution for the time of the grace."""
        if self.stage is not Stage.RUNNING or self.expires_at > now:
            return one("AlreadySatisfied")
        self._lose(now, revoked=False, grace=self.wish.grace)
        return one("MarkedExpired")

    def sweep(self, now: int) -> None:
        """Everything that is due, in the order deadline, attempt timeout, lease, delay."""
        while self.due(now):
            if self.expire(now) != one("AlreadySatisfied"):
                continue
            if self.stage is Stage.RUNNING:
                self.mark_expired(now)
            else:
                self._move(Stage.WAITING)

    def trim(self, now: int, retention: int) -> bool:
        """Deletes what ended long enough ago; the execution's own retention comes first."""
        keep = retention if self.wish.keep is None else self.wish.keep
        if self.stage is Stage.ENDED and self.ended_at is not None and self.ended_at + keep <= now:
            self._move(Stage.GONE)
            return True
        return False

    # -- the parts of all that

    def _runnable(self, eligibility: str, blocking: str) -> Row:
        return ("runnable", "unowned", eligibility, blocking, "none", PENDING[self.start])

    def _must_be(self, stage: Stage, refusal: str) -> None:
        if self.stage is not stage:
            raise Refused(refusal)

    def _leaseable(self) -> None:
        if self.stage is Stage.RUNNING:
            raise Refused("LeaseConflict")
        self._must_be(Stage.WAITING, "NotLeaseable")

    def _not_held(self, now: int) -> None:
        if self.held_until > now:
            raise Refused("GrantExists")

    def _hold(self, worker: str, until: int) -> Answers:
        self.held_for, self.held_until = worker, until
        self._moved()
        return one("Granted", until)

    def _redeem(self, worker: str, lease_id: UUID, ttl: int, now: int) -> Answers:
        if self.held_for != worker:
            raise Refused("InvalidGrant")
        if self.held_until < now:
            raise Refused("GrantExpired")
        self.take(worker, lease_id, ttl, now)
        return one("Claim", self.epoch)

    def _gate(self, fence: Fence, now: int) -> None:
        """Only the current owner of a lease that has not run out comes through."""
        if self.stage is Stage.LOST:
            raise Refused("LeaseRevoked" if self.revoked else "LeaseExpired")
        self._must_be(Stage.RUNNING, "NotActive")
        if self.expires_at <= now:
            self._lose(now, revoked=False)
            raise Refused("LeaseExpired")
        if fence != self.owner:
            raise Refused("StaleLease")

    def _again(self, operation: str, fence: Fence) -> Answers:
        """What a repeated call may hear: its first answer; once other things have happened since,
        also that its lease is gone. Nothing (empty) when it is no repeat."""
        first = self.effects.get((operation, fence))
        if first is None or self.stage is Stage.RUNNING:
            return frozenset()
        if self.latest == (operation, fence):
            return frozenset({first})
        return frozenset({first, ("NotActive",), ("LeaseExpired",), ("LeaseRevoked",)})

    def _effect(self, operation: str, fence: Fence, answer: Answer) -> Answers:
        self.effects[operation, fence] = answer
        self.latest = (operation, fence)
        return frozenset({answer})

    def _could_answer(self, fence: Fence | None, answer: Answer) -> None:
        """The engine failed the attempt; its owner, failing it too, may hear the same."""
        if fence is not None:
            self.effects["fail", fence] = answer

    def _may_retry(self, category: str) -> bool:
        retries = self.wish.retries
        return retries is not None and retries.allow(self.retries, category)

    def _retry(self, now: int, after: int | None) -> Answer:
        assert self.wish.retries is not None
        pause = self.wish.retries.pause(self.retries) if after is None else after
        self.tries[-1].outcome = "ended_failure"
        self.retries += 1
        self._wait_until(now + pause, now, "waiting_for_retry_backoff")
        self.start, self.time_left = "retry", self.wish.timeout
        self.told.append("released")
        return ("RetryScheduled", now + pause, len(self.tries))

    def _pause(self, operation: str, fence: Fence, now: int, until: int) -> Answers:
        left = None if self.times_out_at is None else max(1, self.times_out_at - now)
        self.tries[-1].outcome = "suspended"
        self._wait_until(until, now, "waiting_for_delay")
        self.start, self.time_left = "continue", left
        self.told.append("released")
        return self._effect(operation, fence, ("Delayed",))

    def _wait_until(self, until: int, now: int, why: str) -> None:
        self._move(Stage.DELAYED if until > now else Stage.WAITING)
        self.until, self.why = until, why

    def _lose(self, now: int, *, revoked: bool, grace: int = 0) -> None:
        if self.reclaims + 1 > self.wish.reclaims:
            fence = self.owner
            self._end_over_cap(now)
            self._could_answer(fence, ("TerminalFailed",))
            return
        self._move(Stage.LOST, start="reclaim", time_left=self.wish.timeout)
        self.revoked, self.held_until = revoked, now + grace if grace else 0
        self.told.append("revoked" if revoked else "expired")

    def _end_over_cap(self, now: int) -> None:
        self.reclaims += 1
        self._end("failed", now, lease="revoked")

    def _end(self, outcome: str, now: int, lease: str = "") -> None:
        in_hand = self.stage in (Stage.RUNNING, Stage.LOST) or self.start == "continue"
        if lease or self.stage is Stage.RUNNING:
            self.told.append(lease or "released")
        self.told.append(f"end:{outcome}")
        if in_hand:
            self.tries[-1].outcome = ENDS[outcome][1]
        self._move(Stage.ENDED)
        self.ended_in_hand, self.outcome, self.ended_at = in_hand, outcome, now

    def _move(self, stage: Stage, start: str | None = None, time_left: int | None = None) -> None:
        self.stage = stage
        if start is not None:
            self.start, self.time_left = start, time_left
        self.owner = self.worker = self.until = self.held_for = None
        self.held_until = 0
        self._moved()

    def _moved(self) -> None:
        self.latest = None
        self.changes += 1


def _clamp(priority: int) -> int:
    return max(0, min(HIGHEST_PRIORITY, priority))
