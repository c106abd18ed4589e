"""What must hold about suspensions, waitpoints and signals, on what the store holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from flowfabric.core.execution.model import Snapshot, Suspended
from flowfabric.core.execution.step import Recorded
from flowfabric.core.wait.model import NO_WAITS, ReceivedSignal
from flowfabric.store.contract import Store
from flowfabric.store.queries import SuspendedIn
from tests.machine.model import Life
from tests.machine.waits import ACTIVE, PENDING, Said, is_true

ENDS_A_WAIT = (
    "signal:resume_condition_satisfied",
    "woken:operator",
    "woken:waitpoint_closed",
    "woken:timeout",
)
MANY = 1000


@dataclass
class Watched:
    """One execution's waitpoints as they were seen last; `shut` were open once and are not."""

    open: set[UUID] = field(default_factory=set)
    shut: set[UUID] = field(default_factory=set)
    signals: int = 0


@dataclass
class WaitChecks:
    store: Store
    watched: dict[UUID, Watched] = field(default_factory=dict)

    async def one(self, life: Life, snapshot: Snapshot, told: Sequence[str]) -> None:
        waits = snapshot.life.waits or NO_WAITS
        signals = await self.store.signals(life.uuid, limit=MANY) if life.said else []
        _suspended_means_open(life, snapshot)
        _doors_are_as_modelled(life, snapshot)
        assert waits.signals == len(life.said), f"the number of signals of {life.id}"
        assert [_said(one) for one in signals] == [_told(one) for one in life.said], "the signals"
        _recorded_once(life, signals)
        _not_stuck(life, signals)
        _ends_once(told)
        self._closed_is_final(life, snapshot, signals)

    def gone(self, uuid: UUID) -> None:
        self.watched.pop(uuid, None)

    def _closed_is_final(
        self, life: Life, snapshot: Snapshot, signals: Sequence[ReceivedSignal]
    ) -> None:
        """What was shut at the last look has heard nothing since and is still shut; only a door
        that belongs to the execution may open again, and none that an operator shut."""
        waits = snapshot.life.waits or NO_WAITS
        last = self.watched.setdefault(life.uuid, Watched())
        opened = {pending.id: pending for pending in (*waits.active, *waits.pending)}
        for door in last.shut & opened.keys():
            final = opened[door].attempt is not None or life.doors[door].shut
            assert not final, "a closed waitpoint is open again"
        for heard in signals[last.signals :]:
            again = heard.signal.waitpoint in opened.keys() - last.open
            assert heard.signal.waitpoint not in last.shut or again, "a closed waitpoint heard"
        shut = (last.shut | last.open) - opened.keys()
        self.watched[life.uuid] = Watched(set(opened), shut, len(signals))

    async def suspended(self, lives: Iterable[Life]) -> None:
        """The list of those that wait is the list of those with an open suspension."""
        found = await self.store.snapshots(SuspendedIn(None, None, MANY))
        wanted = {life.uuid for life in lives if life.sleep is not None}
        assert {snapshot.execution.uuid for snapshot in found} == wanted, "the suspended ones"
        assert len(found) == len(wanted), "one is suspended twice"


def alarms_are_set(found: dict[UUID, Snapshot], alarms: dict[UUID, int]) -> None:
    """The table of deadlines has the alarm of each execution, and nothing else."""
    wanted = {uuid: snapshot.alarm_at for uuid, snapshot in found.items()}
    assert alarms == {uuid: at for uuid, at in wanted.items() if at is not None}, "the alarms"


def step_doc(doc: bytes) -> object:
    """A recorded step as the model has it: how a wait ended and which, or the document itself."""
    if not doc.startswith(b"{"):
        return doc
    recorded = msgspec.json.decode(doc, type=Recorded)
    return (recorded.waited, str(recorded.suspension))


def _suspended_means_open(life: Life, snapshot: Snapshot) -> None:
    open = (snapshot.life.waits or NO_WAITS).suspension
    if not isinstance(snapshot.state, Suspended):
        assert open is None, f"{life.id} has a suspension without being suspended"
        return
    assert open is not None, f"{life.id} is suspended without a suspension"
    assert life.sleep is not None
    assert snapshot.state.suspension == open.id == life.sleep.request.id
    assert len(open.arms) == 1
    assert snapshot.state.due_at == open.arms[0].timeout_at == life.sleep.timeout_at


def _doors_are_as_modelled(life: Life, snapshot: Snapshot) -> None:
    waits = snapshot.life.waits or NO_WAITS
    active = sorted((door.id, door.key) for door in waits.active)
    pending = sorted((door.id, door.key, door.expires_at, door.attempt) for door in waits.pending)
    doors = life.doors.values()
    wanted = sorted((door.id, door.key) for door in doors if door.state == ACTIVE)
    assert active == wanted, f"the waitpoints {life.id} waits at"
    assert pending == sorted(
        (door.id, door.key, door.expires_at, door.attempt)
        for door in doors
        if door.state == PENDING
    ), f"the pending waitpoints of {life.id}"


def _recorded_once(life: Life, signals: Sequence[ReceivedSignal]) -> None:
    """By its id, and by its key as long as the key is remembered."""
    ids = [heard.signal.id for heard in signals]
    assert len(set(ids)) == len(ids), "a signal was recorded twice"
    remembered: dict[tuple[UUID, str], int] = {}
    for heard, said in zip(signals, life.said, strict=True):
        if key := heard.signal.idempotency_key:
            place = (heard.signal.waitpoint, key)
            assert heard.signal.accepted_at >= remembered.get(place, 0), "a key was used twice"
            remembered[place] = said.repeat_until


def _not_stuck(life: Life, signals: Sequence[ReceivedSignal]) -> None:
    """Whoever is still suspended has not heard what it waits for."""
    if life.sleep is None:
        return
    known = {said.number: said for said in life.said}
    heard = life.sleep.hears([known[heard.signal.number] for heard in signals])
    assert not is_true(life.sleep.request.condition, heard), f"{life.id} should have been woken"


def _ends_once(told: Sequence[str]) -> None:
    """Between two suspensions there is exactly one end of the first, and no end without one."""
    open = False
    for word in told:
        if word == "suspended":
            assert not open, "suspended twice"
            open = True
        elif word in ENDS_A_WAIT:
            assert open, "a suspension ended that was over"
            open = False
        elif word.startswith("end:"):
            open = False
        elif word == "acquired":
            assert not open, "claimed while it was suspended"


def _said(heard: ReceivedSignal) -> tuple[object, ...]:
    signal = heard.signal
    return (signal.number, signal.name, signal.source, signal.key, signal.effect)


def _told(said: Said) -> tuple[object, ...]:
    return (said.number, said.name, said.source[1], said.key, said.effect)
