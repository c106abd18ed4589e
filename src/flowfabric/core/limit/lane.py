"""Lanes: whether their work is taken, how much of it at once, and in which proportion.

All of it is asked when work is claimed. No execution moves when a lane is paused or opened.
"""

from enum import IntEnum

from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.numbers import check_whole
from flowfabric.core.base.text import MAX_REASON, check_lane, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Start

MAX_WEIGHT = 1000

BEGINS = frozenset({Start.INITIAL, Start.REPLAY})
"""Taking one of these begins a run, or begins it again."""


class LaneState(IntEnum):
    """Numbers are stored."""

    OPEN = 0
    PAUSED = 1
    """Nothing is taken."""
    DRAINING = 2
    """What has begun goes on (retries, resumes, reclaims included); nothing begins, nor begins
    again: a replay waits."""


class Lane(Document, frozen=True, kw_only=True):
    """What an operator decided about a lane. `by`, `at` and `reason` are of the last change of its
    state. `concurrency` is how many of it may run at once, None for any number."""

    name: str = ""
    state: LaneState = LaneState.OPEN
    concurrency: int | None = None
    weight: int = 1
    by: str = ""
    reason: str = ""
    at: Millis | None = None
    version: int = 0


def begins(lane: Lane, start: Start) -> bool:
    """Whether anything of the lane is taken that begins like this. The claims of the stores repeat
    this and `is_full` for many rows at once."""
    if lane.state is LaneState.DRAINING:
        return start not in BEGINS
    return lane.state is LaneState.OPEN


def is_full(lane: Lane, running: int) -> bool:
    """Whether as many of the lane run as may."""
    return lane.concurrency is not None and running >= lane.concurrency


def check_lane_settings(lane: Lane) -> Lane:
    check_lane(lane.name)
    check_whole(lane.weight, "the weight of a lane", 1, MAX_WEIGHT)
    if lane.concurrency is not None:
        check_whole(lane.concurrency, "the concurrency of a lane", 1)
    return lane


def set_state(lane: Lane, state: LaneState, by: str, reason: str, now: Millis) -> Lane:
    """The lane in a state; saying it again keeps who said it first."""
    check_text(by, "who", limit=256)
    check_text(reason, "reason", limit=MAX_REASON)
    if lane.state is state:
        return lane
    return replace(lane, state=state, by=by, reason=reason, at=now)
