"""Schedules: runs that are submitted repeatedly, by a cron expression or at an interval.

The times of a cron expression are local to a time zone and follow daylight saving. A time that does
not exist on some day runs right after the clock change; a time that occurs twice runs once. An
expression that begins with `*` in its minutes or hours (`*/15 * * * *`, `0 * * * *`) means a
rhythm: it leaves out times that do not exist, and runs in both passes of an hour that is repeated.
"""

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.json import check_json
from flowfabric.core.base.shape import check_shape
from flowfabric.core.base.text import check_text
from flowfabric.core.base.time import Millis, check_span, to_datetime

MAX_CATCH_UP = 1000
SHORTEST = Millis(1000)


class CatchUp(StrEnum):
    """What happens to times that passed while no worker was running."""

    LATEST = "latest"
    """One run for all missed times."""
    ALL = "all"
    """One run for each missed time, up to the last thousand."""
    NONE = "none"
    """No run, unless the time is less than a minute late."""


LATE = Millis(60_000)
LOOK_BACK = 60_000
"""How far before the present the first look for a missed moment begins, in milliseconds."""


class Schedule(Document, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of `cron` and `every` is set. `next_at` is None only if no time is left."""

    name: str
    kind: str
    cron: str | None = None
    every: Millis | None = None
    timezone: str = "UTC"
    catch_up: CatchUp = CatchUp.LATEST
    paused: bool = False
    payload: bytes = b"{}"
    options: dict[str, Any] = field(default_factory=dict)
    namespace: str = "default"
    lane: str = "default"
    version: int = 1
    next_at: Millis | None = None
    last_at: Millis | None = None


class Firing(Struct, frozen=True):
    """The moments for which a schedule owes runs, and the schedule afterwards."""

    moments: tuple[Millis, ...]
    after: Schedule


def check_schedule(schedule: Schedule) -> Schedule:
    """The schedule if it is valid and can become due; `Invalid` says what is wrong otherwise."""
    schedule = check_shape(schedule, Schedule, "schedule", spans=("every",))
    schedule = replace(schedule, catch_up=CatchUp(schedule.catch_up))
    check_json(schedule.options, "options of a schedule")
    check_text(schedule.name, "schedule name", limit=256)
    if not schedule.name:
        raise Invalid("a schedule needs a name")
    if schedule.every is not None and schedule.every < SHORTEST:
        raise Invalid(f"the interval of a schedule must be at least {SHORTEST} ms")
    check_times(schedule)
    return schedule


def check_times(schedule: Schedule) -> None:
    """Whether there is a next time, by a cron expression or by an interval."""
    if (schedule.cron is None) == (schedule.every is None):
        raise Invalid("a schedule needs either a cron expression or an interval")
    if schedule.every is not None:
        check_span(schedule.every, "the interval of a schedule")
    _zone(schedule.timezone)
    if schedule.cron is not None:
        next(_cron_moments(schedule, Millis(0)), None)


def begin(schedule: Schedule, now: Millis) -> Schedule:
    """The schedule with its first moment after `now`; an interval is counted from now."""
    fresh = replace(schedule, next_at=None)
    return replace(fresh, next_at=_following(fresh, now))


def skip_ahead(schedule: Schedule, now: Millis) -> Schedule:
    """The schedule without the times that passed by `now`; its rhythm is kept."""
    return replace(schedule, next_at=_following(schedule, now))


def redefine(old: Schedule, new: Schedule, now: Millis) -> Schedule:
    """The schedule to store when it is declared again; it starts over only if its times changed."""
    times = ("cron", "every", "timezone")
    same = all(getattr(old, name) == getattr(new, name) for name in times)
    kept = replace(
        new, paused=old.paused, version=old.version, last_at=old.last_at, next_at=old.next_at
    )
    return kept if same else begin(kept, now)


def fire(schedule: Schedule, now: Millis) -> Firing:
    """The firing that is due by `now`. A paused schedule owes nothing and does not fall behind."""
    if schedule.next_at is None or schedule.next_at > now:
        return Firing((), schedule)
    after = replace(schedule, next_at=_following(schedule, now), version=schedule.version + 1)
    if schedule.paused:
        return Firing((), after)
    moments = _owed(schedule, schedule.next_at, now)
    return Firing(moments, replace(after, last_at=moments[-1]) if moments else after)


def _owed(schedule: Schedule, first: Millis, now: Millis) -> tuple[Millis, ...]:
    match schedule.catch_up:
        case CatchUp.ALL:
            return _missed(schedule, first, now, MAX_CATCH_UP)
        case CatchUp.LATEST:
            return _missed(schedule, first, now, 1)
        case CatchUp.NONE:
            latest = _missed(schedule, first, now, 1)
            return tuple(moment for moment in latest if now - moment < LATE)


def _missed(schedule: Schedule, first: Millis, now: Millis, most: int) -> tuple[Millis, ...]:
    """The last moments from `first` to `now`, at most `most` of them."""
    if schedule.every is not None:
        count = (now - first) // schedule.every + 1
        start = max(0, count - most)
        return tuple(Millis(first + n * schedule.every) for n in range(start, count))
    return _missed_by_cron(schedule, first, now, most)


def _missed_by_cron(
    schedule: Schedule, first: Millis, now: Millis, most: int
) -> tuple[Millis, ...]:
    """Looked for from `now` backwards, in growing spans: after an outage of months, the way from
    `first` leads past millions of moments."""
    span = LOOK_BACK
    while now - span > first:
        found = _cron_until(schedule, Millis(now - span), now, most)
        if len(found) == most:
            return found
        span *= 4
    return (first, *_cron_until(schedule, first, now, most))[-most:]


def _cron_until(schedule: Schedule, after: Millis, until: Millis, most: int) -> tuple[Millis, ...]:
    """The last moments after `after`, up to `until`."""
    moments = takewhile(lambda at: at <= until, _cron_moments(schedule, after))
    return tuple(deque(moments, maxlen=most))


def _following(schedule: Schedule, now: Millis) -> Millis | None:
    if schedule.every is not None:
        first = schedule.next_at
        if first is None:
            return Millis(now + schedule.every)
        steps = max(0, (now - first) // schedule.every + 1)
        return Millis(first + steps * schedule.every)
    return next(_cron_moments(schedule, now), None)


def _cron_moments(schedule: Schedule, after: Millis) -> Iterator[Millis]:
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError:
        raise Invalid(
            "cron expressions need an extra: pip install 'flowfabric[schedules]'"
        ) from None
    cron, zone = schedule.cron or "", _zone(schedule.timezone)
    now = to_datetime(after).astimezone(zone)
    try:
        times: Iterator[datetime] = CronSim(cron, _clock_before(now))
    except CronSimError as error:
        raise Invalid(f"{schedule.cron!r} is not a cron expression: {error}") from None
    if _is_rhythm(cron):
        moments = _in_each_pass(times, zone)
    else:
        moments = (_at_clock(local, zone) for local in times)
    return _rising(map(_millis, moments), after)


def _is_rhythm(cron: str) -> bool:
    """Whether its minutes or hours begin with `*`; others name times of the day."""
    return any(field.startswith("*") for field in cron.split()[-5:-3])


def _clock_before(now: datetime) -> datetime:
    """What the clock shows at this moment. In the first pass of an hour that is repeated, a time
    before the second pass."""
    return now.replace(tzinfo=None) - (_offset(now) - _offset(now.replace(fold=1)))


def _in_each_pass(times: Iterator[datetime], zone: ZoneInfo) -> Iterator[datetime]:
    """The moments at which the clock shows these times: none of a time that is left out, two of one
    that is repeated."""
    repeated = deque[datetime]()
    for local in times:
        moment, again = local.replace(tzinfo=zone), local.replace(tzinfo=zone, fold=1)
        first, second = _offset(moment), _offset(again)
        if first < second:
            continue
        while repeated and repeated[0].astimezone(UTC) < moment.astimezone(UTC):
            yield repeated.popleft()
        yield moment
        if first > second:
            repeated.append(again)
    yield from repeated


def _offset(moment: datetime) -> timedelta:
    return moment.utcoffset() or timedelta()


def _at_clock(local: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which the clock shows this time, or the end of the gap that it is in."""
    while True:
        moment = local.replace(tzinfo=zone)
        if moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local:
            return moment
        local = local.replace(second=0) + timedelta(minutes=1)


def _rising(moments: Iterator[Millis], after: Millis) -> Iterator[Millis]:
    """Without the moments that are over: an hour that the clocks repeat counts once, in its first
    pass, and a look in its second pass starts with them. A moment counts once."""
    for moment in moments:
        if moment > after:
            yield moment
            after = moment


def _millis(moment: datetime) -> Millis:
    return Millis((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(f"{name!r} is not a time zone") from None
