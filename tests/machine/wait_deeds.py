"""Operations about suspension as values.

They are drawn without identifiers and tokens; `addressed` gives them those once it is known which
execution they are about, so that a repeat asks for the very same thing.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.wait.channel import waitpoint_id
from flowfabric.core.wait.condition import model as core
from flowfabric.core.wait.model import Behaviour, ResumePolicy, StepRef
from flowfabric.core.wait.request import (
    Binding,
    Suspend,
    Wait,
    WaitpointUse,
)
from flowfabric.core.wait.signal import Delivery, DuplicateSignal
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import Owned
from tests.machine.deeds import Call
from tests.machine.model import Life
from tests.machine.waits import (
    ACTIVE,
    CLOSED,
    PENDING,
    AtLeast,
    Condition,
    Every,
    Letter,
    Never,
    Place,
    Request,
    Single,
)
from tests.machine.words import Answers, Fence, Refused, Stage

T = TypeVar("T")
NOWHERE = UUID(int=0)
FORGED = "k0:" + "0" * 64


@dataclass(frozen=True)
class Desk:
    """Where identifiers, tokens and the time come from."""

    fresh: Callable[[], UUID]
    tokens: dict[UUID, str]
    now: int


def addressed(thing: T, life: Life, desk: Desk) -> T:
    """With identifiers and tokens, if it needs some and has none yet."""
    make = getattr(thing, "addressed", None)
    return thing if make is None else make(life, desk)


# -- what the holder of a lease does


@dataclass(frozen=True)
class CreateDoor:
    key: str
    expires_in: int | None
    id: UUID | None = None

    def addressed(self, life: Life, desk: Desk) -> "CreateDoor":
        return self if self.id else replace(self, id=desk.fresh())

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        span = None if self.expires_in is None else Millis(self.expires_in)
        return engine.suspensions.create_waitpoint(owned, self.key, expires_in=span, id=self.id)

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        return life.create_door(fence, now, self.id or NOWHERE, self.key, self.expires_in)


@dataclass(frozen=True)
class Sleep:
    """A suspension of some shape; `use` says where its first waitpoint comes from."""

    shape: str
    use: str = "fresh"
    timeout: int | None = None
    behaviour: str = "fail"
    key: str | None = None
    step: str | None = None
    delay: int = 0
    request: Request | None = None

    def addressed(self, life: Life, desk: Desk) -> "Sleep":
        if self.request is not None:
            return self
        places = self._places(life, desk)
        timeout = 1000 if self.timeout is None and self.shape == "timeout" else self.timeout
        request = Request(
            id=desk.fresh(),
            condition=SHAPES[self.shape](tuple(place.key for place in places)),
            places=places,
            timeout_at=None if timeout is None else desk.now + timeout,
            behaviour=self.behaviour,
            delay=self.delay,
            key=self.key,
            step=self.step,
            keep=self.use == "channel",
        )
        return replace(self, request=request)

    def _places(self, life: Life, desk: Desk) -> tuple[Place, ...]:
        first = self._first(life, desk)
        if self.use == "channel":
            return (first,)
        many = 1 if self.shape in ("single", "named", "operator", "timeout") else 3
        others = [key for key in ("a", "b", "c") if key != first.key][: many - 1]
        return (first, *(Place(desk.fresh(), key) for key in others))

    def _first(self, life: Life, desk: Desk) -> Place:
        if self.use == "channel":
            return Place(channel(life, "a"), "a", "either")
        doors = [door for door in life.doors.values() if door.attempt is not None]
        pending = [door for door in doors if door.state == PENDING]
        if self.use == "fresh" or not doors:
            return Place(desk.fresh(), "a")
        door = (pending or doors)[-1]
        return Place(door.id, door.key, "pending")

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        assert self.request is not None
        return engine.suspensions.suspend(owned, _suspend(self.request, life))

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        assert self.request is not None
        return life.suspend(fence, now, self.request)


SHAPES: dict[str, Callable[[tuple[str, ...]], Condition]] = {
    "single": lambda keys: Single(keys[0]),
    "named": lambda keys: Single(keys[0], "yes"),
    "all": lambda keys: Every(tuple(Single(key) for key in keys)),
    "any": lambda keys: AtLeast(1, "waitpoints", keys),
    "two": lambda keys: AtLeast(min(2, len(keys)), "waitpoints", keys, "yes"),
    "sources": lambda keys: AtLeast(2, "sources", keys),
    "signals": lambda keys: AtLeast(2, "signals", keys, "yes"),
    "mixed": lambda keys: Every(
        (Single(keys[0], "yes"), AtLeast(2, "sources", keys), AtLeast(2, "sources", keys[:2]))
    ),
    "operator": lambda keys: Never("operator"),
    "timeout": lambda keys: Never("timeout"),
}


# -- what somebody else does


@dataclass(frozen=True)
class Deliver:
    """A signal to a waitpoint with a token: its own, a tampered one, one of another waitpoint, or
    none. With `again` the signal has the id of an earlier one."""

    pick: int
    token: str
    name: str
    source: str
    repeat: str | None = None
    ttl: int = 86_400_000
    delay: int | None = None
    again: bool = False
    door: UUID | None = None
    shown: str | None = None
    genuine: bool = False
    letter: Letter | None = None

    def addressed(self, life: Life, desk: Desk) -> "Deliver":
        if self.letter is not None:
            return self
        tokens = desk.tokens
        door = pick_door(life, self.pick, tokens if self.token == "own" else life.doors)
        own = tokens.get(door)
        others = [text for id, text in tokens.items() if id != door]
        shown = {"own": own, "tampered": own and _tamper(own), "none": None}.get(self.token, FORGED)
        if self.token == "other" and others:
            shown = others[self.pick % len(others)]
        known = [said.id for said in life.said if said.door == door and said.id]
        letter = Letter(
            id=known[-1] if self.again and known else desk.fresh(),
            name=self.name,
            source=("person", self.source),
            repeat=self.repeat,
            ttl=self.ttl,
            delay=self.delay,
        )
        genuine = shown == own and own is not None
        return replace(self, door=door, shown=shown, genuine=genuine, letter=letter)

    async def call(self, engine: Engine, life: Life, lease_id: UUID) -> object:
        assert self.letter is not None
        delivery = _delivery(self.letter, self.door or NOWHERE)
        answer = await engine.signals.deliver(life.id, delivery, self.shown)
        if isinstance(answer, DuplicateSignal) and self.repeat is None:
            assert answer.signal == self.letter.id, "a duplicate of another signal"
        return answer

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        assert self.letter is not None
        if life.stage is Stage.GONE:
            raise Refused("NotFound")
        refusal = life.ring.refusal(self.shown, self.genuine, now)
        return life.deliver(self.door or NOWHERE, self.letter, now, refusal)


@dataclass(frozen=True)
class Send:
    """A signal by name, from the application itself."""

    to: str
    name: str
    source: str = ""
    repeat: str | None = None
    letter: Letter | None = None

    def addressed(self, life: Life, desk: Desk) -> "Send":
        if self.letter is not None:
            return self
        source = ("app", self.source)
        letter = Letter(id=desk.fresh(), name=self.name, source=source, repeat=self.repeat)
        return replace(self, letter=letter)

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        assert self.letter is not None
        return engine.signals.send(life.id, self.to, _delivery(self.letter, NOWHERE))

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        assert self.letter is not None
        return life.send(self.to, self.letter, channel(life, self.to), now)


@dataclass(frozen=True)
class Approve:
    """An operator's decision at a waitpoint, sometimes under the wrong lane."""

    pick: int
    name: str
    suffix: str
    right: bool = True
    door: UUID | None = None

    def addressed(self, life: Life, desk: Desk) -> "Approve":
        return self if self.door else replace(self, door=pick_door(life, self.pick))

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        lane = life.wish.lane if self.right else "elsewhere"
        door = self.door or NOWHERE
        return engine.signals.approve(life.id, lane, door, self.name, suffix=self.suffix)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        if not self.right:
            raise Refused("Invalid")
        repeat = f"approval:{self.name}:{self.suffix}"
        letter = Letter(id=None, name=self.name, source=("operator", ""), repeat=repeat)
        return life.deliver(self.door or NOWHERE, letter, now, None)


@dataclass(frozen=True)
class Resume:
    delay: int = 0

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.executions.resume(life.id, delay=Millis(self.delay))

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.resume(self.delay, now)


@dataclass(frozen=True)
class CloseDoor:
    pick: int
    door: UUID | None = None

    def addressed(self, life: Life, desk: Desk) -> "CloseDoor":
        return self if self.door else replace(self, door=pick_door(life, self.pick))

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.suspensions.close_waitpoint(life.id, self.door or NOWHERE)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.close_door(self.door or NOWHERE, now)


@dataclass(frozen=True)
class ExpireSuspension:
    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.suspensions.expire(life.id)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.expire_suspension(now)


SIGNALS = (Deliver, Send, Approve, Resume, CloseDoor, ExpireSuspension)


def channel(life: Life, name: str) -> UUID:
    """The waitpoint that signals by name go to when nobody has made one."""
    return waitpoint_id(life.uuid, life.generation, "channel", name)


def pick_door(life: Life, pick: int, among: Container[UUID] | None = None) -> UUID:
    """One that somebody waits at, mostly; else an open one, a closed one, none at all."""
    order = (ACTIVE, PENDING, CLOSED) if pick % 8 else (CLOSED, PENDING, ACTIVE)
    doors = [door for door in life.doors.values() if among is None or door.id in among]
    for state in order:
        if fit := [door for door in doors if door.state == state]:
            return fit[pick % len(fit)].id
    return NOWHERE


def _tamper(token: str) -> str:
    return token[:-1] + ("0" if token[-1] != "0" else "1")


def _delivery(letter: Letter, door: UUID) -> Delivery:
    type, source = letter.source
    return Delivery(
        id=letter.id or NOWHERE,
        waitpoint=door,
        name=letter.name,
        source_type=type,
        source=source,
        idempotency_key=letter.repeat,
        dedup_ttl=Millis(letter.ttl),
        delay=None if letter.delay is None else Millis(letter.delay),
    )


def _suspend(request: Request, life: Life) -> Suspend:
    bindings = tuple(
        Binding(
            id=place.id,
            key="" if place.use == "pending" else place.key,
            use=WaitpointUse(place.use),
            lasting=request.keep,
        )
        for place in request.places
    )
    step = None
    if request.step is not None:
        step = StepRef(life.generation, position=0, name=request.step, occurrence=0)
    wait = Wait(
        condition=_condition(request.condition),
        bindings=bindings,
        timeout_at=None if request.timeout_at is None else Millis(request.timeout_at),
        behaviour=Behaviour(request.behaviour),
        policy=ResumePolicy(
            resume_delay=Millis(request.delay), close_waitpoint_on_resume=not request.keep
        ),
        step=step,
    )
    return Suspend(id=request.id, waits=(wait,), idempotency_key=request.key)


def _condition(condition: Condition) -> core.Condition:
    match condition:
        case Every(members):
            return core.AllTrue(tuple(_condition(member) for member in members))
        case Single(key, name):
            return core.Single(key, _matcher(name) or core.Wildcard())
        case AtLeast(n, kind, keys, name):
            return core.Count(n, core.CountKind[kind.upper()], keys, _matcher(name))
        case Never(word):
            return core.OperatorOnly() if word == "operator" else core.TimeoutOnly()


def _matcher(name: str | None) -> core.ByName | None:
    return None if name is None else core.ByName(name)
