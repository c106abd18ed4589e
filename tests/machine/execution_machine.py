"""Random operations, troubles and clock jumps against the model of executions.

One example is one database. Each rule is one step; after it `Checks` looks at everything. At the
end of an example the machine plays on until every execution has ended: nothing may be stuck.
"""

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from flowfabric.core.execution.model import WorkerIdentity
from tests.machine.checks import CLOSER, LANES, WORKERS, Checks
from tests.machine.deeds import (
    ACTS,
    Act,
    Cancel,
    ChangePriority,
    ClaimGranted,
    ClaimResumed,
    Complete,
    Deed,
    Grant,
    GrantReclaim,
    Reclaim,
    Renew,
    Replay,
    Revoke,
    Unblock,
)
from tests.machine.draws import (
    ALL,
    DEATH,
    HOUR,
    LOST,
    acts,
    conversations,
    deeds,
    deliveries,
    demands,
    doors,
    forms,
    grant_waits,
    granting,
    maybe_lost,
    picks,
    sends,
    signals,
    sleeps,
    steering,
    troubles,
    ttls,
    waits,
    wishes,
    workers,
)
from tests.machine.driver import Machine, at_once, pick_from
from tests.machine.play import Demand, Holding, Play
from tests.machine.wait_deeds import SIGNALS, CreateDoor, Deliver, Resume, Sleep
from tests.machine.words import Stage

MOST_EXECUTIONS = 8
UPKEEP = ("crash", "trim", "pause", "submit again", "act blindly", "find and grant", "rotate")
GRACES = (0, 0, 1000, HOUR)


class ExecutionMachine(Machine):
    play: Play

    @initialize(data=st.data(), grace=st.sampled_from([0, 0, 2000]))
    def begin(self, data: st.DataObject, grace: int) -> None:
        self.play = Play(self.bench, grace)
        self._begin()
        self.checks = Checks(self.bench, self.play.plain, self.play.book)
        for wish in data.draw(st.lists(wishes(self.play.now), min_size=1, max_size=3)):
            self._run(self.play.submit(wish))

    @invariant()
    def everything_holds(self) -> None:
        self._run(self.checks.all(self.play.now))

    # -- submitting

    @rule(data=st.data(), trouble=maybe_lost)
    def submit(self, data: st.DataObject, trouble: object) -> None:
        wish = data.draw(wishes(self.play.now))
        if self._room():
            self._run(self.play.submit(wish), trouble)

    @rule(data=st.data())
    def submit_at_once(self, data: st.DataObject) -> None:
        many = data.draw(st.lists(wishes(self.play.now), min_size=2, max_size=3))
        if self._room():
            self._run(at_once(self.play.submit(wish) for wish in many))

    # -- taking

    @rule(demand=demands, trouble=maybe_lost)
    def claim(self, demand: Demand, trouble: object) -> None:
        self._run(self.play.claim(demand), trouble)

    @rule(several=st.lists(demands, min_size=2, max_size=3))
    def claim_at_once(self, several: list[Demand]) -> None:
        self._run(self.play.rush(several))

    @rule(pick=picks, act=granting, trouble=troubles)
    def grant(self, pick: int, act: Act, trouble: object) -> None:
        self._run(self.play.act(self._execution(pick, act), act), trouble)

    @rule(pick=picks, worker=workers, ttl=ttls, wait=grant_waits, trouble=troubles)
    def grant_and_redeem(
        self, pick: int, worker: WorkerIdentity, ttl: int, wait: int, trouble: object
    ) -> None:
        """The right grant for how the execution stands, redeemed in the right way."""
        grants = (Grant(worker, ALL, 1000), GrantReclaim(worker, ALL, 1000))
        uuid = self._execution(pick, *grants)
        life = self.play.book.lives[uuid]
        again = ClaimResumed if life.start == "continue" else ClaimGranted
        lost = life.stage is Stage.LOST
        redeem = Reclaim(worker, ttl) if lost else again(worker, ttl)
        self._run(self.play.act(uuid, grants[lost]))
        self.play.clock.advance(wait)
        self._run(self.play.act(uuid, redeem), trouble)

    # -- owning, or believing to own

    @rule(pick=picks, deed=deeds, form=forms, trouble=troubles)
    def owner_acts(self, pick: int, deed: Deed, form: str, trouble: object) -> None:
        if holding := self._owner(pick):
            self._run(self.play.own(holding, deed, form), trouble)

    @rule(pick=picks, deed=deeds, form=forms)
    def owner_acts_twice(self, pick: int, deed: Deed, form: str) -> None:
        if holding := self._owner(pick):
            deed = self.play.addressed(holding.uuid, deed)
            self._run(self.play.own(holding, deed, form))
            self._run(self.play.own(holding, deed, form))

    @rule(pairs=st.lists(st.tuples(picks, deeds), min_size=2, max_size=5))
    def owners_act_at_once(self, pairs: list[tuple[int, Deed]]) -> None:
        owners = [(self._owner(pick), deed) for pick, deed in pairs]
        chosen = {holding.uuid: (holding, deed) for holding, deed in owners if holding}
        self._run(at_once(self.play.own(*pair) for pair in chosen.values()))

    @rule(pick=picks, deed=deeds, form=forms, trouble=troubles)
    def patient_owner_acts(self, pick: int, deed: Deed, form: str, trouble: object) -> None:
        """An owner that has renewed its lease works on after the end of the lease it was given."""
        holding = self._owner(pick)
        if holding is None:
            return
        self._run(self.play.own(holding, Renew(30_000)))
        left = holding.claim.expires_at - self.play.now
        self.play.clock.advance(left if 0 < left < 30_000 else 0)
        self._run(self.play.own(holding, deed, form), trouble)

    @rule(pick=picks, deed=deeds, form=forms, trouble=maybe_lost)
    def stale_owner_acts(self, pick: int, deed: Deed, form: str, trouble: object) -> None:
        """Whoever lost its lease changes nothing, however late it wakes up."""
        if self.play.stale:
            self._run(self.play.own(pick_from(self.play.stale, pick), deed, form), trouble)

    @rule(pick=picks, thief=workers, revoked=st.booleans(), deed=deeds, form=forms)
    def robbed_owner_acts(
        self, pick: int, thief: WorkerIdentity, revoked: bool, deed: Deed, form: str
    ) -> None:
        """The same while somebody else runs what it lost."""
        holding = self._owner(pick)
        if holding is None:
            return
        if revoked:
            self._run(self.play.act(holding.uuid, Revoke()))
        else:
            until = self.play.book.lives[holding.uuid].expires_at
            self.play.clock.advance(max(0, until - self.play.now))
            self._run(self.play.sweep())
        self._run(self.play.claim(Demand(thief, ALL, limit=5)))
        self._run(self.play.own(holding, deed, form))

    @rule(pick=picks, deed=deeds, act=steering | signals)
    def owner_and_operator_act_at_once(self, pick: int, deed: Deed, act: Act) -> None:
        if holding := self._owner(pick):
            self._run(self.play.race(holding, deed, act))

    # -- steering

    @rule(pick=picks, act=steering, trouble=troubles)
    def steer(self, pick: int, act: Act, trouble: object) -> None:
        self._run(self.play.act(self._execution(pick, act), act), trouble)

    # -- waiting for the outside world

    @rule(pick=picks, sleep=sleeps, form=forms, trouble=troubles)
    def suspend(self, pick: int, sleep: Sleep, form: str, trouble: object) -> None:
        if holding := self._owner(pick):
            self._run(self.play.own(holding, sleep, form), trouble)

    @rule(pick=picks, sleep=sleeps, said=conversations)
    def suspend_and_hear(self, pick: int, sleep: Sleep, said: list[tuple[Act, object]]) -> None:
        if holding := self._owner(pick):
            self._run(self.play.own(holding, sleep))
            for act, trouble in said:
                self._run(self.play.act(holding.uuid, act), trouble)

    @rule(pick=picks, act=signals, trouble=troubles)
    def signal(self, pick: int, act: Act, trouble: object) -> None:
        self._run(self.play.act(self._listener(pick, act), act), trouble)

    @rule(pick=picks, door=doors, early=deliveries | sends, sleep=sleeps, trouble=troubles)
    def signal_before_suspending(
        self, pick: int, door: CreateDoor, early: Act, sleep: Sleep, trouble: object
    ) -> None:
        """What was said at a pending waitpoint counts for the suspension that waits there."""
        if holding := self._owner(pick):
            self._run(self.play.own(holding, door))
            self._run(self.play.act(holding.uuid, early))
            use = "pending" if isinstance(early, Deliver) else "channel"
            shape = pick_from([sleep.shape, "any", "single", "named"], pick)
            self._run(self.play.own(holding, replace(sleep, use=use, shape=shape)), trouble)

    @rule(pick=picks, act=signals)
    def signal_twice(self, pick: int, act: Act) -> None:
        uuid = self._listener(pick, act)
        act = self.play.addressed(uuid, act)
        self._run(self.play.act(uuid, act))
        self._run(self.play.act(uuid, act))

    @rule(pick=picks, several=st.lists(signals, min_size=2, max_size=3))
    def signals_at_once(self, pick: int, several: list[Act]) -> None:
        self._run(self.play.crowd(self._listener(pick, several[0]), several))

    # -- time, the sweep, and what is rare

    @rule(span=waits)
    def wait(self, span: int) -> None:
        """Some time passes: a span, or until something is due, or until just before."""
        due = self.play.book.next_due(self.play.now)
        if span > 0 or due is None:
            self.play.clock.advance(abs(span) or 1000)
        else:
            self.play.clock.advance(due - self.play.now + span)

    @rule(span=waits, trouble=troubles)
    def wait_and_sweep(self, span: int, trouble: object) -> None:
        self.wait(span)
        self._run(self.play.sweep(), trouble)

    @rule(what=st.sampled_from(UPKEEP), pick=picks, act=acts, demand=demands)
    def upkeep(self, what: str, pick: int, act: Act, demand: Demand) -> None:
        play, lane, uuid = self.play, LANES[pick % 2], self._execution(pick)
        match what:
            case "crash":
                self._run(play.crash())
            case "act blindly":
                self._run(play.act(uuid, act))
            case "find and grant":
                self._run(play.find_and_grant(demand, lane))
            case "trim":
                self._run(play.trim(), LOST if pick % 3 == 0 else None)
            case "rotate":
                self._run(play.rotate(pick_from(GRACES, pick)))
            case "pause":
                self._run(play.resume(lane) if lane in play.book.paused else play.pause(lane))
            case _:
                self._run(play.submit(play.book.lives[uuid].wish, uuid))

    # -- how a step is run

    def _run(self, step: Coroutine[Any, Any, object], trouble: object = None) -> None:
        """Runs a step to its end, with trouble on its way if there is to be some."""
        self._arm(trouble)
        try:
            super()._run(step)
        finally:
            self._arm(None)

    def _arm(self, trouble: object) -> None:
        play = self.play
        play.lost.armed = trouble in (LOST, DEATH)
        play.dying = trouble == DEATH
        calm = trouble is None or play.lost.armed
        play.rivals.rival = None if calm else lambda uuid: self._rival(uuid, trouble)

    async def _rival(self, uuid: UUID, trouble: Any) -> None:
        """Somebody else was faster: another claimer, the owner, or an operator who finds something
        to change."""
        play, owner = self.play, self.play.owner_of(uuid)
        if isinstance(trouble, Demand):
            return await play.claim(trouble, play.other)
        if not isinstance(trouble, (*ACTS, *SIGNALS)):
            if owner is not None:
                return await play.own(owner, trouble, engine=play.other)
            trouble = Cancel()
        for act in (trouble, ChangePriority(7, anywhere=True), Revoke(), Replay()):
            if play.would_change(uuid, act):
                return await play.act(uuid, act, engine=play.other)
        return None

    async def _play_to_the_end(self) -> None:
        """Opens what operators closed and works until every execution has ended."""
        play = self.play
        for lane in list(play.book.paused):
            await play.resume(lane)
        for _ in range(10 * MOST_EXECUTIONS):
            await play.sweep()
            for life in list(play.book.lives.values()):
                if life.stage is Stage.BLOCKED:
                    await play.act(life.uuid, Unblock())
                if life.stage is Stage.SUSPENDED:
                    await play.act(life.uuid, Resume())
            await play.claim(Demand(CLOSER, ALL, limit=500))
            for holding in play.live:
                await play.own(holding, Complete(b"closed"))
            await self.checks.all(play.now)
            await self.checks.lists(play.now)
            if all(life.final for life in play.book.lives.values()):
                return
            play.clock.advance(self._wait() - play.now)
        raise AssertionError("some executions never end")

    def _wait(self) -> int:
        """The next moment that frees something: a timer, or the end of a hold."""
        now, lives = self.play.now, self.play.book.lives.values()
        moments = [life.held_until for life in lives if life.held_until > now]
        due = self.play.book.next_due(now)
        moments += [] if due is None else [due]
        assert moments, "nothing will ever happen again"
        return min(moments)

    # -- who and what a step is about: if there is nobody to act, somebody is found first, because
    # a rule that is sometimes not allowed would make what is drawn depend on how races end

    def _room(self) -> bool:
        return len(self.play.book.lives) < MOST_EXECUTIONS

    def _owner(self, pick: int) -> Holding | None:
        """Somebody who owns something, if there is anything to own."""
        if not self.play.live:
            self._run(self.play.claim(Demand(pick_from(WORKERS[:3], pick), ALL, limit=2)))
        return pick_from(self.play.live, pick) if self.play.live else None

    def _listener(self, pick: int, act: Act) -> UUID:
        """An execution that waits, mostly one that the act would change."""
        lives = self.play.book.lives
        if all(life.sleep is None for life in lives.values()) and (owner := self._owner(pick)):
            shape = pick_from(["all", "single", "sources"], pick)
            self._run(self.play.own(owner, Sleep(shape)))
        return self._execution(pick, act)

    def _execution(self, pick: int, *acts: Act) -> UUID:
        """An execution one of the acts would change, if there is one; else any."""
        lives = self.play.book.lives
        fit = [uuid for uuid in lives if any(self.play.would_change(uuid, act) for act in acts)]
        return pick_from(fit or list(lives), pick)
