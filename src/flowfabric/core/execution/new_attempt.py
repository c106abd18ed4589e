"""What a worker that redeems a grant may decide about the attempt it starts."""

from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.document import Document
from flowfabric.core.base.ids import parse_uuid
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.time import Millis, check_moment, check_span
from flowfabric.core.execution.policy import Policy, parse_policy


class NewAttempt(Struct, frozen=True, kw_only=True):
    """The id of the attempt, the policy it runs under (stored with it; only its attempt timeout
    takes effect), how long it may take, and a deadline of the whole execution."""

    id: UUID | None = None
    policy: Policy | None = None
    timeout: Millis | None = None
    deadline_at: Millis | None = None


AS_PLANNED = NewAttempt()


class DeadlineBefore(Document, frozen=True, kw_only=True):
    """The deadline that an execution had, in its life and at all, before a claim gave it one."""

    at: Millis | None = None
    known: bool = False


class GivenAttempt(Document, frozen=True, kw_only=True):
    """The id and the policy that a claim gave to the attempt of this index. `replaced` is there if
    it gave the execution a deadline too."""

    index: int = 0
    id: UUID | None = None
    policy: Policy | None = None
    replaced: DeadlineBefore | None = None


def check_new_attempt(attempt: object) -> NewAttempt:
    """`attempt` with every member checked; a policy may be a document, as in a submission."""
    given = check_kind_of(attempt, NewAttempt, "the attempt")
    if given == AS_PLANNED:
        return AS_PLANNED
    policy = None if given.policy is None else parse_policy(given.policy)
    timeout = given.timeout
    if timeout is None and policy is not None:
        timeout = policy.attempt_timeout
    elif timeout is not None:
        timeout = check_span(timeout, "the timeout of an attempt", 1)
    deadline = given.deadline_at
    return NewAttempt(
        id=None if given.id is None else parse_uuid(given.id, "attempt"),
        policy=policy,
        timeout=timeout,
        # zero is not set
        deadline_at=None if deadline is None else check_moment(deadline, "deadline") or None,
    )
