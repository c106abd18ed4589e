"""All executions of one database as the model sees them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tests.machine.model import Life
from tests.machine.waits import Ring
from tests.machine.words import Answers, Refused, Stage, Unauthorized, Wish, one


@dataclass
class Book:
    """All executions of one database, the keys they were submitted under, the paused lanes, the
    keys that sign, and the tokens that were given out."""

    lives: dict[UUID, Life] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[UUID, int]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    ring: Ring = field(default_factory=Ring)
    tokens: dict[UUID, str] = field(default_factory=dict)

    def submit(self, id: str, uuid: UUID, wish: Wish, now: int) -> Answers:
        known = self._known(uuid, wish, now)
        if known is not None:
            return one("Duplicate", known.id)
        life = self.lives[uuid] = Life.born(id, uuid, wish, now, self.ring)
        if wish.key is not None and wish.window > 0:
            self.keys[wish.namespace, wish.key] = (uuid, now + wish.window)
        return one("Submitted", life.id, life.public)

    def _known(self, uuid: UUID, wish: Wish, now: int) -> Life | None:
        if wish.key is not None and wish.window > 0:
            owner, until = self.keys.get((wish.namespace, wish.key), (uuid, 0))
            if until > now and self.lives[owner].stage is not Stage.GONE:
                return self.lives[owner]
        found = self.lives.get(uuid)
        return None if found is None or found.stage is Stage.GONE else found

    def best(self, worker: str, now: int) -> list[Life]:
        """What waits for a worker of this name, in the order of claims."""
        waiting = [
            life
            for life in self.lives.values()
            if life.stage in (Stage.WAITING, Stage.LOST)
            and life.wish.lane not in self.paused
            and (life.held_until <= now or life.held_for == worker)
        ]
        return sorted(waiting, key=claim_order)

    def next_due(self, now: int) -> int | None:
        moments = [moment for life in self.lives.values() for moment in life.moments()]
        return min((moment for moment in moments if moment > now), default=None)


def claim_order(life: Life) -> tuple[int, int, UUID]:
    return (-life.priority, life.created_at, life.uuid)


def ask(life: Life, operation: Callable[[Life], Answers]) -> Answers:
    """What the model answers, refusals included. Of one that is gone only the token is looked at,
    where there must be one: its answer must not tell what exists."""
    gone = life.stage is Stage.GONE
    try:
        answers = operation(life.copy() if gone else life)
    except Unauthorized as refused:
        return refused.answers
    except Refused as refused:
        answers = refused.answers
    return one("NotFound") | one("AlreadySatisfied") | one("GrantNotFound") if gone else answers
