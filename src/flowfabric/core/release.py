"""Letting work through a limit: who of those that wait for a quota may start now.

Lines are served in turn, the least recently served first, so that somebody with a hundred thousand
waiting executions gets no more than somebody with ten. Within a line the order is that of claims.
"""

import heapq
from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct, field

from flowfabric.core.quota import Quota, Rate, Use, Uses
from flowfabric.core.time import Millis

TURNS = 1 << 12
"""More than one release ever serves."""

Window = Sequence[tuple[Millis, int]]
"""How many were admitted when, oldest first."""

Key = tuple[str, str]
"""A quota, and what of it is limited: all of it, or one of its keys (`one_key`)."""

ALL = ""

LONG = 3_600_000
"""Windows from here on are not told to the millisecond."""


class Candidate(Struct, frozen=True, gc=False):
    """One that waits. `starts`: letting it go on is the start of an attempt, which a rate counts;
    an attempt that goes on after a wait needs a slot only."""

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


class Standing(Struct, frozen=True):
    """What a release decides on. `quotas` are all those the lines use, as far as they exist; `held`
    is how many slots each combination of uses has; `admitted` the windows of rates."""

    quotas: dict[str, Quota]
    lines: Sequence[Line]
    held: Sequence[tuple[Uses, int]] = ()
    admitted: dict[Key, Window] = field(default_factory=dict)


class Release(Struct, frozen=True):
    """What is to be written, if the quotas still have these versions. `next_at` is when a rate that
    keeps somebody waiting has room again."""

    versions: dict[str, int] = field(default_factory=dict)
    moves: Sequence[Candidate] = ()
    turns: dict[tuple[str, int], int] = field(default_factory=dict)
    admissions: dict[tuple[str, str, Millis], int] = field(default_factory=dict)
    forget: dict[str, Millis] = field(default_factory=dict)
    at: Millis = Millis(0)
    next_at: Millis | None = None


class Full(Struct, frozen=True):
    """A limit of concurrency without a free slot; `of_key`: the one for its key."""

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
    """What of a quota is limited for one key."""
    return f"={key}"


def release(standing: Standing, now: Millis, most: int) -> Release:
    """As many as there is room for, `most` at most, one of each line in turn."""
    room = Room(standing, now)
    lines = [_Served(line) for line in standing.lines if line.waiting]
    queue = list(lines)
    heapq.heapify(queue)
    moves: list[Candidate] = []
    turns: dict[tuple[str, int], int] = {}
    versions: dict[str, int] = {}
    while queue and len(moves) < most:
        served = queue[0]
        candidate = served.next(room)
        if candidate is None:
            heapq.heappop(queue)
            continue
        room.take(served.line.uses, candidate)
        moves.append(candidate)
        served.order = len(moves)
        versions |= room.versions(served.line.uses)
        for quota in room.of(served.line.uses):
            turns[quota.name, served.line.id] = _turn(quota, len(moves))
        heapq.heapreplace(queue, served)
    return Release(
        versions=versions,
        moves=moves,
        turns=turns,
        admissions={(*key, room.noted_at(key)): count for key, count in room.admissions.items()},
        forget={
            name: Millis(now - standing.quotas[name].longest_window) for name, _ in room.admissions
        },
        at=now,
        next_at=min(filter(None, (served.opens_at(room) for served in lines)), default=None),
    )


def _turn(quota: Quota, order: int) -> int:
    """Later than every turn before. A quota that is made anew counts its versions from the start
    while its lines remember their turns; but it is made later than the one before."""
    return (quota.created_at + quota.version + 1) * TURNS + order


class _Served:
    """A line while it is served; the one that was served longest ago comes first."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.order = 0
        self._left = list(reversed(line.waiting))
        self._passed_over = False

    def __lt__(self, other: "_Served") -> bool:
        return self._place < other._place

    @property
    def _place(self) -> tuple[int, int, int]:
        rank = self._left[-1].rank if self._left else 0
        return (self.order, 0 if self.order else self.line.turn, rank)

    def next(self, room: "Room") -> Candidate | None:
        """The best candidate there is room for. A rate that is used up stops only starts."""
        while self._left:
            candidate = self._left.pop()
            if room.fits(self.line.uses, candidate):
                return candidate
            self._passed_over = True
            if not candidate.starts:
                return None  # no slot: nobody of this line can go
        return None

    def opens_at(self, room: "Room") -> Millis | None:
        """When time alone lets somebody of this line start."""
        return room.opens_at(self.line.uses) if self._passed_over else None


class Room:
    """What is left of the quotas' limits."""

    def __init__(self, standing: Standing, now: Millis) -> None:
        self._quotas = standing.quotas
        self._admitted = standing.admitted
        self._now = now
        self._used: dict[Key, int] = {}
        self._starts: dict[Key, int] = {}
        self.admissions: dict[Key, int] = {}
        self._windows: dict[Key, Millis] = {}
        for uses, count in standing.held:
            for use in uses:
                for key in _keys(use):
                    self._used[key] = self._used.get(key, 0) + count

    def of(self, uses: Uses) -> list[Quota]:
        """The quotas there are; one that was deleted limits nothing."""
        return [self._quotas[use.quota] for use in uses if use.quota in self._quotas]

    def versions(self, uses: Uses) -> dict[str, int]:
        """What must stand for a decision about these uses; 0 is a quota that must not be there."""
        known = self._quotas
        return {u.quota: known[u.quota].version if u.quota in known else 0 for u in uses}

    def fits(self, uses: Uses, candidate: Candidate) -> bool:
        return not self.full(uses) and not (candidate.starts and self.used_up(uses))

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

    def opens_at(self, uses: Uses) -> Millis | None:
        """When the rates of these uses allow a start; None if they do now, or a slot is missing."""
        if self.full(uses):
            return None
        return max((wait.opens_at for wait in self.used_up(uses)), default=None)

    def take(self, uses: Uses, candidate: Candidate) -> None:
        for use in uses:
            for key in _keys(use):
                self._used[key] = self._used.get(key, 0) + 1
            if candidate.starts:
                for rate, name in self._rates(use):
                    key = (use.quota, name)
                    self._starts[key] = self._left(rate, key) - 1
                    self.admissions[key] = self.admissions.get(key, 0) + 1
                    self._windows[key] = rate.window

    def noted_at(self, key: Key) -> Millis:
        """When an admission of now is said to have been. Of long windows a thousandth is the
        finest that is told apart, always later than it was: the log stays short, and nobody
        starts too early."""
        window = self._windows[key]
        if window < LONG:
            return self._now
        grain = window // 1000
        return Millis(-(-self._now // grain) * grain)

    def _left(self, rate: Rate, key: Key) -> int:
        """How many more may start now."""
        left = self._starts.get(key)
        if left is None:
            since = self._now - rate.window
            spent = sum(n for at, n in self._admitted.get(key, ()) if at > since)
            left = self._starts[key] = rate.count - spent
        return left

    def _opens_at(self, rate: Rate, key: Key) -> Millis:
        """When enough of the window has passed for one more to start."""
        count = 0
        window = [*self._admitted.get(key, ()), (self._now, self.admissions.get(key, 0))]
        for at, number in reversed(window):
            count += number
            if count >= rate.count:
                return Millis(at + rate.window)
        return self._now

    def _caps(self, use: Use) -> list[tuple[int, str]]:
        quota = self._quotas.get(use.quota)
        if quota is None:
            return []
        caps = [(quota.concurrency, ALL), (quota.concurrency_per_key, one_key(use.key))]
        return [(cap, key) for cap, key in caps if cap is not None]

    def _rates(self, use: Use) -> list[tuple[Rate, str]]:
        quota = self._quotas.get(use.quota)
        if quota is None:
            return []
        rates = [(quota.rate, ALL), (quota.rate_per_key, one_key(use.key))]
        return [(rate, key) for rate, key in rates if rate is not None]


def _keys(use: Use) -> tuple[Key, Key]:
    return (use.quota, ALL), (use.quota, one_key(use.key))
