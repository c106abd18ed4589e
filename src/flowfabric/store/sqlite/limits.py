"""Quotas, the queues before them, and letting work through."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from uuid import UUID

from msgspec.json import encode

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.pages import MAX_COUNTED, in_pages
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate, Start
from flowfabric.core.limit.quota import Quota, Uses
from flowfabric.core.limit.release import (
    ALL,
    Candidate,
    Key,
    Line,
    Move,
    OpenLine,
    QuotaView,
    Release,
    StartsBack,
    Window,
    latest_turn,
    one_key,
)
from flowfabric.core.limit.release import serve as decide
from flowfabric.store.contract import MAX_BATCH
from flowfabric.store.queries import (
    Crowd,
    LinesRequest,
    MovedByRelease,
    OtherVersion,
    QueueCount,
    QuotaViewRequest,
    ServedLines,
)
from flowfabric.store.readable import readable
from flowfabric.store.rows.limit import (
    known_uses,
    queue_rows,
    read_uses,
    servable,
    served_lines,
)
from flowfabric.store.rows.record import QUOTAS
from flowfabric.store.sqlite.reads import numbers, route_numbers
from flowfabric.store.sqlite.session import SqliteSession, read_uuid


def put_queues(session: SqliteSession, queues: Sequence[tuple[int, Uses]]) -> None:
    session.insert("new_queues", [row for id, uses in queues for row in queue_rows(id, uses)])


def quota_view(session: SqliteSession, ask: QuotaViewRequest) -> QuotaView:
    """One read transaction, so everything is of one moment."""
    lines = _lines(session, ask)
    used = {(use.quota, use.key) for line in lines for use in line.uses}
    names = {ask.quota} | {quota for quota, _ in used}
    damaged: set[str] = set()
    rows = session.given_to(session.records.fill("records", QUOTAS), [(name,) for name in names])
    found = QUOTAS.readable(rows, lambda row: damaged.add(row[0]))
    known = {quota.name: quota for quota in found}
    lines = [] if ask.quota in damaged else servable(lines, damaged)
    return QuotaView(
        quotas=known,
        lines=lines,
        held=_held(session, known, used) if lines else [],
        admitted=_admitted(session, known, used, ask.now),
        served=dict(session.rows("latest_turns", {"names": encode(list(names)).decode()})),
    )


def release(session: SqliteSession, release: Release) -> MovedByRelease | None:
    """The writer is alone, so comparing the versions is enough."""
    versions = list(release.versions.items())
    if versions and session.given("quota_versions", versions).fetchall():
        return None
    if release.turns and session.given("missing_queues", list(release.turns)).fetchall():
        return None
    moved = _move(session, release.moves)
    if versions:
        session.execute("counted_quotas", {"names": encode(list(release.versions)).decode()})
    session.each("served_queues", [(turn, *key) for key, turn in release.turns.items()])
    session.each("forgotten_admissions", release.forget.items())
    admissions = [(*noted, count) for noted, count in release.admissions.items()]
    session.insert("new_admissions", admissions)
    return MovedByRelease(map(read_uuid, moved))


def serve(session: SqliteSession, ask: LinesRequest) -> ServedLines | OtherVersion | None:
    """The writer is alone, so the rule can decide here."""
    quota = _keys_only(session, ask.quota)
    if quota is None:
        return None
    if ask.version not in (None, quota.version):
        return OtherVersion()
    room = _room(session, ask, quota.concurrency_per_key or 0)
    lines = _open_lines(session, ask, room)
    names = {"names": encode([ask.quota]).decode()}
    served = dict(session.rows("latest_turns", names))
    turn = latest_turn(quota, served.get(ask.quota))
    decided = decide(lines, turn, ask.now, ask.most)
    if decided.moves:
        turn = decided.turn
        session.insert("released_of_lines", [(id, None, at) for id, at in decided.moves])
        session.among("gone_parked", [id for id, _ in decided.moves])
        session.execute("served_queues", (turn, ask.quota, decided.queues[-1]))
    session.execute("counted_quotas", names)
    picked = [line.queue for line in lines for _ in line.waiting]
    return served_lines(quota.version + 1, turn, room, picked, decided.queues)


def take_starts_back(session: SqliteSession, starts: Sequence[StartsBack]) -> None:
    for back in starts:
        values = {"quota": back.quota, "key": back.key, "since": back.since - 1}
        left = back.count
        for at, count in session.rows("admissions", values):
            if left <= 0:
                break
            place = {"quota": back.quota, "key": back.key, "at": at}
            if count > left:
                session.execute("fewer_admissions", {**place, "fewer": left})
            else:
                session.execute("gone_admission", place)
            left -= count


def crowds(session: SqliteSession, after: int, limit: int) -> list[Crowd]:
    if limit <= 0:
        return []
    rows = session.rows("crowds", {"after": after, "limit": limit})
    return [
        Crowd(queue, Gate(gate), read_uuid(id), known_uses(doc)) for queue, gate, id, doc in rows
    ]


def queue_counts(session: SqliteSession, quota: str, limit: int) -> list[QueueCount]:
    rows = session.rows("queue_counts", {"quota": quota, "limit": limit, "most": MAX_COUNTED})
    return readable(
        rows,
        lambda row: QueueCount(read_uses(row[0]), *row[1:]),
        "a line of quota",
        lambda _: quota,
    )


def ahead_of(session: SqliteSession, queue: int, rank: int, uuid: UUID, limit: int) -> int:
    values = {"queue": queue, "rank": rank, "id": uuid.bytes, "limit": limit}
    row = session.row("ahead_of", values)
    return 0 if row is None else int(row[0])


def idle_queues(session: SqliteSession, limit: int) -> list[int]:
    """Queues without executions. Finding them may take long, so it is not done in a write
    transaction."""
    return [id for (id,) in session.rows("idle_queues", {"limit": limit})]


def trim_limits(
    session: SqliteSession, idle: Sequence[int], now: Millis, forgotten: Millis, limit: int
) -> int:
    """Deletes those of the idle queues that still are, and admissions and charges of the past."""
    gone = 0
    for id in idle:
        session.execute("counted_idle_queue", {"id": id})
        gone += session.execute("trimmed_queues", {"id": id}).rowcount
    for name, window in _windows(session.rows("admission_quotas")):
        values = {"quota": name, "until": forgotten - window, "limit": limit - gone}
        if gone < limit:
            gone += session.execute("trimmed_admissions", values).rowcount
    charges = {"now": now, "limit": max(0, limit - gone)}
    return gone + session.execute("trimmed_charges", charges).rowcount


def _keys_only(session: SqliteSession, name: str) -> Quota | None:
    """The quota if it limits keys only; None also if it cannot be read."""
    docs = session.given_to(session.records.fill("records", QUOTAS), [(name,)])
    try:
        quota = QUOTAS.by_key(docs).get(name)
    except Corruption:
        return None
    return quota if quota is not None and quota.only_keys else None


def _room(session: SqliteSession, ask: LinesRequest, cap: int) -> dict[int, int]:
    """The free slots of each line, counted if the request does not say them (`ServedLines.room`); a
    line without a row has none."""
    room = {queue: free for queue, free in ask.lines.items() if free is not None}
    if unknown := [queue for queue, free in ask.lines.items() if free is None]:
        values = {"quota": ask.quota, "queues": encode(unknown).decode()}
        for queue, held in session.rows("held_by_line", values):
            room[queue] = cap - held
    return room


def _open_lines(
    session: SqliteSession, ask: LinesRequest, room: Mapping[int, int]
) -> list[OpenLine]:
    """The lines with room, each with as many candidates as there are for it."""
    open = {queue: free for queue, free in room.items() if free > 0}
    if not open:
        return []
    values = {
        "quota": ask.quota,
        "queues": encode(list(open)).decode(),
        "most": max(open.values()),
        **_shut(session, ask),
    }
    lines: list[OpenLine] = []
    last, waiting = None, list[tuple[int, bytes]]()
    for queue, turn, rank, id in session.rows("first_of_lines", values):
        if queue != last:
            last, waiting = queue, [(rank, id)]
            lines.append(OpenLine(queue, turn, waiting))
        elif len(waiting) < open[queue]:
            waiting.append((rank, id))
    return lines


def _shut(session: SqliteSession, ask: QuotaViewRequest | LinesRequest) -> dict[str, str | None]:
    if ask.closed or ask.draining:
        session.learn_routes()
    return {
        "closed": numbers(route_numbers(session, ask.closed)),
        "draining": numbers(route_numbers(session, ask.draining)),
    }


def _lines(session: SqliteSession, ask: QuotaViewRequest) -> list[Line]:
    shut = _shut(session, ask)
    values = {"quota": ask.quota, "limit": ask.lines, **shut}
    if ask.queues is None:
        found = session.rows("lines", values)
    else:
        found = session.rows("lines_among", {**values, "queues": encode(ask.queues).decode()})
    return readable(
        found,
        lambda row: Line(
            row[0], read_uses(row[2]), row[1], _candidates(session, row[0], ask.depth, shut)
        ),
        "line",
        itemgetter(0),
    )


def _windows(rows: Iterable[tuple[str, int, bytes | None]]) -> list[tuple[str, int]]:
    """Of quotas the longest window; nothing is forgotten of one that cannot be read."""
    return readable(
        rows,
        lambda row: (row[0], 0 if row[2] is None else QUOTAS.value(row).longest_window),
        "quota",
        itemgetter(0),
    )


def _candidates(
    session: SqliteSession, queue: int, limit: int, shut: dict[str, str | None]
) -> list[Candidate]:
    values = {"queue": queue, "limit": limit, **shut}
    rows = session.rows("line_candidates", values)
    if len(rows) == limit:
        rows = sorted({*rows, *session.rows("line_continuing", values)}, key=_place_in_line)
    return [
        Candidate(read_uuid(id), version, rank, start != Start.CONTINUE)
        for id, version, rank, start in rows
    ]


def _place_in_line(row: tuple[bytes, int, int, int]) -> tuple[int, bytes]:
    return row[2], row[0]


def _held(
    session: SqliteSession, known: dict[str, Quota], used: Collection[tuple[str, str]]
) -> list[tuple[Uses, int]]:
    """How many slots each queue has that counts for a limit of concurrency. Limits per key alone
    need only the queues of those keys."""
    whole = [name for name, quota in known.items() if quota.concurrency is not None]
    by_key = {name for name, quota in known.items() if quota.concurrency_per_key is not None}
    keys = [pair for pair in used if pair[0] in by_key and pair[0] not in whole]
    rows = session.rows("held_queues", {"quotas": encode(whole).decode()}) if whole else []
    rows += session.rows("held_by_key", {"used": encode(keys).decode()}) if keys else []
    found = {id: (uses, count) for id, uses, count in rows if count}
    return readable(
        found.items(), lambda row: (read_uses(row[1][0]), row[1][1]), "line", itemgetter(0)
    )


def _admitted(
    session: SqliteSession, known: dict[str, Quota], used: Collection[tuple[str, str]], now: Millis
) -> dict[Key, Window]:
    """What the rates have let through within their longest windows."""
    found: dict[Key, Window] = {}
    rated = {name: quota.longest_window for name, quota in known.items() if quota.longest_window}
    keys = [(name, ALL) for name in rated]
    keys += [(name, one_key(key)) for name, key in used if name in rated]
    for name, key in keys:
        values = {"quota": name, "key": key, "since": now - rated[name]}
        if rows := session.rows("admissions", values):
            found[name, key] = [(Millis(at), count) for at, count in rows]
    return found


def _move(session: SqliteSession, moves: Sequence[Move]) -> list[bytes]:
    """From `parked` to `ready`, as `core.execution.gate.admit` with the limits gate open: the ids
    that were moved."""
    rows = [(move.uuid.bytes, move.version, move.at) for move in moves]
    moved: list[bytes] = []
    for page in in_pages(rows, MAX_BATCH):
        found = session.given("released", page).fetchall()
        if found:
            session.among("gone_parked", [id for (id,) in found])
        moved += [id for (id,) in found]
    return moved
