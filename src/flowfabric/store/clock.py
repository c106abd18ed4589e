"""One clock per store. Rules never read the time; their caller does, once."""

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
from msgspec import Struct

from flowfabric.core.base.time import Millis, from_datetime, parse_span

TOLERANCE = 1000
"""How many milliseconds a clock may go back through normal adjustment, without having been set."""

KEEP_SECONDS = 10.0
SLEW_EVERY = 10_000
SEEN_EVERY = 60_000

log = logging.getLogger("flowfabric.store")


class Clock(Protocol):
    def now(self) -> Millis: ...


class SystemClock:
    """The machine's own clock, for a store that lives on one machine."""

    def now(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)


class OffsetClock:
    """Another machine's clock, as an offset to a local clock that does not jump.

    The sample with the smallest round trip wins; older samples are trusted a little less, so that
    the offset follows a drift. Time spent in suspend counts if the system has such a clock.
    """

    def __init__(self) -> None:
        self._offset = time.time() - _steady()
        self._error = float("inf")
        self.sampled_at = float("-inf")

    def now(self) -> Millis:
        return Millis(int((time.clock_gettime(_STEADY) + self._offset) * 1000))

    def sample(self, sent: float, received: float, theirs: float) -> None:
        """Adds a sample: `theirs` (seconds) was read between our `sent` and `received`."""
        self.sampled_at = received
        error = (received - sent) / 2
        offset = theirs - (sent + received) / 2
        self._error *= 1.1
        # Each offset is right within its error. If two exclude each other, the other clock was set,
        # or another server answers.
        if error <= self._error or abs(offset - self._offset) > error + self._error:
            self._error = error
            self._offset = offset

    steady = staticmethod(lambda: _steady())


class Correction(Struct, frozen=True):
    """What all processes of a store know about its clock: how far it is behind the store's time,
    and the latest moment seen."""

    offset: int = 0
    seen: int = 0


class StoreClock:
    """The clock of a store: it follows the machine's clock, but never goes back.

    Stored moments assume time that never goes back. A lease that ends at noon ends a minute later
    if the machine's clock is set from 11:59 to 10:59. The lost hour is added from then on, stored
    for processes that start later, and worked off slowly, by a tenth of the time that passes: an
    hour takes ten hours, and nothing stands still in between.
    """

    def __init__(self, source: Clock) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._raw = -1
        self._last = Millis(-1)
        self._offset = 0
        self._stepped = False
        self._kept_at = float("-inf")

    def now(self) -> Millis:
        # Within one millisecond, no lock: `_raw` is set after `_last`, which only grows.
        if self.source.now() == self._raw:
            return self._last
        with self._lock:
            raw = self.source.now()
            if raw < self._raw - TOLERANCE:
                self._offset += self._raw - raw
                self._stepped = True
            self._last = Millis(max(self._last, raw + self._offset))
            self._raw = raw
            return self._last

    @property
    def wants_keeping(self) -> bool:
        """Whether it is time to compare with the stored correction."""
        self.now()  # notices if the clock was set
        return self._stepped or _steady() - self._kept_at >= KEEP_SECONDS

    def corrected(self, known: Correction) -> Correction:
        """The correction to store, given the stored one. `adopt` it once it is stored."""
        now = self.now()
        moment = self._raw + known.offset
        if self._stepped:
            offset = max(known.offset, self._offset)
        elif moment < known.seen - TOLERANCE:  # set back while no process ran
            offset = known.offset + known.seen - moment
        elif moment - known.seen >= SLEW_EVERY:
            offset = max(0, known.offset - (moment - known.seen) // 10)
        else:
            return known
        if offset == known.offset and now - known.seen < SEEN_EVERY:
            return known
        return Correction(offset, max(known.seen, self._raw + offset))

    def adopt(self, known: Correction) -> None:
        with self._lock:
            self._offset = known.offset
            self._last = Millis(max(self._last, self._raw + known.offset))
            self._stepped = False
            self._kept_at = _steady()


class ManualClock:
    """A clock that stands still until it is moved; for tests and simulation. It is the clock of a
    store: whole numbers are milliseconds."""

    def __init__(self, now: int | datetime = 1_700_000_000_000) -> None:
        self._now = from_datetime(now, "now") if isinstance(now, datetime) else now

    def now(self) -> Millis:
        return Millis(self._now)

    def advance(self, span: int | str | timedelta) -> Millis:
        """Moves the clock by "5s", a `timedelta`, or milliseconds."""
        if isinstance(span, str | timedelta):
            span = parse_span(span, "span")
        self._now += span
        return self.now()


def read_correction(data: bytes | None) -> Correction:
    """The stored correction; an empty one if it cannot be read."""
    try:
        return Correction() if data is None else msgspec.json.decode(data, type=Correction)
    except msgspec.MsgspecError:
        return Correction()


def write_correction(correction: Correction) -> bytes:
    return msgspec.json.encode(correction)


async def keep_time(
    clock: StoreClock,
    read: Callable[[], Awaitable[bytes | None]],
    write: Callable[[bytes, bytes | None], Awaitable[bool]],
) -> None:
    """Compares the clock with the stored correction. `write` replaces the expected one; if another
    process was faster, its correction is adopted."""
    for _ in range(3):
        stored = await read()
        known = read_correction(stored)
        wanted = clock.corrected(known)
        if wanted == known or await write(write_correction(wanted), stored):
            clock.adopt(wanted)
            log_step(known, wanted)
            return


def log_step(before: Correction, after: Correction) -> None:
    """Logs, once and in the process that has stored it, that the clock was set back."""
    if after.offset > before.offset:
        log.warning(
            "the store's clock was set back by %.1f s; leases, sleeps and schedules continue as if"
            " it was not, and the difference is worked off slowly",
            (after.offset - before.offset) / 1000,
        )


_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _steady() -> float:
    return time.clock_gettime(_STEADY)
