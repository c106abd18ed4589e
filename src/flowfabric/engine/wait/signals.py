"""Signals to executions: with a token from outside, by name from the application itself."""

from collections.abc import Callable
from functools import partial
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import parse_uuid
from flowfabric.core.base.numbers import check_limit, check_whole
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.shape import check_shape
from flowfabric.core.base.text import (
    MAX_KEY,
    MAX_NAME,
    check_bytes,
    check_lane,
    check_signal_name,
    check_text,
)
from flowfabric.core.base.time import Millis, check_moment, check_span
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.wait import channel
from flowfabric.core.wait import signal as rules
from flowfabric.core.wait.credential import Credential, check_token, needs_of_tokens, revoke
from flowfabric.core.wait.model import Loaded, ReceivedSignal, Signal
from flowfabric.core.wait.signal import (
    APPROVAL,
    DEDUP_TTL,
    MAX_SIGNAL_PAYLOAD,
    Delivery,
    SignalAnswer,
)
from flowfabric.core.wait.token import Token, peek, peek_with_kid
from flowfabric.core.wait.waitpoint import AskedDecision, asked_decision
from flowfabric.engine.context import Service
from flowfabric.store.contract import Store


async def signals_of(store: Store, uuid: UUID, suspension: UUID) -> list[Signal]:
    """Every signal that counted for a suspension, in the order they came."""
    found: list[Signal] = []
    while page := await store.signals(
        uuid, suspension=suspension, after=found[-1].number if found else 0, limit=MAX_PAGE
    ):
        found += [row.signal for row in page]
        if len(page) <= MAX_PAGE // 2:  # a longer page may have left out unreadable signals
            break
    return found


class Signals(Service):
    """`engine.signals`"""

    async def deliver(
        self, id: str, delivery: Delivery, token: Token | str | None, *, hidden: bool = False
    ) -> SignalAnswer:
        """Delivers a signal for a sender that presents a valid token of the waitpoint. An unknown
        waitpoint and a wrong token get the same answer; with `hidden`, so does an unknown
        execution."""
        wanted = check_delivery(delivery)
        kid, claims = peek_with_kid(token)
        credential = Credential(await self._context.ring.for_token(kid), token)
        return await self._decide_loaded(
            id,
            lambda found: rules.needs_to_deliver(found, wanted, claims),
            rules.deliver_hidden if hidden else rules.deliver,
            wanted,
            credential,
        )

    async def approve(
        self,
        id: str,
        lane: str,
        waitpoint: UUID,
        name: str,
        *,
        suffix: str,
        delay: Millis | None = None,
        dedup_ttl: Millis = DEDUP_TTL,
        max_signals: int | None = None,
    ) -> SignalAnswer:
        """An operator's decision at a waitpoint, without a token; `suffix` makes a repeat of it
        recognisable."""
        check_lane(lane)
        delivery = check_delivery(
            Delivery(
                id=self._fresh(),
                waitpoint=parse_uuid(waitpoint, "waitpoint"),
                name=name,
                category=APPROVAL,
                source_type="operator",
                idempotency_key=f"approval:{name}:{check_text(suffix, 'suffix', limit=MAX_NAME)}",
                scope="execution",
                delay=delay,
                dedup_ttl=dedup_ttl,
                max_signals=max_signals,
            )
        )

        def rule(found: Snapshot | None, now: Millis, loaded: Loaded) -> Change[SignalAnswer]:
            found = present(found, id)
            if found.execution.route.lane != lane:
                raise Invalid(f"lane_mismatch: {found.run} is in {found.execution.route.lane}")
            return rules.deliver(found, now, loaded, delivery)

        return await self._decide_loaded(
            id, lambda found: rules.needs_to_deliver(found, delivery), rule
        )

    async def send(self, id: str, name: str, delivery: Delivery) -> SignalAnswer:
        """Delivers a signal to what waits for `name` in the execution, now or later. The caller is
        the application itself: no token."""
        wanted, name = check_delivery(delivery), check_channel(name)
        kid = (await self._context.ring.to_sign()).current
        return await self._decide_loaded(
            id,
            lambda found: channel.needs_to_send(found, name, wanted),
            channel.send,
            name,
            wanted,
            kid,
        )

    async def decide(self, id: str, name: str, delivery: Delivery) -> SignalAnswer:
        """An approver's decision on the approval `name`, vouched for by the application."""
        wanted = replace(check_delivery(delivery), category=APPROVAL)
        name = check_channel(name)
        return await self._decide_loaded(
            id,
            lambda found: channel.needs_to_send(found, name, wanted),
            channel.decide,
            name,
            wanted,
        )

    async def decide_at(self, id: str, delivery: Delivery) -> SignalAnswer:
        """The same at the waitpoint that the delivery names, though others may have its name."""
        wanted = replace(check_delivery(delivery), category=APPROVAL)
        return await self._decide_loaded(
            id, lambda found: rules.needs_to_deliver(found, wanted), channel.decide_at, wanted
        )

    async def look(self, id: str, waitpoint: UUID, token: Token | str | None) -> AskedDecision:
        """What the holder of a token is asked to decide. It uses the token up in no way. An unknown
        run or waitpoint and a wrong token get the same answer; without a token, or with one of a
        key that has expired, all do."""
        target = parse_uuid(waitpoint, "waitpoint")
        kid, claims = peek_with_kid(token)
        credential = Credential(await self._context.ring.for_token(kid), token)
        snapshot = await self._load(id)
        needs = needs_of_tokens(snapshot, target, claims)
        loaded = Loaded({}, {}, [])
        if needs is not None:
            (loaded,) = await self._context.store.load_needs([needs])
        now = self._now()
        row, verified = check_token(loaded, now, target, credential)
        return asked_decision(present(snapshot), now, row, verified)

    async def revoke(self, id: str, waitpoint: UUID, token: Token | str | None = None) -> None:
        """Revokes a bound token; without one, every token of the waitpoint issued so far."""
        target = parse_uuid(waitpoint, "waitpoint")
        claims = peek(token)
        if token is not None and claims is None:
            raise Invalid("only a bound token can be revoked on its own: revoke all of them")
        token_id = "" if claims is None else claims.id
        await self._decide_loaded(
            id,
            lambda found: needs_of_tokens(found, target),
            revoke,
            target,
            token_id,
        )

    async def of(self, id: str, *, after: int = 0, limit: int = 100) -> list[ReceivedSignal]:
        """The accepted signals of an execution, in order, with the suspension each counted for."""
        wanted = check_limit(limit, MAX_PAGE)
        snapshot = await self._present(id)
        number = check_whole(after, "cursor")
        uuid = snapshot.execution.uuid
        return await self._context.store.signals(uuid, after=number, limit=wanted) if wanted else []

    def delivery(self, waitpoint: UUID | None = None) -> Callable[..., Delivery]:
        """A delivery with an id of its own, minted before the first try."""
        return partial(Delivery, id=self._fresh(), waitpoint=waitpoint or UUID(int=0))


def check_channel(name: object) -> str:
    """`name` if something can wait for it."""
    text = check_signal_name(name, "name")
    if not text:
        raise Invalid("a signal needs the name it is sent to")
    return text


def check_delivery(delivery: object) -> Delivery:
    """`delivery` if it can be stored; the payload has 256 KiB at most."""
    checked = check_shape(delivery, Delivery, "delivery", spans=("delay", "dedup_ttl"))
    if not check_signal_name(checked.name):
        raise Invalid("a signal needs a name")
    texts = {
        "category": checked.category,
        "source type": checked.source_type,
        "source": checked.source,
        "scope": checked.scope,
        "encoding": checked.encoding or "",
        "correlation": checked.correlation or "",
        "digest": checked.about or "",
    }
    for what in filter(texts.get, texts):
        check_text(texts[what], what, limit=MAX_KEY)
    if checked.idempotency_key is not None:
        check_text(checked.idempotency_key, "idempotency key", limit=MAX_KEY)
    if checked.payload is not None:
        check_bytes(checked.payload, "signal payload", MAX_SIGNAL_PAYLOAD)
    if checked.created_at is not None:
        check_moment(checked.created_at, "created_at")
    check_span(checked.dedup_ttl, "dedup_ttl")
    if checked.delay is not None:
        check_span(checked.delay, "delay")
    if checked.max_signals is not None:
        check_whole(checked.max_signals, "max_signals")
    return checked
