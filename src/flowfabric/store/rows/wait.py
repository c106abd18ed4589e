"""How waits become rows and rows become waits, the same for every store.

A row holds what it is looked for by and a document with all of it. Documents of waitpoints and
signals are never written again, so nothing a newer release put into them can be lost here.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct, field

from flowfabric.core.base.errors import Corruption
from flowfabric.core.execution.change import Change
from flowfabric.core.flow.join import EdgeState
from flowfabric.core.wait.model import (
    FEW_SIGNALS,
    DedupRecord,
    Loaded,
    Needs,
    ReceivedSignal,
    Signal,
    Waitpoint,
)
from flowfabric.store.readable import UNREADABLE, unreadable
from flowfabric.store.rows.execution import Row
from flowfabric.store.rows.flow import read_edge

T = TypeVar("T")
K = TypeVar("K")

WAITPOINT, DEDUP, SIGNAL, EDGE, INCOMING, FEW = 1, 2, 3, 4, 5, 6
"""What the query `needed` looks for. The columns of its rows: which of these it is, id, key of a
dedup record, until (of an edge its outcome), suspension, doc. An edge is EDGE, also if it was
looked for as INCOMING."""

_encode = msgspec.json.Encoder().encode
_signals = msgspec.json.Decoder(Signal)
_waitpoints = msgspec.json.Decoder(Waitpoint)


class WaitWrites(Struct):
    """The rows that changes write beside the executions: (id, waitpoint, attempt, doc), (id,
    number, waitpoint, suspension, doc), (id, number, suspension) and (id, key, until, doc)."""

    waitpoints: list[Row] = field(default_factory=list)
    signals: list[Row] = field(default_factory=list)
    counted: list[Row] = field(default_factory=list)
    dedup: list[Row] = field(default_factory=list)


def writes_waits(change: Change[object]) -> bool:
    return bool(change.waitpoints or change.signals or change.counted or change.dedup)


def given_ids(change: Change[object]) -> list[UUID]:
    """The ids of new waitpoints that may be in use by another execution."""
    return [waitpoint.id for waitpoint in change.waitpoints if waitpoint.attempt is not None]


def leaves_proof(change: Change[object]) -> bool:
    """Whether rows beside the state row tell this change from another that leaves an equal one."""
    return bool(writes_waits(change) or change.settled)


def written_by(changes: Iterable[tuple[UUID, Change[object]]]) -> WaitWrites:
    """The rows of changes, by execution. No key is there twice: of folded changes the last wins."""
    rows = WaitWrites()
    for id, change in changes:
        rows.waitpoints += [(id, w.id, w.attempt, _encode(w)) for w in change.waitpoints]
        rows.signals += [signal_row(id, row) for row in change.signals]
        rows.counted += [(id, *counted) for counted in dict(change.counted).items()]
        rows.dedup += [(id, r.key, r.until, r.doc) for r in _last(change.dedup).values()]
    return rows


def signal_row(id: UUID, row: ReceivedSignal) -> Row:
    signal = row.signal
    return (id, signal.number, signal.waitpoint, row.suspension, _encode(signal))


def read_signal(doc: bytes, suspension: UUID | None) -> ReceivedSignal:
    return ReceivedSignal(_read(_signals, doc), suspension)


class NeedsLoader:
    """Loads what rules need: the keys to look for, each once, and what was found under them."""

    def __init__(self, needs: Sequence[Needs]) -> None:
        self._needs = needs
        self.waitpoints = _once((need.execution, key) for need in needs for key in need.waitpoints)
        self.dedup = _once((need.execution, key) for need in needs for key in need.dedup)
        self.buffers = _buffers(needs)
        self.edges = _once((need.execution, key) for need in needs for key in need.edges)
        self.incoming = _once((need.execution,) for need in needs if need.incoming)
        self.unique = _once(key for need in needs for key in need.unique)
        self._waitpoints: dict[tuple[UUID, UUID], Waitpoint] = {}
        self._dedup: dict[tuple[UUID, bytes], DedupRecord] = {}
        self._signals: dict[tuple[UUID, UUID], dict[int, ReceivedSignal]] = {}
        self._edges: dict[UUID, dict[UUID, EdgeState]] = {}
        self._owners: dict[UUID, UUID] = {}

    @property
    def wants_nothing(self) -> bool:
        asked = (
            self.waitpoints,
            self.dedup,
            self.buffers,
            self.edges,
            self.incoming,
            self.unique,
        )
        return not any(asked)

    def add(self, row: Iterable[Any], uuid: Callable[[Any], UUID]) -> None:
        """Keeps a row of the query `needed`; the same one again changes nothing."""
        kind, execution, key, until, suspension, doc = row
        id = uuid(execution)
        try:
            self._add(kind, id, key, until, suspension and uuid(suspension), doc)
        except UNREADABLE as error:
            raise unreadable("what execution", f"{id} waits for", error) from None

    def _add(
        self, kind: int, id: UUID, key: Any, until: Any, suspension: UUID | None, doc: Any
    ) -> None:
        if kind == WAITPOINT:
            waitpoint = _read(_waitpoints, doc)
            self._waitpoints[id, waitpoint.id] = waitpoint
        elif kind == DEDUP:
            self._dedup[id, bytes(key)] = DedupRecord(bytes(key), until, bytes(doc))
        elif kind == EDGE:
            found = read_edge(doc, until)
            self._edges.setdefault(id, {})[found.edge.id] = found
        else:
            row = read_signal(doc, suspension)
            buffer = self._signals.setdefault((id, row.signal.waitpoint), {})
            buffer[row.signal.number] = row

    def add_owner(self, waitpoint: UUID, id: UUID) -> None:
        """Keeps a row of the query `waitpoint_owners`."""
        self._owners[waitpoint] = id

    def loaded(self) -> list[Loaded]:
        """For each of the needs, in order, what exists of it."""
        return [
            Loaded(
                _among(self._waitpoints, need.execution, need.waitpoints),
                _among(self._dedup, need.execution, need.dedup),
                self._buffered(need),
                self._joined(need),
                self._taken(need),
            )
            for need in self._needs
        ]

    def _buffered(self, need: Needs) -> list[ReceivedSignal]:
        if not need.buffered:
            return []
        found = {
            number: row
            for waitpoint, taken in need.buffered
            for number, row in self._signals.get((need.execution, waitpoint), {}).items()
            if number > taken
        }
        return [found[number] for number in sorted(found)]

    def _taken(self, need: Needs) -> set[UUID]:
        found = {key: self._owners.get(key, need.execution) for key in need.unique}
        return {key for key, owner in found.items() if owner != need.execution}

    def _joined(self, need: Needs) -> dict[UUID, EdgeState]:
        if not need.edges and not need.incoming:
            return {}
        found = self._edges.get(need.execution, {})
        named = frozenset(need.edges)
        return {
            id: found[id]
            for id in sorted(found)
            if id in named or (need.incoming and found[id].edge.downstream == need.execution)
        }


def proof_of(id: UUID, change: Change[object]) -> Needs:
    """What to ask for to see whether this very change was written."""
    signals = [row.signal for row in change.signals]
    return Needs(
        execution=id,
        waitpoints=tuple(waitpoint.id for waitpoint in change.waitpoints),
        dedup=tuple(record.key for record in change.dedup),
        buffered=tuple((signal.waitpoint, signal.number - 1) for signal in signals),
        edges=tuple(dict(change.settled)),
    )


def proves(loaded: Loaded, change: Change[object]) -> bool:
    """Whether the rows are there that this change wrote, not those of a rival with an equal one."""
    signals = [row.signal for row in loaded.signals]
    return (
        all(new.signal in signals for new in change.signals)
        and all(waitpoint.id in loaded.waitpoints for waitpoint in change.waitpoints)
        and loaded.dedup == _last(change.dedup)
        and {id: found.outcome for id, found in loaded.edges.items()} == dict(change.settled)
    )


def _once(keys: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(keys))


def _last(records: Iterable[DedupRecord]) -> dict[bytes, DedupRecord]:
    return {record.key: record for record in records}


def _buffers(needs: Iterable[Needs]) -> list[tuple[UUID, UUID, int, int | None]]:
    """For each waitpoint, the signals after the earliest number that a rule asks for: the first few
    if no rule asks for more (None: all)."""
    found: dict[tuple[UUID, UUID], tuple[int, int | None]] = {}
    for need in needs:
        for waitpoint, taken in need.buffered:
            key, wanted = (need.execution, waitpoint), (taken, FEW_SIGNALS if need.few else None)
            known = found.get(key, wanted)
            found[key] = wanted if known == wanted else (min(taken, known[0]), None)
    return [(id, waitpoint, *wanted) for (id, waitpoint), wanted in found.items()]


def _among(found: dict[tuple[UUID, K], T], id: UUID, keys: Iterable[K]) -> dict[K, T]:
    if not found:
        return {}
    return {key: row for key in keys if (row := found.get((id, key))) is not None}


def _read(decoder: "msgspec.json.Decoder[T]", doc: bytes) -> T:
    try:
        return decoder.decode(doc)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corruption(f"a signal or waitpoint: {error}") from None
