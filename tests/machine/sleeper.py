"""Suspension in the model: waiting for the outside world, and what the outside world does."""

from dataclasses import dataclass, replace
from uuid import UUID

from tests.machine.standing import QuotaView
from tests.machine.waits import (
    ACTIVE,
    CLOSED,
    PENDING,
    Door,
    Letter,
    Place,
    Request,
    Said,
    Sleep,
    can_be_true,
    contributes,
    effect,
    is_true,
)
from tests.machine.words import Answer, Answers, Fence, Refused, Stage, Unauthorized, one

WEEK = 7 * 86_400_000
ENDINGS = {"fail": "failed", "cancel": "cancelled", "expire": "expired"}
AUTO_RESUME = "auto_resume_with_timeout_signal"
SATISFIED = "resume_condition_satisfied"
BUFFERED = "buffered_for_pending_waitpoint"


@dataclass
class Sleeper(QuotaView):
    """An execution that can be suspended."""

    # -- what an owner does

    def create_door(
        self, fence: Fence, now: int, id: UUID, key: str, expires_in: int | None
    ) -> Answers:
        self._gate(fence, now)
        if id in self.doors:
            raise Refused("WaitpointExists")
        expires_at = None if expires_in is None else now + expires_in
        self.doors[id] = Door(id, key, PENDING, len(self.tries) - 1, expires_at)
        self._moved()
        return one("Waitpoint", id)

    def suspend(self, fence: Fence, now: int, request: Request) -> Answers:
        first, until = self.remembered.get(request.key or "", (("nothing",), 0))
        if until > now:
            return one(*first)
        if again := self._again(f"suspend {request.id}", fence):
            return again
        if self.met == (request.id, fence):
            return one("AlreadyMet", request.id)
        self._gate(fence, now)
        for place in request.places:
            self._check_place(place, now)
            if self._is_shut(place) and request.step is None:
                raise Refused("WaitpointNotPending")
        return self._sleep(fence, now, request)

    def _is_shut(self, place: Place) -> bool:
        door = self.doors.get(place.id)
        return place.use == "either" and door is not None and door.shut

    def _sleep(self, fence: Fence, now: int, request: Request) -> Answers:
        places = [place for place in request.places if not self._is_shut(place)]
        taken = tuple((place.id, self._bind(place, request)) for place in places)
        self.sleep = Sleep(request, taken, request.timeout_at)
        if len(places) < len(request.places) and self._never(self.sleep, []):
            return self._go_on(fence, now, request, 0, "closed")
        for so_far in range(len(self.said) + 1):
            if is_true(request.condition, self.sleep.hears(self.said[:so_far])):
                return self._go_on(fence, now, request, so_far)
        self._interrupt(now)
        self._move(Stage.SUSPENDED)
        self.told.append("suspended")
        answer: Answer = ("NowSuspended", request.id)
        self._remember(answer, request, now)
        return self._effect(f"suspend {request.id}", fence, answer)

    def _never(self, sleep: Sleep, said: list[Said]) -> bool:
        """Whether a wait that is a step waits for what cannot be any more."""
        keys = {self.doors[id].key for id, _ in sleep.doors if self.doors[id].state == ACTIVE}
        heard = sleep.hears(said)
        request = sleep.request
        return request.step is not None and not can_be_true(request.condition, heard, keys)

    def _go_on(
        self, fence: Fence, now: int, request: Request, so_far: int, how: str = "signalled"
    ) -> Answers:
        """What was to be waited for is here, or never will be: the owner keeps its lease."""
        self._close_sleep(how, so_far)
        self._moved()
        self.met = (request.id, fence)
        answer: Answer = ("AlreadyMet", request.id)
        self._remember(answer, request, now)
        return frozenset({answer})

    def _check_place(self, place: Place, now: int) -> None:
        door = self.doors.get(place.id)
        if place.use == "fresh" and door is not None:
            raise Refused("WaitpointExists")
        if place.use != "pending":
            return
        if door is None:
            raise Refused("NotFound")
        if door.state != PENDING:
            raise Refused("WaitpointNotPending")
        if door.expired(now):
            raise Refused("WaitpointExpired")

    def _bind(self, place: Place, request: Request) -> int:
        """Opens the door of a place; returns the last number that does not count there."""
        known = self.doors.get(place.id)
        if known is None or known.state == CLOSED:
            attempt = None if request.keep else len(self.tries) - 1
            known = Door(place.id, place.key, PENDING, attempt)
        if known.attempt is not None:
            known = replace(known, expires_at=request.timeout_at)
        self.doors[place.id] = replace(known, state=ACTIVE)
        return known.taken

    def _remember(self, answer: Answer, request: Request, now: int) -> None:
        if request.key:
            left = WEEK
            if request.timeout_at is not None:
                left = min(WEEK, max(0, request.timeout_at - now) + 60_000)
            self.remembered[request.key] = (answer, now + left)

    # -- what the outside world does

    def deliver(self, door_id: UUID, letter: Letter, now: int, refusal: str | None) -> Answers:
        if refusal is not None:
            raise Unauthorized(refusal)
        door = self.doors.get(door_id)
        if door is None:
            raise Refused("NotFound")
        return self._accept(door, letter, now)

    def send(self, name: str, letter: Letter, channel: UUID, now: int) -> Answers:
        """To whatever waits for that name: a door that is waited at, else one that is pending,
        else the channel of that name, which is there as long as nobody closes it."""
        letter = replace(letter, sent=(self.generation, name))
        if any(_repeats(letter, said, now) for said in self.said if said.sent == letter.sent):
            return one("DuplicateSignal")
        if self.final:
            raise Refused("NotSignalable")
        doors = [door for door in self.doors.values() if door.key == name]
        active = [door for door in doors if door.state == ACTIVE]
        pending = [door for door in doors if door.state == PENDING and not door.expired(now)]
        known = [*active, *pending, *(door for door in doors if door.id == channel)]
        if not known:
            known = [Door(channel, name, PENDING)]
            self.doors[channel] = known[0]
        return self._accept(known[0], letter, now)

    def _accept(self, door: Door, letter: Letter, now: int) -> Answers:
        if any(_repeats(letter, said, now) for said in self.said if said.door == door.id):
            return one("DuplicateSignal")
        if self.final:
            raise Refused("NotSignalable")
        if door.state == CLOSED or door.expired(now):
            raise Refused("WaitpointClosed")
        said = self._say(door, letter, now)
        if said.effect == SATISFIED:
            assert self.sleep is not None
            delay = self.sleep.request.delay if letter.delay is None else letter.delay
            self._wake("signalled", now, delay)
        else:
            self._moved()
        return one("Accepted", said.effect, said.number)

    def _say(self, door: Door, letter: Letter, now: int) -> Said:
        said = Said(
            number=len(self.said) + 1,
            name=letter.name,
            id=letter.id,
            door=door.id,
            key=door.key,
            source=letter.source,
            effect=BUFFERED,
            repeat=letter.repeat,
            repeat_until=now + letter.ttl,
            sent=letter.sent,
        )
        if door.state == ACTIVE:
            assert self.sleep is not None
            before = self.sleep.hears(self.said)
            said = replace(said, effect=effect(self.sleep.request.condition, before, said))
        self.said.append(said)
        self.told.append(f"signal:{said.effect}")
        return said

    def resume(self, delay: int, now: int) -> Answers:
        self._must_be(Stage.SUSPENDED, "NotSuspended")
        self.told.append("woken:operator")
        self._wake("resumed", now, delay)
        return one("Resumed", self.public)

    def close_door(self, id: UUID, now: int) -> Answers:
        door = self.doors.get(id)
        if door is None:
            raise Refused("NotFound")
        if door.state == CLOSED or self.final:
            return one("AlreadySatisfied")
        self.doors[id] = replace(door, state=CLOSED, shut=True)
        self.told.append("closed")
        if door.state == ACTIVE and self.sleep is not None and self._never(self.sleep, self.said):
            self.told.append("woken:waitpoint_closed")
            self._wake("closed", now, 0)
        else:
            self._moved()
        return one("WaitpointsClosed", (id,))

    def close_all(self) -> None:
        """A new generation begins: what waits for the old one waits for nothing."""
        self.doors = {id: replace(door, state=CLOSED) for id, door in self.doors.items()}

    # -- what time does

    def expire_suspension(self, now: int) -> Answers:
        sleep = self.sleep
        if sleep is None or sleep.timeout_at is None or sleep.timeout_at > now:
            return one("AlreadySatisfied")
        behaviour = sleep.request.behaviour
        if behaviour == "escalate":
            self.sleep = replace(sleep, timeout_at=None, escalated=True)
            self.told.append("woken:escalated")
            self._moved()
        elif behaviour == AUTO_RESUME:
            self.said.append(Said(len(self.said) + 1, "timeout"))
            self.told.append("woken:timeout")
            self._wake("timed_out", now, 0)
        else:
            self._end(ENDINGS[behaviour], now)
        return one("SuspensionExpired", behaviour, self.public)

    def expire_doors(self, now: int) -> None:
        for door in list(self.doors.values()):
            if door.expired(now):
                self.doors[door.id] = replace(door, state=CLOSED)
        self._moved()

    # -- waking

    def _wake(self, how: str, now: int, delay: int) -> None:
        self._close_sleep(how, len(self.said))
        self._wait_until(now + delay, now, "waiting_for_resume_delay")

    def _close_sleep(self, how: str, so_far: int) -> None:
        """The suspension is over: its wait is a step, its doors close or wait for the next one."""
        sleep = self.sleep
        assert sleep is not None
        if sleep.request.step is not None:
            name = (self.generation, sleep.request.step)
            self.steps.setdefault(name, (how, str(sleep.request.id)))
        used = self._used(sleep, self.said[:so_far])
        for id, taken in sleep.doors:
            door = self.doors.pop(id)
            stays = sleep.request.keep and door.state == ACTIVE
            last = max([taken, *(said.number for said in used if said.door == id)])
            state = PENDING if stays else CLOSED
            self.doors[id] = replace(door, state=state, taken=last)
        self.sleep = None

    def _used(self, sleep: Sleep, said: list[Said]) -> list[Said]:
        """What contributed to the condition, and so is used up."""
        heard = sleep.hears(said)
        condition = sleep.request.condition
        return [it for number, it in enumerate(heard) if contributes(condition, heard[:number], it)]


def _repeats(letter: Letter, said: Said, now: int) -> bool:
    if letter.id is not None and letter.id == said.id:
        return True
    return bool(letter.repeat) and letter.repeat == said.repeat and said.repeat_until > now
