"""Whether a failed attempt is retried, and after which pause."""

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, assert_never

import msgspec
from msgspec.structs import force_setattr

from flowfabric.core.base.document import Document
from flowfabric.core.base.time import MAX_SPAN, Millis, check_span

#: A duration of at most ten years, as a member of a document.
Span = Annotated[int, msgspec.Meta(ge=0, le=MAX_SPAN)]
#: The same as callers write it: milliseconds, `"5s"`, or a `timedelta`.
AnySpan = int | str | timedelta
#: The longest name of a category, in bytes.
MAX_CATEGORY = 256
#: The name of a category.
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_CATEGORY)]
#: A count that every store can hold.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Category(StrEnum):
    """Why an attempt failed, as far as retries are concerned. A failure may have a word of its own
    instead, which is retried like a transient one. The last three are what a worker says of a
    handler: it raised an exception, or one that is no `Exception` (such as `SystemExit`), or its
    arguments could not be decoded."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    INFRA_CRASH = "infra_crash"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    HANDLER_ERROR = "handler_error"
    HANDLER_PANIC = "handler_panic"
    UNDECODABLE = "extractor_payload_decode"


_CLASSES: dict[str, str] = {
    Category.HANDLER_ERROR: Category.TRANSIENT,
    Category.HANDLER_PANIC: Category.TRANSIENT,
    Category.UNDECODABLE: Category.PERMANENT,
}


def class_of(category: str) -> str:
    """The category that this one is retried like; most are their own."""
    return _CLASSES.get(category, category)


def is_final(category: str) -> bool:
    """Whether no policy can make such a failure be retried."""
    return class_of(category) in (Category.PERMANENT, Category.CANCELLED)


def _in_milliseconds(backoff: Document, *names: str) -> None:
    """Converts durations given as text; the policy checks everything else."""
    for name in names:
        given = getattr(backoff, name)
        if isinstance(given, str | timedelta):
            force_setattr(backoff, name, check_span(given, name))


class FixedBackoff(Document, frozen=True, tag_field="type", tag="fixed"):
    """The same delay before every retry: "5s", a `timedelta`, or milliseconds."""

    delay: Span = msgspec.field(default=1000, name="delay_ms")
    jitter: bool = False

    if TYPE_CHECKING:

        def __init__(self, delay: AnySpan = 1000, jitter: bool = False) -> None: ...

    def __post_init__(self) -> None:
        _in_milliseconds(self, "delay")


class ExponentialBackoff(Document, frozen=True, tag_field="type", tag="exponential"):
    """A delay that starts at `initial` and grows by `multiplier` with every retry, up to `maximum`.
    Delays are "5s", a `timedelta`, or milliseconds."""

    initial: Span = msgspec.field(default=1000, name="initial_delay_ms")
    maximum: Span = msgspec.field(default=60_000, name="max_delay_ms")
    multiplier: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 2.0
    jitter: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            initial: AnySpan = 1000,
            maximum: AnySpan = 60_000,
            multiplier: float = 2.0,
            jitter: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        _in_milliseconds(self, "initial", "maximum")


Backoff = FixedBackoff | ExponentialBackoff


class RetryPolicy(Document, frozen=True):
    """How often and how fast to retry. No categories means every retryable category."""

    max_retries: Count = 3
    backoff: Backoff = ExponentialBackoff()
    retryable_categories: tuple[Word, ...] = ()


def may_retry(policy: RetryPolicy | None, retries: int, category: str) -> bool:
    """Whether a failure of `category` is retried after `retries` retries so far.

    Permanent failures and cancels are never retried; without a policy, nothing is. A policy that
    names the class of a category (`transient`) means the category (`handler_error`) as well.
    """
    if policy is None or is_final(category):
        return False
    wanted = policy.retryable_categories
    if wanted and category not in wanted and class_of(category) not in wanted:
        return False
    return retries < policy.max_retries


def backoff_delay(policy: RetryPolicy, retries: int, jitter: float) -> Millis:
    """The pause before the next attempt, after `retries` earlier retries.

    `jitter` is a uniform number in [0, 1); if the policy uses jitter, it shortens the delay by up
    to a half.
    """
    backoff = policy.backoff
    delay = _full_delay(backoff, retries)
    return Millis(int(delay * (0.5 + jitter / 2)) if backoff.jitter else int(delay))


def _full_delay(backoff: Backoff, retries: int) -> float:
    match backoff:
        case FixedBackoff():
            return backoff.delay
        case ExponentialBackoff():
            return _grown(backoff, retries)
        case _:
            assert_never(backoff)


def _grown(backoff: ExponentialBackoff, retries: int) -> float:
    if backoff.initial == 0:
        return 0
    try:
        growth = float(backoff.multiplier) ** min(retries, 2**31)
    except OverflowError:
        return backoff.maximum
    return min(backoff.initial * growth, backoff.maximum)
