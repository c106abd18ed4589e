"""Where claims need not look: dead rows at the head of `ready`.

A transaction that stays open keeps the server from removing rows that were deleted since it began,
and a claim walks over all of them to reach the first one that is left. While that is so, and only
then, this process remembers for each route and priority below which rank it has seen no row: its
claims skip those, and find what is better or newer at once, wherever it comes from. A row that
appears behind a mark (a retry, a resumed run: they keep their rank) lowers the mark. Such rows are
looked for at an interval where the table grows, and, at one that follows from its cost, in all of
it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.rank import RANK_STEP

LOWEST, HIGHEST = -(2**63), 2**63 - 1

SLOW = 0.003
"""Seconds a claim takes before it is asked whether it walks over dead rows."""
ASK_EVERY = 1000
FORGOTTEN_AFTER = 10_000
LOOK_EVERY = 100
"""Milliseconds between two looks for rows behind a mark, where the table grows."""
LATE = 100
"""A mark stays so many milliseconds behind the present: a row is committed a little after the
moment its rank is made of."""
LEARN_EVERY = 25
"""Milliseconds between two claims that move the marks: such a claim walks twice over the rows that
were claimed since."""
GROWTH = 1000
"""The growth is looked at that began so many milliseconds ago: rows may be committed that late."""
OPEN_BLOCKS = 32
"""The growth begins so many blocks before the end of the table: every connection fills a block of
its own. A row in one that was left open longer ago is found by a look through the whole table."""
LOOK_AROUND_EVERY = 1000
"""Milliseconds between two looks through the whole table, at least."""
SHARE = 30
"""Looking through the whole table takes at most this part of the time."""
FEW_DEAD = 2000
"""With fewer dead rows there is nothing to skip any more."""
MAX_MARKS = 200


class Ranges(NamedTuple):
    """What a claim looks at: ranks from `lows` to below `highs` of the routes."""

    routes: list[int]
    lows: list[int]
    highs: list[int]


class Look(NamedTuple):
    """How long a look behind the marks took, how many blocks the table has, and how many dead rows
    the server believes it has."""

    seconds: float
    blocks: int
    dead: int


class LowWaterMarks:
    """For each route, the marks by the rank at which their priority begins."""

    def __init__(self) -> None:
        self.engaged = False
        self._marks: dict[int, dict[int, int]] = {}
        self._walked: tuple[Millis, int, int] | None = None
        self._sizes: deque[tuple[Millis, int]] = deque()
        self._looked_at = Millis(0)
        self._around_at = Millis(0)
        self._learned_at: dict[int, Millis] = {}

    # -- whether it is worth it

    def wonders(self, now: Millis, seconds: float) -> bool:
        """Whether to ask how much claims walk over, after one that took so long."""
        if self.engaged or seconds < SLOW:
            return False
        return self._walked is None or not 0 <= now - self._walked[0] < ASK_EVERY

    def walked(self, now: Millis, read: int, found: int) -> None:
        """Engages when claims have read far more entries of the index lately than they found
        rows. Both are counters of the server."""
        before, self._walked = self._walked, (now, read, found)
        if before is None or not 0 <= now - before[0] < FORGOTTEN_AFTER:
            return
        if read - before[1] > 10 * (found - before[2]) + 10_000:
            self.engage(now)

    def engage(self, now: Millis) -> None:
        self.engaged = True
        self._looked_at = now
        self._around_at = Millis(now + LOOK_AROUND_EVERY)

    def disengage(self) -> None:
        self.engaged = False
        self._marks.clear()
        self._learned_at.clear()
        self._sizes.clear()
        self._walked = None

    # -- what a claim looks at

    def ranges(self, routes: Sequence[int]) -> Ranges:
        """Everything but what is behind the marks, each part with the route it is of."""
        if not self.engaged:
            count = len(routes)
            return Ranges(list(routes), [LOWEST] * count, [HIGHEST] * count)
        found = Ranges([], [], [])
        for route in routes:
            low = LOWEST
            for begin, mark in sorted(self._marks.get(route, {}).items()):
                _add(found, route, low, begin)
                low = mark
            _add(found, route, low, HIGHEST)
        return found

    def learns(self, routes: Iterable[int], now: Millis) -> bool:
        """Whether a claim from these routes asks where their first rows are, for `learn`."""
        if not self.engaged:
            return False
        known = [self._learned_at.get(route) for route in routes]
        return any(at is None or not 0 <= now - at < LEARN_EVERY for at in known)

    def learn(self, ranges: Ranges, firsts: Sequence[int | None], now: Millis) -> None:
        """Moves the marks up to the first rank there was a row at, in each part. Where there was
        none, to the present: new rows of that priority come behind it."""
        self._learned_at.update(dict.fromkeys(ranges.routes, now))
        for route, low, high, first in zip(*ranges, firsts, strict=True):
            marks = self._marks.setdefault(route, {})
            end = high if first is None else first
            for begin in {*([] if low == LOWEST else [_begin(low)]), *_known(first)}:
                mark = min(end, begin + now - LATE)
                if mark > max(low, marks.get(begin, begin)):
                    marks[begin] = mark
        if sum(map(len, self._marks.values())) > MAX_MARKS:
            self._marks.clear()

    # -- what appears behind the marks

    @property
    def skipped(self) -> Ranges:
        """What claims do not look at."""
        parts = [
            (route, begin, mark)
            for route, marks in self._marks.items()
            for begin, mark in marks.items()
        ]
        routes, lows, highs = zip(*parts, strict=True) if parts else ((), (), ())
        return Ranges(list(routes), list(lows), list(highs))

    def due(self, now: Millis) -> int | None:
        """The block of the table from which on rows behind the marks are looked for now, if so."""
        if not self._looked_at <= now < self._around_at:
            return 0
        if now - self._looked_at < LOOK_EVERY:
            return None
        while len(self._sizes) > 1 and self._sizes[1][0] <= now - GROWTH:
            self._sizes.popleft()
        return min((blocks for _, blocks in self._sizes), default=0)

    def looked(
        self, now: Millis, block: int, look: Look, strays: Iterable[tuple[int, int]]
    ) -> None:
        """After a look from a block on, which found these routes and ranks."""
        self._looked_at = now
        self._sizes.append((now, max(0, look.blocks - OPEN_BLOCKS)))
        for route, rank in strays:
            begin = _begin(rank)
            marks = self._marks.get(route, {})
            if begin in marks:
                marks[begin] = min(marks[begin], rank)
        if block == 0:
            pause = max(LOOK_AROUND_EVERY, int(look.seconds * 1000 * SHARE))
            self._around_at = Millis(now + pause)
            if look.dead < FEW_DEAD:
                self.disengage()


def _begin(rank: int) -> int:
    """The lowest rank of the priority that a rank has."""
    return rank // RANK_STEP * RANK_STEP


def _known(first: int | None) -> list[int]:
    return [] if first is None else [_begin(first)]


def _add(ranges: Ranges, route: int, low: int, high: int) -> None:
    if low < high:
        ranges.routes.append(route)
        ranges.lows.append(low)
        ranges.highs.append(high)
