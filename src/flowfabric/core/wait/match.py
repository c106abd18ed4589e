"""Which waits of a suspension a signal counts for, and which it satisfies.

Work is proportional to the conditions, never to the number of signals before: tallies are part of
the suspension, and for which leaves a source has counted is a dedup record of the source.
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


class _Sourced(Struct, frozen=True, array_like=True):
    """For which leaves of which suspension a source has counted: a bit mask, in hex."""

    suspension: UUID
    leaves: str


def source_key(source_type: str, source: str) -> bytes:
    """The key of the dedup record of a source."""
    return dedup_key("source", source_type, source)


def match_signal(
    suspension: Suspension, signal: Signal, dedup: Mapping[bytes, DedupRecord]
) -> SignalMatch:
    """Offers a signal to every arm that binds its waitpoint; where waitpoints outlast the wait, it
    counts for the first arm only that can use it."""
    known = 0
    if dedup:
        known = _counted_leaves(
            suspension, dedup.get(source_key(signal.source_type, signal.source))
        )
    arms, effects, satisfied = list(suspension.arms), [Effect.NOT_IN_CONDITION], []
    # Leaves are numbered through all arms: the second leaf of an arm that follows one of three
    # leaves is bit 4, so the arm's own leaves are the mask shifted by `offset`, here 3.
    offset, mask = 0, known
    for number, arm in enumerate(suspension.arms):
        width = len(arm.tallies)
        if signal.waitpoint in [bound.id for bound in arm.bound]:
            sourced = (known >> offset) & ((1 << width) - 1)
            found = match_condition(read_condition(arm.condition), arm.tallies, signal, sourced)
            effects.append(found.effect)
            mask |= found.sourced << offset
            if found.effect in _COUNTS:
                bound = tuple([_counting(each, signal) for each in arm.bound])
                arms[number] = replace(arm, tallies=found.tallies, bound=bound)
            if found.satisfied:
                satisfied.append(number)
            if found.effect in _COUNTS and not arm.policy.close_waitpoint_on_resume:
                break
        offset += width
    effect = min(effects, key=_STRENGTH.index)
    new = () if mask == known else (_sourced_record(suspension, signal, mask),)
    after = replace(suspension, arms=tuple(arms))
    return SignalMatch(after, effect, tuple(satisfied), effect in _COUNTS, new)


def _sourced_record(suspension: Suspension, signal: Signal, leaves: int) -> DedupRecord:
    doc = msgspec.json.encode(_Sourced(suspension.id, f"{leaves:x}"))
    return DedupRecord(source_key(signal.source_type, signal.source), doc=doc)


def _counted_leaves(suspension: Suspension, record: DedupRecord | None) -> int:
    """The leaves that the source has counted for; none if the record is of another suspension."""
    if record is None:
        return 0
    sourced = msgspec.json.decode(record.doc, type=_Sourced)
    return int(sourced.leaves, 16) if sourced.suspension == suspension.id else 0


def _counting(bound: Pending, signal: Signal) -> Pending:
    return replace(bound, counted=signal.number) if bound.id == signal.waitpoint else bound
