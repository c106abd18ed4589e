"""Waiting for the outside world: suspending, waitpoints and their tokens."""

import logging
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import AlreadySuspended, Invalid, NoSigningKey, NotFound
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.numbers import check_flag, check_kind_of, check_limit, check_names
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import (
    MAX_REASON,
    check_namespace,
    check_signal_name,
    check_text,
)
from flowfabric.core.base.time import Millis, Span, check_moment, check_span
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.handle import HandleBody, HandleKind, seal
from flowfabric.core.execution.lease import DEFAULT_TTL, AlreadySatisfied, Owner
from flowfabric.core.execution.model import Active, Snapshot, Suspended
from flowfabric.core.wait import resume
from flowfabric.core.wait import suspend as rules
from flowfabric.core.wait import waitpoint as waitpoint_rules
from flowfabric.core.wait.condition.model import AllTrue, AnyTrue, is_answerable
from flowfabric.core.wait.credential import needs_of_tokens, revoked_at
from flowfabric.core.wait.keyring import Key, Keyring, verifies
from flowfabric.core.wait.model import (
    Loaded,
    Needs,
    Signal,
    Terms,
    Waitpoint,
)
from flowfabric.core.wait.request import Suspend, WaitpointUse, check_suspend
from flowfabric.core.wait.resume import RESUMED, TIMED_OUT, SuspensionExpired
from flowfabric.core.wait.suspend import AlreadyMet, NotMet, NowSuspended
from flowfabric.core.wait.terms import check_approver, check_decision, check_terms
from flowfabric.core.wait.token import Token, TokenClaims, mint
from flowfabric.core.wait.waitpoint import NewWaitpoint, OpenWaitpoint, WaitpointsClosed
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.attempts import Attempts, Owned
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.wait.signals import signals_of
from flowfabric.store.queries import SuspendedIn

log = logging.getLogger("flowfabric.suspensions")

PAGE = 100
KNOWN = 5_000
"""Most rows of waitpoints, and most of their tokens, that are kept in memory."""


class Ticket(Struct, frozen=True):
    """A waitpoint with the token that lets a sender outside signal it (None when the key that
    signs it is gone)."""

    id: UUID
    key: str
    token: Token | None


class MadeWaitpoint(Struct, frozen=True):
    """A waitpoint, and the claim as it stands since: what its owner decides next on that one needs
    no load."""

    waitpoint: Waitpoint
    claim: Claim | None


class SuspendedExecution(Struct, frozen=True):
    """An execution that waits for the outside world, since when, why, and until when at most."""

    id: ExecutionId
    namespace: str
    since: Millis
    reason: str
    due_at: Millis | None
    kind: str = ""


class Suspensions(Service):
    """`engine.suspensions`"""

    def __init__(self, context: EngineContext, attempts: Attempts) -> None:
        super().__init__(context)
        self._attempts = attempts
        # Many handlers that go on at once ask at once.
        self._loads: Batcher[Needs, Loaded] = Batcher("load_needs", context.store.load_needs)
        self._looks: Batcher[UUID, int] = Batcher("signals", self._flush_looks)
        self._known: dict[tuple[UUID, UUID], Waitpoint] = {}
        self._tokens = _SignedTokens()

    def new_id(self) -> UUID:
        """An id for a suspension or a waitpoint, minted before the first try."""
        return self._fresh()

    async def suspend(self, owned: Owned, request: Suspend) -> NowSuspended | AlreadyMet:
        """Gives the lease up until what the request waits for is here; if it is already, the
        lease is kept. A repeat with the same idempotency key gets the first answer."""
        if isinstance(owned, str) and self._attempts.open(owned).kind is HandleKind.SUSPENDED:
            raise AlreadySuspended("the handle has given up its lease: the run is suspended")
        wanted = check_suspend(request, self._now())
        id, owner = self._attempts.unpack(owned)
        wanted = await self._signed(wanted)
        held = owned.snapshot if isinstance(owned, Claim) else None
        answer = await self._decide_loaded_on(
            held,
            id,
            lambda found: rules.needs_to_suspend(found, wanted),
            lambda found, now, loaded: rules.suspend(found, now, loaded, owner, wanted),
            rules.known_to_suspend(held, wanted, self._known),
            wanted.unique_ids,
        )
        if isinstance(answer, NowSuspended):
            _warn_of_unanswerable(id, wanted)
        return answer

    async def go_on(self, claim: Claim, request: Suspend) -> AlreadyMet | None:
        """Ends waits that kept signals satisfy, and records their steps; None when there is
        nothing to go on with. The lease is kept either way."""
        wanted = await self._signed(check_suspend(request, self._now()))
        id, owner = self._attempts.unpack(claim)
        met = await self._met(id, owner, wanted, few=True)
        if isinstance(met, NotMet) and met.partly:
            met = await self._met(id, owner, wanted, few=False)
        return None if isinstance(met, NotMet) else met

    async def _met(
        self, id: str, owner: Owner, request: Suspend, *, few: bool
    ) -> AlreadyMet | NotMet:
        return await self._decide_loaded(
            id,
            lambda found: rules.needs_to_suspend(found, request, few=few),
            rules.go_on,
            owner,
            request,
            few=few,
        )

    async def signals_so_far(self, claim: Claim) -> int:
        """How many signals the execution has received. Cheap: those that look at the same time
        share a query."""
        return await self._looks.put(check_kind_of(claim, Claim, "claim").uuid)

    def handle(self, owned: Owned, suspended: NowSuspended) -> str:
        """The handle of an execution that `owned` has suspended, for an owner in another process.
        It owns nothing; `observe` reads with it."""
        seen = check_kind_of(suspended, NowSuspended, "suspended").before
        owner = self._attempts.unpack(owned)[1]
        lease = seen.state.lease if isinstance(seen.state, Active) else None
        paused = seen.life.paused
        worker = lease.worker if lease else paused.worker if paused else None
        ttl = DEFAULT_TTL
        if lease is not None and (began := lease.renewed_at or lease.started_at) is not None:
            ttl = Millis(max(1, lease.expires_at - began))
        body = HandleBody(
            execution=seen.execution.uuid,
            partition=seen.execution.id.partition_index,
            attempt_index=seen.current_attempt or 0,
            attempt_id=owner.attempt_id or UUID(int=0),
            lease_id=owner.lease_id or UUID(int=0),
            epoch=owner.epoch or 0,
            lease_ttl=ttl,
            lane=seen.execution.route.lane,
            worker=worker.id if worker else "",
            instance=worker.instance if worker else "",
            kind=HandleKind.SUSPENDED,
            store=self._context.store.name,
        )
        return seal(body, self._context.secret)

    async def create_waitpoint(
        self,
        owned: Owned,
        key: str,
        *,
        expires_in: Span | None = None,
        id: UUID | None = None,
        terms: Terms | None = None,
        lasting: bool = False,
        slot: UUID | None = None,
    ) -> Waitpoint:
        """As `make_waitpoint`, for a caller that needs the waitpoint alone."""
        made = await self.make_waitpoint(
            owned, key, expires_in=expires_in, id=id, terms=terms, lasting=lasting, slot=slot
        )
        return made.waitpoint

    async def make_waitpoint(
        self,
        owned: Owned,
        key: str,
        *,
        expires_in: Span | None = None,
        id: UUID | None = None,
        terms: Terms | None = None,
        lasting: bool = False,
        slot: UUID | None = None,
    ) -> MadeWaitpoint:
        """Makes a pending waitpoint: its token can be handed out, and signals are kept for the
        suspension that will wait at it. It closes with the attempt unless it is `lasting`. It takes
        the place of a pending one with the same `slot`."""
        if not check_signal_name(key, "waitpoint key"):
            raise Invalid("waitpoint_key_empty")
        span = None if expires_in is None else check_span(expires_in, "expires_in", 1)
        execution, owner = self._attempts.unpack(owned)
        changes: list[Change[Waitpoint]] = []
        new = NewWaitpoint(
            id=self._fresh() if id is None else parse_uuid(id, "waitpoint"),
            key=key,
            kid=(await self._context.ring.to_sign()).current,
            expires_in=span,
            terms=None if terms is None else check_terms(terms),
            lasting=check_flag(lasting, "lasting"),
            slot=None if slot is None else parse_uuid(slot, "slot"),
            given=id is not None and not lasting,
        )

        made = await self._decide_loaded_on(
            owned.snapshot if isinstance(owned, Claim) else None,
            execution,
            lambda found: waitpoint_rules.needs_to_create(found, new),
            partial(_create, changes, owner, new),
            unique=(new.id,) if new.given else (),
        )
        _keep(self._known, made)
        latest = changes[-1].after
        if latest is None or not isinstance(owned, Claim):
            return MadeWaitpoint(made, None)
        return MadeWaitpoint(made, replace(owned, snapshot=latest))

    async def close_waitpoint(
        self, id: str, waitpoint: UUID, *, reason: str = "closed"
    ) -> WaitpointsClosed | AlreadySatisfied:
        """Closes a waitpoint for good: it accepts no signal any more, and nothing opens it again.
        A handler that waits at it gets the reason, which is also in the history."""
        check_text(reason, "reason", limit=MAX_REASON)
        target = parse_uuid(waitpoint, "waitpoint")
        return await self._decide_loaded(
            id,
            lambda found: waitpoint_rules.needs_waitpoints(found, target),
            waitpoint_rules.close,
            target,
            reason,
        )

    async def expire(self, id: str) -> SuspensionExpired | AlreadySatisfied:
        """Ends a suspension whose time is over; does nothing before. The sweep does this by
        itself."""
        return await self._decide(id, resume.expire_suspension, self._fresh())

    # -- tokens: minted when they are asked for, never stored

    async def tickets(self, waitpoints: tuple[Waitpoint, ...]) -> tuple[Ticket, ...]:
        """Waitpoints with their tokens, such as those of a suspend. The same every time."""
        given = check_kind_of(waitpoints, tuple, "waitpoints")
        rows = [check_kind_of(row, Waitpoint, "waitpoint") for row in given]
        ring = await self._context.ring.read()
        if any(row.kid not in ring.keys for row in rows):
            ring = await self._context.ring.read(fresh=True)
        return tuple(Ticket(row.id, row.key, _token(ring, row)) for row in rows)

    async def token(self, id: str, waitpoint: UUID) -> Token | None:
        """The token of an open waitpoint, None when there is no such one. The same every time,
        until it is revoked: then it is another one."""
        found = await self._open_row(id, parse_uuid(waitpoint, "waitpoint"))
        if found is None:
            return None
        row, issued_at = found
        now = self._now()
        ring = await self._context.ring.read()
        if issued_at is None:
            return _token(ring, _signable(ring, row, now))
        claims = TokenClaims(id=self._fresh().hex, issued_at=max(now, issued_at))
        return mint(ring, _signable(ring, row, now), claims)

    async def issue_token(
        self,
        id: str,
        waitpoint: UUID,
        *,
        approver: str | None = None,
        decisions: tuple[str, ...] = (),
        expires_in: Span | None = None,
        single_use: bool = False,
    ) -> Token:
        """A token that is bound: to an approver, to some decisions, to a time, to one use."""
        found = await self._open_row(id, parse_uuid(waitpoint, "waitpoint"))
        if found is None:
            known = await self._load(id) is not None
            raise NotFound("waitpoint", waitpoint) if known else NotFound("execution", id)
        row, issued_at = found
        now = self._now()
        span = None if expires_in is None else check_span(expires_in, "expires_in", 1)
        names = check_names(decisions, "decisions")
        claims = TokenClaims(
            id=self._fresh().hex,
            issued_at=max(now, issued_at or now),
            approver=None if approver is None else check_approver(approver),
            decisions=tuple(check_decision(name) for name in names),
            expires_at=None if span is None else Millis(now + span),
            single_use=check_flag(single_use, "single_use"),
        )
        ring = await self._context.ring.read()
        return mint(ring, _signable(ring, row, now), claims)

    async def token_again(
        self,
        uuid: UUID,
        waitpoint: UUID,
        *,
        approver: str | None = None,
        expires_at: Millis | None = None,
        made: Waitpoint | None = None,
    ) -> Token:
        """The same token whenever it is asked for, also when its waitpoint is closed by now or its
        tokens were revoked; for an approver one that is bound to them and to one use. Empty when
        its key is gone. `made` is the waitpoint, if the caller has just made it."""
        if made is not None:
            check_kind_of(made, Waitpoint, "made")
        row = made or await self._row(uuid, waitpoint)
        ring = await self._context.ring.read()
        if row is None or ring.current is None:
            return Token("")
        row = _signable(ring, row, self._now())
        if approver is None and expires_at is None:
            return self._tokens.of(ring, row)
        claims = TokenClaims(
            id=f"again:{approver or ''}",
            issued_at=row.created_at,
            approver=None if approver is None else check_approver(approver),
            expires_at=None if expires_at is None else check_moment(expires_at, "expires_at"),
            single_use=approver is not None,
        )
        return mint(ring, row, claims)

    # -- looking

    async def waitpoints(
        self, id: str, *, after: UUID | None = None, limit: int = PAGE
    ) -> list[OpenWaitpoint]:
        """The open waitpoints of an execution, by id, never with their tokens."""
        wanted = max(1, check_limit(limit, MAX_PAGE))
        cursor = None if after is None else parse_uuid(after, "cursor")
        snapshot = await self._present(id)
        ring, now = await self._context.ring.read(), self._now()
        rows = await self._rows(snapshot)
        shown = {id: _signable(ring, row, now) for id, row in rows.items()}
        found = waitpoint_rules.describe(snapshot, now, shown, ring)
        return [item for item in found if cursor is None or item.id > cursor][:wanted]

    async def terms(self, uuid: UUID, waitpoint: UUID) -> Terms | None:
        """What a waitpoint accepts, open or not; None for one that is unknown or not an
        approval."""
        row = await self._row(uuid, waitpoint)
        return None if row is None else row.terms

    async def suspended(
        self,
        *,
        namespace: str | None = None,
        after: tuple[Millis, ExecutionId] | None = None,
        limit: int = PAGE,
    ) -> list[SuspendedExecution]:
        """Suspended executions, the one that has waited longest first."""
        wanted = check_limit(limit, MAX_PAGE)
        place = None if namespace is None else check_namespace(namespace)
        cursor = None if after is None else _cursor(after)
        if not wanted:
            return []
        found = await self._context.store.snapshots(SuspendedIn(place, cursor, wanted))
        return [_suspended(snapshot) for snapshot in found]

    async def observe(self, owned: Owned) -> list[Signal]:
        """The signals that ended the last suspension of this attempt, in the order they came;
        after a timeout the one that tells of it, after an operator's resume and while it is still
        open none. The handle of the suspended execution reads them as well."""
        id, owner = self._attempts.unpack(owned)
        snapshot = await self._load(id)
        if snapshot is None or snapshot.waits.suspension is not None:
            return []
        last = snapshot.waits.last
        if last is None or last.closer is None:
            return []
        if owner.attempt_id != snapshot.attempt_id_of(last.attempt):
            return []
        signals = await self.signals_of(snapshot.execution.uuid, last.id)
        if last.reason == TIMED_OUT:
            return [signal for signal in signals if signal.id == last.closer]
        return signals if last.reason == RESUMED else []

    async def signals_of(self, uuid: UUID, suspension: UUID) -> list[Signal]:
        """Every signal that counted for a suspension, in the order they came."""
        key, target = parse_uuid(uuid, "execution"), parse_uuid(suspension, "suspension")
        return await signals_of(self._context.store, key, target)

    # -- how

    async def _flush_looks(self, uuids: list[UUID]) -> list[int | Exception]:
        found = await self._context.store.load(uuids)
        return [found[uuid].waits.signals if uuid in found else 0 for uuid in uuids]

    async def _signed(self, request: Suspend) -> Suspend:
        """With a key for its fresh waitpoints; if all exist already, none is made for them."""
        uses = {binding.use for binding in request.bindings}
        ring = self._context.ring
        known = await (ring.read() if uses == {WaitpointUse.PENDING} else ring.to_sign())
        return replace(request, kid=known.current)

    async def _row(self, uuid: UUID, waitpoint: UUID) -> Waitpoint | None:
        key, target = parse_uuid(uuid, "execution"), parse_uuid(waitpoint, "waitpoint")
        if (known := self._known.get((key, target))) is not None:
            return known
        found = (await self._loads.put(Needs(key, waitpoints=(target,)))).waitpoints.get(target)
        if found is not None:
            _keep(self._known, found)
        return found

    async def _rows(self, snapshot: Snapshot) -> dict[UUID, Waitpoint]:
        """The open waitpoints of an execution."""
        wanted = tuple({p.id for p in snapshot.waits.open})
        if not wanted:
            return {}
        return (await self._loads.put(Needs(snapshot.execution.uuid, wanted))).waitpoints

    async def _open_row(self, id: str, waitpoint: UUID) -> tuple[Waitpoint, Millis | None] | None:
        """A waitpoint that accepts signals, and from when on tokens are good if some were
        revoked."""
        snapshot = await self._load(id)
        needs = needs_of_tokens(snapshot, waitpoint)
        if snapshot is None or needs is None:
            return None
        if not waitpoint_rules.accepts_signals(snapshot, self._now(), waitpoint):
            return None
        loaded = await self._loads.put(needs)
        row, revoked = loaded.waitpoints.get(waitpoint), revoked_at(loaded, waitpoint)
        if row is None:
            return None
        return row, None if revoked is None else Millis(revoked + 1)


def _warn_of_unanswerable(id: str, request: Suspend) -> None:
    """A condition that is nothing but `OperatorOnly` says what it means; in a composite one, that
    no signal will do is easily overlooked."""
    for wait in request.waits:
        if isinstance(wait.condition, AllTrue | AnyTrue) and not is_answerable(wait.condition):
            rest = "only an operator" if wait.timeout_at is None else "an operator or its timeout"
            log.warning(
                "run %s waits for a condition that no signal satisfies: %s ends it", id, rest
            )


def _create(
    changes: list[Change[Waitpoint]],
    owner: Owner,
    new: NewWaitpoint,
    found: Snapshot | None,
    now: Millis,
    loaded: Loaded,
) -> Change[Waitpoint]:
    """The rule; the last of `changes` is the one that is written."""
    changes.append(waitpoint_rules.create(found, now, loaded, owner, new))
    return changes[-1]


class _SignedTokens:
    """The tokens of waitpoints, each signed once: a handler asks for its own whenever it runs."""

    def __init__(self) -> None:
        self._signed: dict[UUID, tuple[Waitpoint, Key | None, Token]] = {}

    def of(self, ring: Keyring, row: Waitpoint) -> Token:
        key, signed = ring.keys.get(row.kid), self._signed.get(row.id)
        if signed is not None and signed[:2] == (row, key):
            return signed[2]
        token = mint(ring, row)
        _bound(self._signed)
        self._signed[row.id] = row, key, token
        return token


def _keep(known: dict[tuple[UUID, UUID], Waitpoint], row: Waitpoint) -> None:
    """A row is written once, and a handler that runs again asks for it: it is read only if another
    process has made it, or if many were made since."""
    _bound(known)
    known[row.execution, row.id] = row


async def every_waitpoint(suspensions: Suspensions, id: str) -> list[OpenWaitpoint]:
    """All open waitpoints of an execution, by id."""
    page = found = await suspensions.waitpoints(id, limit=MAX_PAGE)
    while len(page) == MAX_PAGE:
        page = await suspensions.waitpoints(id, after=page[-1].id, limit=MAX_PAGE)
        found = [*found, *page]
    return found


def _bound(known: dict[Any, Any]) -> None:
    """Makes room for one more."""
    if len(known) >= KNOWN:
        del known[next(iter(known))]


def _signable(ring: Keyring, waitpoint: Waitpoint, now: Millis) -> Waitpoint:
    """The waitpoint with the key that signs for it: its own, or the current one when a token of
    its own would be refused."""
    own = waitpoint.kid in ring.keys and verifies(ring, waitpoint.kid, now)
    return waitpoint if own or ring.current is None else replace(waitpoint, kid=ring.current)


def _token(ring: Keyring, waitpoint: Waitpoint) -> Token | None:
    try:
        return mint(ring, waitpoint)
    except NoSigningKey:
        return None


def _suspended(snapshot: Snapshot) -> SuspendedExecution:
    state = check_kind_of(snapshot.state, Suspended, "state")
    return SuspendedExecution(
        id=snapshot.execution.id,
        namespace=snapshot.execution.route.namespace,
        since=state.since,
        reason=state.reason,
        due_at=state.due_at,
        kind=snapshot.execution.kind,
    )


def _cursor(after: object) -> tuple[Millis, UUID]:
    if not isinstance(after, tuple) or len(after) != 2:
        raise Invalid("a cursor of suspended runs must be a pair of time and id")
    return check_moment(after[0], "cursor"), ExecutionId(after[1]).uuid
