"""The worker registry: who is there, and what they can run."""

from flowfabric.core import registry as rules
from flowfabric.core.check import check_limit
from flowfabric.core.registry import Marked, NotRegistered, Presence, Refreshed, Registered
from flowfabric.core.text import check_namespace, check_worker
from flowfabric.engine.base import Noun

MAX_PAGE = 1000


class Workers(Noun):
    """`engine.workers`"""

    async def register(self, presence: Presence) -> Registered | Refreshed:
        """Says that a worker is there and what it can run; saying it again replaces what was said.
        An instance that another worker id registered is refused."""
        checked = rules.check_presence(presence)
        store = self._parts.store
        old = await store.presence(checked.namespace, checked.instance)
        new, outcome = rules.register(old, checked, self._now())
        await store.put_presence(new, True)
        return outcome

    async def heartbeat(
        self, instance: str, *, namespace: str = "default", running: int = 0
    ) -> Refreshed | NotRegistered:
        """Says that a worker is still there. NotRegistered: its time ran out or it was marked
        dead; it must register again."""
        old = await self._find(instance, namespace)
        new = None if old is None else rules.beat(old, self._now(), running)
        if new is None or not await self._parts.store.put_presence(new, False):
            return NotRegistered()
        return Refreshed(new.expires_at)

    async def mark_dead(
        self, instance: str, *, namespace: str = "default", reason: str
    ) -> Marked | NotRegistered:
        """Takes a worker off the registry. Its leases are untouched: revoke them, or let them run
        out."""
        rules.check_reason(reason)
        return await self._drop(instance, namespace)

    async def deregister(
        self, instance: str, *, namespace: str = "default"
    ) -> Marked | NotRegistered:
        """What a worker does when it stops cleanly."""
        return await self._drop(instance, namespace)

    async def list(
        self, *, namespace: str = "default", after: str = "", limit: int = 100
    ) -> list[Presence]:
        """The live workers of a namespace by instance, after a cursor."""
        most = check_limit(limit, MAX_PAGE)
        if not most:
            return []
        name = check_namespace(namespace)
        found = await self._parts.store.presences(name, after, most)
        return [presence for presence in found if presence.alive(self._now())]

    async def sweep(self) -> int:
        """Forgets workers whose time ran out; returns how many."""
        return await self._parts.store.drop_lapsed_presences(self._now())

    async def _find(self, instance: str, namespace: str) -> Presence | None:
        check_worker(instance, "instance")
        return await self._parts.store.presence(check_namespace(namespace), instance)

    async def _drop(self, instance: str, namespace: str) -> Marked | NotRegistered:
        check_worker(instance, "instance")
        name = check_namespace(namespace)
        return (
            Marked() if await self._parts.store.drop_presence(name, instance) else NotRegistered()
        )
