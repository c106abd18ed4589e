"""What the owner of a lease reports: progress, steps, completion, failure, delay.

A worker that holds a `Claim` decides on the held value and writes under the fence: one statement,
no read. Only if that is refused is the execution loaded, and the rule then says exactly why.
"""

from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Concatenate
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import FenceRequired, Invalid
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.numbers import check_kind_of, check_whole, check_wholes
from flowfabric.core.base.text import (
    MAX_NAME,
    MAX_PROGRESS_MESSAGE,
    MAX_REASON,
    MAX_RESULT,
    MAX_STATE_VALUE,
    MAX_STEP_NAME,
    check_bytes,
    check_text,
)
from flowfabric.core.base.time import Millis, Span, check_moment, check_span
from flowfabric.core.execution import attempt as rules
from flowfabric.core.execution import cleanup, operator
from flowfabric.core.execution.attempt import (
    Completed,
    Delayed,
    Failing,
    JitterSource,
    TerminalFailed,
)
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.cleanup import CleanedUp, Compensated
from flowfabric.core.execution.code import BlockedByCode, block_by_code, return_untried
from flowfabric.core.execution.handle import HandleBody, open_handle, seal
from flowfabric.core.execution.lease import Owner, Renewed, check_owner, enter, present
from flowfabric.core.execution.mismatch import Mismatch, check_fingerprint, check_mismatch
from flowfabric.core.execution.model import Failure, Fence, Progress, Snapshot, Source
from flowfabric.core.execution.operator import CancelAnswer
from flowfabric.core.execution.retry import MAX_CATEGORY
from flowfabric.core.execution.step import Step
from flowfabric.core.flow import progress
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.context import EngineContext, P, Service, T
from flowfabric.engine.execution.claims import Claim, Claims
from flowfabric.engine.execution.follow_ons import FollowOns
from flowfabric.engine.flow.downstreams import Downstreams
from flowfabric.engine.limit.known_lines import KnownLines
from flowfabric.store.queries import SideWrite

MAX_STEP = 1 << 20


class FencedExecution(Struct, frozen=True):
    """An execution and the owner that its caller presents; for callers without a claim."""

    id: ExecutionId
    owner: Owner = Owner()


Owned = Claim | FencedExecution | str
"""A claim, a handle's text, or an id with a fence."""

# Deciding on the held value needs no second comparison: the statement that ends the lease compares
# the fence with the stored one.
_SELF = Owner(source=Source.OPERATOR)


class Attempts(Service):
    """`engine.attempts`"""

    def __init__(
        self, context: EngineContext, claims: Claims, lines: KnownLines, follow_ons: FollowOns
    ) -> None:
        super().__init__(context)
        self._claims = claims
        self._downstreams = Downstreams(context)
        self._ends: Batcher[Change[object], bool] = Batcher(
            "end",
            partial(_flush_ends, context, self._downstreams, follow_ons, lines),
            keys=_change_keys,
            weight=_change_weight,
            halves=context.store.is_server,
        )
        self._steps: Batcher[tuple[UUID, int], list[Step]] = Batcher("steps", context.store.steps)
        self._notes: Batcher[SideWrite, bool] = Batcher(
            "note", self._flush_notes, weight=_note_weight
        )

    async def complete(
        self, owned: Owned, result: bytes | None = None, *, encoding: str | None = None
    ) -> Completed:
        """Ends the execution in success. Repeating it with the same fence returns the same answer
        and keeps the first result. `encoding` is stored with the result, for its readers."""
        if result is not None:
            result = check_bytes(result, "result", MAX_RESULT)
        if encoding is not None:
            encoding = check_text(encoding, "result encoding", limit=MAX_NAME)
        if isinstance(owned, Claim) and owned.snapshot.life.cleanup is None:
            change = rules.complete(owned.snapshot, self._now(), _SELF, result, encoding)
            done = change.outcome
            if isinstance(done, Completed) and change.plain_end and await self._ends.put(change):
                return done
        id, owner = self.unpack(owned)
        return await self._decide(id, rules.complete, owner, result, encoding)

    async def fail(
        self, owned: Owned, failure: Failure, *, retry_after: Span | None = None
    ) -> Failing:
        """Ends the attempt in failure. The stored policy decides whether a retry is scheduled;
        `retry_after` replaces its backoff this time. `CleaningUp` if the lease stays, so that the
        compensations of the run can be done first."""
        _check_failure(failure)
        if retry_after is not None:
            retry_after = check_span(retry_after, "retry_after")
        jitter = JitterSource(self._jitter(), retry_after)
        if isinstance(owned, Claim):
            change = rules.fail(owned.snapshot, self._now(), _SELF, failure, jitter)
            if change.plain_end and await self._ends.put(change):
                return TerminalFailed(owned.id)
        return await self._release(owned, rules.fail, failure, jitter)

    def ended_elsewhere(self, owned: Claim, ended: Snapshot) -> None:
        """Notifies the engine that a transaction of the application has ended a claimed execution,
        so that waiting callers, its flow and its slot need not wait for the sweep."""
        self._context.post_commit.applied([Change(None, owned.snapshot, ended)])

    async def time_out(self, owned: Owned) -> Failing:
        """Ends the attempt because it exceeded its timeout, as the sweep would: it is retried or
        expires. For the owner, whose timer may be ahead of the store's clock."""
        return await self._release(owned, rules.time_out_owned, self._jitter())

    async def delay(self, owned: Owned, until: Millis, *, step: Step | None = None) -> Delayed:
        """Gives up the lease; the same attempt continues at `until`. The change that parks the
        execution also records `step`."""
        moment = check_moment(until, "delay")
        if step is not None:
            _check_step(step)
        return await self._release(owned, rules.delay, moment, step=step)

    async def wait_children(self, owned: Owned) -> Delayed:
        """Gives up the lease until the executions it depends on have ended; the same attempt then
        continues, or at once if they already have."""
        return await self._release(owned, progress.wait_children)

    async def hand_back(self, owned: Owned) -> Delayed:
        """Gives up the lease at once, for a worker that stops: the same attempt continues, and no
        retry is used."""
        return await self._release(owned, rules.hand_back)

    async def block_by_code(self, owned: Owned, mismatch: Mismatch) -> BlockedByCode:
        """Gives the lease up because the code of this worker does not fit what is recorded: the
        same attempt goes on with other code, no retry spent."""
        return await self._release(owned, block_by_code, check_mismatch(mismatch))

    async def return_untried(self, owned: Owned, fingerprint: str) -> BlockedByCode:
        """Gives the lease up without running it: the code with this fingerprint did not fit
        before."""
        return await self._release(owned, return_untried, check_fingerprint(fingerprint))

    async def cancel(self, owned: Owned, reason: str) -> CancelAnswer:
        """A worker cancels the execution it owns."""
        text = check_text(reason, "reason", limit=MAX_REASON)
        return await self._release(owned, operator.cancel_owned, text)

    async def compensate(self, owned: Owned, undo_time: Span) -> Compensated:
        """Says that the execution has compensations: before it ends without success, its owner has
        `undo_time` to undo what was done."""
        span = check_span(undo_time, "undo time", 1)
        return await self._release(owned, cleanup.compensate, span)

    async def finish_cleanup(self, owned: Owned, failure: Failure | None = None) -> CleanedUp:
        """Ends an execution whose owner has cleaned up. A `failure` is what was not cleaned up."""
        if failure is not None:
            _check_failure(failure)
        return await self._release(owned, cleanup.finish, failure)

    async def renew(self, owned: Owned, ttl: Span | None = None, *, record: bool = True) -> Renewed:
        """Extends the lease, given as a claim, a handle or a fence. The renewal is an event, unless
        `record` is False."""
        if isinstance(owned, Claim):
            return await self._claims.renew(owned, ttl, record=record)
        id, owner = self.unpack(owned)
        if isinstance(owned, str) and ttl is None:
            ttl = self.open(owned).lease_ttl
        if ttl is None:
            raise Invalid("a renewal by fence needs a ttl")
        signed = isinstance(owned, str)
        return await self._claims.renew_as(id, owner, ttl, signed=signed, record=record)

    async def progress(
        self, owned: Owned, percent: int | None = None, message: str | None = None
    ) -> None:
        """Reports the progress of the attempt; omitted values stay as they are."""
        if percent is not None:
            check_whole(percent, "progress in percent", 0, 100)
        if message is not None:
            check_text(message, "progress message", limit=MAX_PROGRESS_MESSAGE)
        await self._note(owned, progress=Progress(percent, message))

    async def set_state(self, owned: Owned, value: bytes) -> None:
        """Sets what the execution shows of itself, until an owner sets another value: the next
        attempts keep it."""
        data = check_bytes(value, "state value", MAX_STATE_VALUE)
        await self._note(owned, state_value=data)

    async def record_step(self, owned: Owned, step: Step) -> None:
        """Records a step under the fence. An already recorded step stays as it is."""
        _check_step(step)
        await self._note(owned, step=step)

    async def steps(self, uuid: UUID, generation: int) -> list[Step]:
        """The recorded steps of an execution's generation, in order."""
        check_whole(generation, "generation")
        return await self._steps.put((parse_uuid(uuid, "execution"), generation))

    def seal(self, claim: Claim) -> str:
        """The handle of a claim: opaque signed text that can leave the process."""
        return seal_claim(self._context, claim)

    def open(self, handle: str) -> HandleBody:
        """The content of a handle; `InvalidHandle` if another database made it."""
        return open_handle(handle, self._context.secret, self._context.store.name)

    async def drain(self) -> None:
        await self._ends.drain()
        await self._notes.drain()
        await self._steps.drain()

    def unpack(self, owned: Owned) -> tuple[ExecutionId, Owner]:
        """The execution, and the owner that its caller presents. The lease of a suspended handle is
        gone, so the gate refuses it as any lease of the past."""
        match owned:
            case Claim():
                return owned.id, owned.owner
            case FencedExecution():
                return ExecutionId(owned.id), check_owner(owned.owner)
            case _:
                body = self.open(owned)
                return body.execution_id, _owner_of(body)

    async def _release(
        self,
        owned: Owned,
        rule: Callable[Concatenate[Snapshot | None, Millis, Owner, P], Change[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Applies a rule that gives up the lease; a claim is decided without a load."""
        id, owner = self.unpack(owned)
        held = owned.snapshot if isinstance(owned, Claim) else None
        return await self._decide_on(
            held, id, lambda snapshot, now: rule(snapshot, now, owner, *args, **kwargs)
        )

    async def _note(
        self,
        owned: Owned,
        *,
        progress: Progress | None = None,
        step: Step | None = None,
        state_value: bytes | None = None,
    ) -> None:
        if isinstance(owned, Claim):
            snapshot, lease = owned.snapshot, owned.lease
            uuid, epoch = snapshot.execution.uuid, snapshot.head.epoch
            held = SideWrite(uuid, lease.id, epoch, progress, step, state_value)
            if await self._notes.put(held):
                return
        id, owner = self.unpack(owned)
        if isinstance(owned, FencedExecution):
            # The progress write compares neither the attempt nor the partition, and a bare fence is
            # not signed.
            await self._decide(id, _explain, owner)
        fence = _whole_fence(owner)
        note = SideWrite(id.uuid, fence.lease_id, fence.epoch, progress, step, state_value)
        while not await self._notes.put(note):
            # Refused: the rule says why. If it finds nothing wrong, the lease changed in between.
            await self._decide(id, _explain, owner)

    async def _flush_notes(self, notes: list[SideWrite]) -> list[bool]:
        """One call for all, unless two owners of one execution meet: the store answers by
        execution, and an owner that lost its lease must not get the other's answer."""
        fences = [(note.uuid, note.lease_id, note.epoch) for note in notes]
        written: set[tuple[UUID, UUID, int]] = set()
        rest = list(zip(fences, notes, strict=True))
        while rest:
            owners = {fence[0]: fence for fence, _ in reversed(rest)}
            call = [note for fence, note in rest if owners[fence[0]] == fence]
            found = await self._context.store.write_progress(call, self._now())
            written.update([owners[uuid] for uuid in found])
            if len(call) == len(rest):
                break
            rest = [each for each in rest if owners[each[0][0]] != each[0]]
        return [fence in written for fence in fences]


def seal_claim(context: EngineContext, claim: Claim) -> str:
    """The handle of a claim, signed by the engine."""
    lease = check_kind_of(claim, Claim, "claim").lease
    body = HandleBody(
        execution=claim.uuid,
        partition=claim.id.partition_index,
        attempt_index=lease.attempt,
        attempt_id=claim.attempt_id,
        lease_id=lease.id,
        epoch=claim.epoch,
        lease_ttl=claim.ttl,
        lane=claim.snapshot.execution.route.lane,
        worker=lease.worker.id,
        instance=lease.worker.instance,
        kind=claim.handle_kind,
        store=context.store.name,
    )
    return seal(body, context.secret)


async def _flush_ends(
    context: EngineContext,
    downstreams: Downstreams,
    follow_ons: FollowOns,
    lines: KnownLines,
    changes: list[Change[object]],
) -> list[bool]:
    """Ends what its fence allows, and lets downstreams of members go on with it."""
    now = context.store.clock.now()
    following = await downstreams.after(changes, now)
    follow_on = follow_ons.decide(changes, following, now)
    looks = lines.looks
    if follow_on is None:
        more = (following.changes,) if following.changes else ()
        written = await context.store.end(changes, now, *more)
        released = [each.change for each in following.changes if _uuid(each.change) in written]
    else:
        written, released = await follow_ons.write(follow_on, changes, following.changes, now)
    all_ended = not released and len(written) == len(changes)
    ended = [all_ended or _uuid(change) in written for change in changes]
    context.post_commit.applied(
        [*compress(changes, ended), *released],
        settled=following.settled(written),
        unfinished=frozenset(map(_flow, released)),
        looks=None if written.repeated else looks,
    )
    return ended


def _explain(found: Snapshot | None, now: Millis, owner: Owner) -> Change[None]:
    snapshot = present(found)
    _whole_fence(owner)
    gate = enter(snapshot, now, owner)
    return gate if isinstance(gate, Change) else unchanged(None)


def _whole_fence(owner: Owner) -> Fence:
    fence = owner.fence
    if fence is None:
        raise FenceRequired("only the owner of a lease can record steps, progress and state")
    return fence


def _owner_of(body: HandleBody) -> Owner:
    return Owner(body.lease_id, body.epoch, body.attempt_id)


def _uuid(change: Change[object]) -> UUID:
    if change.before is None:
        raise Invalid("there is no current attempt to end")
    return change.before.execution.uuid


def _flow(change: Change[object]) -> UUID:
    flow = None if change.before is None else change.before.execution.flow_joined
    if flow is None:
        raise Invalid("only a member of a flow can wait for others")
    return flow


def _change_keys(change: Change[object]) -> tuple[int]:
    return (_uuid(change).int,)  # of a uuid, the hash is a call of Python


def _change_weight(change: Change[object]) -> int:
    state = change.after.state if change.after else None
    return len(getattr(state, "result", None) or b"")


def _note_weight(note: SideWrite) -> int:
    return (len(note.step.doc) if note.step else 0) + len(note.state_value or b"")


def _check_step(step: Step) -> None:
    check_kind_of(step, Step, "step")
    check_text(step.name, "step name", limit=MAX_STEP_NAME)
    check_bytes(step.doc, f"the record of step {step.name!r}", MAX_STEP)
    check_wholes((step.generation, step.position, step.occurrence), "a number of a step")


def _check_failure(failure: Failure) -> None:
    check_kind_of(failure, Failure, "failure")
    check_text(failure.message, "failure message", limit=1 << 16)
    if failure.detail is not None:
        check_bytes(failure.detail, "failure detail", MAX_RESULT)
    if failure.step is not None:
        check_text(failure.step, "step of the failure", limit=MAX_STEP_NAME)
    if not check_text(failure.category, "failure category", limit=MAX_CATEGORY):
        raise Invalid("failure category must not be empty")
