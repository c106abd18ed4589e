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

WAITPOINT, MARK, SIGNAL, EDGE, INCOMING, FEW = 1, 2, 3, 4, 5, 6
"""What is asked of the query `recalled`. The columns of its rows: what it is, id, mark, until (of
an edge its outcome), suspension, doc; what it is of an edge is EDGE, however it was asked for."""

_encode = msgspec.json.Encoder().encode
_signals = msgspec.json.Decoder(Signal)
_waitpoints = msgspec.json.Decoder(Waitpoint)


class WaitWrites(Struct):
    """The rows that changes write beside the executions: (id, waitpoint, doc), (id, number,
    waitpoint, suspension, doc), (id, number, suspension) and (id, mark, until, doc)."""

    waitpoints: list[Row] = field(default_factory=list)
    signals: list[Row] = field(default_factory=list)
    counted: list[Row] = field(default_factory=list)
    marks: list[Row] = field(default_factory=list)


def writes_waits(change: Change[object]) -> bool:
    return bool(change.waitpoints or change.signals or change.counted or change.dedup)


def leaves_proof(change: Change[object]) -> bool:
    """Whether rows beside the state row tell this change from another that leaves an equal one."""
    return bool(writes_waits(change) or change.settled)


def written_by(changes: Iterable[tuple[UUID, Change[object]]]) -> WaitWrites:
    """The rows of changes, by execution. No key is there twice: of folded changes the last wins."""
    rows = WaitWrites()
    for id, change in changes:
        rows.waitpoints += [(id, w.id, _encode(w)) for w in change.waitpoints]
        rows.signals += [signal_row(id, heard) for heard in change.signals]
        rows.counted += [(id, *counted) for counted in dict(change.counted).items()]
        rows.marks += [(id, m.key, m.until, m.doc) for m in _last(change.dedup).values()]
    return rows


def signal_row(id: UUID, heard: ReceivedSignal) -> Row:
    signal = heard.signal
    return (id, signal.number, signal.waitpoint, heard.suspension, _encode(signal))


def read_heard(doc: bytes, suspension: UUID | None) -> ReceivedSignal:
    return ReceivedSignal(_read(_signals, doc), suspension)


class Recollection:
    """What asks name: the keys to look for, each once, and what was found under them."""

    def __init__(self, asks: Sequence[Needs]) -> None:
        self._asks = asks
        self.waitpoints = _once((ask.execution, key) for ask in asks for key in ask.waitpoints)
        self.marks = _once((ask.execution, key) for ask in asks for key in ask.dedup)
        self.buffers = _buffers(asks)
        self.edges = _once((ask.execution, key) for ask in asks for key in ask.edges)
        self.incoming = _once((ask.execution,) for ask in asks if ask.incoming)
        self._waitpoints: dict[tuple[UUID, UUID], Waitpoint] = {}
        self._marks: dict[tuple[UUID, bytes], DedupRecord] = {}
        self._signals: dict[tuple[UUID, UUID], dict[int, ReceivedSignal]] = {}
        self._edges: dict[UUID, dict[UUID, EdgeState]] = {}

    @property
    def wants_nothing(self) -> bool:
        asked = (self.waitpoints, self.marks, self.buffers, self.edges, self.incoming)
        return not any(asked)

    def add(self, row: Iterable[Any], uuid: Callable[[Any], UUID]) -> None:
        """Keeps a row of the query `recalled`; the same one again changes nothing."""
        kind, key, mark, until, suspension, doc = row
        id = uuid(key)
        try:
            self._add(kind, id, mark, until, suspension and uuid(suspension), doc)
        except UNREADABLE as error:
            raise unreadable("what execution", f"{id} waits for", error) from None

    def _add(
        self, kind: int, id: UUID, mark: Any, until: Any, suspension: UUID | None, doc: Any
    ) -> None:
        if kind == WAITPOINT:
            waitpoint = _read(_waitpoints, doc)
            self._waitpoints[id, waitpoint.id] = waitpoint
        elif kind == MARK:
            self._marks[id, bytes(mark)] = DedupRecord(bytes(mark), until, bytes(doc))
        elif kind == EDGE:
            found = read_edge(doc, until)
            self._edges.setdefault(id, {})[found.edge.id] = found
        else:
            heard = read_heard(doc, suspension)
            buffer = self._signals.setdefault((id, heard.signal.waitpoint), {})
            buffer[heard.signal.number] = heard

    def memories(self) -> list[Loaded]:
        """For each ask, in order, what exists of what it names."""
        return [
            Loaded(
                _among(self._waitpoints, ask.execution, ask.waitpoints),
                _among(self._marks, ask.execution, ask.dedup),
                self._buffered(ask),
                self._joined(ask),
            )
            for ask in self._asks
        ]

    def _buffered(self, ask: Needs) -> list[ReceivedSignal]:
        found = {
            number: heard
            for waitpoint, taken in ask.buffered
            for number, heard in self._signals.get((ask.execution, waitpoint), {}).items()
            if number > taken
        }
        return [found[number] for number in sorted(found)]

    def _joined(self, ask: Needs) -> dict[UUID, EdgeState]:
        found = self._edges.get(ask.execution, {})
        named = frozenset(ask.edges)
        return {
            id: found[id]
            for id in sorted(found)
            if id in named or (ask.incoming and found[id].edge.downstream == ask.execution)
        }


def proof_of(id: UUID, change: Change[object]) -> Needs:
    """What to ask for to see whether this very change was written."""
    signals = [heard.signal for heard in change.signals]
    return Needs(
        execution=id,
        waitpoints=tuple(waitpoint.id for waitpoint in change.waitpoints),
        dedup=tuple(record.key for record in change.dedup),
        buffered=tuple((signal.waitpoint, signal.number - 1) for signal in signals),
        edges=tuple(dict(change.settled)),
    )


def proves(memory: Loaded, change: Change[object]) -> bool:
    """Whether the rows are there that this change wrote, not those of a rival with an equal one."""
    heard = [heard.signal for heard in memory.signals]
    return (
        all(new.signal in heard for new in change.signals)
        and all(waitpoint.id in memory.waitpoints for waitpoint in change.waitpoints)
        and memory.dedup == _last(change.dedup)
        and {id: found.outcome for id, found in memory.edges.items()} == dict(change.settled)
    )


def _once(keys: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(keys))


def _last(marks: Iterable[DedupRecord]) -> dict[bytes, DedupRecord]:
    return {mark.key: mark for mark in marks}


def _buffers(asks: Iterable[Needs]) -> list[tuple[UUID, UUID, int, int | None]]:
    """For each waitpoint, the signals after the earliest number that a rule asks for: the first few
    if no rule asks for more (None: all)."""
    found: dict[tuple[UUID, UUID], tuple[int, int | None]] = {}
    for ask in asks:
        for waitpoint, taken in ask.buffered:
            key, wanted = (ask.execution, waitpoint), (taken, FEW_SIGNALS if ask.few else None)
            known = found.get(key, wanted)
            found[key] = wanted if known == wanted else (min(taken, known[0]), None)
    return [(id, waitpoint, *wanted) for (id, waitpoint), wanted in found.items()]


def _among(found: dict[tuple[UUID, K], T], id: UUID, keys: Iterable[K]) -> dict[K, T]:
    return {key: found[id, key] for key in keys if (id, key) in found}


def _read(decoder: "msgspec.json.Decoder[T]", doc: bytes) -> T:
    try:
        return decoder.decode(doc)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corruption(f"a signal or waitpoint: {error}") from None
