"""The pause before a retry, as an option of a task or a step."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import force_setattr

from flowfabric.core.base.time import parse_span, to_timedelta
from flowfabric.core.execution.policy import check_retries
from flowfabric.core.execution.retry import ExponentialBackoff, FixedBackoff, RetryPolicy
from flowfabric.worker.api.span import Span


class Fixed(Struct, frozen=True):
    """The same delay before every retry: "5s", seconds or a `timedelta`. With `jitter`, each delay
    is shortened by a random part, up to a half."""

    delay: timedelta = timedelta(seconds=1)
    jitter: bool = False

    if TYPE_CHECKING:

        def __init__(self, delay: Span = 1, jitter: bool = False) -> None: ...

    def __post_init__(self) -> None:
        force_setattr(self, "delay", _timedelta(self.delay, "delay"))

    def stored(self) -> FixedBackoff:
        """The same in a policy."""
        return FixedBackoff(delay=parse_span(self.delay, "delay"), jitter=self.jitter)


class Exponential(Struct, frozen=True):
    """A delay that starts at `initial` and grows by `multiplier` with every retry, up to `maximum`.
    Delays are "5s", seconds or timedeltas. With `jitter`, each one is shortened by a random part,
    up to a half."""

    initial: timedelta = timedelta(seconds=1)
    maximum: timedelta = timedelta(seconds=60)
    multiplier: float = 2.0
    jitter: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            initial: Span = 1,
            maximum: Span = 60,
            multiplier: float = 2.0,
            jitter: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        force_setattr(self, "initial", _timedelta(self.initial, "initial"))
        force_setattr(self, "maximum", _timedelta(self.maximum, "maximum"))

    def stored(self) -> ExponentialBackoff:
        """The same in a policy."""
        return ExponentialBackoff(
            initial=parse_span(self.initial, "initial"),
            maximum=parse_span(self.maximum, "maximum"),
            multiplier=self.multiplier,
            jitter=self.jitter,
        )


Backoff = Fixed | Exponential


def retry_policy(retries: object, backoff: object) -> RetryPolicy:
    """How often and how fast to retry; Invalid if that makes no sense. A backoff may also be given
    as a policy has it."""
    given = backoff.stored() if isinstance(backoff, Fixed | Exponential) else backoff
    return check_retries(retries, given)


def _timedelta(value: object, what: str) -> Any:
    """The delay as a timedelta. A value that is not a delay stays as it is: the task or the step
    that gets it says what is wrong with it."""
    match value:
        case str():
            return to_timedelta(parse_span(value, what))
        case int() | float() if not isinstance(value, bool):
            try:
                return timedelta(seconds=value)
            except (OverflowError, ValueError):
                return value
        case _:
            return value
