"""Which waits of a suspension a signal counts for, and which it satisfies.

Work is proportional to the conditions, never to the number of signals before: tallies are part of
the suspension, and for which leaves a source or a signal id has counted is a dedup record.
"""

from collections.abc import Mapping
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.wait.condition.codec import read_condition
from flowfabric.core.wait.condition.match import match_condition
from flowfabric.core.wait.model import DedupRecord, Effect, Pending, Signal, Suspension, dedup_key

_COUNTS = frozenset({Effect.SATISFIED, Effect.APPENDED})
_STRENGTH = (
    Effect.SATISFIED,
    Effect.APPENDED,
    Effect.REPEATED,
    Effect.MATCHER_FAILED,
    Effect.NO_OP,
    Effect.NOT_IN_CONDITION,
)


class SignalMatch(Struct, frozen=True):
    """The suspension after a signal. `satisfied` are the numbers of the arms that are true now;
    `counts` says whether the signal counted for any."""

    suspension: Suspension
    effect: Effect
    satisfied: tuple[int, ...]
    counts: bool
    dedup: tuple[DedupRecord, ...]


class _CountedLeaves(Struct, frozen=True, array_like=True):
    """For which leaves of which suspension a source or a signal id has counted: a bit mask, in
    hex."""

    suspension: UUID
    leaves: str


def source_key(source_type: str, source: str) -> bytes:
    """The key of the dedup record of a source."""
    return dedup_key("source", source_type, source)


def id_key(signal: UUID) -> bytes:
    """The key of the dedup record of a signal id that may come to several waitpoints."""
    return dedup_key("counted", signal.bytes)


def match_signal(
    suspension: Suspension, signal: Signal, dedup: Mapping[bytes, DedupRecord]
) -> SignalMatch:
    """Offers a signal to every arm that binds its waitpoint; where waitpoints outlast the wait, it
    counts only for the first arm that can use it."""
    source, id = source_key(signal.source_type, signal.source), id_key(signal.id)
    sources = ids = 0
    if dedup:
        sources = _counted_leaves(suspension, dedup.get(source))
        ids = _counted_leaves(suspension, dedup.get(id))
    arms, effects, satisfied = list(suspension.arms), [Effect.NOT_IN_CONDITION], []
    # Leaves are numbered through all arms: the second leaf of an arm that follows one of three
    # leaves is bit 4, so the arm's own leaves are the mask shifted by `offset`, here 3.
    offset, sourced, identified = 0, sources, ids
    for number, arm in enumerate(suspension.arms):
        width = len(arm.tallies)
        if signal.waitpoint in [bound.id for bound in arm.bound]:
            own = (1 << width) - 1
            known = (sources >> offset) & own, (ids >> offset) & own
            found = match_condition(read_condition(arm.condition), arm.tallies, signal, *known)
            effects.append(found.effect)
            sourced |= found.sourced << offset
            identified |= found.identified << offset
            if found.effect in _COUNTS:
                bound = tuple([_counting(each, signal) for each in arm.bound])
                arms[number] = replace(arm, tallies=found.tallies, bound=bound)
            if found.satisfied:
                satisfied.append(number)
            if found.effect in _COUNTS and not arm.policy.close_waitpoint_on_resume:
                break
        offset += width
    effect = min(effects, key=_STRENGTH.index)
    counted = ((source, sources, sourced), (id, ids, identified))
    new = tuple([_record(suspension, key, mask) for key, old, mask in counted if mask != old])
    after = replace(suspension, arms=tuple(arms))
    return SignalMatch(after, effect, tuple(satisfied), effect in _COUNTS, new)


def _record(suspension: Suspension, key: bytes, leaves: int) -> DedupRecord:
    return DedupRecord(key, doc=msgspec.json.encode(_CountedLeaves(suspension.id, f"{leaves:x}")))


def _counted_leaves(suspension: Suspension, record: DedupRecord | None) -> int:
    """The leaves of a record; none if it is of another suspension."""
    if record is None:
        return 0
    counted = msgspec.json.decode(record.doc, type=_CountedLeaves)
    return int(counted.leaves, 16) if counted.suspension == suspension.id else 0


def _counting(bound: Pending, signal: Signal) -> Pending:
    return replace(bound, counted=signal.number) if bound.id == signal.waitpoint else bound
