"""How claims take work: calls that want the same share a statement, budgets are asked before any
work starts, and what was taken for a caller that is gone is handed back."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from typing import cast
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, Unavailable
from flowfabric.core.base.ids import derive_uuid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import hand_back_unheard
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import Owner, fence_of, renew_claimed
from flowfabric.core.execution.model import Active, Flags, Lease, Snapshot
from flowfabric.core.execution.takeover import give_up
from flowfabric.engine.collector import rare_collections
from flowfabric.engine.commit.background import Background
from flowfabric.engine.commit.batch import MAX_BYTES, Batcher
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.budget_gate import BudgetGate
from flowfabric.engine.limit.lanes import share_out
from flowfabric.store.hints import Topic
from flowfabric.store.queries import ClaimCall, Suspects, Taken

log = logging.getLogger("flowfabric.claims")

MAX_CLAIM = 500
MAX_REFUSED = 100
"""How often one claim tries again when budgets refuse everything it took."""

MAX_FOLDS = 64
"""So many kinds of claims are remembered; those that are not under way make room for others."""

_FoldKey = tuple[frozenset[str], tuple[str, ...], str | None, frozenset[str] | None, Suspects]
"""What calls have in common that share a statement."""

_SPENT = int(Flags.SPENT)
_CHECKED = int(Flags.SPENT | Flags.BUDGETS)
"""Plain numbers, because flags are slow and every claim is tested."""


class ClaimCalls(Service):
    """Part of `engine.claims`."""

    def __init__(self, context: EngineContext, budget_gate: BudgetGate) -> None:
        super().__init__(context)
        self._budget_gate = budget_gate
        self._folds: dict[_FoldKey, Batcher[ClaimCall, list[Taken]]] = {}
        self._rescues = Background("handing back a claim", log)
        self._unanswered: dict[UUID, tuple[ClaimCall, Millis]] = {}
        self._turns: dict[tuple[str, ...], dict[str, float]] = {}
        self._working: ExitStack | None = None

    async def take(self, call: ClaimCall, weights: dict[str, int]) -> list[Taken]:
        """What the call takes and the budgets admit, from lanes with weights in their
        proportion."""
        if not weights:
            return await self._admitted(call)
        taken: list[Taken] = []
        for number, (lanes, share) in enumerate(_shares(self._turns, weights, call)):
            room = call.limit - len(taken)
            if room <= 0:
                break
            derived = partial(_part_id, call.id, number)
            part = _part(call, lanes, min(share, room), derived)
            try:
                taken += await self._admitted(part)
            except FlowFabricError:
                if not taken:
                    raise
                break  # claimed executions must reach their owner
            except asyncio.CancelledError:
                self.rescue(_snapshots(taken))
                raise
        return taken

    async def taken_before(self, call: ClaimCall, weights: dict[str, int]) -> list[Taken]:
        """What an earlier call with the same key has taken and still holds."""
        # What was taken for a first try that was cancelled is being handed back.
        await self._rescues.drain()
        whole = [*((lane,) for lane in weights), call.lanes]
        parts = [_part(call, lanes, 0, lambda: call.id) for lanes in whole]
        taken = await self._ask_store(parts, self._now())
        return await self._renewed(chain(*taken), call.ttl)

    async def taken_by(self, call: ClaimCall) -> list[Taken]:
        """What a call with this id has taken, all of its parts, and still holds."""
        ids = [call.id, *(_part_id(call.id, part) for part in range(call.limit + 1))]
        parts = [replace(call, id=each, limit=0, repeated=True) for each in ids]
        taken = await self._ask_store(parts, self._now())
        return await self._renewed(chain(*taken), call.ttl)

    async def recover(self) -> None:
        """Returns what was taken by claims whose replies were lost."""
        if not self._unanswered:
            return
        now, asked = self._now(), list(self._unanswered)
        calls = [call for call, ends_at in self._unanswered.values() if now < ends_at]
        repeats = [replace(call, limit=0, repeated=True) for call in calls]
        taken = await self._ask_store(repeats, now) if repeats else []
        for answer in await self.hand_back(_snapshots(chain(*taken))):
            if isinstance(answer, Unavailable):
                raise answer
        for id in asked:
            self._unanswered.pop(id, None)

    def unanswered(self, calls: Iterable[ClaimCall], now: Millis) -> None:
        """The replies to these calls were lost; `recover` returns what they took."""
        self._unanswered |= {call.id: (call, Millis(now + call.ttl)) for call in calls}

    @property
    def is_asked_first(self) -> bool:
        """Whether a claim does more than ask the store: it recovers, or asks budgets."""
        return bool(self._unanswered) or self._budget_gate.known.unnamed

    def rescue(self, held: Sequence[Snapshot]) -> None:
        """Hands leases back in the background."""
        self._rescues.start(partial(self.hand_back, held))

    async def hand_back(self, held: Sequence[Snapshot]) -> list[object]:
        """Gives up leases whose answer has reached no worker. What a repeat of the call got
        meanwhile, from any process, is left alone."""
        return await self._context.decisions.decide_all(
            [
                Decision(each.execution.uuid, partial(hand_back_unheard, owner=_owner(each)))
                for each in held
            ]
        )

    async def drain(self) -> None:
        for fold in list(self._folds.values()):
            await fold.drain()
        await self._rescues.drain()
        if self._working is not None:
            self._working.close()
            self._working = None

    async def _admitted(self, call: ClaimCall) -> list[Taken]:
        """What the call takes and the budgets admit."""
        await self._budget_gate.let_in_due()
        taken = await self._kept(self._ask(call))
        if not taken or not (self._budget_gate.known.unnamed or any(map(_is_checked, taken))):
            return taken
        return await self._kept(asyncio.ensure_future(self._checked(call, taken)))

    async def _kept(self, work: "asyncio.Future[list[Taken]]") -> list[Taken]:
        """What the work takes, without losing executions: if the caller is cancelled in the
        meantime, they are handed back."""
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._rescues.start(partial(self._hand_back_late, work))
            raise

    async def _checked(self, call: ClaimCall, taken: list[Taken]) -> list[Taken]:
        """What the budgets admit. If they refuse everything, it claims again: there may be others
        behind, which must not wait for the next poll."""
        for tries in range(MAX_REFUSED):
            if tries:
                taken = await self._ask(_part(call, call.lanes, call.limit, self._fresh))
            kept = await self._give_up_spent(taken)
            admitted = await self._budget_gate.check(kept) if kept else []
            if admitted or not taken:
                return admitted
        self._context.store.hints.send(Topic.WORK)  # workers that wait for work ask again at once
        return []

    def _ask(self, call: ClaimCall) -> "asyncio.Future[list[Taken]]":
        """What the call takes. Calls that want the same and come while one is under way share the
        next statement; executions go to them in the order in which they asked."""
        key = (call.capabilities, call.lanes, call.namespace, call.kinds, call.suspects)
        fold = self._folds.get(key)
        if fold is None:
            if len(self._folds) >= MAX_FOLDS:
                self._folds = {each: fold for each, fold in self._folds.items() if not fold.idle}
            fold = self._folds[key] = Batcher("claim", self._flush, keys=_call_keys, weight=_weight)
        return fold.put(call)

    async def _flush(self, calls: list[ClaimCall]) -> "list[list[Taken] | Unavailable]":
        if self._working is None:  # until the engine is closed
            self._working = ExitStack()
            self._working.enter_context(rare_collections())
        now = self._now()
        try:
            answers = await self._ask_store(calls, now)
        except Unavailable:  # it may have been done
            # A call with a key is repeated by its caller, which gets what was taken.
            self.unanswered([call for call in calls if not call.repeated], now)
            raise
        pairs = zip(calls, answers, strict=True)
        return [await self._keep(c, taken) if c.repeated else taken for c, taken in pairs]

    async def _ask_store(self, calls: list[ClaimCall], now: Millis) -> list[list[Taken]]:
        store = self._context.store
        if len(calls) == 1:
            return [await store.claim(calls[0], now)]
        return await store.claim_all(calls, now)

    async def _keep(self, call: ClaimCall, taken: list[Taken]) -> "list[Taken] | Unavailable":
        """What a call with a key has taken. Another try of it may run at the same time, in another
        process: what that one has taken is held, so that neither hands it back for the other. If
        that fails, only this caller asks again: the others of its statement have their answers."""
        again = [item for item in taken if item.again]
        if not again:
            return taken
        try:
            held = await self._renewed(again, call.ttl)
        except Unavailable as error:
            return error
        return [*held, *(item for item in taken if not item.again)]

    async def _renewed(self, found: Iterable[Taken], ttl: Millis) -> list[Taken]:
        """Of what an earlier try took, what its worker still holds. It is renewed, so that no
        process hands it back any more for that try (`hand_back`). What was taken to be given up is
        left to the next claim."""
        taken = [item for item in found if not _spent(item)]
        decisions = [
            Decision(
                item.snapshot.execution.uuid,
                partial(renew_claimed, owner=_owner(item.snapshot), ttl=ttl),
                item.snapshot,
            )
            for item in taken
        ]
        held = []
        answers = await self._context.decisions.decide_all(decisions)
        for item, answer in zip(taken, answers, strict=True):
            if isinstance(answer, Unavailable):
                raise answer  # the caller asks again
            if isinstance(answer, Snapshot):
                held.append(replace(item, snapshot=answer))
        return held

    async def _give_up_spent(self, taken: list[Taken]) -> list[Taken]:
        """Ends executions that were taken over too often, except for a worker whose reclaim grant
        allows it once more. If that fails, the lease expires and the next claim tries again."""
        spent = [item for item in taken if _spent(item)]
        if not spent:
            return taken
        decisions = [
            Decision(item.snapshot.execution.uuid, partial(_given_up, state.lease), item.snapshot)
            for item in spent
            if isinstance(state := item.snapshot.state, Active)
        ]
        answers = await self._context.decisions.decide_all(decisions)
        kept = {}
        for item, answer in zip(spent, answers, strict=False):
            if isinstance(answer, Snapshot):
                kept[answer.execution.uuid] = replace(item, snapshot=answer)
            elif isinstance(answer, Exception):
                log.warning(
                    "%s lost its worker too often and could not be ended: %s; the next claim tries"
                    " again",
                    item.snapshot.run,
                    answer,
                    extra={"run": str(item.snapshot.execution.uuid)},
                )
        found = (kept.get(each.snapshot.execution.uuid, each) for each in taken)
        return [item for item in found if not _spent(item)]

    async def _hand_back_late(self, work: "asyncio.Future[list[Taken]]") -> None:
        with suppress(FlowFabricError):
            await self.hand_back(_snapshots(await work))


def _call_keys(call: ClaimCall) -> tuple[int]:
    """One call and its repeat do not share a statement."""
    return (call.id.int,)


def _weight(call: ClaimCall) -> int:
    """So that one statement takes no more than MAX_CLAIM."""
    return call.limit * (MAX_BYTES // MAX_CLAIM)


def _snapshots(taken: Iterable[Taken]) -> list[Snapshot]:
    return [item.snapshot for item in taken]


def _owner(held: Snapshot) -> Owner:
    """Who holds the lease of what was taken."""
    return Owner.of(fence_of(held, cast(Active, held.state).lease))


def _spent(item: Taken) -> bool:
    return int(item.snapshot.head.flags) & _SPENT != 0


def _is_checked(item: Taken) -> bool:
    """Whether it may have to be given up, or a budget is named for it."""
    return int(item.snapshot.head.flags) & _CHECKED != 0


def _given_up(lease: Lease, held: Snapshot | None, now: Millis) -> Change[Snapshot | None]:
    return give_up(held, now, lease)


def _shares(
    turns: dict[tuple[str, ...], dict[str, float]], weights: dict[str, int], call: ClaimCall
) -> list[tuple[tuple[str, ...], int]]:
    """Each lane's share of this claim, then the rest from all lanes together."""
    lanes = tuple(weights)
    shares = share_out(weights, call.limit, turns.setdefault(lanes, dict.fromkeys(lanes, 0.0)))
    return [((lane,), share) for lane, share in shares if share] + [(call.lanes, call.limit)]


def _part(
    call: ClaimCall, lanes: tuple[str, ...], limit: int, fresh: Callable[[], UUID]
) -> ClaimCall:
    """The part of a call that takes from these lanes. A call with a key has an id for each of its
    parts, always the same, so that a repeat finds what all of them took."""
    if not call.repeated:
        id = fresh()
    else:
        id = call.id if lanes == call.lanes else derive_uuid(call.id, "\n".join(lanes))
    return replace(call, id=id, lanes=lanes, limit=limit)


def _part_id(claim: UUID, number: int) -> UUID:
    """The lease id of what one part of a claim takes. It is derived, so that a caller that lost the
    answer finds what each part has taken."""
    return derive_uuid(claim, str(number))
