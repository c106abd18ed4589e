"""The door: submissions made in the application's own transactions become executions here.

They were only written there. Validation, route, delay and limits are decided now, by the same
rules as everywhere; what the rules refuse ends as failed with the reason.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.execution.model import RANK_STEP, Snapshot
from flowfabric.core.execution.policy import parse_policy, write_policy
from flowfabric.core.execution.submission import Creation, Submission, create, ranked, refuse
from flowfabric.engine.limit.known import KnownLimits
from flowfabric.store.contract import MAX_BATCH, Store
from flowfabric.store.queries import InboxEntry

_OPTIONS = frozenset(
    {"priority", "key", "tags", "policy", "delay_until", "deadline_at", "creator", "encoding"}
)


class Inbox:
    """`engine.inbox`"""

    def __init__(self, store: Store, known_limits: KnownLimits) -> None:
        self._store = store
        self._known_limits = known_limits
        self.rank_step = RANK_STEP
        self.admitted: Callable[[Iterable[Snapshot]], None] = lambda snapshots: None
        """Told what was let in."""

    async def admit(self, uuids: Sequence[UUID] | None = None) -> int:
        """Lets everything in that waits at the door (of the given ids only, if given)."""
        admitted = 0
        while waiting := await self._store.arrivals(uuids, MAX_BATCH):
            creations = [
                ranked(await self._creation(arrival), self.rank_step) for arrival in waiting
            ]
            admitted += await self._store.admit(creations, self._store.clock.now())
            self.admitted(creation.snapshot for creation in creations)
            if uuids is not None or len(waiting) < MAX_BATCH:
                break
        return admitted

    async def _creation(self, arrival: InboxEntry) -> Creation:
        creation = _creation(arrival)
        try:
            # What tasks declare for themselves may come with their first worker.
            await self._known_limits.check(creation.snapshot.execution.rules, declared=False)
        except NotFound as error:
            return _refused(arrival, creation.snapshot.execution.facts.key, str(error))
        return creation

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        """Executions as they stand. One that is not there may be waiting at the door, or was let
        in by somebody else since the first look."""
        found = await self._store.load(uuids)
        missing = [uuid for uuid in uuids if uuid not in found]
        if missing:
            await self.admit(missing)
            found |= await self._store.load(missing)
        return found


def _creation(arrival: InboxEntry) -> Creation:
    options: Mapping[str, Any] = {}
    try:
        options = _options(arrival.options)
        _check_names(options)
        return create(_submission(arrival, options), arrival.uuid, arrival.at, key_taken=True)
    except Exception as error:  # whatever is wrong with one, the others are let in
        return _refused(arrival, options.get("key"), str(error))


def _refused(arrival: InboxEntry, key: Any, reason: str) -> Creation:
    named = {} if key is None else {"key": key}
    return refuse(_submission(arrival, named), arrival.uuid, arrival.at, reason)


def _submission(arrival: InboxEntry, options: Mapping[str, Any]) -> Submission:
    return Submission(
        kind=arrival.kind,
        payload=arrival.payload,
        namespace=arrival.namespace,
        lane=arrival.lane,
        **options,
    )


def _options(data: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Invalid(f"options cannot be read: {error}") from None


def _check_names(options: Mapping[str, Any]) -> None:
    if unknown := sorted(options.keys() - _OPTIONS):
        raise Invalid(f"unknown options: {', '.join(unknown)}")


def write_options(submission: Submission) -> bytes:
    """The document of an arrival for a submission that was checked already."""
    members = {name: getattr(submission, name) for name in _OPTIONS - {"policy"}}
    given = {name: value for name, value in members.items() if value}
    if submission.policy is not None:
        given["policy"] = msgspec.Raw(write_policy(parse_policy(submission.policy)))
    return msgspec.json.encode(given)
