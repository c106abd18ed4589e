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
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit.known_quota import KnownQuota
from flowfabric.core.limit.release import moment_after

NOT_ADMITTED: Mapping[int, Snapshot] = {}

_RANK = attrgetter("head.rank")


class Admissions(Struct, frozen=True):
    """New runs as they are when they are admitted, and runs whose lines are `full`, if the quotas
    still have these versions; both by the numbers of their ids, which are compared faster than
    ids. `taken` is the room that is taken, by quota and line."""

    versions: Mapping[str, int]
    admitted: Mapping[int, Snapshot]
    full: Collection[int]
    taken: Mapping[str, Mapping[int, int]]

    def written(self, creations: Iterable[Creation]) -> list[Creation]:
        """The creations if the versions stand."""
        admitted = self.admitted
        return [
            creation
            if (ready := admitted.get(creation.snapshot.execution.uuid.int)) is None
            else replace(creation, snapshot=ready)
            for creation in creations
        ]


def at_submission(
    snapshots: Iterable[Snapshot],
    now: Millis,
    known: Mapping[str, KnownQuota],
    closed: Collection[Route],
) -> Admissions:
    """Admits new runs as far as there is room, those of the best rank first. Runs that wait for
    something else, runs of lines that are not known, and runs of routes from which no worker can
    claim are left as they are."""
    moments = {quota: moment_after(found.turn, now) for quota, found in known.items()}
    taken: dict[str, dict[int, int]] = {}
    admitted: dict[int, Snapshot] = {}
    full: set[int] = set()
    for snapshot in sorted(filter(waits_at_limit, snapshots), key=_RANK):
        execution = snapshot.execution
        policy = execution.policy
        if policy is None or len(policy.quotas) > 1 or (closed and execution.route in closed):
            continue
        quota, queue = policy.quotas[0].quota, policy.queue
        if quota not in known:
            continue
        room = known[quota].room.get(queue)
        if room is None:
            continue
        lines = taken.setdefault(quota, {})
        before = lines.get(queue, 0)
        if before < room:
            lines[queue] = before + 1
            admitted[execution.uuid.int] = _admitted(snapshot, moments[quota])
        else:
            full.add(execution.uuid.int)
    return Admissions({quota: known[quota].version for quota in taken}, admitted, full, taken)


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
