"""Submit executions and control them: cancel, priority, replay, block, tags."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Literal
from uuid import UUID

from flowfabric.core.base.errors import FlowTerminal, Invalid, InvalidId, NotFound
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.numbers import check_flag, check_items, check_kind_of, check_one_of
from flowfabric.core.base.pages import in_pages
from flowfabric.core.base.text import (
    MAX_REASON,
    check_key,
    check_namespace,
    check_tag_key,
    check_tags,
    check_text,
)
from flowfabric.core.base.time import NO_TIME, Millis, Span, check_span
from flowfabric.core.execution import hold, operator
from flowfabric.core.execution.attempt import RetryScheduled
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.cleanup import CleanedUp
from flowfabric.core.execution.cut import KnownWaits, StepCut, cut_replay
from flowfabric.core.execution.fork import ForkChanges, ForkSource, fork
from flowfabric.core.execution.hold import Held, Unheld
from flowfabric.core.execution.lease import AlreadySatisfied, Owner, check_owner
from flowfabric.core.execution.model import Flags, Snapshot, Source
from flowfabric.core.execution.operator import (
    Blocked,
    CancelAnswer,
    Changed,
    Expired,
    Replayed,
    Unblocked,
)
from flowfabric.core.execution.policy import parse_policy
from flowfabric.core.execution.status import public_state
from flowfabric.core.execution.step_order import check_reference
from flowfabric.core.execution.submission import (
    Creation,
    Duplicate,
    Submission,
    Submitted,
    check_priority,
    create,
    ranked,
)
from flowfabric.core.flow import children
from flowfabric.core.flow.model import FlowState
from flowfabric.core.flow.replay import needed_to_replay, replay_member
from flowfabric.core.wait.model import Loaded
from flowfabric.core.wait.resume import Resumed, resume
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.ids import Ids
from flowfabric.engine.commit.records import find
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.recorded import StepCuts
from flowfabric.engine.flow.resolver import FlowResolver
from flowfabric.engine.flow.walks import edge_pages
from flowfabric.engine.limit.known_lines import KnownLines
from flowfabric.store.queries import EdgeQuery
from flowfabric.store.readable import load_readable
from flowfabric.store.rows.record import FLOWS

_CHUNK = 2_000
_OPERATOR = Owner(source=Source.OPERATOR)
_AS_IT_IS = ForkChanges()
TRIGGERS = frozenset({"signal", "operator", "auto_resume"})


class Executions(Service):
    """`engine.executions`"""

    def __init__(
        self, context: EngineContext, resolver: FlowResolver, cuts: StepCuts, lines: KnownLines
    ) -> None:
        super().__init__(context)
        self._resolver = resolver
        self._lines = lines
        self._cuts = cuts
        self._creations: Batcher[Creation, Submitted | Duplicate] = Batcher(
            "submit",
            self._flush_creations,
            keys=_creation_keys,
            weight=_creation_weight,
            halves=context.store.is_server,
        )

    async def submit(
        self, submission: Submission, *, fresh: UUID | None = None
    ) -> Submitted | Duplicate:
        """Creates an execution. If the key or id exists, returns `Duplicate` and changes nothing.
        `fresh` is a new id that the caller has made before its first try: a repeat with the same
        one gets the first answer."""
        self._accept()
        try:
            creation = self._create(submission, fresh)
        except Invalid:  # a repeat gets the first answer
            if (first := await _first_answer(self._context, submission, fresh)) is not None:
                return first
            raise
        answer = await self.put_new(creation)
        if creation.key is None:
            _check_named(answer.id, submission)
        return answer

    async def submit_many(
        self, submissions: Iterable[Submission], *, fresh: Sequence[UUID] = ()
    ) -> list[Submitted | Duplicate]:
        """Creates many executions and answers in order. All are checked before the first is
        written; each is written on its own, so that an interrupted call can be repeated with the
        same keys, or with the same `fresh` ids (see `submit`)."""
        self._accept()
        if not isinstance(submissions, Iterable):
            raise Invalid(f"submissions must be a list, not {type(submissions).__name__}")
        given = [parse_uuid(id, "fresh id") for id in check_items(fresh, "fresh")]
        asked = list(submissions)
        pairs = zip(asked, chain(given, repeat(None)), strict=False)
        creations = deque(self._create(submission, id) for submission, id in pairs)
        await _check_partitions(self._context, creations, asked)
        repeats = {
            place: first
            for place, creation in enumerate(creations)
            if not _limits_exist(self._context, creation)
            and (first := await _repeat_of(self._context, creation)) is not None
        }
        answers: list[Submitted | Duplicate] = []
        while creations:  # what is written need not be kept
            places = range(len(answers), len(answers) + min(_CHUNK, len(creations)))
            chunk = [(place, creations.popleft()) for place in places]
            new = [self.put(creation) for place, creation in chunk if place not in repeats]
            written = iter(await asyncio.gather(*new))
            answers += [repeats.get(place) or next(written) for place in places]
        return answers

    async def cancel(
        self, id: str, *, reason: str, owner: Owner = _OPERATOR, force: bool = False
    ) -> CancelAnswer:
        """Ends an execution as cancelled, in any state; its worker notices and stops the handler.
        One that asked for a clean-up ends after it, or at once with `force`."""
        text = check_text(reason, "reason", limit=MAX_REASON)
        who = check_owner(owner)
        check_flag(force, "force")
        return await self._decide(id, operator.cancel, who, text, force=force)

    async def await_end(self, id: str, run: UUID) -> bool:
        """The end of an execution is signalled to `run` (`children.end_signal`), which need not
        hold a worker until then. True if it has ended already: nothing is signalled."""
        return await self._decide(id, children.await_end, parse_uuid(run, "run"))

    async def expire(self, id: str) -> Expired | CleanedUp | AlreadySatisfied | RetryScheduled:
        """Acts on a deadline or attempt timeout that has passed; does nothing before. The sweep
        also does this."""
        return await self._decide(id, operator.expire, self._jitter())

    async def change_priority(self, id: str, priority: int, *, anywhere: bool = False) -> Changed:
        """Moves a waiting execution in the claim order (0 to 9000, clamped). `anywhere` also allows
        it for parked ones."""
        if type(priority) is not int:
            raise Invalid(f"priority must be a whole number, not {type(priority).__name__}")
        check_flag(anywhere, "anywhere")
        step = self._context.options.rank_step
        return await self._decide_settled(
            id, operator.change_priority, priority, anywhere=anywhere, step=step
        )

    async def put_new(self, creation: Creation) -> Submitted | Duplicate:
        """Writes a submission whose limits exist; a repeat gets the first answer although one of
        them is gone by now."""
        if not _limits_exist(self._context, creation):
            first = await _repeat_of(self._context, creation)
            if first is not None:
                return first
        return await self.put(creation)

    def put(self, creation: Creation) -> Awaitable[Submitted | Duplicate]:
        """Writes a checked submission."""
        return self._creations.put(prepared(self._context, creation))

    async def put_all(self, creations: Sequence[Creation]) -> None:
        """Writes checked submissions that have ids; existing ones stay as they are."""
        for page in in_pages(creations, _CHUNK):
            await asyncio.gather(*(self.put(creation) for creation in page))

    async def replay(self, id: str, *, from_step: str | int | None = None) -> Replayed:
        """Runs an ended execution again as a new attempt. A skipped member of a flow waits again
        for its upstreams. With `from_step` it keeps the recorded steps before that one, also if it
        had succeeded, and runs the others again."""
        wanted = None if from_step is None else check_reference(from_step)

        async def round(number: int) -> Replayed | Literal[RaceLost.RACE_LOST]:
            cut, known = None, KnownWaits()
            if wanted is not None:
                snapshot = await self._present(id)
                operator.check_replay(snapshot)
                cut, known = await self._cuts.before(snapshot, wanted)
            return await self._replay(id, cut, known) or RACE_LOST

        return await retry(round, f"run {id}")

    async def fork(
        self,
        id: str,
        *,
        from_step: str | int | None = None,
        changes: ForkChanges = _AS_IT_IS,
        fresh: UUID | None = None,
    ) -> Submitted | Duplicate:
        """Creates an execution like this one, in any state, that has recorded what this one has
        before a step; without a step it has recorded nothing. `fresh` as in `submit`."""
        self._accept()
        wanted = None if from_step is None else check_reference(from_step)
        given = check_kind_of(changes, ForkChanges, "changes")
        snapshot = await self._present(id)
        cut, known = None, KnownWaits()
        if wanted is not None:
            cut, known = await self._cuts.before(snapshot, wanted)
        detail = await self._context.store.detail(snapshot.execution.uuid)
        if detail is None:
            raise NotFound("execution", id)
        source, now = ForkSource(snapshot, detail.payload, detail.tags), self._now()
        new = _new_id(self._context.ids, fresh, now)
        creation = fork(source, now, new, given, cut, known)
        return await self.put_new(creation)

    async def _replay(self, id: str, cut: StepCut | None, known: KnownWaits) -> Replayed | None:
        snapshot = await self._load(id)
        if snapshot is None or not snapshot.head.flags & Flags.FLOW:
            return await self._decide(
                id, lambda found, now: cut_replay(operator.replay(found, now), cut, known)
            )
        flow = await find(self._context.store, FLOWS, snapshot.execution.flow or UUID(int=0))
        if flow is not None and flow.state is FlowState.CANCELLED:
            operator.check_replay(snapshot)  # what is wrong with the run itself comes first
            raise FlowTerminal(
                f"the flow of {snapshot.run} was cancelled, so it cannot be replayed"
            )
        upstreams: dict[UUID, Snapshot] = {}
        waits = needed_to_replay(snapshot) is not None
        if flow is not None and waits:
            # Otherwise an earlier ending would skip it again.
            await self._resolver.resolve(flow.id)
            upstreams = await self._upstreams(flow.id, snapshot.execution.uuid)

        def rule(found: Snapshot | None, now: Millis, loaded: Loaded) -> Change[Replayed | None]:
            if (needed_to_replay(found) is not None) != waits:
                return unchanged(None)  # an ending was counted meanwhile: its edges were not read
            return cut_replay(replay_member(found, now, loaded, upstreams), cut, known)

        return await self._context.decisions.decide_loaded(
            snapshot.execution.uuid, rule, needed_to_replay
        )

    async def _upstreams(self, flow: UUID, member: UUID) -> dict[UUID, Snapshot]:
        """The upstreams of a member."""
        found: dict[UUID, Snapshot] = {}
        query = EdgeQuery(flow=flow, downstreams=(member,))
        async for page in edge_pages(self._context.store, query):
            found |= await self._context.store.load([state.edge.upstream for state in page])
        return found

    async def block(self, id: str, reason: str, detail: str | None = None) -> Blocked:
        """Keeps an eligible execution from being claimed. If it is blocked for a budget, a quota or
        a capable worker, the sweep asks every five seconds whether that is gone, and unblocks
        it."""
        check_text(reason, "reason", limit=MAX_REASON)
        if detail is not None:
            check_text(detail, "detail", limit=MAX_REASON)
        return await self._decide_settled(id, operator.block, reason, detail)

    async def unblock(self, id: str, expected: str | None = None) -> Unblocked:
        """Undoes a block if it is the expected one."""
        if expected is not None:
            check_text(expected, "expected reason", limit=MAX_REASON)
        return await self._decide(id, operator.unblock, expected)

    async def hold(self, id: str, detail: str | None = None) -> Held:
        """Holds back a waiting run (for a worker, a moment, upstreams, a limit or a signal). It
        does not start or continue before `unhold`."""
        if detail is not None:
            check_text(detail, "detail", limit=MAX_REASON)
        return await self._decide(id, hold.hold, detail)

    async def unhold(self, id: str) -> Unheld:
        """Releases a held run."""
        return await self._decide(id, hold.unhold)

    async def resume(self, id: str, *, delay: Span = NO_TIME, trigger: str = "operator") -> Resumed:
        """Wakes a suspended execution without a signal, after an optional delay."""
        wait = check_span(delay, "delay")
        check_one_of(trigger, TRIGGERS, "trigger")
        return await self._decide(id, resume, wait, trigger)

    async def set_tags(self, id: str, tags: Mapping[str, str]) -> int:
        """Adds or replaces tags, all or none, in any state; returns how many."""
        checked = check_tags(tags)
        if not checked:
            raise Invalid("give at least one tag")
        uuid, store = (await self._present(id)).execution.uuid, self._context.store
        if not await store.set_tags(uuid, checked, self._now()):
            raise NotFound("execution", id)
        return len(checked)

    async def set_tag(self, id: str, key: str, value: str) -> None:
        await self.set_tags(id, {check_tag_key(key): value})

    async def get_tag(self, id: str, key: str) -> str | None:
        """A tag's value; None if the tag or the execution does not exist."""
        check_tag_key(key)
        if await self._load(id) is None:
            return None
        detail = await self._context.store.detail(ExecutionId(id).uuid)
        return None if detail is None else detail.tags.get(key)

    async def drain(self) -> None:
        await self._creations.drain()

    def _create(self, submission: Submission, fresh: UUID | None = None) -> Creation:
        now = self._now()
        checked = check_kind_of(submission, Submission, "submission")
        return create(checked, _new_id(self._context.ids, fresh, now), now)

    async def _flush_creations(self, creations: list[Creation]) -> list[Any]:
        written = await self._lines.submit(creations, self._now())
        found, known = written.snapshots, written.existing
        new = [each for each, existing in zip(found, known, strict=True) if existing is None]
        self._context.post_commit.created(new, full=written.full)
        return list(map(_outcome, creations, found, known))


async def _first_answer(
    context: EngineContext, submission: Submission, fresh: UUID | None
) -> Submitted | Duplicate | None:
    """The answer to a submission whose key or id is known, whatever else of it is wrong; None if
    neither is."""
    try:
        check_kind_of(submission, Submission, "submission")
        if submission.priority is not None:
            check_priority(submission.priority)
        namespace = check_namespace(submission.namespace)
        key = None if _keeps_no_key(submission) else check_key(submission.key)
        given = None if submission.id is None else ExecutionId(submission.id)
        made = None if fresh is None else parse_uuid(fresh, "fresh id")
    except Invalid:
        return None
    id = made if given is None else given.uuid
    if id is None and key is None:
        return None
    first = await _known(context, id, namespace, key, given is None)
    if first is None or (key is None and not _is_named(first.id, submission)):
        return None
    return first


def _is_named(id: ExecutionId, submission: Submission) -> bool:
    """Whether a submission without a key means this execution: the id that it gives, if any, does
    not name another partition."""
    return submission.id is None or ExecutionId(submission.id).names(id)


def _check_named(id: ExecutionId, submission: Submission) -> None:
    if not _is_named(id, submission):
        raise InvalidId("wrong_partition", submission.id or "")


async def _check_partitions(
    context: EngineContext, creations: Iterable[Creation], submissions: Iterable[Submission]
) -> None:
    """Raises if the uuid of a given id is known in another partition, as `submit` does, or is given
    in two partitions. One that cannot be read does not hide the others."""
    named: dict[UUID, Submission] = {}
    for creation, submission in zip(creations, submissions, strict=True):
        if creation.key is None and not creation.minted:
            execution = creation.snapshot.execution
            _check_named(execution.id, named.setdefault(execution.uuid, submission))
    for page in in_pages(list(named), _CHUNK):
        known = await load_readable(context.store.load, page)
        for uuid, snapshot in known.items():
            _check_named(snapshot.execution.id, named[uuid])


def _limits_exist(context: EngineContext, creation: Creation) -> bool:
    """Whether that is known of all limits of a submission, without asking the store."""
    policy = creation.snapshot.execution.policy
    return policy is None or context.known_limits.known(policy)


async def _repeat_of(context: EngineContext, creation: Creation) -> Submitted | Duplicate | None:
    """The first answer to a submission that is repeated and uses a limit that is gone; None if all
    its limits exist. Raises NotFound if it was not written before."""
    execution = creation.snapshot.execution
    try:
        await context.known_limits.check(execution.rules)
    except NotFound:
        id, namespace = execution.uuid, execution.route.namespace
        first = await _known(context, id, namespace, creation.key, creation.minted)
        if first is None:
            raise
        return first
    return None


async def _known(
    context: EngineContext, id: UUID | None, namespace: str, key: str | None, minted: bool
) -> Submitted | Duplicate | None:
    """The answer to a submission with this id or key, if there was one before."""
    found = await context.store.known(id, namespace, key, context.store.clock.now())
    if found is None or not minted or found.uuid != id:
        return None if found is None else Duplicate(found)
    snapshot = (await context.store.load([found.uuid])).get(found.uuid)
    return None if snapshot is None else Submitted(found, public_state(snapshot))


def _keeps_no_key(submission: Submission) -> bool:
    """Whether there is no key, or a policy that can be read switches keys off."""
    if submission.key is None or submission.policy is None:
        return submission.key is None
    with suppress(Invalid):
        return parse_policy(submission.policy).dedup_window_ms <= 0
    return False


def prepared(context: EngineContext, creation: Creation) -> Creation:
    """A checked submission as it is written."""
    return ranked(context.traces.traced(creation), context.options.rank_step)


def _new_id(ids: Ids, fresh: UUID | None, now: Millis) -> UUID:
    """The new id of the caller, or one made here."""
    return ids.fresh(now) if fresh is None else parse_uuid(fresh, "fresh id")


def _outcome(
    creation: Creation, snapshot: Snapshot, existing: ExecutionId | None
) -> Submitted | Duplicate:
    """A duplicate of an id that this process created is its own, from an earlier try."""
    id = snapshot.execution.id
    if existing is None or (creation.minted and existing == id):
        return Submitted(id, public_state(snapshot))
    return Duplicate(existing)


def _creation_keys(creation: Creation) -> tuple[Hashable, ...]:
    execution = creation.snapshot.execution
    if creation.key is None:
        return (execution.uuid.int,)
    return (execution.uuid.int, (execution.route.namespace, creation.key))


def _creation_weight(creation: Creation) -> int:
    steps = sum(len(step.doc) for step in creation.steps) if creation.steps else 0
    return len(creation.payload) + steps
