"""Explanations for callers that are limited to namespaces.

Lanes and quotas are shared by all namespaces, so the slots that a run waits for may be held by runs
of other tenants. How many are taken is no secret; which runs have them is.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.explain.lane import LaneExplanation
from flowfabric.core.explain.limits import holder_reasons
from flowfabric.core.explain.reasons import Explanation, Reason, ReasonCode

T = TypeVar("T", Explanation, LaneExplanation)

Sees = Callable[[UUID], Awaitable[bool]]
"""Whether the caller sees this run."""

_TAKEN = {ReasonCode.QUOTA_FULL: "taken", ReasonCode.LANE_FULL: "running"}
"""The member that says how many slots are taken, of reasons that name who has them."""
_HOLDERS = "holders"


async def without_foreign_runs(found: T, sees: Sees) -> T:
    """The explanation, in which only runs that the caller sees are named as holders of slots."""
    return replace(found, reasons=await _all(found.reasons, sees))


async def _all(reasons: Sequence[Reason], sees: Sees) -> tuple[Reason, ...]:
    return tuple([await _one(reason, sees) for reason in reasons])


async def _one(reason: Reason, sees: Sees) -> Reason:
    taken = reason.detail.get(_TAKEN.get(reason.code, ""))
    children: list[Reason] = []
    for child in reason.children:
        if child.code is ReasonCode.SLOT_HOLDERS and taken is not None:
            children += holder_reasons(await _seen(child.detail["executions"], sees), taken)
        else:
            children.append(await _one(child, sees))
    detail = reason.detail
    if holders := detail.get(_HOLDERS):
        detail = {**detail, _HOLDERS: await _seen(holders, sees)}
    return replace(reason, detail=detail, children=tuple(children))


async def _seen(ids: Sequence[str], sees: Sees) -> list[str]:
    return [id for id in ids if await sees(ExecutionId(id).uuid)]
