"""How an open suspension hears a signal: each of its arms in turn, incrementally.

Work is proportional to the conditions, never to the number of signals heard before: tallies are
part of the suspension, and which leaves a source has counted for already is kept in a mark.
"""

from hashlib import blake2b
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.wait.condition import Sound, hear, read_condition
from flowfabric.core.wait.model import Arm, DedupRecord, Effect, Pending, Signal, Suspension

_COUNTS = frozenset({Effect.SATISFIED, Effect.APPENDED})
_STRENGTH = (
    Effect.SATISFIED,
    Effect.APPENDED,
    Effect.REPEATED,
    Effect.MATCHER_FAILED,
    Effect.NO_OP,
    Effect.NOT_IN_CONDITION,
)


class Listened(Struct, frozen=True):
    """The suspension after a signal. `satisfied` are the numbers of the arms that are true now;
    `counts` says whether the signal contributed to any."""

    suspension: Suspension
    effect: Effect
    satisfied: tuple[int, ...]
    counts: bool
    marks: tuple[DedupRecord, ...]


class Sourced(Struct, frozen=True, array_like=True):
    """For which leaves of which suspension a source has counted: a bit mask, in hex."""

    suspension: UUID
    leaves: str

    def mask(self, suspension: UUID) -> int:
        """Nothing when the mark is of an earlier suspension."""
        return int(self.leaves, 16) if self.suspension == suspension else 0


def mark_key(what: str, *parts: str | bytes) -> bytes:
    """What a mark is found by. Lengths are part of it, so that no two things share one."""
    digest = blake2b(what.encode(), digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        digest.update(len(data).to_bytes(4) + data)
    return digest.digest()


def source_key(signal: Signal) -> bytes:
    return mark_key("source", signal.source_type, signal.source)


def listen(suspension: Suspension, signal: Signal, sourced: DedupRecord | None) -> Listened:
    """Lets every arm that binds the signal's waitpoint hear it; where waitpoints outlast the wait,
    a signal counts for the first arm only that can use it."""
    known = 0 if sourced is None else _read(sourced).mask(suspension.id)
    arms, effects, satisfied = list(suspension.arms), [Effect.NOT_IN_CONDITION], []
    offset, mask = 0, known
    for number, arm in enumerate(suspension.arms):
        width = len(arm.tallies)
        if any(bound.id == signal.waitpoint for bound in arm.bound):
            heard = hear(
                read_condition(arm.condition),
                arm.tallies,
                Sound(signal.key, signal.name, signal.source_type, signal.source),
                (known >> offset) & ((1 << width) - 1),
            )
            effects.append(heard.effect)
            mask |= heard.sourced << offset
            if heard.effect in _COUNTS:
                bound = tuple(_hearing(b, signal) for b in arm.bound)
                arms[number] = replace(arm, tallies=heard.tallies, bound=bound)
            if heard.satisfied:
                satisfied.append(number)
            if heard.effect in _COUNTS and not arm.policy.close_waitpoint_on_resume:
                break
        offset += width
    effect = min(effects, key=_STRENGTH.index)
    new = () if mask == known else (_sourced(suspension.id, signal, mask),)
    after = replace(suspension, arms=tuple(arms))
    return Listened(after, effect, tuple(satisfied), effect in _COUNTS, new)


def closed_after(arm: Arm) -> bool:
    return arm.policy.close_waitpoint_on_resume


def _hearing(bound: Pending, signal: Signal) -> Pending:
    return replace(bound, heard=signal.number) if bound.id == signal.waitpoint else bound


def _sourced(suspension: UUID, signal: Signal, mask: int) -> DedupRecord:
    doc = msgspec.json.encode(Sourced(suspension, f"{mask:x}"))
    return DedupRecord(source_key(signal), doc=doc)


def _read(mark: DedupRecord) -> Sourced:
    return msgspec.json.decode(mark.doc, type=Sourced)
