"""Budgets: how much may be spent of anything that can be counted.

A budget counts named dimensions (tokens, cost in cents, milliseconds, calls) in whole numbers. A
hard limit is never exceeded; a soft limit is reported. A budget may be part of a larger one: what
is spent from it is also spent from all its parents. Admission checks `used < hard`, spending checks
`used + amount <= hard`: nothing starts once a budget is used up, and a budget can be used up
exactly.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.numbers import check_kind_of, check_names, check_whole
from flowfabric.core.base.shape import check_shape
from flowfabric.core.base.text import MAX_KEY, MAX_NAME, check_text
from flowfabric.core.base.time import Millis, check_span
from flowfabric.core.execution.schedule import Schedule, check_times, skip_ahead
from flowfabric.core.limit.quota import check_quota_name

MAX_AMOUNT = (1 << 63) - 1
MAX_DEPTH = 8
MAX_ATTACHED = 16
MAX_DIMENSIONS = 64


class Scope(StrEnum):
    """What a budget belongs to. Budgets of a namespace, a flow or a run apply to everything in it
    without being named; others apply to the executions that name them, and to their child
    budgets."""

    ORGANISATION = "organisation"
    TENANT = "tenant"
    NAMESPACE = "namespace"
    FLOW = "flow"
    RUN = "run"


ATTACHED = frozenset({Scope.NAMESPACE, Scope.FLOW, Scope.RUN})


class OnHard(StrEnum):
    """What happens when an amount does not fit below the hard limit."""

    REFUSE = "refuse"
    """The amount is refused, and nothing new starts."""
    CANCEL_PENDING = "cancel_pending"
    """Like `refuse`; members of the flow that have not started are cancelled."""
    SUSPEND = "suspend"
    """Like `refuse`; the run waits for a person, who may raise the limit."""
    WARN = "warn"
    """The limit is advisory: the amount is counted and reported."""


class OnSoft(StrEnum):
    """What happens when the soft limit is exceeded."""

    WARN = "warn"
    APPROVE = "approve"
    """The run waits for a person, who may allow more."""


class Limit(Document, frozen=True, kw_only=True):
    """The limits of one dimension; None or 0 means no limit. `more` is what an approval adds to
    `soft`."""

    hard: int | None = None
    soft: int | None = None
    more: int | None = None


Amounts = dict[str, int]


class Budget(Document, frozen=True, kw_only=True):
    """The definition, and what was spent in the current period. `overrun` was consumed beyond a
    hard limit (a reservation was too low) and is never part of `used`. `parts` is the number of
    child budgets. `labels` is free text that clients keep with the definition."""

    name: str = ""
    parent: str | None = None
    scope: Scope | None = None
    scope_id: str = ""
    limits: dict[str, Limit] = field(default_factory=dict)
    on_hard: OnHard = OnHard.REFUSE
    on_soft: OnSoft = OnSoft.WARN
    every: Millis | None = None
    cron: str | None = None
    timezone: str = "UTC"
    labels: dict[str, str] = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    reserved: Amounts = field(default_factory=dict)
    overrun: Amounts = field(default_factory=dict)
    granted: Amounts = field(default_factory=dict)
    period: int = 0
    parts: int = 0
    breaches: int = 0
    soft_breaches: int = 0
    breached_at: Millis | None = None
    breached_dimension: str | None = None
    resets: int = 0
    reset_at: Millis | None = None
    next_reset_at: Millis | None = None
    created_at: Millis = Millis(0)
    updated_at: Millis = Millis(0)
    version: int = 0

    @property
    def strict(self) -> bool:
        return self.on_hard is not OnHard.WARN

    def hard(self, dimension: str) -> int | None:
        limit = self.limits.get(dimension)
        return None if limit is None else limit.hard

    def soft(self, dimension: str) -> int | None:
        """The soft limit, including what was granted on top."""
        limit = self.limits.get(dimension)
        if limit is None or limit.soft is None:
            return None
        return limit.soft + self.granted.get(dimension, 0)

    def taken(self, dimension: str) -> int:
        """What is spent or reserved."""
        return self.used.get(dimension, 0) + self.reserved.get(dimension, 0)


class Exhausted(Struct, frozen=True):
    """Why a budget admits nothing."""

    budget: str
    dimension: str
    taken: int
    hard: int
    next_reset_at: Millis | None = None

    def __str__(self) -> str:
        return f"budget {self.budget}: {self.taken} of {self.hard} {self.dimension}"


class Ledger(Struct, frozen=True):
    """What one execution spent of one budget in one period."""

    budget: str
    execution: UUID
    period: int
    amounts: Amounts


class Reservation(Struct, frozen=True):
    """An estimate that is reserved until it is settled, or until the lease of this epoch is gone.
    `budgets` are the named ones and all their parents."""

    id: UUID
    budgets: tuple[str, ...]
    execution: UUID
    epoch: int
    amounts: Amounts
    at: Millis


def exhausted(budget: Budget) -> Exhausted | None:
    """The first dimension that is used up; None while the budget admits new work."""
    if not budget.strict:
        return None
    for dimension, limit in sorted(budget.limits.items()):
        taken = budget.taken(dimension)
        if limit.hard is not None and taken >= limit.hard:
            return Exhausted(budget.name, dimension, taken, limit.hard, budget.next_reset_at)
    return None


def chain(budgets: Mapping[str, Budget], names: Iterable[str]) -> list[Budget]:
    """The named budgets and all their parents, each once, the named ones first."""
    found: dict[str, Budget] = {}
    pending = list(names)
    while pending:
        upper: list[str] = []
        for name in pending:
            if name in found:
                continue
            if name not in budgets:
                raise NotFound("budget", name)
            found[name] = budget = budgets[name]
            if budget.parent is not None:
                upper.append(budget.parent)
        pending = upper
    return list(found.values())


def spent(budgets: Mapping[str, Budget], names: Iterable[str]) -> Exhausted | None:
    """Why nothing may start; a deleted budget limits nothing."""
    known = [name for name in names if name in budgets]
    for budget in chain(budgets, known):
        if (why := exhausted(budget)) is not None:
            return why
    return None


def check_budget(budget: Budget) -> Budget:
    """The definition if it is valid, with None where it says 0; `Invalid` says what is wrong
    otherwise."""
    check_budget_name(budget.name)
    if budget.parent is not None:
        check_budget_name(budget.parent)
        if budget.parent == budget.name:
            raise Invalid("a budget cannot be part of itself")
    budget = replace(
        budget,
        limits=_check_limits(budget.limits),
        every=_check_every(budget.every),
    )
    check_kind_of(budget.on_hard, OnHard, "on_hard")
    check_kind_of(budget.on_soft, OnSoft, "on_soft")
    if budget.scope is not None:
        check_kind_of(budget.scope, Scope, "the scope of a budget")
    check_text(budget.scope_id, "the id of a budget's scope", limit=MAX_NAME)
    if budget.scope in ATTACHED and not budget.scope_id:
        raise Invalid(f"a budget of a {budget.scope} needs its id")
    if budget.every is not None or budget.cron is not None:
        _check_timing(budget)
    _check_labels(budget.labels)
    return check_shape(budget, Budget, "budget", spans=("every",))


def _check_labels(labels: object) -> None:
    for name, label in check_kind_of(labels, dict, "the labels of a budget").items():
        check_text(name, "the name of a label", limit=MAX_NAME)
        check_text(label, f"the label {name}", limit=MAX_KEY)


def _check_every(every: object) -> Millis | None:
    return None if every is None else check_span(every, "the interval of resets") or None


def _check_timing(budget: Budget) -> None:
    check_text(budget.timezone, "the time zone of a budget")
    if budget.cron is not None:
        check_text(budget.cron, "the cron expression of a budget")
    check_times(_timing(budget))


def check_budget_name(name: object) -> str:
    return check_quota_name(name, "the name of a budget")


def check_budget_names(names: object) -> tuple[str, ...]:
    """The names without duplicates, in the given order."""
    found = tuple(dict.fromkeys(check_budget_name(name) for name in check_names(names, "budgets")))
    if len(found) > MAX_ATTACHED:
        raise Invalid(f"a run has at most {MAX_ATTACHED} budgets")
    return found


def check_dimension(name: object) -> str:
    text = check_text(name, "a dimension", limit=64)
    if not text or any(character.isspace() or not character.isprintable() for character in text):
        raise Invalid("a dimension must be a word such as tokens or cost_cents")
    return text


def check_amounts(amounts: object) -> Amounts:
    """Amounts of at least one dimension; whole numbers, never negative."""
    if not isinstance(amounts, Mapping):
        raise Invalid(f"amounts must be a mapping of dimensions, not {type(amounts).__name__}")
    if not amounts:
        raise Invalid("no amount is given")
    if len(amounts) > MAX_DIMENSIONS:
        raise Invalid(f"at most {MAX_DIMENSIONS} dimensions at once")
    return {
        check_dimension(name): check_whole(value, f"an amount of {name}", 0, MAX_AMOUNT)
        for name, value in amounts.items()
    }


def following_reset(budget: Budget, now: Millis) -> Millis | None:
    """The first reset after `now`, in the rhythm of the earlier ones, without drift."""
    if budget.every is None and budget.cron is None:
        return None
    return skip_ahead(_timing(budget), now).next_at


def current(budget: Budget, now: Millis) -> Budget:
    """The budget in the period of `now`. A period ends on time, whether or not the new one is
    stored yet: every rule decides on this value, and the sweep only tidies up."""
    due = budget.next_reset_at
    if due is None or due > now:
        return budget
    next_at = following_reset(budget, now)
    began_at = due if budget.every is None or next_at is None else next_at - budget.every
    return replace(new_period(budget, Millis(began_at)), next_reset_at=next_at)


def new_period(budget: Budget, began_at: Millis) -> Budget:
    """The budget at the start of a period: nothing is spent, reservations stay."""
    return replace(
        budget,
        used={},
        overrun={},
        granted={},
        period=budget.period + 1,
        resets=budget.resets + 1,
        reset_at=began_at,
        breached_at=None,
        breached_dimension=None,
        updated_at=began_at,
    )


def begin(budget: Budget, now: Millis) -> Budget:
    """A new budget of this version: nothing is spent, the first reset is one interval from now."""
    fresh = Budget(
        name=budget.name,
        parent=budget.parent,
        scope=budget.scope,
        scope_id=budget.scope_id,
        limits=budget.limits,
        on_hard=budget.on_hard,
        on_soft=budget.on_soft,
        every=budget.every,
        cron=budget.cron,
        timezone=budget.timezone,
        labels=budget.labels,
        created_at=now,
        updated_at=now,
        version=budget.version,
    )
    return replace(fresh, next_reset_at=following_reset(fresh, now))


def _check_limits(limits: object) -> dict[str, Limit]:
    given = check_kind_of(limits, dict, "the limits of a budget")
    if len(given) > MAX_DIMENSIONS:
        raise Invalid(f"a budget limits at most {MAX_DIMENSIONS} dimensions")
    return {check_dimension(name): _check_limit(name, limit) for name, limit in given.items()}


def _check_limit(dimension: str, value: object) -> Limit:
    limit = check_kind_of(value, Limit, f"the limit of {dimension}")
    for number, what, least in (
        (limit.hard, "hard", 0),
        (limit.soft, "soft", 0),
        (limit.more, "more", 1),
    ):
        if number is not None:
            check_whole(number, f"the {what} limit of {dimension}", least, MAX_AMOUNT)
    return replace(limit, hard=limit.hard or None, soft=limit.soft or None)


def _timing(budget: Budget) -> Schedule:
    return Schedule(
        name=budget.name,
        kind="reset",
        cron=budget.cron,
        every=budget.every,
        timezone=budget.timezone,
        next_at=budget.next_reset_at,
    )
