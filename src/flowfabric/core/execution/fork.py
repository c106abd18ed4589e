"""Forking: a new run that begins where another one was at a chosen step."""

from collections.abc import Mapping
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.text import check_tags
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.cut import KnownWaits, StepCut, carry
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.policy import DEFAULT_POLICY, Policy, RoutingRequirements
from flowfabric.core.execution.submission import Creation, Submission, create
from flowfabric.core.execution.versions import check_version, version_of, version_token

FORKED_FROM = "flowfabric.forked_from"
"""The tag of a fork; its value is the id of the run it was forked from."""


class ForkChanges(Struct, frozen=True, kw_only=True):
    """What differs in a fork. None means: as in the run it is forked from. `tags` are added. The
    fork has no key unless one is given; with a key that exists, nothing is created."""

    payload: bytes | None = None
    version: str | None = None
    lane: str | None = None
    priority: int | None = None
    key: str | None = None
    tags: Mapping[str, str] | None = None


class ForkSource(Struct, frozen=True):
    """The run to be forked, as it was when it was read."""

    snapshot: Snapshot
    payload: bytes
    tags: Mapping[str, str]


def fork(
    source: ForkSource,
    now: Millis,
    fresh: UUID,
    changes: ForkChanges,
    cut: StepCut | None,
    known: KnownWaits,
) -> Creation:
    """The new run: the same task, arguments, policy and tags, outside of any flow, with the steps
    of the cut. Its deadline is counted from now."""
    creation = create(_submission(source, changes), fresh, now)
    snapshot = creation.snapshot
    at = None if cut is None else str(cut.from_step)
    facts = replace(
        snapshot.execution.facts, forked_from=str(source.snapshot.execution.id), forked_at=at
    )
    head = snapshot.head
    steps = () if cut is None else carry(cut, 0, known)
    if steps:
        head = replace(head, life=replace(head.life, seeded=True))
    execution = replace(snapshot.execution, facts=facts)
    return replace(
        creation, snapshot=replace(snapshot, execution=execution, head=head), steps=steps
    )


def _submission(source: ForkSource, changes: ForkChanges) -> Submission:
    execution, join = source.snapshot.execution, source.snapshot.life.join
    if changes.payload is None and join is not None and join.inputs:
        raise Invalid(
            f"{source.snapshot.run} takes arguments from other members of its flow, which a fork "
            "is not part of: give the arguments"
        )
    added = {} if changes.tags is None else check_tags(changes.tags)
    tags = {**source.tags, **added, FORKED_FROM: str(execution.id)}
    return Submission(
        kind=execution.kind,
        payload=source.payload if changes.payload is None else changes.payload,
        namespace=execution.route.namespace,
        lane=execution.route.lane if changes.lane is None else changes.lane,
        priority=source.snapshot.priority if changes.priority is None else changes.priority,
        key=changes.key,
        tags=tags,
        policy=_policy(source.snapshot, changes.version),
        creator=execution.facts.creator,
        encoding=execution.facts.encoding,
    )


def _policy(source: Snapshot, version: str | None) -> Policy | None:
    """The policy of the source, pinned to another version if one is given."""
    execution, policy = source.execution, source.execution.policy
    if version is None:
        return policy
    pin = version_token(execution.kind, check_version(version))
    pinned = version_of(execution.route)
    old = None if pinned is None else version_token(execution.kind, pinned)
    policy = policy or DEFAULT_POLICY
    routing = policy.routing_requirements or RoutingRequirements()
    tokens = tuple(each for each in routing.required_capabilities if each != old)
    return replace(
        policy, routing_requirements=replace(routing, required_capabilities=(*tokens, pin))
    )
