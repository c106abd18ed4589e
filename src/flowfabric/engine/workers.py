"""The worker registry: which workers are there, what they can run, and what they hold."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from flowfabric.core.base.errors import (
    Corruption,
    FlowFabricError,
    Invalid,
    LeaseLost,
    NotFound,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import check_flag, check_limit, check_whole
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_namespace, check_text, check_worker
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import lease as leases
from flowfabric.core.execution import registry as rules
from flowfabric.core.execution.registry import (
    FOREVER,
    HeldLease,
    Marked,
    NotRegistered,
    Presence,
    Refreshed,
    Registered,
)
from flowfabric.core.execution.registry_event import on_leave, on_mark_dead, on_register
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.commit.records import (
    RecordChange,
    RecordEvents,
    RecordRule,
    change,
    find,
)
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.code_gate import CodeGate
from flowfabric.store.rows.record import PRESENCES

T = TypeVar("T")

PAGE = 500
LOOK_EVERY = Millis(1_000)
ABANDONED_AFTER = Millis(5_000)
"""How long the process that marked a worker dead has to revoke its leases; then the sweep does."""

log = logging.getLogger("flowfabric.registry")


class Workers(Service):
    """`engine.workers`"""

    def __init__(self, context: EngineContext, code_gate: CodeGate) -> None:
        super().__init__(context)
        self._code_gate = code_gate
        self._looked_at = Millis(0)
        self._known: dict[tuple[str, str], Presence] = {}
        """The entries of this process's workers, as it wrote them last."""

    async def register(self, presence: Presence) -> Registered | Refreshed:
        """Enters a worker and what it can run into the registry, in place of its earlier entry.
        Runs that are blocked by code are released if this worker has other code for them.
        Refuses an instance that another worker id has registered (`Invalid`), and one that is
        marked dead until its leases are revoked (`Contention`: try again later)."""
        checked = rules.check_presence(presence)
        first = self._first_version()
        changed = await self._change(
            checked.key, lambda old, now: rules.register(old, now, checked, first), on_register
        )
        if isinstance(changed.outcome, Registered):
            place = checked.namespace
            log.info("worker %s (%s) registered as %s", checked.instance, place, checked.worker)
            self._context.post_commit.claimable()
            await self._code_gate.release_to(checked)
        return changed.outcome

    async def heartbeat(
        self,
        instance: str,
        *,
        namespace: str = "default",
        running: int = 0,
        worker: str | None = None,
    ) -> Refreshed | NotRegistered:
        """Keeps a worker in the registry. NotRegistered: its time ran out, it was marked dead, or
        the instance is another worker's by now (with `worker`); it must register again."""
        _check_key(instance, namespace)
        check_whole(running, "running")
        key = (namespace, instance)
        changed = await change(
            self._context.store,
            PRESENCES,
            key,
            lambda old, now: rules.beat(old, now, running, worker),
            self._known.pop(key, None),
        )
        if changed.after is not None and changed.written:
            if len(self._known) >= MAX_PAGE:
                self._known.clear()
            self._known[key] = changed.after
        return changed.outcome

    async def deregister(
        self, instance: str, *, namespace: str = "default", worker: str | None = None
    ) -> Marked | NotRegistered:
        """What a worker does when it stops cleanly. An entry that is marked dead, or that is
        another worker's by now (with `worker`), stays."""
        _check_key(instance, namespace)
        self._known.pop((namespace, instance), None)
        changed = await self._change(
            (namespace, instance), lambda old, now: rules.leave(old, now, worker), on_leave
        )
        if changed.written:
            log.info("worker %s (%s) signed off", instance, namespace)
        return changed.outcome

    async def mark_dead(
        self, instance: str, *, namespace: str = "default", reason: str, revoke: bool = False
    ) -> Marked | NotRegistered:
        """Removes a dead worker from the registry.

        Without `revoke` its leases are untouched and run out by themselves. With it, the entry is
        marked first, then the leases it held by then are revoked, each as a change of its own, and
        then the entry goes. If this process dies meanwhile, the sweep or a second call continues.
        A worker that is alive after all finds its leases lost."""
        _check_key(instance, namespace)
        why = rules.check_reason(reason)
        revoking = check_flag(revoke, "revoke")
        changed = await self._change(
            (namespace, instance),
            lambda old, now: rules.mark_dead(old, now, why, revoke=revoking),
            lambda before, after, now: on_mark_dead(before, after, now, why),
        )
        if changed.written:
            leases = ", with its leases" if revoking else ""
            log.info("worker %s (%s) was marked dead%s: %s", instance, namespace, leases, why)
        if isinstance(changed.outcome, NotRegistered) or changed.after is None:
            return changed.outcome
        return Marked(await self._revoke(changed.after))

    async def get(self, instance: str, *, namespace: str = "default") -> Presence | None:
        """A worker's entry, also one that ran out or is marked dead, until it is swept."""
        _check_key(instance, namespace)
        return await find(self._context.store, PRESENCES, (namespace, instance))

    async def held(self, entries: Sequence[Presence]) -> list[int]:
        """How many leases each of these workers holds, which may differ from what it reports."""
        if not entries:
            return []
        names = sorted({entry.instance for entry in entries})
        holdings = await self._context.store.held_counts(names)
        return [
            sum(
                holding.leases
                for holding in holdings
                if rules.is_its(entry, holding.worker, holding.namespace)
            )
            for entry in entries
        ]

    async def leases(
        self,
        instance: str,
        *,
        worker: str | None = None,
        namespace: str | None = None,
        after: ExecutionId | None = None,
        limit: int = 100,
    ) -> list[HeldLease]:
        """The leases of a worker instance by execution, registered or not, after a cursor: the id
        of the last one. Those of one worker id or in one namespace only, if given."""
        name = check_worker(instance, "instance")
        who = None if worker is None else check_worker(worker, "worker")
        place = None if namespace is None else check_namespace(namespace)
        cursor = None if after is None else ExecutionId(after).uuid
        most = check_limit(limit, MAX_PAGE)
        if not most:
            return []
        return await self._context.store.held_leases(
            name, most, worker=who, namespace=place, after=cursor
        )

    async def list(
        self,
        *,
        namespace: str | None = "default",
        lane: str | None = None,
        kind: str | None = None,
        capabilities: Iterable[str] = (),
        alive: bool | None = True,
        after: str | tuple[str, str] | None = None,
        limit: int = MAX_PAGE,
    ) -> list[Presence]:
        """Workers by (namespace, instance) after a cursor: the `key` of the last entry, or its
        instance alone within one namespace. No namespace means all of them. Only those that may
        take from that lane, run that kind and offer all these capabilities; `alive` False asks for
        those that ran out or are marked dead, None for both. A page is short only at the end."""
        most = check_limit(limit, MAX_PAGE)
        wanted = rules.check_wanted(lane, kind, capabilities, alive)
        place = None if namespace is None else check_namespace(namespace)
        cursor = _cursor(after, place)
        found: list[Presence] = []
        while len(found) < most and (page := await self._page(place, cursor)):
            now = self._now()
            found += [entry for entry in page if wanted.has(entry, now)]
            cursor = page[-1].key  # a page is short when entries cannot be read
        return found[:most]

    async def _page(self, namespace: str | None, cursor: tuple[str, str]) -> "Sequence[Presence]":
        where = {} if namespace is None else {"namespace": namespace}
        return await self._context.store.records.page(PRESENCES, cursor, PAGE, where)

    async def sweep(self) -> int:
        """Removes workers whose time ran out; returns how many. Where there are none, that takes
        one read."""
        now, records = self._now(), self._context.store.records
        first = await records.next_due(PRESENCES)
        if first is None or first > now:
            return 0
        lapsed = await records.expire(PRESENCES, now)
        for namespace, instance in lapsed:
            log.info("worker %s (%s) fell silent and was removed", instance, namespace)
        return len(lapsed)

    async def finish(self) -> None:
        """Continues where a process that marked a worker dead did not finish revoking its leases.
        The sweep asks for this often, so it looks once a second at most."""
        now = self._now()
        if 0 <= now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        try:
            marked = {"expires_at": FOREVER}
            for entry in await self._context.store.records.page(PRESENCES, None, PAGE, marked):
                if now - (entry.marked_at or 0) >= ABANDONED_AFTER:
                    await self._revoke(entry)
        except FlowFabricError as error:  # the rest stays marked
            log.warning(
                "revoking the leases of workers marked dead failed; the next sweep continues: %s",
                error,
            )

    async def _change(
        self,
        key: tuple[str, str],
        rule: RecordRule[Presence, T],
        events: RecordEvents[Presence],
    ) -> RecordChange[Presence, T]:
        return await change(self._context.store, PRESENCES, key, rule, events=events)

    async def _revoke(self, entry: Presence) -> int:
        """Revokes what a marked worker held, then deletes its entry; returns how many leases."""
        count, after = 0, None
        place = None if entry.everywhere else entry.namespace
        while True:
            page = await self._context.store.held_leases(
                entry.instance, PAGE, worker=entry.worker, namespace=place, after=after
            )
            count += await self._take_away(entry, page)
            if len(page) < PAGE:
                break
            after = page[-1].id.uuid
        await self._context.store.records.drop(PRESENCES, entry.key, entry.version)
        return count

    async def _take_away(self, entry: Presence, page: Sequence[HeldLease]) -> int:
        aimed = [lease for lease in page if rules.falls_with(entry, lease)]
        reason = f"worker {entry.instance} was marked dead: {entry.reason}"
        answers = await self._context.decisions.decide_all(
            [
                Decision(one.id.uuid, partial(leases.revoke, reason=reason, lease_id=one.lease_id))
                for one in aimed
            ]
        )
        return sum(_is_gone(lease, answer) for lease, answer in zip(aimed, answers, strict=True))


def _is_gone(lease: HeldLease, answer: Any) -> bool:
    """Whether this revoked the lease. One that ended meanwhile needs nothing, one that cannot be
    read runs out by itself; when the store does not answer, the next sweep asks again."""
    match answer:
        case leases.Revoked():
            return True
        case leases.AlreadySatisfied() | LeaseLost() | NotFound():
            return False
        case Corruption():
            log.error(
                "the lease of run %s cannot be revoked and will expire: %s",
                lease.id.uuid,
                answer,
                extra={"run": str(lease.id.uuid)},
            )
            return False
        case _:
            raise answer


def _check_key(instance: object, namespace: object) -> None:
    check_worker(instance, "instance")
    check_namespace(namespace)


def _cursor(after: object, namespace: str | None) -> tuple[str, str]:
    match after:
        case None:
            return namespace or "", ""
        case str() if namespace is not None:
            return namespace, check_text(after, "cursor")
        case (place, instance):
            return check_text(place, "cursor"), check_text(instance, "cursor")
        case _:
            raise Invalid("a cursor of workers must be a pair of namespace and instance")
