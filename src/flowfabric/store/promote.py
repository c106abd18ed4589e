"""Moves everything from one store to another: `flowfabric promote`.

Rows are copied table by table in the order of their keys. Each page is one transaction of the
target, which also notes how far the copy is, so that a copy that was killed is continued by the
next call. Meanwhile the source refuses writes, and no engine opens the target. At the end, counts
and digests of both sides are compared for every table.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Contention, Corruption, Invalid
from flowfabric.core.base.redact import redact
from flowfabric.core.base.time import Millis
from flowfabric.store.copy import Digest, Promotion, Side, TableProgress, Usage
from flowfabric.store.layout import META, Row, TableLayout, load_layout
from flowfabric.store.open import dialect_of
from flowfabric.store.sqlite.copy import open_fresh, open_side

TRACES = frozenset({"duty", "presence", "route", "worker", META})
"""What a process leaves in a store in which nothing was ever submitted."""

OnProgress = Callable[[str, int, int], None]
"""What is done (`copying ready`, `checking ready`), how many rows of it are, and of how many."""


class MovedTable(Struct, frozen=True):
    name: str
    rows: int
    digest: str


class Promoted(Struct, frozen=True):
    """What was moved. `resumed`: an earlier call had begun; `already`: it had also finished."""

    source: str
    target: str
    tables: tuple[MovedTable, ...]
    seconds: float
    resumed: bool = False
    already: bool = False

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


class PromotionOptions(Struct, frozen=True):
    """`force` moves a store that seems to be in use; `start_over` discards what an unfinished
    promotion has copied."""

    force: bool = False
    start_over: bool = False
    progress: OnProgress = lambda what, done, all: None


async def promote(
    source_url: str, target_url: str, options: PromotionOptions | None = None
) -> Promoted:
    """Moves everything from the store at one URL to the empty store at another.

    Raises Contention if a process works on either of them, Invalid if the target has other data,
    Corruption if what arrived is not what was sent."""
    started, chosen = time.monotonic(), options or PromotionOptions()
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(_opened(_open_side(source_url)))
        target = await stack.enter_async_context(_opened(_open_side(target_url)))
        if (source.identity, source.shown) == (target.identity, target.shown):
            raise Invalid("source and target are the same store")
        name = _name(source.identity, await source.secret())
        known = await target.promotion()
        if known is not None and known.source == name and known.finished_at is not None:
            return Promoted(source.shown, target.shown, (), 0.0, resumed=True, already=True)
        await source.quieten()
        _check_idle(await source.usage(), source, "source", chosen)
        await _check_target(target, known, name, chosen)
        begun = known
        if begun is None or chosen.start_over:
            begun = Promotion(name, redact(source_url), target.now())
            await target.clear([t for t in load_layout() if t.name != META], begun)
        move = _Move(source, target, begun, chosen.progress)
        tables = await move.run()
        taken = time.monotonic() - started
        return Promoted(source.shown, target.shown, tables, taken, resumed=begun is known)


class _Move:
    """One promotion under way."""

    def __init__(self, source: Side, target: Side, begun: Promotion, progress: OnProgress) -> None:
        self._source = source
        self._target = target
        self._noted = begun
        self._progress = progress
        self._sent: dict[str, Digest] = {}

    async def run(self) -> tuple[MovedTable, ...]:
        for table in load_layout():
            await self._copy(table)
        moved = [await self._check(table) for table in load_layout()]
        ended = replace(self._noted, finished_at=self._target.now())
        await self._target.finish(await self._source.numbers(), self._noted, ended)
        return tuple(moved)

    async def _copy(self, table: TableLayout) -> None:
        known = self._noted.tables.get(table.name, TableProgress())
        if known.whole:
            return
        total = await self._source.count(table)
        digest = None if known.rows else Digest()
        async for rows in _moving(self._source, table, known.last):
            known = TableProgress(known.rows + len(rows), table.key_of(rows[-1]))
            await self._write(table, rows, known)
            self._progress(f"copying {table.name}", known.rows, max(total, known.rows))
            if digest is not None:
                digest.add(rows)
        await self._write(table, (), replace(known, whole=True))
        if digest is not None:  # all of it was sent by this call
            self._sent[table.name] = digest

    async def _write(self, table: TableLayout, rows: Sequence[Row], known: TableProgress) -> None:
        noted = replace(self._noted, tables={**self._noted.tables, table.name: known})
        await self._target.write(table, rows, self._noted, noted)
        self._noted = noted

    async def _check(self, table: TableLayout) -> MovedTable:
        """Reads the table in the target, and in the source unless this call has sent all of it."""
        sent = self._sent.get(table.name)
        if sent is None:
            sent = await _digest(self._source, table, self._progress)
        found = await _digest(self._target, table, self._progress)
        if sent != found:
            raise Corruption(
                f"table {table.name} has {found.rows} rows with digest {found.hex} in the target"
                f" and {sent.rows} rows with digest {sent.hex} in the source;"
                " promote again with --start-over"
            )
        return MovedTable(table.name, found.rows, found.hex)


async def _digest(side: Side, table: TableLayout, progress: OnProgress | None = None) -> Digest:
    digest = Digest()
    total = await side.count(table)
    async for rows in _moving(side, table):
        digest.add(rows)
        if progress is not None:
            progress(f"checking {table.name}", digest.rows, max(total, digest.rows))
    return digest


async def _moving(side: Side, table: TableLayout, after: Row = ()) -> AsyncIterator[Sequence[Row]]:
    """The rows that move, a page at a time."""
    async for page in side.pages(table, after):
        rows = [row for row in page if table.moves(row)] if table.name == META else page
        if rows:
            yield rows


def _name(identity: str, secret: bytes) -> str:
    """What the progress calls the source. A store that was promoted has the secret of its source,
    but is another one."""
    return hashlib.blake2b(identity.encode(), key=secret, digest_size=16).hexdigest()


async def _open_side(url: str) -> Side:
    if dialect_of(url) == "sqlite":
        return await open_side(url)
    from flowfabric.store.postgres import copy as postgres_copy

    return await postgres_copy.open_side(url)


@asynccontextmanager
async def _opened(opening: Awaitable[Side]) -> AsyncIterator[Side]:
    side = await opening
    try:
        yield side
    finally:
        await side.close()


def _check_idle(usage: Usage, side: Side, which: str, options: PromotionOptions) -> None:
    """A worker that goes on would do the work of the moved runs a second time."""
    if not usage or options.force:
        return
    now, reasons = side.now(), []
    if usage.workers:
        reasons.append(f"workers are alive: {', '.join(usage.workers)}")
    if usage.leases:
        runs = "1 run is" if usage.leases == 1 else f"{usage.leases} runs are"
        reasons.append(f"{runs} leased for {_seconds(usage.leases_until, now)}")
    if usage.duty_until:
        reasons.append("a process has swept it a moment ago")
    raise Contention(
        f"the {which}, {side.shown}, is in use ({'; '.join(reasons)}). Stop every worker and every"
        " application that uses it and promote again. If they were killed, wait until their leases"
        " have expired, or use --force: leased runs then expire at the target and are continued"
    )


def _seconds(until: Millis | None, now: Millis) -> str:
    return f"up to {max(1, ((until or now) - now + 999) // 1000)} s"


async def _full_tables(target: Side) -> list[str]:
    """Tables with other rows than every store has from its first moment on."""
    tables = [table for table in load_layout() if table.name not in TRACES]
    full = [table for table in tables if not await target.is_empty(table)]
    if not full:
        return []
    async with _opened(open_fresh()) as fresh:
        return [table.name for table in full if not await _are_equal(target, fresh, table)]


async def _are_equal(one: Side, other: Side, table: TableLayout) -> bool:
    if await one.count(table) != await other.count(table):
        return False
    return await _digest(one, table) == await _digest(other, table)


async def _check_target(
    target: Side, known: Promotion | None, source: str, options: PromotionOptions
) -> None:
    if known is not None and known.source != source:
        state = "an unfinished" if known.finished_at is None else "a finished"
        raise Invalid(f"{target.shown} has {state} promotion of another store, {known.shown}")
    if known is not None:
        return
    full = await _full_tables(target)
    if full:
        raise Invalid(f"{target.shown} already has other data, in {', '.join(full)}")
    _check_idle(await target.usage(), target, "target", replace(options, force=False))
