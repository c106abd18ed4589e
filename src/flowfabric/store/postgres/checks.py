"""What the facts about a Postgres server mean. Pure functions, one for each kind of trouble."""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from flowfabric.store.health import (
    Check,
    Finding,
    Upkeep,
    check_promotion,
    check_sweep,
    check_version,
    note,
    problem,
    warning,
)
from flowfabric.store.sql import load_queries

OLD_SECONDS, VERY_OLD_SECONDS = 60.0, 600.0
"""Ages of an open transaction that are worth a warning, or a problem."""
WAIT_SECONDS, LONG_WAIT_SECONDS = 1.0, 30.0
DEAD_ROWS = 50_000
UNVACUUMED_SECONDS = 300.0
CLOCK_SECONDS = 2.0
FULL, ALMOST_FULL = 0.97, 0.85
FREEZE_AGES = 2
WRAPAROUND = 1_500_000_000
"""The server stops at two billion."""
QUEUE_USAGE = 0.5

_COLUMN = re.compile(r"(table|view) \w+\.\w+ ")
_OPTIONS = re.compile(r"table (\w+) with \((.*)\)")
_INDEX = re.compile(r"CREATE (UNIQUE )?INDEX (\w+) ON .*")
_KEY = re.compile(r"constraint (\w+) (PRIMARY KEY .*)")


class TableHealth(Struct, frozen=True):
    name: str
    unlogged: bool = False
    live: int = 0
    dead: int = 0
    vacuumed: float | None = None
    """Seconds since it was vacuumed."""
    age: int = 0


class SnapshotHolder(Struct, frozen=True):
    """A transaction that is open, or something like it. `kind` is session, prepared, slot or
    standby; `age` is how many transactions have begun since."""

    kind: str
    pid: int | None
    name: str
    who: str
    state: str | None
    seconds: float | None
    age: int | None
    query: str = ""


class LockWait(Struct, frozen=True):
    pid: int
    name: str
    seconds: float | None
    what: str
    blocker: int
    blocker_name: str | None
    blocker_state: str | None
    blocker_query: str | None


class PostgresFacts(Struct, frozen=True, kw_only=True):
    """What was read. `expected` and `lines` describe the schema as it should be and as it is."""

    schema: str = "flowfabric"
    upkeep: Upkeep
    expected: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    locked: bool = False
    """Tables are locked, so that neither their schema nor what is due in them could be read."""
    invalid: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}
    sources: Mapping[str, str] = {}
    """Where each setting comes from: the server's files, the database, the role, the URL."""
    database: str = ""
    role: str = ""
    tables: tuple[TableHealth, ...] = ()
    holders: tuple[SnapshotHolder, ...] = ()
    waits: tuple[LockWait, ...] = ()
    clients: tuple[tuple[str, int], ...] = ()
    standby: bool = False
    queue_usage: float = 0.0
    frozen_age: int = 0
    pooled: bool = False
    pooler_named: bool = False
    listens: bool = False
    clock_offset: float = 0.0
    """Seconds that the database's clock is ahead of this machine's, as far as it is certain."""


def check_tables(facts: PostgresFacts) -> Iterator[Finding]:
    """Nothing is missing from the schema but what may be made again."""
    if facts.locked:
        yield warning(
            "tables are locked and could not be looked at",
            "A transaction holds an exclusive lock: all work on these tables stands still.",
            "see lock waits and open transactions, end what holds the lock, and look again",
        )
    if facts.upkeep.version != facts.upkeep.known_version:
        return  # an earlier or later schema has other tables
    missing = [line for line in facts.expected if line not in facts.lines]
    lost = [line for line in missing if _COLUMN.match(line)]
    if lost:
        yield problem(
            f"the schema lacks {', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}",
            "A table or column was dropped or changed by hand; statements that need it fail.",
            f"pg_restore --schema={facts.schema} …   # from a backup, then flowfabric doctor again",
        )


def check_indexes(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.upkeep.version != facts.upkeep.known_version:
        return
    for line in facts.expected:
        found = _INDEX.fullmatch(line)
        if found is None or line in facts.lines:
            continue
        name = found[2]
        key = _key_of(facts, name)
        table = name.removesuffix("_pkey")
        again = _mend(facts, "mend_key", table=table, name=name, key=key)
        yield problem(
            f"index {name} is missing or was changed",
            "Statements that need it read whole tables; a missing unique index also lets the same"
            " row be written twice.",
            _mend(facts, "mend_dropped_index", name=name),
            again if key else line.replace(" INDEX ", " INDEX CONCURRENTLY ", 1) + ";",
        )
    for name in facts.invalid:
        yield problem(
            f"index {name} is invalid",
            "Building it was interrupted: it slows down writes and serves no reads.",
            _mend(facts, "mend_invalid_index", name=name),
        )


def _key_of(facts: PostgresFacts, name: str) -> str:
    keys = (_KEY.fullmatch(line) for line in facts.expected)
    return next((key[2] for key in keys if key and key[1] == name), "")


def check_autovacuum(facts: PostgresFacts) -> Iterator[Finding]:
    for name in ("autovacuum", "track_counts"):
        if facts.settings.get(name) == "off":
            yield problem(
                f"{name} is off for the whole server",
                "Dead rows are never removed, so queues become slower from day to day; in the end"
                " the server refuses writes.",
                _mend(facts, "mend_setting", whose="system", name=name, value="on"),
                _mend(facts, "mend_reload"),
            )
    wanted, found = _options(facts.expected), _options(facts.lines)
    for table, options in wanted.items():
        lost = [option for option in options if option not in found.get(table, ())]
        if lost:
            yield warning(
                f"table {table} has lost settings: {', '.join(lost)}",
                "It changes with every run and needs to be vacuumed by number of rows, not by"
                " share of the table.",
                _mend(facts, "mend_options", table=table, options=", ".join(lost)),
            )
    for table, options in found.items():
        if {"autovacuum_enabled=false", "autovacuum_enabled=off"} & set(options):
            yield problem(
                f"autovacuum is off for table {table}",
                "Dead rows of this table are never removed, so claims become slower with every"
                " run.",
                _mend(facts, "mend_autovacuum", table=table),
            )


def _options(lines: Iterable[str]) -> dict[str, list[str]]:
    matches = (_OPTIONS.fullmatch(line) for line in lines)
    return {found[1]: found[2].split(", ") for found in matches if found}


def check_dead_rows(facts: PostgresFacts) -> Iterator[Finding]:
    holder = next((h for h in facts.holders if (h.seconds or 0) >= OLD_SECONDS), None)
    for table in facts.tables:
        late = table.vacuumed is None or table.vacuumed >= UNVACUUMED_SECONDS
        if table.dead < DEAD_ROWS or not late:
            continue
        since = "was never vacuumed" if table.vacuumed is None else "was not vacuumed lately"
        cause = f" {_named(holder)} keeps them: end that first." if holder else ""
        yield warning(
            f"table {table.name} has {table.dead} dead rows beside {table.live} live ones and"
            f" {since}",
            f"Every claim and every sweep steps over dead rows.{cause}",
            *([_ending(facts, holder)] if holder else []),
            _mend(facts, "mend_dead_rows", table=table.name),
        )


def check_transactions(facts: PostgresFacts) -> Iterator[Finding]:
    for holder in facts.holders:
        seconds = holder.seconds
        if seconds is not None and seconds >= OLD_SECONDS:
            judged = problem if seconds >= VERY_OLD_SECONDS else warning
            doing = f", last statement: {_one_line(holder.query)}" if holder.query else ""
            yield judged(
                f"a transaction is open for {int(seconds)} s: {_named(holder)}"
                f" ({holder.state or 'unknown state'}{doing})",
                "While it is open no dead row can be removed anywhere in the database, and rows"
                " that it has locked stay locked.",
                _ending(facts, holder),
            )
        elif holder.kind == "slot" and holder.state == "unused":
            yield warning(
                f"replication slot {holder.name} is unused and keeps"
                f" {holder.age or 0} transactions",
                "It keeps dead rows and the write-ahead log for a subscriber that is not there.",
                _mend(facts, "mend_slot", name=_quoted(holder.name)),
            )


def _named(holder: SnapshotHolder) -> str:
    if holder.kind == "prepared":
        return f"prepared transaction {holder.name!r} of {holder.who}"
    return f"pid {holder.pid}, {holder.name!r}, {holder.who}"


def _ending(facts: PostgresFacts, holder: SnapshotHolder) -> str:
    if holder.kind == "prepared":
        return _mend(facts, "mend_prepared", name=_quoted(holder.name))
    return _mend(facts, "mend_session", pid=holder.pid)


def _mend(facts: PostgresFacts, which: str, /, **values: object) -> str:
    """A statement for an operator to run."""
    return load_queries("postgres", facts.schema)[which].format(**values) + ";"


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _one_line(query: str) -> str:
    return " ".join(query.split())[:120]


def check_locks(facts: PostgresFacts) -> Iterator[Finding]:
    for wait in facts.waits:
        seconds = wait.seconds or 0.0
        if seconds < WAIT_SECONDS:
            continue
        judged = problem if seconds >= LONG_WAIT_SECONDS else warning
        query = f", last statement: {_one_line(wait.blocker_query)}" if wait.blocker_query else ""
        yield judged(
            f"pid {wait.pid} ({wait.name!r}) waits for {wait.what} for {int(seconds)} s, which pid"
            f" {wait.blocker} ({wait.blocker_name!r}, {wait.blocker_state}{query}) has locked",
            "Work on these rows stands still until that transaction ends.",
            _mend(facts, "mend_session", pid=wait.blocker),
        )


def check_durability(facts: PostgresFacts) -> Iterator[Finding]:
    meanings = {
        "fsync": "If the machine stops, the whole database may be damaged beyond repair.",
        "full_page_writes": "If the machine stops, pages may be half written and damaged.",
        "synchronous_commit": "Runs and results that were acknowledged may be lost when the server"
        " stops: steps run again, and submitted work is gone.",
    }
    for name, meaning in meanings.items():
        if facts.settings.get(name) == "off":
            yield problem(f"{name} is off", meaning, *_switched_on(facts, name))
    for table in facts.tables:
        if table.unlogged:
            yield problem(
                f"table {table.name} is unlogged",
                "It is empty after the server was stopped hard.",
                _mend(facts, "mend_unlogged", table=table.name),
            )


def _switched_on(facts: PostgresFacts, name: str) -> Iterator[str]:
    """Where it was switched off: the server's own setting is the last that counts."""
    database, role = facts.database, facts.role
    owners = {
        "database": f"database {database}",
        "user": f"role {role}",
        "database user": f"role {role} in database {database}",
        "global": "role all",
    }
    source = facts.sources.get(name, "")
    if source == "client":
        yield f"remove {name} from the options of the URL, or from PGOPTIONS"
    elif source in owners:
        yield _mend(facts, "mend_setting", whose=owners[source], name=name, value="on")
    else:
        yield _mend(facts, "mend_setting", whose="system", name=name, value="on")
        yield _mend(facts, "mend_reload")


def check_role(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.standby:
        yield problem(
            "the server is a standby and accepts no writes",
            "Workers and applications need the primary.",
            "add target_session_attrs=read-write and all hosts to the URL, or name the primary",
        )


def check_connections(facts: PostgresFacts) -> Iterator[Finding]:
    most = int(facts.settings.get("max_connections", 0))
    usable = most - int(facts.settings.get("superuser_reserved_connections", 0))
    used = sum(count for _, count in facts.clients)
    if usable <= 0 or used < ALMOST_FULL * usable:
        return
    judged = problem if used >= FULL * usable else warning
    top = ", ".join(f"{name} {count}" for name, count in facts.clients[:3])
    yield judged(
        f"{used} of {usable} connections are taken ({top})",
        "Processes that start now may be refused; a worker needs three connections.",
        _mend(facts, "mend_setting", whose="system", name="max_connections", value=most * 2),
        "and restart the server; or put a pooler before it",
    )


def check_pooler(facts: PostgresFacts) -> Iterator[Finding]:
    if not facts.pooled or facts.listens:
        return
    judged = note if facts.pooler_named else warning
    yield judged(
        "a pooler hands sessions around between transactions",
        "LISTEN does not work through it: each process that waits asks every 20 to 40 ms instead.",
        "add ?listen=HOST:PORT of the server itself to the URL",
        "or add ?pooler=transaction to the URL, if that is as it should be",
    )


def check_clock(facts: PostgresFacts) -> Iterator[Finding]:
    offset = facts.clock_offset
    if abs(offset) >= CLOCK_SECONDS:
        yield warning(
            f"the database's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'}"
            " this machine's",
            "Leases, delays and schedules go by the database's clock and are right among"
            " themselves; moments in logs and those that this machine names are not.",
            "timedatectl set-ntp true   # on both machines",
        )


def check_wraparound(facts: PostgresFacts) -> Iterator[Finding]:
    limit = int(facts.settings.get("autovacuum_freeze_max_age", 200_000_000)) * FREEZE_AGES
    oldest = max(facts.tables, key=lambda table: table.age, default=TableHealth("?"))
    if facts.frozen_age < limit:
        return
    judged = problem if facts.frozen_age >= WRAPAROUND else warning
    yield judged(
        f"the oldest row is {facts.frozen_age} transactions old",
        "At two billion the server refuses to write, to protect itself from wraparound.",
        _mend(facts, "mend_wraparound", table=oldest.name),
    )


def check_notifications(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.queue_usage >= QUEUE_USAGE:
        yield problem(
            f"the queue of notifications is {facts.queue_usage:.0%} full",
            "A session that listens stays in a transaction; when the queue is full, commits that"
            " notify fail.",
            "end the oldest transaction (see above)",
        )


CHECKS: Mapping[str, Check[PostgresFacts]] = {
    "schema version": lambda facts: check_version(facts.upkeep),
    "promotion": lambda facts: check_promotion(facts.upkeep),
    "tables": check_tables,
    "indexes": check_indexes,
    "durability": check_durability,
    "role of the server": check_role,
    "open transactions": check_transactions,
    "lock waits": check_locks,
    "dead rows": check_dead_rows,
    "autovacuum": check_autovacuum,
    "connections": check_connections,
    "pooler": check_pooler,
    "notifications": check_notifications,
    "clock": check_clock,
    "wraparound": check_wraparound,
    "sweep": lambda facts: check_sweep(facts.upkeep),
}
"""By what they look at, in the order of a report."""
