"""What the demo promises, checked against the events and the ledger."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from flowfabric.core.execution.event import EventKind
from flowfabric.demo.tasks import STEPS
from flowfabric.worker.api.history import RunEvent

Events = Mapping[str, Sequence[RunEvent]]


class Evidence(Struct, frozen=True, kw_only=True):
    """What was observed: events by run, lines of the ledger, process ids and exit codes."""

    events: Events
    ledger: list[str]
    pids: dict[str, int]
    codes: dict[str, int]


class DemoVerdict(Struct, frozen=True):
    """What was expected and whether it came true, and the numbers of the summary."""

    expectations: dict[str, bool]
    runs: int
    killed: int
    repeated: int

    @property
    def broken(self) -> list[str]:
        return [text for text, came_true in self.expectations.items() if not came_true]


def judge(seen: Evidence) -> DemoVerdict:
    done = [line.split() for line in seen.ledger]
    counts = Counter(step for step, _ in done)
    repeated = sum(count - 1 for count in counts.values())
    workers = {str(pid): name for name, pid in seen.pids.items()}
    by = {step: workers.get(pid) for step, pid in done}
    expectations = {
        "every run completed": all(
            _times(seen.events[run], EventKind.COMPLETED) == 1 for run in seen.events
        ),
        "the rates came at the third attempt": _times(seen.events["rates"], EventKind.CLAIMED) == 3,
        "the slot was free during the sleep": _slot_was_free(seen.events),
        "ada was killed by SIGKILL": seen.codes.get("ada") == -9,
        "bob took the order over": _taken_over_by(seen.events["order"]) == "bob",
        "every step was done exactly once": counts == Counter(STEPS),
        "ada did two steps and bob the other three": [by.get(step) for step in STEPS]
        == ["ada", "ada", "bob", "bob", "bob"],
        "bob left in peace": seen.codes.get("bob") == 0,
    }
    killed = sum(code == -9 for code in seen.codes.values())
    return DemoVerdict(expectations, len(seen.events), killed, repeated)


def _times(events: Sequence[RunEvent], kind: EventKind) -> int:
    return sum(event.kind is kind for event in events)


def _taken_over_by(events: Sequence[RunEvent]) -> str | None:
    found = [
        event.worker.id for event in events if event.kind is EventKind.RECLAIMED and event.worker
    ]
    return found[0] if len(found) == 1 else None


def _slot_was_free(events: Events) -> bool:
    """Whether the only worker, with one slot, served the guest while the reminder slept."""
    asleep = _first(events["reminder"], EventKind.DELAYED)
    awake = _first(events["reminder"], EventKind.RESUMED)
    guest = _first(events["guest"], EventKind.COMPLETED)
    if asleep is None or awake is None or guest is None:
        return False
    return asleep.seq < guest.seq < awake.seq and asleep.worker == guest.worker


def _first(events: Sequence[RunEvent], kind: EventKind) -> RunEvent | None:
    return next((event for event in events if event.kind is kind), None)
