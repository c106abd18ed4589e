"""Quotas: how many executions may run at once, and how many may start in a period.

An execution that uses quotas waits in a queue until all of them have room. A queue is one
combination of quotas and keys, so all executions that wait for the same thing form one line, and
two customers never share a line.

A slot *is* the ready or running row: there is no counter, so no slot can leak or be given back
twice.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import MAX_COUNT, check_kind_of, check_whole
from flowfabric.core.base.text import MAX_NAME, check_text
from flowfabric.core.base.time import Millis, check_span, parse_span

MAX_USES = 8
OF_TASK = "task:"
"""Prefix of the quotas that tasks declare for themselves."""

DEFAULT_WINDOW = Millis(60_000)
"""The window of a rate that names none."""

SMOOTH = " smooth"
_UNITS = {"s": "1s", "m": "1m", "h": "1h", "d": "1d"}


class Rate(Struct, frozen=True, gc=False, omit_defaults=True):
    """At most `count` admissions in any period of `window`; `smooth` spreads them evenly instead of
    all at the beginning. In a definition, a count of 0 means no limit and a window of 0 a
    minute."""

    count: int
    window: Millis
    smooth: bool = False

    def __str__(self) -> str:
        evenly = ", spread evenly" if self.smooth else ""
        return f"{self.count} per {self.window} ms{evenly}"

    @property
    def interval(self) -> Millis:
        """The time between two spread starts; several share a millisecond if there are more."""
        return Millis(max(1, -(-self.window // self.count)))

    @property
    def at_once(self) -> int:
        """How many may start within an interval if they are spread."""
        return max(1, self.count // self.window)


class Use(Document, frozen=True, kw_only=True):
    """An execution's use of one quota. Uses without a key share the empty key."""

    quota: str = ""
    key: str = ""


Uses = tuple[Use, ...]


class Quota(Document, frozen=True, kw_only=True):
    """A named set of limits; None or 0 means no limit. Limits per key apply to each key separately.
    Admissions after `since` happened under these limits."""

    name: str = ""
    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    version: int = 0
    since: Millis = Millis(0)
    created_at: Millis = Millis(0)
    updated_at: Millis = Millis(0)

    @property
    def limits(self) -> tuple[int | Rate | None, ...]:
        return (self.concurrency, self.concurrency_per_key, self.rate, self.rate_per_key)

    @property
    def only_keys(self) -> bool:
        """Whether it limits the concurrency of each key and nothing else."""
        others = (self.concurrency, self.rate, self.rate_per_key)
        return self.concurrency_per_key is not None and others == (None, None, None)

    @property
    def longest_window(self) -> Millis:
        rates = [rate.window for rate in (self.rate, self.rate_per_key) if rate is not None]
        return max(rates, default=Millis(0))


def check_quota(quota: Quota) -> Quota:
    """The quota if it is valid, with None for limits of 0; `Invalid` says what is wrong
    otherwise."""
    check_quota_name(quota.name)
    return replace(
        quota,
        concurrency=_checked_cap(quota.concurrency),
        concurrency_per_key=_checked_cap(quota.concurrency_per_key),
        rate=_checked_rate(quota.rate),
        rate_per_key=_checked_rate(quota.rate_per_key),
    )


def _checked_cap(cap: int | None) -> int | None:
    return None if cap is None else check_whole(cap, "concurrency") or None


def _checked_rate(rate: Rate | None) -> Rate | None:
    if rate is None:
        return None
    check_kind_of(rate, Rate, "rate")
    count = check_whole(rate.count, "the count of a rate")
    window = check_span(rate.window, "the window of a rate") or DEFAULT_WINDOW
    smooth = check_kind_of(rate.smooth, bool, "smooth")
    return Rate(count, window, smooth) if count else None


def needs_limit(quota: Quota) -> Quota:
    """The quota if a limit of it is given, be it 0; for callers that name only what they want."""
    if all(limit is None for limit in quota.limits):
        raise Invalid("a quota needs a concurrency or a rate")
    return quota


def check_quota_name(name: object, what: str = "the name of a quota") -> str:
    text = check_text(name, what, limit=MAX_NAME)
    if not text or not text.isprintable() or text != text.strip():
        raise Invalid(f"{what} must be printable text without leading or trailing blanks")
    return text


def check_uses(uses: Iterable[Use]) -> Uses:
    """The uses in one fixed order; each quota at most once."""
    found: dict[str, Use] = {}
    for use in uses:
        check_quota_name(use.quota)
        check_text(use.key, f"the key for quota {use.quota!r}", limit=MAX_NAME)
        if use.quota in found:
            raise Invalid(f"quota {use.quota!r} is used twice")
        found[use.quota] = use
    if len(found) > MAX_USES:
        raise Invalid(f"a run uses at most {MAX_USES} quotas")
    return tuple(found[name] for name in sorted(found))


def parse_rate(value: object, what: str = "rate") -> Rate:
    """The rate `value` names: `"100/m"`, `"5/30s"`, `"100/m smooth"`, or a pair of count and
    duration.

    >>> parse_rate("100/m")
    Rate(count=100, window=60000, smooth=False)
    """
    match value:
        case Rate():
            return value
        case str() if value.endswith(SMOOTH):
            return replace(parse_rate(value.removesuffix(SMOOTH), what), smooth=True)
        case str() if value.count("/") == 1:
            count, _, span = value.partition("/")
            if count.strip().isascii() and count.strip().isdigit() and len(count) < 12:
                return _rate(int(count), _UNITS.get(span.strip(), span.strip()), what)
        case (int() as number, span):
            return _rate(number, span, what)
        case _:
            pass
    raise Invalid(f"{what} is not a rate such as '100/m' or '5/30s'")


def spread(rate: Rate | None, smooth: bool) -> Rate | None:
    """The rate, spread evenly if that is asked for."""
    return replace(rate, smooth=True) if rate is not None and smooth else rate


def _rate(count: int, span: object, what: str) -> Rate:
    window = parse_span(span, f"the span of {what}")
    if not window:
        raise Invalid(f"the span of {what} must not be empty")
    return Rate(check_whole(count, f"the count of {what}", 1, MAX_COUNT), window)


def queue_of(uses: Uses) -> int:
    """The number of the queue for these uses, the same in every process and release."""
    if len(uses) == 1:
        return _number_of_one(uses[0].quota, uses[0].key)
    return _number(tuple([(use.quota, use.key) for use in uses]))


def budget_queue(budget: str) -> int:
    """The number of the queue of executions that wait for a budget."""
    return _number(budget)


def code_queue(route: tuple[str, ...], tried: tuple[str, ...]) -> int:
    """The number of the queue of executions of a route that wait for other code than was tried."""
    return _number(("code", route, tried))


@lru_cache(maxsize=65_536)
def _number_of_one(quota: str, key: str) -> int:
    return _number(((quota, key),))


@lru_cache(maxsize=65_536)
def _number(name: Any) -> int:
    digest = blake2b(msgspec.json.encode(name), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def name_uses(given: Mapping[str, str] | Iterable[str | Use]) -> Uses:
    """Uses as people write them: names, or names with their keys."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise Invalid("quotas must be a list of names or a mapping of names to keys")
    if isinstance(given, Mapping):
        return check_uses(Use(quota=name, key=key) for name, key in given.items())
    return check_uses(use if isinstance(use, Use) else Use(quota=use) for use in given)
