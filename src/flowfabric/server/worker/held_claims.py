"""The claims that this process has handed out over HTTP, so that most operations need no load.

A worker presents a handle, which proves its ownership but not how the execution stands. For a
claim that was answered here, the server still has that value: an operation decides on it and
writes under the fence, as a worker inside the process would. What is not here, or is outdated, is
loaded: forgetting a claim is never wrong, only slower.
"""

from collections import OrderedDict
from collections.abc import Iterable
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.execution.handle import HandleBody
from flowfabric.engine.execution.claims import Claim

MAX_CLAIMS = 10_000

_Key = tuple[UUID, UUID, int]


class HeldClaims:
    """By execution, lease and epoch; the oldest are forgotten first."""

    def __init__(self, limit: int = MAX_CLAIMS) -> None:
        self._limit = limit
        self._claims: OrderedDict[_Key, Claim] = OrderedDict()

    def keep(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            key = (claim.uuid, claim.lease.id, claim.epoch)
            self._claims[key] = replace(claim, payload=b"")
            self._claims.move_to_end(key)
        while len(self._claims) > self._limit:
            self._claims.popitem(last=False)

    def find(self, handle: HandleBody) -> Claim | None:
        return self._claims.get(_key(handle))

    def forget(self, handle: HandleBody) -> None:
        self._claims.pop(_key(handle), None)


def _key(handle: HandleBody) -> _Key:
    return handle.execution, handle.lease_id, handle.epoch
