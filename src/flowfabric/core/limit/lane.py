"""Lanes: whether their executions are claimed, how many at once, and in which proportion.

The claim checks all of it. No execution moves when a lane is paused or resumed.
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
"""Claiming one of these starts a run, or starts it again."""


class LaneState(IntEnum):
    """The numbers are stored."""

    OPEN = 0
    PAUSED = 1
    """Nothing is claimed."""
    DRAINING = 2
    """Started executions continue, including retries, resumes and reclaims; nothing new starts, not
    even a replay."""


class Lane(Document, frozen=True, kw_only=True):
    """An operator's settings of a lane. `by`, `at` and `reason` belong to the last change of its
    state. `concurrency` is how many may run at once; None for any number."""

    name: str = ""
    state: LaneState = LaneState.OPEN
    concurrency: int | None = None
    weight: int = 1
    by: str = ""
    reason: str = ""
    at: Millis | None = None
    version: int = 0


def begins(lane: Lane, start: Start) -> bool:
    """Whether the lane yields executions with this start. The stores' claim statements repeat this
    and `is_full` for many rows at once."""
    if lane.state is LaneState.DRAINING:
        return start not in BEGINS
    return lane.state is LaneState.OPEN


def is_full(lane: Lane, running: int) -> bool:
    """Whether the lane has reached its concurrency."""
    return lane.concurrency is not None and running >= lane.concurrency


def check_lane_settings(lane: Lane) -> Lane:
    check_lane(lane.name)
    check_whole(lane.weight, "the weight of a lane", 1, MAX_WEIGHT)
    if lane.concurrency is not None:
        check_whole(lane.concurrency, "the concurrency of a lane", 1)
    return lane


def set_state(lane: Lane, state: LaneState, by: str, reason: str, now: Millis) -> Lane:
    """The lane in a new state; repeating it keeps the first `by` and `at`."""
    check_text(by, "who", limit=256)
    check_text(reason, "reason", limit=MAX_REASON)
    if lane.state is state:
        return lane
    return replace(lane, state=state, by=by, reason=reason, at=now)
