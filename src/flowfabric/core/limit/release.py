"""Release: which of the executions that wait for a quota may start now.

Lines are served in turn, the least recently served first, so that a customer with a hundred
thousand waiting executions gets no more than a customer with ten. Within a line, the order is that
of claims.

Admitted executions are claimed in the order of their admission: the moment of admission replaces
the creation in their rank. A turn is such a moment and a number within it.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.limit.quota import Quota, Rate, Use, Uses

Id = TypeVar("Id", UUID, bytes)

TURNS = 1 << 13
"""How many turns a millisecond has: more than one release ever needs."""

AHEAD = 10_000
"""How many milliseconds admissions may run ahead of the clock, to order what one millisecond has
admitted. Beyond that, ids decide the order within a moment."""

Window = Sequence[tuple[Millis, int]]
"""How many were admitted at which moment, oldest first."""

Key = tuple[str, str]
"""A quota and its limited part: the whole quota, or one of its keys (`one_key`)."""

ALL = ""

LONG = 3_600_000
MANY = 1000
"""Windows that are longer, of a rate of more starts, are not exact to the millisecond."""


class Candidate(Struct, frozen=True, gc=False):
    """A waiting execution. `starts`: admitting it starts an attempt, which a rate counts; an
    attempt that continues after a wait needs only a slot."""

    uuid: UUID
    version: int
    rank: int
    starts: bool = True


class Line(Struct, frozen=True):
    """A queue with its best candidates. `turn` is when it was last served."""

    id: int
    uses: Uses
    turn: int
    waiting: Sequence[Candidate]


class QuotaView(Struct, frozen=True):
    """What a release decides on. `quotas` are those that the lines use and that exist; `held` is
    the number of slots of each combination of uses; `admitted` are the windows of rates; `served`
    is the latest turn of each quota."""

    quotas: dict[str, Quota]
    lines: Sequence[Line]
    held: Sequence[tuple[Uses, int]] = ()
    admitted: dict[Key, Window] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)


class Move(Struct, frozen=True, gc=False):
    """An admitted execution. `at` is its moment of admission, which orders claims of one
    priority."""

    uuid: UUID
    version: int
    at: Millis


class Release(Struct, frozen=True):
    """What to write if the quotas still have these versions. `emptied`: the most candidates of
    one line that were all admitted, so that there may be room for those behind them. `next_at` is
    when a rate that others wait for has room again."""

    versions: dict[str, int] = field(default_factory=dict)
    moves: Sequence[Move] = ()
    turns: dict[tuple[str, int], int] = field(default_factory=dict)
    admissions: dict[tuple[str, str, Millis], int] = field(default_factory=dict)
    forget: dict[str, Millis] = field(default_factory=dict)
    at: Millis = Millis(0)
    emptied: int = 0
    next_at: Millis | None = None


class OpenLine(Struct, frozen=True, gc=False):
    """A line of a quota that limits keys only: when it was last served, and rank and id of its best
    candidates (its sixteen bytes), no more than its key has free slots."""

    queue: int
    turn: int
    waiting: Sequence[tuple[int, bytes]]


class LineRelease(Struct, frozen=True):
    """Who is admitted from open lines, in this order and at these moments, the line of each, and
    the turn of the last one."""

    moves: Sequence[tuple[bytes, Millis]]
    queues: Sequence[int]
    turn: int


class StartsBack(Struct, frozen=True):
    """Admissions that did not lead to a start: the oldest `count` of those recorded from `since`
    on."""

    quota: str
    key: str
    since: Millis
    count: int


class Full(Struct, frozen=True):
    """A concurrency limit without a free slot; `of_key`: the limit per key."""

    use: Use
    cap: int
    taken: int
    of_key: bool


class UsedUp(Struct, frozen=True):
    """A rate that allows no start before `opens_at`."""

    use: Use
    rate: Rate
    opens_at: Millis
    of_key: bool


def one_key(key: str) -> str:
    """The name of the part of a quota that one key uses."""
    return f"={key}"


def release(view: QuotaView, now: Millis, most: int) -> Release:
    """Admits as many as there is room for, at most `most`, one of each line in turn."""
    room = Room(view, now)
    lines = [_Served(line, room.need(line.uses)) for line in view.lines if line.waiting]
    queue = [(*served.place, number, served) for number, served in enumerate(lines)]
    heapq.heapify(queue)
    turns: Turns[UUID] = Turns(_latest(view), now)
    moves: list[Move] = []
    while queue and len(moves) < most:
        *_, number, served = queue[0]
        candidate = served.next(room)
        if candidate is None:
            heapq.heappop(queue)
            continue
        room.take(served.need, candidate)
        served.order = turns.next(candidate.uuid)
        moves.append(Move(candidate.uuid, candidate.version, turns.moment))
        served.taken += 1
        heapq.heapreplace(queue, (*served.place, number, served))
    return Release(
        versions={n: v for each in lines if each.order for n, v in each.need.versions.items()},
        moves=moves,
        turns={
            (quota.name, each.line.id): each.order
            for each in lines
            if each.order
            for quota in each.need.quotas
        },
        admissions=(admissions := room.admissions),
        forget={
            name: Millis(forgotten_at(now) - view.quotas[name].longest_window)
            for name, _, _ in admissions
        },
        at=now,
        emptied=max((n.taken for n in lines if n.taken == len(n.line.waiting)), default=0),
        next_at=min(filter(None, (served.opens_at(room) for served in lines)), default=None),
    )


def serve(lines: Iterable[OpenLine], latest: int, now: Millis, most: int) -> LineRelease:
    """The same for chosen lines of a quota that limits keys only: one key takes nothing from
    another. They were chosen, so they need no place among the others: only the last turn is
    written, which later moments follow. (A look at all lines writes every turn, or it would find
    the same first lines again.)"""
    ordered = sorted(
        [
            (line.turn, line.waiting[0][0], line.queue, line.waiting)
            for line in lines
            if line.waiting
        ]
    )
    chosen = [(queue, waiting[0][1]) for _, _, queue, waiting in ordered]
    deeper = [(queue, waiting) for _, _, queue, waiting in ordered if len(waiting) > 1]
    for place in range(1, max([len(waiting) for _, waiting in deeper], default=0)):
        chosen += [(queue, w[place][1]) for queue, w in deeper if place < len(w)]
    del chosen[most:]
    turns: Turns[bytes] = Turns(latest, now)
    turn = 0
    moves: list[tuple[bytes, Millis]] = []
    for _, id in chosen:
        turn = turns.next(id)
        moves.append((id, turns.moment))
    return LineRelease(moves, [queue for queue, _ in chosen], turn)


def forgotten_at(now: Millis) -> Millis:
    """Admissions before this moment are deleted from the log. The log is longer than the longest
    window, so that a run whose admission was deleted takes back no start that a window still
    counts, however far ahead its moment was."""
    return Millis(now - AHEAD)


def _latest(view: QuotaView) -> int:
    """The turn that all new turns must follow."""
    turns = [latest_turn(quota, None) for quota in view.quotas.values()]
    return max([*view.served.values(), *turns], default=0)


def latest_turn(quota: Quota, served: int | None) -> int:
    """The latest turn served, or the latest change of limits."""
    return max(served or 0, quota.since * TURNS)


def limits_since(quota: Quota, view: QuotaView, now: Millis) -> Quota:
    """The quota with new limits, valid from the moment after the last admission under the old
    ones."""
    latest = view.served.get(quota.name, 0) // TURNS
    return replace(quota, since=Millis(max(now, latest)))


class Turns(Generic[Id]):
    """Hands out turns, each later than all before, and their moments.

    Claims break ties by id. So an execution that follows one with a larger id gets the next
    millisecond: A1, B1, C1, A2 are admitted at 5, 5, 5 and 6 if all As were created first.
    """

    def __init__(self, latest: int, now: Millis) -> None:
        first = now * TURNS
        self._turn = first if latest < first else _next_moment(latest)
        self._latest_moment = Millis(now + AHEAD)
        self._before: Id | None = None
        self.moment = self._moment()
        """Of the last turn that was handed out."""

    def next(self, id: Id) -> int:
        behind = self._before is not None and id < self._before
        self._before = id
        if behind and self.moment < self._latest_moment:
            self._turn = _next_moment(self._turn)
            self.moment = self._moment()
        else:
            self._turn += 1
            if self._turn % TURNS == 0:
                self.moment = self._moment()
        return self._turn

    def _moment(self) -> Millis:
        return Millis(min(self._turn // TURNS, self._latest_moment))


def moment_after(turn: int, now: Millis) -> Millis:
    """The moment of runs that are admitted now, after this turn."""
    return Turns[UUID](turn, now).moment


def turn_of(turn: int, now: Millis) -> int:
    """The turn that such runs have had."""
    return max(turn, moment_after(turn, now) * TURNS)


def _next_moment(turn: int) -> int:
    return (turn // TURNS + 1) * TURNS


class Need(Struct, frozen=True):
    """What a combination of uses needs: slots below caps, starts within rates. A decision requires
    `versions` to be current; 0 means that the quota must not exist. A deleted quota limits
    nothing."""

    slots: tuple[tuple[Key, int], ...]
    rates: tuple[tuple[Key, Rate], ...]
    quotas: tuple[Quota, ...]
    versions: dict[str, int]


class _Served:
    """A line while it is being served."""

    def __init__(self, line: Line, need: Need) -> None:
        self.line = line
        self.need = need
        self.order = 0
        self.taken = 0
        self._left = list(reversed(line.waiting))
        self._passed_over = False

    @property
    def place(self) -> tuple[int, int, int]:
        """The line served longest ago comes first."""
        rank = self._left[-1].rank if self._left else 0
        return (self.order, 0 if self.order else self.line.turn, rank)

    def next(self, room: "Room") -> Candidate | None:
        """The best candidate for which there is room. A used-up rate stops only starts."""
        if not room.has_slot(self.need):
            self._passed_over = False  # a rate is not what they wait for
            return None
        may_start = room.may_start(self.need)
        while self._left:
            candidate = self._left.pop()
            if may_start or not candidate.starts:
                return candidate
            self._passed_over = True
        return None

    def opens_at(self, room: "Room") -> Millis | None:
        """When a candidate of this line can start without another change."""
        return room.opens_at(self.line.uses) if self._passed_over else None


class Room:
    """What is left of the quotas' limits."""

    def __init__(self, view: QuotaView, now: Millis) -> None:
        self._quotas = view.quotas
        self._admitted = view.admitted
        self._now = now
        self._used: dict[Key, int] = {}
        self._starts: dict[Key, int] = {}
        self._admissions: dict[Key, tuple[int, Rate]] = {}
        for uses, count in view.held:
            for use in uses:
                for key in _keys(use):
                    self._used[key] = self._used.get(key, 0) + count

    def need(self, uses: Uses) -> Need:
        slots: list[tuple[Key, int]] = []
        rates: list[tuple[Key, Rate]] = []
        quotas: list[Quota] = []
        versions: dict[str, int] = {}
        for use in uses:
            quota = self._quotas.get(use.quota)
            versions[use.quota] = 0 if quota is None else quota.version
            if quota is not None:
                quotas.append(quota)
                slots += [((use.quota, key), cap) for cap, key in _caps(quota, use)]
                rates += [((use.quota, key), rate) for rate, key in _rates(quota, use)]
        return Need(tuple(slots), tuple(rates), tuple(quotas), versions)

    def has_slot(self, need: Need) -> bool:
        return not any([self._used.get(key, 0) >= cap for key, cap in need.slots])

    def may_start(self, need: Need) -> bool:
        return all(self._left(rate, key) > 0 for key, rate in need.rates)

    def full(self, uses: Uses) -> list[Full]:
        """The limits of these uses that have no free slot."""
        return [
            Full(use, cap, taken, of_key=key != ALL)
            for use in uses
            for cap, key in self._caps(use)
            if (taken := self._used.get((use.quota, key), 0)) >= cap
        ]

    def used_up(self, uses: Uses) -> list[UsedUp]:
        """The rates of these uses that allow no start now."""
        return [
            UsedUp(use, rate, self._opens_at(rate, (use.quota, key)), of_key=key != ALL)
            for use in uses
            for rate, key in self._rates(use)
            if self._left(rate, (use.quota, key)) <= 0
        ]

    def started(self, quota: Quota) -> int | None:
        """How many starts of its rate are used; None without one."""
        rate = quota.rate
        return None if rate is None else self._since(rate.window, (quota.name, ALL))

    def opens_at(self, uses: Uses) -> Millis | None:
        """When the rates of these uses allow a start; None if they allow it now, or if a slot is
        missing."""
        if self.full(uses):
            return None
        return max((wait.opens_at for wait in self.used_up(uses)), default=None)

    def take(self, need: Need, candidate: Candidate) -> None:
        for key, _ in need.slots:
            self._used[key] = self._used.get(key, 0) + 1
        if candidate.starts:
            for key, rate in need.rates:
                self._starts[key] = self._left(rate, key) - 1
                count, _ = self._admissions.get(key, (0, rate))
                self._admissions[key] = count + 1, rate

    @property
    def admissions(self) -> dict[tuple[str, str, Millis], int]:
        return {
            (*key, _noted_at(rate, self._now)): count
            for key, (count, rate) in self._admissions.items()
        }

    def _left(self, rate: Rate, key: Key) -> int:
        """How many more may start now."""
        left = self._starts.get(key)
        if left is None:
            left = rate.count - self._since(rate.window, key)
            if rate.smooth:
                left = min(left, rate.at_once - self._since(rate.interval, key))
            self._starts[key] = left
        return left

    def _since(self, span: Millis, key: Key) -> int:
        """How many were admitted within a period."""
        since = self._now - span
        return sum(n for at, n in self._admitted.get(key, ()) if at > since)

    def _opens_at(self, rate: Rate, key: Key) -> Millis:
        """When enough of the window has passed for one more start."""
        mine, _ = self._admissions.get(key, (0, rate))
        noted = [*self._admitted.get(key, ()), (_noted_at(rate, self._now), mine)]
        window = sorted(noted, reverse=True)
        opens_at = _passed(window, rate.count, rate.window)
        if rate.smooth:
            opens_at = max(opens_at, _passed(window, rate.at_once, rate.interval))
        return max(opens_at, self._now)

    def _caps(self, use: Use) -> list[tuple[int, str]]:
        return _caps(self._quotas.get(use.quota), use)

    def _rates(self, use: Use) -> list[tuple[Rate, str]]:
        return _rates(self._quotas.get(use.quota), use)


def starts_back(
    unstarted: Iterable[tuple[Uses, Millis]], quotas: Mapping[str, Quota], now: Millis
) -> list[StartsBack]:
    """The starts that rates have counted for executions that were admitted at these moments and
    went back before they started.

    A moment may be ahead of its release, so the admission of an execution is not known. The oldest
    ones that may be it are taken back, or later ones, if others that went back have taken those:
    the remaining ones are never older than the real starts, and no window gets more starts than
    allowed. An execution admitted under other limits may not have been counted, and the admission
    of one whose window is over may be forgotten, so they take nothing back.
    """
    found: dict[Key, StartsBack] = {}
    for uses, at in unstarted:
        for use in uses:
            quota = quotas.get(use.quota)
            for rate, part in _rates(quota, use) if quota and at > quota.since else ():
                if at <= now - rate.window:
                    continue
                key, since = (use.quota, part), _noted_at(rate, Millis(at - AHEAD))
                old = found.get(key) or StartsBack(*key, since, 0)
                found[key] = StartsBack(*key, min(since, old.since), old.count + 1)
    return list(found.values())


def _caps(quota: Quota | None, use: Use) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    if quota is not None and quota.concurrency is not None:
        found.append((quota.concurrency, ALL))
    if quota is not None and quota.concurrency_per_key is not None:
        found.append((quota.concurrency_per_key, one_key(use.key)))
    return found


def _rates(quota: Quota | None, use: Use) -> list[tuple[Rate, str]]:
    found: list[tuple[Rate, str]] = []
    if quota is not None and quota.rate is not None:
        found.append((quota.rate, ALL))
    if quota is not None and quota.rate_per_key is not None:
        found.append((quota.rate_per_key, one_key(use.key)))
    return found


def _keys(use: Use) -> tuple[Key, Key]:
    return (use.quota, ALL), (use.quota, one_key(use.key))


def _passed(window: Window, most: int, span: Millis) -> Millis:
    """When fewer than `most` of these, latest first, are within the period."""
    count = 0
    for at, number in window:
        count += number
        if count >= most:
            return Millis(at + span)
    return Millis(0)


def _noted_at(rate: Rate, now: Millis) -> Millis:
    """The moment under which an admission of now is recorded. Of many starts in a long window it is
    rounded up to a thousandth of the window: the log has no more rows than that, and no execution
    starts too early."""
    if rate.window <= LONG or rate.count <= MANY or rate.smooth:
        return now
    grain = rate.window // MANY
    return Millis(-(-now // grain) * grain)
