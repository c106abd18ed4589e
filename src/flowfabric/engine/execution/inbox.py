"""The inbox: submissions made in the application's own transactions become executions here.

The transaction only writes them down. Validation, route, delay and limits are decided now, by the
same rules as for every other submission; what the rules refuse ends as failed with the reason.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.policy import parse_policy, write_policy
from flowfabric.core.execution.submission import Creation, Submission, create, ranked, refuse
from flowfabric.engine.commit.batch import MAX_BYTES, Batcher
from flowfabric.engine.commit.post_commit import PostCommit
from flowfabric.engine.limit.known import KnownLimits
from flowfabric.store.contract import MAX_BATCH, Store
from flowfabric.store.queries import InboxEntry
from flowfabric.store.readable import load_each

LOOKS = 64
"""Most executions that are read by one statement for callers who ask for one each. A result may
have a megabyte."""

_OPTIONS = frozenset(
    {
        "priority",
        "key",
        "tags",
        "policy",
        "delay_until",
        "deadline_at",
        "creator",
        "encoding",
        "trace",
    }
)


class Inbox:
    """`engine.inbox`"""

    def __init__(
        self, store: Store, known_limits: KnownLimits, post_commit: PostCommit, rank_step: int
    ) -> None:
        self._store = store
        self._known_limits = known_limits
        self._post_commit = post_commit
        self._rank_step = rank_step
        self._looks: Batcher[UUID, Snapshot | None] = Batcher(
            "looks", self._look, weight=lambda uuid: MAX_BYTES // LOOKS
        )

    async def admit(self, uuids: Sequence[UUID] | None = None) -> int:
        """Admits every entry, or those of the given ids; returns how many were admitted."""
        admitted = 0
        while entries := await self._store.inbox(uuids, MAX_BATCH):
            creations = [ranked(await self._creation(entry), self._rank_step) for entry in entries]
            admitted += await self._store.admit(creations, self._store.clock.now())
            self._post_commit.created(creation.snapshot for creation in creations)
            if uuids is not None or len(entries) < MAX_BATCH:
                break
        return admitted

    async def _creation(self, entry: InboxEntry) -> Creation:
        creation = _creation(entry)
        try:
            # What tasks declare for themselves may come with their first worker.
            await self._known_limits.check(creation.snapshot.execution.rules, declared=False)
        except NotFound as error:
            return _refused(entry, creation.snapshot.execution.facts.key, str(error))
        return creation

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        """Executions as they stand. One that is not there may be in the inbox, or another process
        has admitted it since the first look."""
        found = await self._store.load(uuids)
        missing = [uuid for uuid in uuids if uuid not in found]
        if missing:
            await self.admit(missing)
            found |= await self._store.load(missing)
        return found

    async def find(self, uuid: UUID) -> Snapshot | None:
        """One execution as it stands. Callers that ask at the same time share a statement, which
        begins after the last of them has asked. A store in this process needs no sharing, and the
        test kit none that waits."""
        if not self._store.is_server:
            return (await self.load([uuid])).get(uuid)
        found = await self._looks.put(uuid)
        if found is None:  # as in `load`
            await self.admit([uuid])
            found = (await self._store.load([uuid])).get(uuid)
        return found

    async def drain(self) -> None:
        """Returns when what was asked for so far is answered."""
        await self._looks.drain()

    async def _look(self, uuids: list[UUID]) -> list[Snapshot | Exception | None]:
        found = await load_each(self._store.load, list(dict.fromkeys(uuids)))
        return [found.get(uuid) for uuid in uuids]


def _creation(entry: InboxEntry) -> Creation:
    options: Mapping[str, Any] = {}
    try:
        options = _options(entry.options)
        _check_names(options)
        return create(_submission(entry, options), entry.uuid, entry.at, key_taken=True)
    except Exception as error:  # what is wrong with one entry keeps none of the others out
        return _refused(entry, options.get("key"), str(error))


def _refused(entry: InboxEntry, key: Any, reason: str) -> Creation:
    named = {} if key is None else {"key": key}
    return refuse(_submission(entry, named), entry.uuid, entry.at, reason)


def _submission(entry: InboxEntry, options: Mapping[str, Any]) -> Submission:
    return Submission(
        kind=entry.kind,
        payload=entry.payload,
        namespace=entry.namespace,
        lane=entry.lane,
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
    """The document of an inbox entry for a submission that was checked already."""
    members = {name: getattr(submission, name) for name in _OPTIONS - {"policy"}}
    given = {name: value for name, value in members.items() if value}
    if submission.policy is not None:
        given["policy"] = msgspec.Raw(write_policy(parse_policy(submission.policy)))
    return msgspec.json.encode(given)
