"""Webhooks: declared, paused, deleted, and their events turned into deliveries.

A delivery is submitted under a key made of the webhook and the event, before the cursor moves on.
So a process that dies between the two submits the same deliveries again, and each runs once.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from flowfabric.core.base.errors import FlowFabricError, Invalid, NotFound
from flowfabric.core.base.numbers import check_whole
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import webhook as rules
from flowfabric.core.execution.event_filter import (
    EVERY_EVENT,
    MAX_CURSOR,
    EventBatch,
    EventFilter,
    check_wanted_events,
)
from flowfabric.core.execution.submission import Duplicate, Submission, Submitted
from flowfabric.core.execution.subscription import check_name, is_worth_saving
from flowfabric.core.execution.webhook import DeliveryCall, Webhook
from flowfabric.engine.commit.records import change, find, listed
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.events import Events
from flowfabric.engine.execution.executions import Executions
from flowfabric.store.hints import Topic
from flowfabric.store.rows.record import WEBHOOKS

PAGE = 200
PAGES = 50
"""Most pages of one webhook in a row: the others wait meanwhile."""
POLL_FLOOR = 1.0
REST = 30.0
LOOK_EVERY = 1.0
"""Without webhooks, so long passes at least between two looks for one, and only after a hint."""
PAUSE = 0.05

log = logging.getLogger("flowfabric.webhooks")


class Webhooks(Service):
    """`engine.webhooks`"""

    def __init__(self, context: EngineContext, events: Events, executions: Executions) -> None:
        super().__init__(context)
        self._events = events
        self._executions = executions
        self._stuck: set[str] = set()
        self._passed: dict[str, tuple[Millis, int, int]] = {}
        """How far each webhook was read beyond its cursor, past events of no interest: its
        `created_at`, its cursor, and the number."""

    async def put(
        self,
        name: str,
        url: str,
        wanted: EventFilter = EVERY_EVENT,
        *,
        secret: str | None = None,
        after: int | None = None,
    ) -> Webhook:
        """A webhook that gets every event from now on, or after a cursor. One that exists gets
        another URL, filter or secret and continues where it was; without a `secret` it keeps its
        own, and a new one gets a random one."""
        asked, address = check_name(name, "webhook"), rules.check_url(url)
        checked = check_wanted_events(wanted)
        given = None if secret is None else rules.check_secret(secret)
        cursor = (
            await self._events.tail()
            if after is None
            else check_whole(after, "cursor", 0, MAX_CURSOR)
        )
        made = secrets.token_urlsafe(32)

        def rule(old: Webhook | None, now: Millis) -> Webhook:
            new = Webhook(
                name=asked,
                url=address,
                secret=given or (made if old is None else old.secret),
                namespace=checked.namespace,
                families=checked.families,
                tag=checked.tag,
                cursor=cursor,
            )
            return rules.begin(old, now, new)

        webhook = await self._change(asked, rule)
        self._context.store.hints.send(Topic.WORK)  # the process with the duty looks for webhooks
        return webhook

    async def get(self, name: str) -> Webhook:
        asked = check_name(name, "webhook")
        return rules.known(await self.find(asked), asked)

    async def find(self, name: str) -> Webhook | None:
        return await find(self._context.store, WEBHOOKS, check_name(name, "webhook"))

    async def list(
        self, *, namespace: str | None = None, after: str = "", limit: int = 100
    ) -> "list[Webhook]":
        """Webhooks by name, after a cursor; only those of one namespace, if given."""
        return await listed(self._context.store, WEBHOOKS, after, limit, namespace)

    async def pause(self, name: str, *, reason: str = "") -> Webhook:
        """Nothing is delivered until it is resumed; events are kept for it as long as retention
        keeps them."""
        return await self._change(name, lambda old, now: rules.pause(old, name, reason))

    async def resume(self, name: str) -> Webhook:
        webhook = await self._change(name, lambda old, now: rules.resume(old, name))
        self._context.store.hints.send(Topic.WORK)
        return webhook

    async def delete(self, name: str) -> None:
        """Deliveries that are under way end without being sent."""
        if not await self._context.store.records.drop(WEBHOOKS, check_name(name, "webhook")):
            raise NotFound("webhook", name)

    async def test(self, name: str) -> Submitted | Duplicate:
        """Submits the delivery of an event that never happened."""
        webhook = await self.get(name)
        key = self._context.secret
        trial = rules.trial_delivery(webhook, self._now(), self._fresh().hex, key)
        return await self._executions.submit(trial)

    def is_genuine(self, call: DeliveryCall) -> bool:
        """Whether an engine of this store has made the delivery."""
        return rules.is_sealed(call, self._context.secret)

    async def dispatch(self) -> bool:
        """Submits the deliveries of all events so far; whether there is any webhook. The sweep
        calls this. A webhook that fails delays no other."""
        after, tail = "", -1
        while page := await self._context.store.records.page(WEBHOOKS, after, PAGE):
            if tail < 0:  # one question for all those that have read everything
                tail = await self._events.tail()
            for webhook in page:
                if not webhook.paused and self._passed_by(webhook) < tail:
                    await self._dispatch_safely(webhook)
            after = page[-1].name
        return tail >= 0

    async def run(self, has_duty: Callable[[], bool]) -> None:
        """Dispatches as events come, while this process has the duty. Where there are no webhooks,
        it looks for one only after a hint."""
        hints, healthy = self._context.store.hints, True
        while True:
            if not has_duty():
                await asyncio.sleep(LOOK_EVERY)
                continue
            seen = hints.count
            found = False
            try:
                found = await self.dispatch()
                healthy = True
            except FlowFabricError as error:
                if healthy:  # said once in an outage
                    log.warning("looking for webhooks failed; retrying: %s", error)
                healthy = False
            except Exception:
                log.exception("looking for webhooks failed; retrying")
            await asyncio.sleep(PAUSE if found else LOOK_EVERY)
            await hints.wait(POLL_FLOOR if found else REST, seen)

    async def _dispatch_safely(self, webhook: Webhook) -> None:
        try:
            await self._dispatch(webhook)
            self._stuck.discard(webhook.name)
        except FlowFabricError as error:
            if webhook.name not in self._stuck:
                self._stuck.add(webhook.name)
                log.warning(
                    "webhook %s: its events wait and are tried again: %s", webhook.name, error
                )

    async def _dispatch(self, webhook: Webhook) -> None:
        saved, cursor = webhook.cursor, self._passed_by(webhook)
        for _ in range(PAGES):
            batch = await self._events.batch(webhook.filter, cursor, PAGE)
            if batch.cursor == cursor:
                break
            cursor = batch.cursor
            if await self._submit(webhook, batch):
                await self._advance(webhook, cursor)
                saved = cursor
        if is_worth_saving(cursor - saved, webhook.saved_at, self._now()):
            await self._advance(webhook, cursor)
            saved = cursor
        self._passed[webhook.name] = (webhook.created_at, saved, cursor)

    def _passed_by(self, webhook: Webhook) -> int:
        made_at, cursor, passed = self._passed.get(webhook.name, (Millis(0), 0, 0))
        known = made_at == webhook.created_at and cursor == webhook.cursor
        return passed if known else webhook.cursor

    async def _submit(self, webhook: Webhook, batch: EventBatch) -> int:
        """How many deliveries that were."""
        key = self._context.secret
        deliveries = [] if batch.gap is None else [rules.gap_delivery(webhook, batch.gap, key)]
        wanted = (event for event in batch.events if rules.is_delivered(event))
        deliveries += [rules.delivery_of(webhook, event, key) for event in wanted]
        if deliveries:
            await self._submit_all(webhook, deliveries)
        return len(deliveries)

    async def _submit_all(self, webhook: Webhook, deliveries: Sequence[Submission]) -> None:
        try:
            await self._executions.submit_many(deliveries)
        except Invalid:  # one that can never be submitted must not keep the others
            for each in deliveries:
                try:
                    await self._executions.submit(each)
                except Invalid as error:
                    log.warning(
                        "webhook %s: %s cannot be delivered: %s", webhook.name, each.key, error
                    )

    async def _advance(self, webhook: Webhook, cursor: int) -> None:
        await change(
            self._context.store,
            WEBHOOKS,
            webhook.name,
            lambda old, now: (rules.advance(old, now, webhook, cursor), None),
        )

    async def _change(
        self, name: str, rule: Callable[[Webhook | None, Millis], Webhook]
    ) -> Webhook:
        asked = check_name(name, "webhook")
        changed = await change(
            self._context.store, WEBHOOKS, asked, lambda old, now: (rule(old, now), None)
        )
        return rules.known(changed.after, asked)
