"""How an execution stands, and the moves every operation is made of."""

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Self
from uuid import UUID

from tests.machine.waits import ACTIVE, CLOSED, Door, Ring, Said, Sleep
from tests.machine.waits import PENDING as OPEN
from tests.machine.words import (
    BLOCKS,
    ENDS,
    NO_POLICY_RECLAIMS,
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
class QuotaView:
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
    blamed: int = 0
    replays: int = 0
    generation: int = 0
    tries: list[Try] = field(default_factory=list)
    owner: Fence | None = None
    worker: str | None = None
    started_at: int | None = None
    expires_at: int = 0
    times_out_at: int | None = None
    time_left: int | None = None
    kept_timer: int | None = None
    """The timer of an attempt whose lease was revoked, until its successor leaves off."""
    revoked: bool = False
    held_for: str | None = None
    held_until: int = 0
    left_behind: tuple[str | None, int] = (None, 0)
    """The reclaim grant of one that ended before it was redeemed."""
    deadline_at: int | None = None
    outcome: str = "none"
    result: bytes | None = None
    ended_at: int | None = None
    ended_in_hand: bool = False
    steps: dict[tuple[int, str], object] = field(default_factory=dict)
    percent: int | None = None
    told: list[str] = field(default_factory=list)
    effects: dict[tuple[str, Fence], Answer] = field(default_factory=dict)
    latest: tuple[str, Fence] | None = None
    changes: int = 0
    asked: int = 0
    ring: Ring = field(default_factory=Ring)
    doors: dict[UUID, Door] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    sleep: Sleep | None = None
    met: tuple[UUID, Fence] | None = None
    remembered: dict[str, tuple[Answer, int]] = field(default_factory=dict)

    def copy(self) -> Self:
        """One that can be changed without changing this one."""
        twin = copy(self)
        twin.tries = [replace(one) for one in self.tries]
        twin.told, twin.said = list(self.told), list(self.said)
        twin.steps, twin.effects = dict(self.steps), dict(self.effects)
        twin.doors, twin.remembered = dict(self.doors), dict(self.remembered)
        return twin

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
            case Stage.SUSPENDED:
                over = self.sleep is not None and self.sleep.escalated
                wait = "paused_by_operator" if over else "waiting_for_signal"
                return ("suspended", "unowned", "not_applicable", wait, "none", PENDING["continue"])
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
        found = [self.alarm]
        if self.stage in (Stage.DELAYED, Stage.BLOCKED):
            found.append(self.until)
        if self.sleep is not None:
            found.append(self.sleep.timeout_at)
        if self.stage is Stage.RUNNING:
            found += [self.expires_at, self.times_out_at]
        return [moment for moment in found if moment is not None]

    @property
    def alarm(self) -> int | None:
        """When it must be looked at whatever it does: its deadline, the timer of a revoked attempt,
        the end of a pending door."""
        ends = [door.expires_at for door in self.doors.values() if door.state == OPEN]
        moments = [at for at in (self.deadline_at, self.kept_timer, *ends) if at is not None]
        return None if self.final else min(moments, default=None)

    def due(self, now: int) -> bool:
        return any(moment <= now for moment in self.moments())

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
        self.start, self.time_left = "retry", self.wish.timeout
        if self.stage is Stage.RUNNING:
            self.told.append("released")
        self._wait_until(now + pause, now, "waiting_for_retry_backoff")
        return ("RetryScheduled", now + pause, len(self.tries))

    def _pause(self, operation: str, fence: Fence, now: int, until: int) -> Answers:
        self._interrupt(now)
        self._wait_until(until, now, "waiting_for_delay")
        return self._effect(operation, fence, ("Delayed",))

    def _interrupt(self, now: int) -> None:
        """The lease is given up; the same attempt will go on with the time it has left."""
        left = None if self.times_out_at is None else max(1, self.times_out_at - now)
        self.tries[-1].outcome = "suspended"
        self.start, self.time_left = "continue", left
        self.told.append("released")

    def _wait_until(self, until: int, now: int, why: str) -> None:
        self._move(Stage.DELAYED if until > now else Stage.WAITING)
        self.until, self.why = until, why

    def _lose(self, now: int, *, revoked: bool, grace: int = 0) -> None:
        self.blamed += not revoked
        self._move(Stage.LOST, start="reclaim", time_left=self.wish.timeout)
        self.kept_timer = self.times_out_at if revoked else None
        self.revoked, self.held_until = revoked, now + grace if grace else 0
        self.told.append("revoked" if revoked else "expired")

    @property
    def over_cap(self) -> bool:
        """Whether a lost one is given up by whoever takes it. Without a cap of its own an
        operator's revokes are not held against it."""
        if self.wish.reclaims == NO_POLICY_RECLAIMS:
            return self.blamed > NO_POLICY_RECLAIMS
        return self.reclaims + 1 > self.wish.reclaims

    def end_over_cap(self, now: int) -> None:
        self.reclaims += 1
        self._end("failed", now, lease="revoked")

    def _end(self, outcome: str, now: int, lease: str = "") -> None:
        in_hand = self.stage in (Stage.RUNNING, Stage.LOST) or self.start == "continue"
        if lease or self.stage is Stage.RUNNING:
            self.told.append(lease or "released")
        self.told.append(f"end:{outcome}")
        if in_hand:
            self.tries[-1].outcome = ENDS[outcome][1]
        granted = self.stage is Stage.LOST and not lease
        left_behind = (self.held_for, self.held_until) if granted else (None, 0)
        self._move(Stage.ENDED)
        self.left_behind = left_behind
        self.ended_in_hand, self.outcome, self.ended_at = in_hand, outcome, now

    def _move(self, stage: Stage, start: str | None = None, time_left: int | None = None) -> None:
        keeps_grant = {self.stage, stage} == {Stage.WAITING, Stage.BLOCKED}
        self.stage = stage
        if stage is not Stage.RUNNING:
            self.kept_timer = None
        if start is not None:
            self.start, self.time_left = start, time_left
        self.owner = self.worker = self.until = self.met = None
        if not keeps_grant:
            self.held_for, self.held_until = None, 0
        self.left_behind = (None, 0)
        self._leave_doors()
        self._moved()

    def _leave_doors(self) -> None:
        """Doors of an attempt that does not go on close. Those that belong to the execution stay
        for a replay; what an unfinished wait had heard there is still unused."""
        goes_on = self.stage is Stage.RUNNING or (
            self.start == "continue" and self.stage is not Stage.LOST
        )
        attempt = len(self.tries) - 1 if goes_on else None
        if self.stage is not Stage.SUSPENDED:
            self.sleep = None
        for door in list(self.doors.values()):
            if door.attempt is not None and (door.attempt != attempt or self.final):
                self.doors[door.id] = replace(door, state=CLOSED)
            elif self.sleep is None and door.state == ACTIVE:
                del self.doors[door.id]
                self.doors[door.id] = replace(door, state=OPEN)

    def _moved(self) -> None:
        self.latest = None
        self.changes += 1
