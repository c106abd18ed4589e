"""What `flowfabric budgets set` is given, and the budget that comes of it."""

from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.cli.parse import NONE, read_limits
from flowfabric.cli.values import usage
from flowfabric.core.base.time import parse_span
from flowfabric.core.limit.budget import Budget, Limit, OnHard, OnSoft, Scope

_LIMIT = "DIMENSION=NUMBER"

Hard = Annotated[
    list[str] | None,
    typer.Option(
        "--hard",
        metavar=_LIMIT,
        show_default=False,
        help="A limit that is never passed, as tokens=100000; repeatable; tokens=none: no limit.",
    ),
]
Soft = Annotated[
    list[str] | None,
    typer.Option(
        "--soft",
        metavar=_LIMIT,
        show_default=False,
        help="A limit that may be passed and is told, as tokens=80000.",
    ),
]
More = Annotated[
    list[str] | None,
    typer.Option(
        "--more",
        metavar=_LIMIT,
        show_default=False,
        help="What an approval adds to the soft limit, as tokens=5000.",
    ),
]
Parent = Annotated[
    str | None,
    typer.Option(
        "--parent",
        show_default=False,
        help="The budget it is part of: what is spent counts there too. Only for a new one.",
    ),
]
ScopeOption = Annotated[
    Scope | None,
    typer.Option(
        "--scope",
        metavar="SCOPE",
        show_default=False,
        help=f"What it belongs to: {', '.join(Scope)}. Those of a namespace, flow or run hold for "
        "all in it without being named.",
    ),
]
ScopeId = Annotated[
    str | None,
    typer.Option("--scope-id", show_default=False, help="Which one: the namespace, the id."),
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every", show_default=False, help="Begins anew every 1h, 1d, …; none: never by itself."
    ),
]
Cron = Annotated[
    str | None,
    typer.Option("--cron", show_default=False, help="Begins anew at these times: '0 0 * * *'."),
]
Timezone = Annotated[
    str | None, typer.Option("--timezone", show_default=False, help="Of --cron; UTC by default.")
]
OnHardOption = Annotated[
    OnHard | None,
    typer.Option(
        "--on-hard",
        metavar="ACTION",
        show_default=False,
        help=f"What happens at the hard limit: {', '.join(OnHard)}.",
    ),
]
OnSoftOption = Annotated[
    OnSoft | None,
    typer.Option(
        "--on-soft",
        metavar="ACTION",
        show_default=False,
        help=f"What happens at the soft limit: {', '.join(OnSoft)}.",
    ),
]


class Given(Struct, frozen=True, kw_only=True):
    """What a person typed; what was left out stays as it is."""

    hard: dict[str, int | None]
    soft: dict[str, int | None]
    more: dict[str, int | None]
    parent: str | None
    scope: Scope | None
    scope_id: str | None
    every: str | None
    cron: str | None
    timezone: str | None
    on_hard: OnHard | None
    on_soft: OnSoft | None

    @property
    def nothing(self) -> bool:
        return not any(getattr(self, name) for name in self.__struct_fields__)


def read_given(
    hard: list[str] | None, soft: list[str] | None, more: list[str] | None
) -> dict[str, dict[str, int | None]]:
    """The limits as they were typed."""
    typed = {"hard": hard, "soft": soft, "more": more}
    return {name: read_limits(words or (), f"--{name}") for name, words in typed.items()}


def changed(old: Budget, given: Given) -> Budget:
    """The budget with what was given."""
    if given.every is not None and given.cron is not None:
        raise usage("it begins anew by --every or by --cron, not by both")
    new = replace(
        old,
        parent=old.parent if given.parent is None else given.parent,
        scope=old.scope if given.scope is None else given.scope,
        scope_id=old.scope_id if given.scope_id is None else given.scope_id,
        limits=_limits(old, given),
        on_hard=old.on_hard if given.on_hard is None else given.on_hard,
        on_soft=old.on_soft if given.on_soft is None else given.on_soft,
        timezone=old.timezone if given.timezone is None else given.timezone,
    )
    if given.cron is not None:
        return replace(new, cron=given.cron, every=None)
    if given.every == NONE:
        return replace(new, cron=None, every=None)
    if given.every is not None:
        return replace(new, cron=None, every=parse_span(given.every, "--every"))
    return new


def _limits(old: Budget, given: Given) -> dict[str, Limit]:
    found: dict[str, Limit] = {}
    for name in {**old.limits, **given.hard, **given.soft, **given.more}:
        was = old.limits.get(name) or Limit()
        limit = replace(
            was,
            hard=given.hard.get(name, was.hard),
            soft=given.soft.get(name, was.soft),
            more=given.more.get(name, was.more),
        )
        if limit.soft is None and given.more.get(name) is not None:
            raise usage(f"--more of {name} is given without a soft limit of it")
        if limit.soft is None:
            limit = replace(limit, more=None)
        if limit != Limit():
            found[name] = limit
    return found
