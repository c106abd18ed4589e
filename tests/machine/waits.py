"""What the model knows of waiting: doors for signals, what was said at them, conditions.

A condition is true or not by the plain definition: a question about the list of everything that
was said so far, asked anew each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

PENDING, ACTIVE, CLOSED = "pending", "active", "closed"


@dataclass(frozen=True)
class Said:
    """One accepted signal. The engine's own word about a timeout has no id and no door; one that
    was sent by name knows the generation and the name."""

    number: int
    name: str
    id: UUID | None = None
    door: UUID | None = None
    key: str = ""
    source: tuple[str, str] = ("", "")
    effect: str = ""
    repeat: str | None = None
    repeat_until: int = 0
    sent: tuple[int, str] | None = None


@dataclass(frozen=True)
class Door:
    """A waitpoint. A lasting one has no attempt. What was said up to `taken` was used up. One that
    an operator `shut` is never opened again."""

    id: UUID
    key: str
    state: str
    attempt: int | None = None
    expires_at: int | None = None
    taken: int = 0
    shut: bool = False

    def expired(self, now: int) -> bool:
        return self.state == PENDING and self.expires_at is not None and self.expires_at <= now


# -- conditions


@dataclass(frozen=True)
class Single:
    """Something was said at a waitpoint, of this name if it has one."""

    key: str
    name: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)


@dataclass(frozen=True)
class AtLeast:
    """So many distinct waitpoints, signals or sources."""

    n: int
    kind: str
    keys: tuple[str, ...]
    name: str | None = None


@dataclass(frozen=True)
class Never:
    """Only an operator ends it; for `timeout` also time."""

    word: str
    keys: tuple[str, ...] = ()
    name: str | None = None


@dataclass(frozen=True)
class Every:
    members: "tuple[Condition, ...]"


Leaf = Single | AtLeast | Never
Condition = Leaf | Every


def is_true(condition: Condition, said: Sequence[Said]) -> bool:
    match condition:
        case Every(members):
            return bool(members) and all(is_true(member, said) for member in members)
        case Single():
            return bool(satisfiers(condition, said))
        case AtLeast(n=n):
            return len(satisfiers(condition, said)) >= n
        case Never():
            return False


def can_be_true(condition: Condition, said: Sequence[Said], keys: set[str]) -> bool:
    """Whether anything that may yet be said at these waitpoints can make it true."""
    match condition:
        case Every(members):
            return all(can_be_true(member, said, keys) for member in members)
        case Never():
            return True
        case AtLeast(n=n, kind="waitpoints"):
            heard = {one.key for one in said if one.key in condition.keys}
            known = {one for one in heard if is_true(_at(condition, one), said)}
            return len(known | (keys & set(condition.keys))) >= n
        case _:
            return bool(keys & set(condition.keys)) or is_true(condition, said)


def _at(leaf: AtLeast, key: str) -> Single:
    return Single(key, leaf.name)


def satisfiers(leaf: Leaf, said: Sequence[Said]) -> set[object]:
    """The distinct ones among what the leaf heard."""
    heard = [one for one in said if one.key in leaf.keys and leaf.name in (None, one.name)]
    match leaf:
        case AtLeast(kind="sources"):
            return {one.source for one in heard}
        case AtLeast(kind="signals"):
            return {one.id or one.number for one in heard}
        case AtLeast():
            return {one.key for one in heard}
        case _:
            return {leaf} if heard else set()


def leaves(condition: Condition) -> list[Leaf]:
    if isinstance(condition, Every):
        return [leaf for member in condition.members for leaf in leaves(member)]
    return [condition]


def effect(condition: Condition, before: Sequence[Said], new: Said) -> str:
    """What one more signal does, by the table of effects."""
    near = [leaf for leaf in leaves(condition) if new.key in leaf.keys]
    if not near:
        return "signal_ignored_not_in_condition"
    if all(leaf.name not in (None, new.name) for leaf in near):
        composite = not isinstance(condition, Single)
        return "signal_ignored_matcher_failed" if composite else "no_op"
    if not contributes(condition, before, new):
        return "appended_to_waitpoint_duplicate"
    if is_true(condition, [*before, new]):
        return "resume_condition_satisfied"
    return "appended_to_waitpoint"


def contributes(condition: Condition, before: Sequence[Said], new: Said) -> bool:
    """Whether it adds a distinct satisfier somewhere."""
    return any(
        satisfiers(leaf, [*before, new]) != satisfiers(leaf, before) for leaf in leaves(condition)
    )


# -- requests


@dataclass(frozen=True)
class Place:
    """Where a suspension shall wait: a new waitpoint, a pending one, or whichever it is."""

    id: UUID
    key: str
    use: str = "fresh"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A suspension that is asked for. With `keep` its waitpoints outlast it."""

    id: UUID
    condition: Condition
    places: tuple[Place, ...]
    timeout_at: int | None = None
    behaviour: str = "fail"
    delay: int = 0
    key: str | None = None
    step: str | None = None
    keep: bool = False


@dataclass(frozen=True)
class Sleep:
    """An open suspension. `doors` with the last number that counts no more at each."""

    request: Request
    doors: tuple[tuple[UUID, int], ...]
    timeout_at: int | None
    escalated: bool = False

    def hears(self, said: Sequence[Said]) -> list[Said]:
        taken = dict(self.doors)
        return [one for one in said if one.door in taken and one.number > taken.get(one.door, 0)]


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A signal on its way."""

    id: UUID | None
    name: str
    source: tuple[str, str] = ("", "")
    repeat: str | None = None
    ttl: int = 86_400_000
    delay: int | None = None
    sent: tuple[int, str] | None = None


# -- keys


@dataclass
class Ring:
    """The keys that sign tokens: one signs, retired ones verify up to a moment. One per book."""

    current: str = "k0"
    retired: dict[str, int] = field(default_factory=dict)

    def rotate(self, kid: str, grace: int, now: int) -> tuple[object, ...]:
        kept = {old: until for old, until in self.retired.items() if until >= now}
        gone, previous = len(self.retired) - len(kept), self.current
        self.current, self.retired = kid, {**kept, previous: now + grace}
        return ("Rotated", previous, kid, gone)

    def refusal(self, token: str | None, genuine: bool, now: int) -> str | None:
        """Why a token is refused, None when it is not."""
        if token is None:
            return "MissingToken"
        kid = token.partition(":")[0]
        if kid != self.current and kid not in self.retired:
            return "InvalidToken"
        if kid != self.current and self.retired[kid] < now:
            return "TokenExpired"
        return None if genuine else "InvalidToken"
