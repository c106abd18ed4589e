"""Limits: the quotas and budgets of a task, and how an application defines and uses them."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import Parameter, signature
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from flowfabric.core.base.errors import BudgetExceeded, Invalid
from flowfabric.core.base.numbers import (
    check_flag,
    check_mapping,
    check_names,
    check_whole,
    check_word,
)
from flowfabric.core.base.text import MAX_NAME, check_text
from flowfabric.core.base.time import optional_datetime, parse_span
from flowfabric.core.limit.budget import (
    Amounts,
    Budget,
    Limit,
    OnHard,
    OnSoft,
    Scope,
    check_amounts,
    check_budget,
    check_budget_names,
)
from flowfabric.core.limit.quota import (
    OF_TASK,
    Quota,
    Use,
    Uses,
    check_quota,
    check_uses,
    name_uses,
    needs_limit,
    parse_rate,
    spread,
)
from flowfabric.core.limit.spend import AlreadyApplied, HardBreach, Overrun, SoftBreach, Spent
from flowfabric.engine.engine import Engine
from flowfabric.worker.api.blocking import Block, blocking
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.declared import D, DeclaredLimit, V, made_now
from flowfabric.worker.api.ids import with_run
from flowfabric.worker.api.limit_info import (
    BudgetInfo,
    QuotaInfo,
    QuotaUsage,
    budget_info,
    quota_info,
    quota_usage,
)
from flowfabric.worker.api.span import Span

KeyOf = str | Callable[..., object]
"""The name of a parameter, or a function that is called with the arguments it names."""
Names = Iterable[str | Use] | Mapping[str, str]


class Limits(Struct, frozen=True, kw_only=True):
    """The quotas that runs of a task need, and the budgets they spend from. With a key, a limit
    applies to each value of the key separately."""

    rate: str | tuple[int, Span] | None = None
    rate_key: KeyOf | None = None
    smooth: bool = False
    concurrency: int | None = None
    concurrency_key: KeyOf | None = None
    quotas: Names = ()
    budgets: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.rate is not None:
            parse_rate(self.rate)
        if check_flag(self.smooth, "smooth") and self.rate is None:
            raise Invalid("smooth needs a rate")
        if self.concurrency is not None:
            check_whole(self.concurrency, "concurrency", 1)
        for key, what in ((self.rate_key, "rate_key"), (self.concurrency_key, "concurrency_key")):
            if key is not None and not isinstance(key, str) and not callable(key):
                raise Invalid(f"{what} must be the name of a parameter or a function")
        force_setattr(self, "quotas", name_uses(self.quotas))
        force_setattr(self, "budgets", check_budget_names(self.budgets))


LIMIT_NAMES = frozenset(Limits.__struct_fields__)
"""The options of a task that are limits."""


def check_limits(name: str, limits: Limits, parameters: frozenset[str]) -> tuple[Quota, ...]:
    """The quotas that a task declares; Invalid if its limits contradict each other."""
    for key, limit, what in (
        (limits.rate_key, limits.rate, "rate"),
        (limits.concurrency_key, limits.concurrency, "concurrency"),
    ):
        if key is not None and limit is None:
            raise Invalid(f"{name}: {what}_key needs a {what}")
        if isinstance(key, str) and key not in parameters:
            raise Invalid(f"{name}: {what}_key {key!r} is not a parameter of the task")
        if key is None or isinstance(key, str):
            continue
        if not callable(key):
            raise Invalid(f"{name}: {what}_key must be the name of a parameter or a function")
        for wanted in _names_of(key) or ():
            if wanted not in parameters:
                raise Invalid(f"{name}: {what}_key takes {wanted!r}, not a parameter of the task")
    return tuple(check_quota(quota) for quota in _declared(name, limits))


def uses_of(name: str, limits: Limits, given: Names | None, arguments: "Arguments") -> Uses:
    """The quotas of a call: those of the task with their keys, and those it names."""
    found = {use.quota: use for use in name_uses(limits.quotas)}
    found |= {use.quota: use for use in _own_uses(name, limits, arguments)}
    if given is not None:
        found |= {use.quota: use for use in name_uses(given)}
    return check_uses(found.values())


class Arguments(Struct, frozen=True):
    """The arguments of a call, in which keys are looked up: as given, or in a payload that may
    still lack some."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    bind: Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]
    defaults: Mapping[str, Any]
    payload: bytes | None = None

    def key(self, key: KeyOf) -> str:
        known = self._known()
        names = [key] if isinstance(key, str) else _names_of(key)
        for name in names or ():
            if name not in known:
                raise Invalid(
                    f"{name!r} is the key of a limit and must be known when the task is submitted"
                )
        if isinstance(key, str):
            return _key_text(known[key], key)
        try:
            value = key(**(known if names is None else {name: known[name] for name in names}))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise Invalid(f"the function that gives the key of a limit failed: {what}") from error
        return _key_text(value, "the key")

    def _known(self) -> dict[str, Any]:
        """The arguments with a value. In a payload, None stands for an output that comes later."""
        if self.payload is None:
            return {**self.defaults, **self.bind(self.args, self.kwargs)}
        known = {**self.defaults, **msgspec.json.decode(self.payload)}
        return {name: value for name, value in known.items() if value is not None}


class LimitsApi:
    """Quotas and budgets of a Fabric."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._declarations = client.declarations

    def quota(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | tuple[int, Span] | None = None,
        concurrency_per_key: int | None = None,
        rate_per_key: str | tuple[int, Span] | None = None,
        smooth: bool = False,
    ) -> DeclaredLimit[QuotaInfo]:
        """Declares a quota: every worker of this application creates it when it starts, or changes
        it to these limits; `await` does so at once. Tasks use it by name (`quotas=["openai"]`) or
        with a key (`quotas={"openai": customer}`); limits per key apply to each key separately, and
        0 means no limit. `smooth` spreads the starts of a rate evenly."""
        quota = Quota(
            name=name,
            concurrency=concurrency,
            rate=None if rate is None else spread(parse_rate(rate), smooth),
            concurrency_per_key=concurrency_per_key,
            rate_per_key=None if rate_per_key is None else spread(parse_rate(rate_per_key), smooth),
        )
        return self._declared(check_quota(needs_limit(quota)), self._make_quota)

    async def quota_status(self, name: str) -> QuotaUsage:
        """How full a quota is, in total and by key."""
        return quota_usage(await (await self._client.engine()).quotas.status(name))

    def budget(  # noqa: PLR0913 - the options are the interface
        self,
        name: str,
        hard: Mapping[str, int] | None = None,
        /,
        *,
        soft: Mapping[str, int] | None = None,
        more: Mapping[str, int] | None = None,
        parent: str | None = None,
        scope: str | None = None,
        scope_id: str | UUID = "",
        every: Span | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        on_hard: str = "refuse",
        on_soft: str = "warn",
        **dimensions: int,
    ) -> DeclaredLimit[BudgetInfo]:
        """Declares a budget: every worker of this application creates it when it starts, or changes
        its definition; `await` does so at once. What was spent stays spent. Hard limits are given
        by dimension: `fabric.budget("team", tokens=100_000, every="1d")`. Runs spend
        from it if they name it (`budgets=["team"]`); with a scope (`namespace`, `flow` or `run` and
        its id), all runs in that scope do."""
        budget = Budget(
            name=name,
            parent=parent,
            scope=None if scope is None else check_word(scope, Scope, "scope"),
            scope_id=str(scope_id) if isinstance(scope_id, UUID) else scope_id,
            limits=_limits(_amounts(hard, dimensions), _amounts(soft), _amounts(more)),
            on_hard=check_word(on_hard, OnHard, "on_hard"),
            on_soft=check_word(on_soft, OnSoft, "on_soft"),
            every=None if every is None else parse_span(every, "every"),
            cron=cron,
            timezone=timezone,
        )
        return self._declared(check_budget(budget), self._make_budget)

    async def budget_status(self, name: str) -> BudgetInfo:
        """A budget with its limits and what was spent of it."""
        return budget_info(await (await self._client.engine()).budgets.get(name))

    async def spend(
        self, name: str, amounts: Amounts | None = None, /, *, key: str | None = None, **more: int
    ) -> Spent | SoftBreach:
        """Counts what the application itself has consumed: `await fabric.spend("team", tokens=5)`.
        The same `key` counts once. Raises BudgetExceeded, and counts nothing, if it does not
        fit."""
        engine = await self._client.engine()
        wanted = amounts_of(amounts, more)
        answer = await engine.budgets.spend(name, wanted, key=key)
        outcome = answer.outcome if isinstance(answer, AlreadyApplied) else answer
        if isinstance(outcome, HardBreach):
            raise exceeded(outcome, wanted)
        return Spent() if isinstance(outcome, Overrun) else outcome

    async def reset_budget(self, name: str) -> datetime | None:
        """Begins a new period now; returns when the next one begins, None if it never ends."""
        reset = await (await self._client.engine()).budgets.reset(name)
        return optional_datetime(reset.next_reset_at)

    _quota_now, _budget_now = made_now(quota), made_now(budget)
    quota_sync, budget_sync = blocking(_quota_now), blocking(_budget_now)
    quota_status_sync, budget_status_sync = blocking(quota_status), blocking(budget_status)
    reset_budget_sync = blocking(reset_budget)
    spend_sync = blocking(spend)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on

    def _declared(self, definition: D, make: Callable[[D], Awaitable[V]]) -> DeclaredLimit[V]:
        self._declarations.add(definition)
        return DeclaredLimit(definition, lambda: make(definition))

    async def _make_quota(self, quota: Quota) -> QuotaInfo:
        self._declarations.forget(quota)
        engine = await self._client.engine()
        await engine.quotas.define(quota)
        return quota_info(await engine.quotas.get(quota.name))

    async def _make_budget(self, budget: Budget) -> BudgetInfo:
        self._declarations.forget(budget)
        engine = await self._client.engine()
        await engine.budgets.define(await with_run(engine, budget))
        return budget_info(await engine.budgets.get(budget.name))


def amounts_of(amounts: Mapping[str, int] | None, more: Mapping[str, int]) -> Amounts:
    """Amounts given as a mapping, by name, or both."""
    given = {} if amounts is None else check_mapping(amounts, "amounts")
    return check_amounts({**given, **more})


def exceeded(breach: HardBreach | SoftBreach, amounts: Amounts) -> BudgetExceeded:
    wanted = amounts.get(breach.dimension) if isinstance(breach, HardBreach) else None
    return BudgetExceeded(breach.budget, breach.dimension, breach.used, breach.limit, wanted)


def budgets_of(own: Sequence[str], given: Iterable[str] | None) -> tuple[str, ...]:
    if given is None:
        return check_budget_names(own)
    return check_budget_names((*own, *check_names(given, "budgets")))


async def declare(engine: Engine, quotas: Iterable[Quota]) -> None:
    for quota in quotas:
        await engine.quotas.define(quota)


def _declared(name: str, limits: Limits) -> list[Quota]:
    given = None if limits.rate is None else parse_rate(limits.rate, f"the rate of {name}")
    rate = spread(given, limits.smooth)
    of_rate = {"rate" if limits.rate_key is None else "rate_per_key": rate}
    keyed = limits.concurrency_key is not None
    of_cap = {"concurrency_per_key" if keyed else "concurrency": limits.concurrency}
    if rate is None and limits.concurrency is None:
        return []
    if _together(limits):
        return [_quota(f"{OF_TASK}{name}", {**of_rate, **of_cap})]
    return [
        _quota(f"{OF_TASK}{name}:rate", of_rate),
        _quota(f"{OF_TASK}{name}:concurrency", of_cap),
    ]


def _quota(name: str, limits: dict[str, Any]) -> Quota:
    return Quota(name=name, **limits)


def _own_uses(name: str, limits: Limits, arguments: Arguments) -> list[Use]:
    def use(quota: str, key: KeyOf | None) -> Use:
        return Use(quota=quota, key="" if key is None else arguments.key(key))

    if limits.rate is None and limits.concurrency is None:
        return []
    if _together(limits):
        return [use(f"{OF_TASK}{name}", limits.rate_key or limits.concurrency_key)]
    return [
        use(f"{OF_TASK}{name}:rate", limits.rate_key),
        use(f"{OF_TASK}{name}:concurrency", limits.concurrency_key),
    ]


def _together(limits: Limits) -> bool:
    """Whether one quota can hold both limits, which saves looking at a second one."""
    if limits.rate is None or limits.concurrency is None:
        return True
    return limits.rate_key == limits.concurrency_key


def _names_of(function: Callable[..., object]) -> list[str] | None:
    """The names of the arguments that a function takes; None if it takes all of them."""
    try:
        parameters = signature(function).parameters.values()
    except ValueError:
        return None
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return None
    return [each.name for each in parameters if each.default is Parameter.empty]


def _key_text(value: object, what: str) -> str:
    if isinstance(value, str | int | UUID) and not isinstance(value, bool):
        return check_text(str(value), f"the key {what!r} of a limit", limit=MAX_NAME)
    raise Invalid(f"a key of a limit must be text, a number or a UUID, not {type(value).__name__}")


def _amounts(given: object, more: Mapping[str, int] | None = None) -> dict[str, int]:
    named = {} if given is None else check_mapping(given, "limits")
    return {**named, **(more or {})}


def _limits(
    hard: Mapping[str, int], soft: Mapping[str, int], more: Mapping[str, int]
) -> dict[str, Limit]:
    for name in more:
        if name not in soft:
            raise Invalid(f"more of {name} needs a soft limit of {name}")
    return {
        name: Limit(hard=hard.get(name), soft=soft.get(name), more=more.get(name))
        for name in {**hard, **soft}
    }
