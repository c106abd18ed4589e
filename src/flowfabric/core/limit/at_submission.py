"""Admission at submission: a run that finds its line empty and a slot free is admitted in the
commit that creates it.

A process knows the room of lines of a quota that limits the concurrency of each key and nothing
else (`known_quota`). While the version of the quota stands, no other process has taken that room,
and none has found room in a line that this process knows to be full.
"""

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate, Ready, Route, Snapshot, Waiting
from flowfabric.core.limit.known_quota import KnownQuota
from flowfabric.core.limit.release import moment_after

NOT_ADMITTED: Mapping[int, Snapshot] = {}

_RANK = attrgetter("head.rank")


class Admissions(Struct, frozen=True):
    """New runs as they are when they are admitted, and runs whose lines are `full`, if the quotas
    still have these versions; both by the numbers of their ids, which are compared faster than
    ids. `taken` is the room that is taken, and `waiting` how many wait, by quota and line."""

    versions: Mapping[str, int]
    admitted: Mapping[int, Snapshot]
    full: Collection[int]
    taken: Mapping[str, Mapping[int, int]]
    waiting: Mapping[str, Mapping[int, int]]

    def written(self, snapshots: Iterable[Snapshot]) -> list[Snapshot]:
        """The new runs if the versions stand."""
        admitted = self.admitted
        return [admitted.get(each.execution.uuid.int, each) for each in snapshots]


def at_submission(
    snapshots: Iterable[Snapshot],
    now: Millis,
    known: Mapping[str, KnownQuota],
    closed: Collection[Route],
) -> Admissions:
    """Admits new runs as far as there is room, those of the best rank first. Runs that wait for
    something else, runs of lines that are not known, and runs of routes from which no worker can
    claim are left as they are."""
    parts: dict[str, _Part] = {}
    admitted: dict[int, Snapshot] = {}
    full: set[int] = set()
    for snapshot in sorted(filter(waits_at_limit, snapshots), key=_RANK):
        execution = snapshot.execution
        policy = execution.policy
        if policy is None or len(policy.quotas) > 1 or (closed and execution.route in closed):
            continue
        quota, queue = policy.quotas[0].quota, policy.queue
        if (part := parts.get(quota)) is None:
            if quota not in known:
                continue
            part = parts[quota] = _Part(known[quota], now)
        free = part.room.get(queue)
        if free is None:
            continue
        taken = part.taken.get(queue, 0)
        if taken < free:
            part.taken[queue] = taken + 1
            admitted[execution.uuid.int] = _admitted(snapshot, part.moment)
        else:
            part.waiting[queue] = part.waiting.get(queue, 0) + 1
            full.add(execution.uuid.int)
    used = {quota: part for quota, part in parts.items() if part.taken or part.waiting}
    return Admissions(
        versions={quota: part.version for quota, part in used.items()},
        admitted=admitted,
        full=full,
        taken={quota: part.taken for quota, part in used.items()},
        waiting={quota: part.waiting for quota, part in used.items()},
    )


class _Part:
    """What new runs have used of one quota."""

    __slots__ = ("moment", "room", "taken", "version", "waiting")

    def __init__(self, known: KnownQuota, now: Millis) -> None:
        self.version = known.version
        self.room = known.room
        self.moment = moment_after(known.turn, now)
        self.taken: dict[int, int] = {}
        self.waiting: dict[int, int] = {}


def waits_at_limit(snapshot: Snapshot) -> bool:
    state = snapshot.state
    return isinstance(state, Waiting) and state.gate is Gate.LIMIT


def _admitted(snapshot: Snapshot, at: Millis) -> Snapshot:
    """A new run that was admitted at this moment, as if it had not waited at the limits gate."""
    match snapshot.state:
        case Waiting(next=next):
            rank = snapshot.head.rank - snapshot.execution.created_at + at
            return Snapshot(snapshot.execution, replace(snapshot.head, rank=rank), Ready(next))
        case _:
            raise AssertionError("only a run that waits can be admitted")
