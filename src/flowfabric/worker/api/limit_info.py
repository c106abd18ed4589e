"""Quotas and budgets as an application reads them: moments are `datetime`, durations
`timedelta`."""

from datetime import datetime, timedelta

from msgspec import Struct

from flowfabric.core.base.ids import without_tags
from flowfabric.core.base.time import (
    optional_datetime,
    optional_timedelta,
    to_datetime,
    to_timedelta,
)
from flowfabric.core.limit.budget import Amounts, Budget, OnHard, OnSoft, Scope
from flowfabric.core.limit.budget import Limit as BudgetLimit
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.engine.limit.quotas import QuotaStatus
from flowfabric.store.queries import QueueCount


class RateInfo(Struct, frozen=True, kw_only=True):
    """At most `count` starts in any `period`; `smooth` ones are spread evenly."""

    count: int
    period: timedelta
    smooth: bool


class QuotaInfo(Struct, frozen=True, kw_only=True):
    """The limits of a quota; None means no limit. `fabric.quota_status` says how full it is."""

    name: str
    concurrency: int | None
    rate: RateInfo | None
    concurrency_per_key: int | None
    rate_per_key: RateInfo | None
    created_at: datetime
    updated_at: datetime


class QuotaUsage(Struct, frozen=True, kw_only=True):
    """How full a quota is, in total and by key. Of the `admitted` runs, which have a slot,
    `running` are with a worker; the others wait for one. `opens_at` is when the rate allows another
    start, None if it does so now; `key_opens_at` the same for keys that runs wait with."""

    quota: QuotaInfo
    running: int
    waiting: int
    admitted: int
    keys: tuple[QueueCount, ...]
    opens_at: datetime | None
    key_opens_at: dict[str, datetime]


class BudgetInfo(Struct, frozen=True, kw_only=True):
    """The definition of a budget, and what was spent of it in this period. `overrun` was consumed
    beyond a hard limit and is not part of `used`; `granted` was allowed on top of soft limits.

    `breaches` counts the amounts that a hard limit refused and `soft_breaches` those that exceeded
    a soft limit, resets or not. `breached_at` and `breached_dimension` say when and in which
    dimension the last amount of this period was refused.
    """

    name: str
    parent: str | None
    scope: Scope | None
    scope_id: str
    limits: dict[str, BudgetLimit]
    on_hard: OnHard
    on_soft: OnSoft
    used: Amounts
    reserved: Amounts
    overrun: Amounts
    granted: Amounts
    breaches: int
    soft_breaches: int
    breached_at: datetime | None
    breached_dimension: str | None
    every: timedelta | None
    cron: str | None
    timezone: str
    reset_at: datetime | None
    next_reset_at: datetime | None
    created_at: datetime
    updated_at: datetime

    def hard(self, dimension: str) -> int | None:
        """The hard limit of a dimension, None without one."""
        limit = self.limits.get(dimension)
        return None if limit is None else limit.hard

    def soft(self, dimension: str) -> int | None:
        """The soft limit of a dimension, including what was granted on top."""
        limit = self.limits.get(dimension)
        if limit is None or limit.soft is None:
            return None
        return limit.soft + self.granted.get(dimension, 0)

    def taken(self, dimension: str) -> int:
        """What is spent or reserved of a dimension."""
        return self.used.get(dimension, 0) + self.reserved.get(dimension, 0)


def quota_info(quota: Quota) -> QuotaInfo:
    return QuotaInfo(
        name=quota.name,
        concurrency=quota.concurrency,
        rate=_rate(quota.rate),
        concurrency_per_key=quota.concurrency_per_key,
        rate_per_key=_rate(quota.rate_per_key),
        created_at=to_datetime(quota.created_at),
        updated_at=to_datetime(quota.updated_at),
    )


def _rate(rate: Rate | None) -> RateInfo | None:
    if rate is None:
        return None
    return RateInfo(count=rate.count, period=to_timedelta(rate.window), smooth=rate.smooth)


def quota_usage(status: QuotaStatus) -> QuotaUsage:
    return QuotaUsage(
        quota=quota_info(status.quota),
        running=status.running,
        waiting=status.waiting,
        admitted=status.admitted,
        keys=status.keys,
        opens_at=optional_datetime(status.opens_at),
        key_opens_at={key: to_datetime(at) for key, at in status.key_opens_at.items()},
    )


def budget_info(budget: Budget) -> BudgetInfo:
    return BudgetInfo(
        name=budget.name,
        parent=budget.parent,
        scope=budget.scope,
        scope_id=without_tags(budget.scope_id),
        limits=budget.limits,
        on_hard=budget.on_hard,
        on_soft=budget.on_soft,
        used=budget.used,
        reserved=budget.reserved,
        overrun=budget.overrun,
        granted=budget.granted,
        breaches=budget.breaches,
        soft_breaches=budget.soft_breaches,
        breached_at=optional_datetime(budget.breached_at),
        breached_dimension=budget.breached_dimension,
        every=optional_timedelta(budget.every),
        cron=budget.cron,
        timezone=budget.timezone,
        reset_at=optional_datetime(budget.reset_at),
        next_reset_at=optional_datetime(budget.next_reset_at),
        created_at=to_datetime(budget.created_at),
        updated_at=to_datetime(budget.updated_at),
    )
