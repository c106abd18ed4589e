"""A reference model of executions, small enough to be checked by eye.

It is written from the tables of the specification and shares no rule with the engine: one mutable
object per execution, plain words instead of types, time as a number. Each operation changes the
object and returns the answers an engine may give, each a name followed by the figures that count;
a refusal is an answer like any other.
"""

from dataclasses import dataclass
from uuid import UUID

from tests.machine.sleeper import Sleeper
from tests.machine.waits import Ring
from tests.machine.words import (
    HIGHEST_PRIORITY,
    Answers,
    Fence,
    Refused,
    Stage,
    Try,
    Wish,
    one,
)

LOOK_AGAIN = 5_000
"""How long after a block it is asked whether its cause is gone, and how often since."""


@dataclass
class Life(Sleeper):
    """One execution and what can be done with it."""

    @classmethod
    def born(cls, id: str, uuid: UUID, wish: Wish, now: int, ring: Ring) -> "Life":
        life = cls(id, uuid, wish, now, priority=_clamp(wish.priority), time_left=wish.timeout)
        life.ring = ring
        life.deadline_at = wish.deadline_at
        if wish.deadline_at is None and wish.deadline_in is not None:
            life.deadline_at = now + wish.deadline_in
        if wish.delay_until is not None and wish.delay_until > now:
            life.stage, life.until = Stage.DELAYED, wish.delay_until
        return life

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
        if again := self._has_it(worker, lease_id, now):
            return again
        self._leaseable()
        if self.start == "continue":
            raise Refused("UseClaimResumed")
        return self._redeem(worker, lease_id, ttl, now)

    def claim_resumed(self, worker: str, lease_id: UUID, ttl: int, now: int) -> Answers:
        if again := self._has_it(worker, lease_id, now):
            return again
        parked = self.stage in (Stage.DELAYED, Stage.BLOCKED)
        if (parked or self.stage is Stage.WAITING) and self.start != "continue":
            raise Refused("NotResumed")
        self._must_be(Stage.WAITING, "NotLeaseable")
        if self.held_for == worker and self.held_until < now:
            self.held_for, self.held_until = None, 0
            self._moved()
            raise Refused("GrantExpired")
        return self._redeem(worker, lease_id, ttl, now)

    def operator_takes(self, lease_id: UUID, ttl: int, now: int) -> Answers:
        if again := self._has_it("operator", lease_id, now):
            return again
        if self.stage is Stage.RUNNING:
            raise Refused("LeaseConflict")
        self._must_be(Stage.WAITING, "NotEligible")
        self._not_held(now)
        self.take("operator", lease_id, ttl, now)
        return one("Claim", self.epoch)

    def grant_reclaim(self, worker: str, offers: frozenset[str], ttl: int, now: int) -> Answers:
        if self.stage is Stage.RUNNING and self.expires_at <= now:
            self._lose(now, revoked=False)
        self._must_be(Stage.LOST, "NotReclaimable")
        if self.over_cap:
            return one("ReclaimCapExceeded", self.reclaims)
        self._not_held(now)
        if self.wish.needs - offers:
            raise Refused("NotReclaimable")
        return self._hold(worker, now + ttl)

    def reclaim(
        self, worker: str, lease_id: UUID, ttl: int, now: int, most: int | None = None
    ) -> Answers:
        if again := self._has_it(worker, lease_id, now):
            return again
        lost = self.stage is Stage.LOST
        held_for, held_until = (self.held_for, self.held_until) if lost else self.left_behind
        if held_for is None:
            raise Refused("GrantNotFound")
        if held_for != worker:
            raise Refused("Invalid")
        if held_until <= now:
            raise Refused("GrantNotFound")
        self.left_behind = (None, 0)
        self._must_be(Stage.LOST, "NotReclaimable")
        if self.over_cap if most is None else self.reclaims + 1 > most:
            self.end_over_cap(now)
            return one("ReclaimCapExceeded", self.reclaims)
        self.take(worker, lease_id, ttl, now)
        return one("Claim", self.epoch)

    def _has_it(self, worker: str, lease_id: UUID, now: int) -> Answers | None:
        """The answer to a redemption that is repeated because its reply was lost."""
        if self.stage is not Stage.RUNNING or self.owner is None or self.expires_at <= now:
            return None
        if (self.owner.lease_id, self.worker) == (lease_id, worker):
            return one("Claim", self.epoch)
        return None

    # -- what an owner does

    def renew(self, fence: Fence, now: int, ttl: int) -> Answers:
        self._gate(fence, now)
        self.expires_at = max(self.expires_at, now + ttl)
        self.changes += 1
        self.told.append("renewed")
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
                return one("CancelAnswer")
            return one("CancelAnswer") | one("NotActive")
        self._gate(fence, now)
        self._end("cancelled", now)
        return self._effect("cancel", fence, ("CancelAnswer",))

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
                return one("CancelAnswer")
            raise Refused("NotActive")
        self._end("cancelled", now)
        return one("CancelAnswer")

    def revoke(self, now: int) -> Answers:
        if self.stage is Stage.LOST:
            return one("AlreadySatisfied")
        self._must_be(Stage.RUNNING, "NotActive")
        epoch = self.epoch
        self._lose(now, revoked=True)
        return one("Revoked", epoch)

    def change_priority(self, priority: int, *, anywhere: bool) -> Answers:
        parked = (Stage.DELAYED, Stage.BLOCKED, Stage.SUSPENDED) if anywhere else ()
        if self.stage not in (Stage.WAITING, *parked):
            raise Refused("NotEligible")
        self.priority = _clamp(priority)
        self._moved()
        self.told.append("priority_changed")
        return one("Changed", self.priority)

    def replay(self, now: int) -> Answers:
        self._must_be(Stage.ENDED, "NotTerminal")
        if self.replays >= self.wish.replays:
            raise Refused("MaxReplays")
        if self.outcome == "success":
            self.generation += 1
            self.close_all()
        self._move(Stage.WAITING, start="replay", time_left=self.wish.timeout)
        self.replays, self.retries = self.replays + 1, 0
        self.reclaims, self.blamed = min(self.reclaims, self.wish.reclaims), 0
        self.outcome, self.result, self.ended_at = "none", None, None
        relative = self.wish.deadline_in
        self.deadline_at = None if relative is None else now + relative
        self.effects.clear()
        self.told.append("replayed")
        return one("Replayed", "waiting")

    def block(self, reason: str, now: int) -> Answers:
        if self.stage is Stage.ENDED:
            raise Refused("NotActive")
        self._must_be(Stage.WAITING, "NotEligible")
        self._move(Stage.BLOCKED)
        self.why = reason
        self.until = None if reason.startswith("paused") else now + LOOK_AGAIN
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
        timer = self.kept_timer if self.stage is Stage.LOST else self.times_out_at
        if self.stage not in (Stage.RUNNING, Stage.LOST) or timer is None or timer > now:
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
        """Everything that is due, in the order deadline, attempt timeout, lease, suspension,
        delay, pending waitpoints. A lease that ran out before the timeout comes before it."""
        nothing = one("AlreadySatisfied")
        while self.due(now):
            steps = [self.expire, self.mark_expired, self.expire_suspension]
            if self._lost_in_time(now):
                steps.remove(self.expire)
            if any(step(now) != nothing for step in steps):
                continue
            passed = self.until is not None and self.until <= now
            if self.stage is Stage.DELAYED and passed:
                self._move(Stage.WAITING)
            elif self.stage is Stage.BLOCKED and passed:
                self._question_block(now)
            elif self.kept_timer is not None and self.kept_timer <= now:
                self.kept_timer = None
                self._moved()
            else:
                self.expire_doors(now)

    def _lost_in_time(self, now: int) -> bool:
        """Whether its lease runs out before its attempt can time out. A deadline ends it anyway."""
        over = self.deadline_at is not None and self.deadline_at <= now
        timed = self.stage is Stage.RUNNING and self.times_out_at is not None and not over
        return timed and self.expires_at < (self.times_out_at or 0)

    def _question_block(self, now: int) -> None:
        """No budget and no quota is in the way here, and no worker is registered."""
        self.until = now + LOOK_AGAIN
        self._moved()
        if self.why != "waiting_for_capable_worker":
            self._move(Stage.WAITING)

    def trim(self, now: int, retention: int) -> bool:
        """Deletes what ended long enough ago; the execution's own retention comes first."""
        keep = retention if self.wish.keep is None else self.wish.keep
        if self.stage is Stage.ENDED and self.ended_at is not None and self.ended_at + keep <= now:
            self._move(Stage.GONE)
            return True
        return False

    def _redeem(self, worker: str, lease_id: UUID, ttl: int, now: int) -> Answers:
        if self.held_for != worker:
            raise Refused("InvalidGrant")
        if self.held_until < now:
            raise Refused("GrantExpired")
        self.take(worker, lease_id, ttl, now)
        return one("Claim", self.epoch)


def _clamp(priority: int) -> int:
    return max(0, min(HIGHEST_PRIORITY, priority))
