"""What a store must do for the registry of workers. The obligations of `store.contract` hold."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Worker
from flowfabric.core.execution.registry import HeldLease, Presence


class Holding(NamedTuple):
    """How many leases a worker holds in a namespace."""

    worker: Worker
    namespace: str
    leases: int


class PresenceStore(Protocol):
    """The registry of workers, one entry per namespace and instance, and what they hold."""

    async def presence(self, namespace: str, instance: str) -> Presence | None:
        """A worker's entry in the registry."""

    async def presences(
        self, namespace: str | None, after: tuple[str, str], limit: int
    ) -> list[Presence]:
        """Entries by (namespace, instance), also those that ran out or are marked dead."""

    async def marked_presences(self, limit: int) -> list[Presence]:
        """Entries of workers that are marked dead."""

    async def put_presence(self, presence: Presence, old: Presence | None) -> bool:
        """Writes an entry if what is stored has the stamp of `old` (None: there is nothing)."""

    async def drop_presence(self, old: Presence) -> bool:
        """Deletes an entry if what is stored has the stamp of `old`."""

    async def drop_lapsed_presences(self, now: Millis) -> list[tuple[str, str]]:
        """Deletes entries that ran out, never marked ones; returns (namespace, instance)."""

    async def held_leases(
        self,
        instance: str,
        worker: str | None,
        namespace: str | None,
        after: UUID | None,
        limit: int,
    ) -> list[HeldLease]:
        """The leases of a worker instance by execution, also of executions that cannot be read."""

    async def held_counts(self, instances: Sequence[str]) -> list[Holding]:
        """How many leases these instances hold, those that hold none left out."""
