"""What the application does for runs that wait: send signals, decide approvals, list waitpoints."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound, NotSignalable
from flowfabric.core.base.ids import ANYWHERE, ExecutionId, RunId, parse_run_id, parse_uuid
from flowfabric.core.base.numbers import check_limit, check_names
from flowfabric.core.base.redact import without_secrets
from flowfabric.core.base.text import check_signal_name
from flowfabric.core.base.time import Millis, optional_datetime, parse_span, to_datetime
from flowfabric.core.execution.status import ENDED
from flowfabric.core.wait.model import Effect, Terms
from flowfabric.core.wait.signal import (
    APPROVAL,
    Accepted,
    Delivery,
    DuplicateSignal,
    SignalAnswer,
)
from flowfabric.core.wait.token import Token
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.engine.engine import Engine
from flowfabric.engine.wait.suspensions import every_waitpoint
from flowfabric.worker.api.approval import APPROVED, REJECTED, about_digest
from flowfabric.worker.api.blocking import Block, blocking
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.ids import find_id
from flowfabric.worker.api.options import Span
from flowfabric.worker.api.run import Run
from flowfabric.worker.codec import encode

APPROVER = "approver"
MAX_LISTED = 1000
PAGE = 100

Target = Run[Any] | str | UUID
"""A run, its id, or the id of a callback or approval (`run/waitpoint`)."""


_WHERE_IT_BELONGS = (
    "a token belongs to one callback or approval, not to a run: give the id that goes with it "
    "(`callback.id`, `approval.id`, or run/waitpoint as `fabric.waitpoints` lists it) as the target"
)


class Sent(Struct, frozen=True):
    """What became of a signal. `resumed` says that the run goes on because of it, `duplicate`
    that it was delivered before."""

    signal: UUID
    effect: str
    resumed: bool = False
    duplicate: bool = False


class WaitpointInfo(Struct, frozen=True, kw_only=True):
    """A waitpoint of a run that accepts signals, without its token. `key` is its name; `about` the
    value to be approved, and `terms` say who may decide."""

    id: UUID
    execution: RunId
    key: str
    state: str
    required_signal_names: tuple[str, ...]
    created_at: datetime
    activated_at: datetime | None
    expires_at: datetime | None
    token_kid: str
    token_fingerprint: str
    terms: Terms | None
    about: Any

    @property
    def run(self) -> RunId:
        """The id of the run."""
        return self.execution


class SignalsApi:
    """Signals and approvals of a Fabric."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def signal(
        self,
        target: Target,
        name: str | None = None,
        payload: object = None,
        *,
        token: Token | str | None = None,
        key: str | None = None,
        source: str = "",
        delay: Span | None = None,
    ) -> Sent:
        """Sends a signal. To a run by name (the caller is the application itself), or, with the
        token that was handed out, to the id of a callback or approval. A `key` makes a repeat
        harmless; `delay` lets the run go on only after a while."""
        engine = await self._client.engine()
        id, waitpoint = _address(target)
        delivery = engine.signals.delivery(waitpoint)(
            name=name or "signal",
            payload=encode(payload),
            source=source,
            source_type="application" if token is None else "external",
            idempotency_key=key,
            delay=None if delay is None else parse_span(delay, "delay"),
        )
        if waitpoint is not None:
            return await _answer(id, engine.signals.deliver(id, delivery, token))
        if token is not None:
            raise Invalid(_WHERE_IT_BELONGS)
        if name is None:
            raise Invalid("a signal to a run needs a name")
        return await _answer(id, engine.signals.send(id, name, delivery))

    async def approve(
        self,
        target: Target,
        name: str | None = None,
        *,
        approver: str = "",
        about: object = None,
        comment: str = "",
        token: Token | str | None = None,
    ) -> Sent:
        """Approves what a run waits for. With `about`, only if that is exactly what the run asks
        about. The name may be left out if the run waits for one approval. With a token, the target
        is the id that goes with it (`approval.id`)."""
        return await self._decide(target, name, APPROVED, approver, about, comment, token)

    async def reject(
        self,
        target: Target,
        name: str | None = None,
        *,
        approver: str = "",
        about: object = None,
        comment: str = "",
        token: Token | str | None = None,
    ) -> Sent:
        """Rejects what a run waits for; the arguments are those of `approve`."""
        return await self._decide(target, name, REJECTED, approver, about, comment, token)

    async def waitpoints(
        self, run: Target | None = None, *, limit: int = 100
    ) -> list[WaitpointInfo]:
        """The open waitpoints of one run, or of all suspended runs, the one that has waited longest
        first. Tokens are not shown."""
        engine = await self._client.engine()
        return [waitpoint_info(item) for item in await open_waitpoints(engine, run, limit)]

    async def waitpoint_token(
        self,
        run: Target,
        name: str | None = None,
        *,
        approver: str | None = None,
        decisions: Sequence[str] = (),
        expires: Span | None = None,
        single_use: bool = False,
    ) -> Token:
        """A token for a waitpoint of a run, to hand to a person or program outside; bound to an
        approver, to decisions, to a time or to one use, if any of these is given. `token.reveal()`
        gives its text."""
        names = tuple(str(each) for each in check_names(decisions, "decisions"))
        engine = await self._client.engine()
        id, waitpoint = await _located(engine, run)
        found = waitpoint or await _named(engine, id, name)
        if approver is None and not names and expires is None and not single_use:
            token = await engine.suspensions.token(id, found)
            if token is None:
                raise NotFound("waitpoint", found)
            return token
        return await engine.suspensions.issue_token(
            id,
            found,
            approver=approver,
            decisions=names,
            expires_in=None if expires is None else parse_span(expires, "expires"),
            single_use=single_use,
        )

    async def revoke_tokens(
        self, run: Target, name: str | None = None, *, token: Token | str | None = None
    ) -> None:
        """Takes a bound token back; without one every token of the waitpoint issued so far."""
        engine = await self._client.engine()
        id, waitpoint = await _located(engine, run)
        await engine.signals.revoke(id, waitpoint or await _named(engine, id, name), token)

    signal_sync = blocking(signal)
    approve_sync = blocking(approve)
    reject_sync = blocking(reject)
    waitpoints_sync = blocking(waitpoints)
    waitpoint_token_sync = blocking(waitpoint_token)
    revoke_tokens_sync = blocking(revoke_tokens)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on

    async def _decide(
        self,
        target: Target,
        name: str | None,
        decision: str,
        approver: str,
        about: object,
        comment: str,
        token: Token | str | None,
    ) -> Sent:
        engine = await self._client.engine()
        id, waitpoint = _address(target)
        delivery: Delivery = engine.signals.delivery(waitpoint)(
            name=decision,
            category=APPROVAL,
            source_type=APPROVER,
            source=approver,
            payload=encode(comment) if comment else None,
            about=None if about is None else about_digest(about),
        )
        if token is not None:
            if waitpoint is None:
                raise Invalid(_WHERE_IT_BELONGS)
            return await _answer(id, engine.signals.deliver(id, delivery, token))
        if waitpoint is not None:
            return await _answer(id, engine.signals.decide_at(id, delivery))
        wanted = name
        if wanted is None:
            wanted = await _only_approval(engine, await find_id(engine, id.uuid))
        return await _answer(id, engine.signals.decide(id, wanted, delivery))


async def open_waitpoints(
    engine: Engine, run: Target | None = None, limit: int = 100
) -> list[OpenWaitpoint]:
    """The open waitpoints of one run, or of all suspended runs, as the engine describes them."""
    wanted = check_limit(limit, MAX_LISTED)
    if run is not None:
        id, _ = await _located(engine, run)
        found = (await engine.suspensions.waitpoints(id, limit=wanted))[:wanted]
    else:
        found = await _all_waitpoints(engine, wanted)
    return _with_run_ids(found)


async def waitpoints_of(engine: Engine, run: Target) -> list[OpenWaitpoint]:
    """All open waitpoints of one run, however many there are."""
    id, _ = await _located(engine, run)
    return _with_run_ids(await every_waitpoint(engine.suspensions, id))


def _with_run_ids(found: Sequence[OpenWaitpoint]) -> list[OpenWaitpoint]:
    return [replace(item, execution=RunId(item.execution)) for item in found]


def waitpoint_info(item: OpenWaitpoint) -> WaitpointInfo:
    return WaitpointInfo(
        id=item.id,
        execution=RunId(item.execution),
        key=item.key,
        state=item.state,
        required_signal_names=item.required_signal_names,
        created_at=to_datetime(item.created_at),
        activated_at=optional_datetime(item.activated_at),
        expires_at=optional_datetime(item.expires_at),
        token_kid=item.token_kid,
        token_fingerprint=item.token_fingerprint,
        terms=item.terms,
        about=item.about,
    )


def _address(target: object) -> tuple[ExecutionId, UUID | None]:
    """The run, and the waitpoint if the target names one."""
    if isinstance(target, Run):
        return target.id, None
    if isinstance(target, UUID | RunId):
        return _whole(target), None
    if not isinstance(target, str):
        raise Invalid(f"give a run or its id, not {type(target).__name__}")
    id, slash, waitpoint = target.partition("/")
    found = parse_uuid(waitpoint, "waitpoint") if slash else None
    return _whole(id), found


def _whole(id: object) -> ExecutionId:
    """With the partition if it says one: the uuid alone names the run wherever it is."""
    found = parse_run_id(id)
    return ExecutionId.anywhere(found) if isinstance(found, UUID) else found


async def _located(engine: Engine, target: object) -> tuple[RunId, UUID | None]:
    """The same with the whole id of the run."""
    id, waitpoint = _address(target)
    return await find_id(engine, id.uuid if id.partition_index == ANYWHERE else id), waitpoint


async def _named(engine: Engine, id: RunId, name: str | None) -> UUID:
    """The open waitpoint of that name; of any name if there is only one."""
    if name is not None:
        check_signal_name(name, "name")
    found = await every_waitpoint(engine.suspensions, id)
    matching = [item for item in found if name is None or item.key == name]
    if not matching:
        shown = without_secrets(name or "(nothing is waited for)")
        raise NotFound("waitpoint", shown)
    if len(matching) > 1 and name is None:
        raise Invalid(f"run {id} has {len(matching)} open waitpoints: name one of them")
    matching.sort(key=lambda item: item.state != "active")  # one that is waited at first
    return matching[0].id


async def _only_approval(engine: Engine, id: RunId) -> str:
    """The name of the one approval that the run waits for, or has asked for."""
    found = await every_waitpoint(engine.suspensions, id)
    approvals = [item for item in found if item.terms is not None and item.terms.decisions]
    active = [item for item in approvals if item.state == "active"]
    names = sorted({item.key for item in active or approvals})
    if not names:
        if await engine.views.state(id) in ENDED:
            raise NotSignalable(f"run {id} has ended")
        raise NotFound("approval", f"that run {id} waits for")
    if len(names) > 1:
        raise Invalid(f"which approval? run {id} waits for {', '.join(names)}: give one name")
    return names[0]


async def _all_waitpoints(engine: Engine, wanted: int) -> list[OpenWaitpoint]:
    """Those of a page of runs are asked for at once: they share a few statements, or a request."""
    found: list[OpenWaitpoint] = []
    after: tuple[Millis, ExecutionId] | None = None
    look = partial(every_waitpoint, engine.suspensions)
    while len(found) < wanted:
        page = await engine.suspensions.suspended(after=after, limit=PAGE)
        for open_ones in await asyncio.gather(*[look(item.id) for item in page]):
            found += [each for each in open_ones if each.state == "active"]
        if len(page) < PAGE:
            break
        after = (page[-1].since, page[-1].id)
    return found[:wanted]


async def _answer(id: ExecutionId, sending: Awaitable[SignalAnswer]) -> Sent:
    try:
        return _sent(await sending)
    except NotFound as error:
        if error.entity != "execution":
            raise
        raise NotFound("execution", id.uuid) from None


def _sent(answer: SignalAnswer) -> Sent:
    match answer:
        case DuplicateSignal(signal=signal):
            return Sent(signal, "duplicate", duplicate=True)
        case Accepted(signal=signal, effect=effect):
            return Sent(signal, str(effect), resumed=effect is Effect.SATISFIED)
