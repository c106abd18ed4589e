"""The options of a task and of one submission, checked where they are written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import force_setattr

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import parse_run_id
from flowfabric.core.base.numbers import check_flag, check_kind_of, check_whole, check_word
from flowfabric.core.base.text import (
    check_key,
    check_kind,
    check_lane,
    check_namespace,
    check_tags,
    check_text,
)
from flowfabric.core.base.time import NO_TIME, Millis, from_datetime, parse_span
from flowfabric.core.execution.routing import check_capabilities
from flowfabric.core.execution.schedule import CatchUp
from flowfabric.core.execution.submission import check_priority
from flowfabric.core.execution.versions import check_version
from flowfabric.core.limit.quota import name_uses
from flowfabric.worker.api.backoff import Backoff, Exponential, retry_policy
from flowfabric.worker.api.hooks import EndHook
from flowfabric.worker.api.limits import Limits, Names, budgets_of
from flowfabric.worker.api.span import Span as Span

T = TypeVar("T")


def span_of(value: Span | None, what: str) -> Millis | None:
    return None if value is None else parse_span(value, what)


def _positive_span(value: object, what: str) -> None:
    if value is not None and parse_span(value, what) == 0:
        raise Invalid(f"{what} must be longer than zero")


class TaskOptions(Struct, frozen=True, kw_only=True):
    """The options of a task. Spans are "10m", seconds or timedeltas.

    `limits` apply to all workers together, `worker_concurrency` to one worker. `timeout` limits one
    attempt, `deadline` the whole run, counted from its submission. `schedule` is a cron expression,
    `every` an interval. Runs are pinned to the `version`, unless `pin` is False. `on_success` and
    `on_failure` are called when a run has ended in that way. `on_cancel` is "cleanup" or "stop".
    """

    name: str | None = None
    version: str | None = None
    pin: bool | None = None
    lane: str = "default"
    namespace: str = "default"
    retries: int = 0
    backoff: Backoff = Exponential()
    timeout: Span | None = None
    deadline: Span | None = None
    priority: int = 0
    capabilities: Sequence[str] = ()
    tags: Mapping[str, str] = {}
    process: bool = False
    worker_concurrency: int | None = None
    limits: Limits = Limits()
    retention: Span | None = None
    schedule: str | None = None
    every: Span | None = None
    timezone: str = "UTC"
    catch_up: str = "latest"
    on_success: EndHook | None = None
    on_failure: EndHook | None = None
    on_cancel: str | None = None
    cleanup_timeout: Span | None = None

    @property
    def pinned(self) -> bool:
        """Whether only workers with this version of the task run what is submitted to it."""
        return self.version is not None and self.pin is not False

    def __post_init__(self) -> None:
        if self.name is not None:
            check_kind(self.name)
        _check_pin(self.version, self.pin)
        check_lane(self.lane)
        check_namespace(self.namespace)
        check_priority(self.priority)
        retry_policy(self.retries, self.backoff)
        if self.on_cancel not in (None, "cleanup", "stop"):
            raise Invalid(f"on_cancel must be 'cleanup' or 'stop', not {self.on_cancel!r:.80}")
        for what in ("timeout", "deadline", "every", "cleanup_timeout"):
            _positive_span(getattr(self, what), what)
        span_of(self.retention, "retention")
        force_setattr(self, "capabilities", check_capabilities(self.capabilities))
        force_setattr(self, "tags", check_tags(self.tags))
        check_flag(self.process, "process")
        if self.worker_concurrency is not None:
            check_whole(self.worker_concurrency, "worker_concurrency", 1)
        check_kind_of(self.limits, Limits, "limits")
        if self.schedule is not None:
            check_text(self.schedule, "schedule")
        check_text(self.timezone, "timezone")
        check_word(self.catch_up, CatchUp, "catch_up")
        for what in ("on_success", "on_failure"):
            _check_hook(getattr(self, what), what)


def _check_pin(version: object, pin: object) -> None:
    if version is not None:
        check_version(version)
    if pin is not None and check_flag(pin, "pin") and version is None:
        raise Invalid("a task that pins its runs needs a version")


def _check_hook(hook: object, what: str) -> None:
    if hook is not None and not callable(hook):
        raise Invalid(f"{what} must be a function, not {type(hook).__name__}")


class CallOptions(Struct, frozen=True, kw_only=True):
    """The options of one submission; None means the default of the task."""

    key: str | None = None
    delay: Span | None = None
    at: datetime | None = None
    priority: int | None = None
    tags: Mapping[str, str] | None = None
    lane: str | None = None
    namespace: str | None = None
    deadline: Span | datetime | None = None
    quotas: Names | None = None
    budgets: Iterable[str] | None = None
    id: str | UUID | None = None
    connection: Any = None

    def __post_init__(self) -> None:
        check_key(self.key)
        if self.delay is not None and self.at is not None:
            raise Invalid("give either a delay or a moment (at), not both")
        span_of(self.delay, "delay")
        for name, check in _CHECKS.items():
            given = getattr(self, name)
            if given is not None:
                force_setattr(self, name, check(given))


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "priority": check_priority,
    "tags": check_tags,
    "lane": check_lane,
    "namespace": check_namespace,
    "quotas": name_uses,
    "budgets": lambda given: budgets_of((), given),
    "id": parse_run_id,
    "at": lambda given: _checked(from_datetime, given, "at"),
    "deadline": lambda given: _checked(deadline_at, given, NO_TIME),
}
"""How an option of a call is checked; the returned value is kept."""


def _checked(check: Callable[[Any, Any], object], given: T, more: object) -> T:
    """`given` unchanged, if `check` accepts it."""
    check(given, more)
    return given


def deadline_at(deadline: Span | datetime | None, now: Millis) -> Millis | None:
    if deadline is None:
        return None
    if isinstance(deadline, datetime):
        return from_datetime(deadline, "deadline")
    return Millis(now + parse_span(deadline, "deadline"))
