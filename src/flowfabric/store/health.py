"""What `flowfabric doctor` finds: each trouble with what it means and how to mend it.

A dialect reads facts (`store/<dialect>/doctor.py`); small pure functions judge them
(`store/<dialect>/checks.py`). Nothing is changed.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.redact import redact
from flowfabric.core.base.time import Millis
from flowfabric.store.contract import Store
from flowfabric.store.copy import Promotion
from flowfabric.store.open import dialect_of

F = TypeVar("F")


THIS_STORE = "<this store>"
"""Stands in a fix for the URL of the store that was looked at."""


class Severity(IntEnum):
    """A note needs nothing; a warning becomes a problem if nothing is done; with a problem work is
    slow, stands still or may be lost."""

    NOTE = 0
    WARNING = 1
    PROBLEM = 2


class Finding(Struct, frozen=True, kw_only=True):
    """`fix` are lines to type: SQL, or commands of a shell. `check` names what was looked at."""

    severity: Severity
    summary: str
    meaning: str
    fix: tuple[str, ...] = ()
    check: str = ""


class Examination(Struct, frozen=True):
    """What was looked at in a store, and what was found, the worst first. `settings` are those of
    the database that were read."""

    store: str
    dialect: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    settings: Mapping[str, str] = {}

    @property
    def worst(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)


Check = Callable[[F], Iterable[Finding]]


class Upkeep(Struct, frozen=True):
    """Who looks after the store. `duty_until` is when the duty of the last process that swept
    ends or ended; the rest is what should have been done by `now`."""

    now: Millis
    version: int
    known_version: int
    promotion: Promotion | None = None
    duty_until: Millis | None = None
    expired_leases: int = 0
    overdue: int = 0


def problem(summary: str, meaning: str, *fix: str) -> Finding:
    return Finding(severity=Severity.PROBLEM, summary=summary, meaning=meaning, fix=fix)


def warning(summary: str, meaning: str, *fix: str) -> Finding:
    return Finding(severity=Severity.WARNING, summary=summary, meaning=meaning, fix=fix)


def note(summary: str, meaning: str, *fix: str) -> Finding:
    return Finding(severity=Severity.NOTE, summary=summary, meaning=meaning, fix=fix)


def judge(store: str, dialect: str, facts: F, checks: Mapping[str, Check[F]]) -> Examination:
    """Puts the facts to every check."""
    found = [
        replace(finding, check=name) for name, check in checks.items() for finding in check(facts)
    ]
    found.sort(key=lambda finding: -finding.severity)
    return Examination(store, dialect, tuple(checks), tuple(found))


async def examine(url: str) -> Examination:
    """Looks at the store at `url` without changing it, also at one of another release."""
    found = await _examined(url)
    named = shlex.quote(redact(url))
    findings = [
        replace(each, fix=tuple(line.replace(THIS_STORE, named) for line in each.fix))
        for each in found.findings
    ]
    return replace(found, findings=tuple(findings))


async def _examined(url: str) -> Examination:
    if dialect_of(url) == "sqlite":
        from flowfabric.store.sqlite import doctor as sqlite_doctor

        return await sqlite_doctor.examine(url)
    from flowfabric.store.postgres import doctor as postgres_doctor

    return await postgres_doctor.examine(url)


async def cut_connections(store: Store, url: str) -> int:
    """Ends the connections of this very store from outside, to see what survives; returns how
    many. A file has none, and behind a pooler they belong to others as well."""
    if dialect_of(url) == "sqlite":
        return 0
    from flowfabric.store.postgres import doctor as postgres_doctor
    from flowfabric.store.postgres.store import PostgresStore

    return await postgres_doctor.cut_connections(cast(PostgresStore, store), url)


# -- what is the same for every store

NOT_SWEPT = 60_000
"""Milliseconds after which work that is due should have been done, whatever the load."""
COUNTED = 1000
"""Where the query `upkeep` stops counting."""


def check_version(upkeep: Upkeep) -> Iterable[Finding]:
    known = upkeep.known_version
    if upkeep.version > known:
        yield problem(
            f"the schema has version {upkeep.version}, this release knows {known}",
            "A newer release has migrated the store; processes of this one refuse to open it.",
            "pip install --upgrade flowfabric",
        )
    elif upkeep.version < known:
        yield warning(
            f"the schema has version {upkeep.version}, this release needs {known}",
            "The next process that opens the store migrates it. Processes of the earlier release"
            " must be stopped before that.",
            f"flowfabric migrate --url {THIS_STORE}",
        )


def check_promotion(upkeep: Upkeep) -> Iterable[Finding]:
    found = upkeep.promotion
    if found is not None and found.finished_at is None:
        yield problem(
            f"the promotion of {found.shown} into this store has not finished",
            "No worker can open the store until all rows are there.",
            f"flowfabric promote {shlex.quote(found.shown)} {THIS_STORE}",
        )


def check_sweep(upkeep: Upkeep) -> Iterable[Finding]:
    if not upkeep.expired_leases and not upkeep.overdue:
        return
    left = f"{_counted(upkeep.expired_leases)} leases and {_counted(upkeep.overdue)} waits"
    if upkeep.duty_until is None or upkeep.duty_until < upkeep.now - NOT_SWEPT:
        yield warning(
            f"no worker looks after this store: {left} ended more than a minute ago",
            "Crashed runs are not taken over, and delays, retries and schedules stand still.",
            "flowfabric worker app.module:fabric",
        )
    else:
        yield warning(
            f"the sweep is behind: {left} ended more than a minute ago",
            "A worker sweeps, but it cannot keep up or fails; its log says why (flowfabric.sweep).",
            f"flowfabric workers list --url {THIS_STORE}",
        )


def _counted(count: int) -> str:
    return f"{count} or more" if count >= COUNTED else str(count)
