"""Submitting: what is created, what is a duplicate, and when it becomes eligible."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    InvalidCapabilities,
    InvalidId,
    InvalidPolicy,
    NotFound,
    Unavailable,
)
from flowfabric.core.base.ids import PARTITIONS, ExecutionId, lane_partition
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.new_attempt import NewAttempt
from flowfabric.core.execution.status import (
    AttemptState,
    Blocking,
    Eligibility,
    Ownership,
    Phase,
    PublicState,
    Vector,
)
from flowfabric.core.execution.submission import Duplicate, Submission, Submitted
from flowfabric.core.limit.quota import Quota
from flowfabric.store.queries import Query
from tests.kit.lab import W1, Lab

DAY = 86_400_000
SOME = UUID("018f4c3e-0000-7000-8000-0123456789ab")
OTHER = UUID("018f4c3e-0000-7000-8000-0123456789ac")


def solo(uuid: UUID = SOME, lane: str = "default") -> ExecutionId:
    return ExecutionId.solo(lane, uuid)


async def submit(lab: Lab, **members: Any) -> Submitted | Duplicate:
    return await lab.engine.executions.submit(Submission(**{"kind": "job", **members}))


async def listed(lab: Lab) -> list[ExecutionId]:
    return [item.id for item in (await lab.engine.views.list(Query())).items]


async def nothing_exists(lab: Lab) -> bool:
    counts = await lab.engine.views.counts()
    lanes = await lab.engine.lanes.list()
    return not any(counts.by_state.values()) and not lanes and not await listed(lab)


def ids(outcomes: Sequence[Submitted | Duplicate]) -> list[ExecutionId]:
    return [outcome.id for outcome in outcomes]


# -- what is created


async def test_a_submission_waits_for_a_worker(lab: Lab) -> None:
    """E-T030, E-T043"""
    outcome = await submit(lab, lane="mail", namespace="acme", tags={"app.tenant": "t1"})
    assert outcome == Submitted(outcome.id, PublicState.WAITING)
    described = await lab.engine.views.describe(outcome.id)
    assert described is not None
    assert described.vector == Vector(
        Phase.RUNNABLE,
        Ownership.UNOWNED,
        Eligibility.ELIGIBLE_NOW,
        Blocking.WORKER,
        "none",
        AttemptState.PENDING_FIRST,
    )
    assert (described.id, described.kind) == (outcome.id, "job")
    assert (described.lane, described.namespace) == ("mail", "acme")
    assert (described.state, described.tags) == (PublicState.WAITING, {"app.tenant": "t1"})
    assert (described.attempts_made, described.attempt, described.epoch) == (0, None, 0)
    assert (described.retries, described.reclaims, described.replays) == (0, 0, 0)
    assert (described.lease, described.started_at, described.ended_at) == (None, None, None)
    assert described.created_at == lab.clock.now()
    assert await listed(lab) == [outcome.id]
    assert await lab.engine.grants.eligible("mail") == [outcome.id]
    assert await lab.events(outcome.id) == ()


async def test_everything_submitted_comes_back_as_it_was(lab: Lab) -> None:
    """E-T043"""
    id = await lab.submit(
        kind="größe/☃",
        payload=b"\x00\xff{not json",
        namespace="ns ☃",
        lane=" ~lane~ " * 8,
        priority=7,
        key="schlüssel ☃",
        tags={"app.a": "", "app.b.c_1": "ü" * 2048},
        creator="anna ☃",
        encoding="application/x-thing",
        policy={"max_replay_count": 2, "made_up_by_a_newer_release": [1]},
    )
    described = await lab.engine.views.describe(id)
    context = await lab.engine.views.context(id)
    assert described is not None
    assert (described.kind, described.namespace) == ("größe/☃", "ns ☃")
    assert (described.lane, described.priority) == (" ~lane~ " * 8, 7)
    assert (described.key, described.creator) == ("schlüssel ☃", "anna ☃")
    assert described.tags == {"app.a": "", "app.b.c_1": "ü" * 2048}
    assert (context.payload, context.encoding) == (b"\x00\xff{not json", "application/x-thing")
    claim = await lab.claim_one()
    assert (claim.payload, claim.kind) == (b"\x00\xff{not json", "größe/☃")
    assert claim.policy.max_replay_count == 2
    assert claim.policy.unknown == {"made_up_by_a_newer_release": [1]}


@pytest.mark.parametrize(
    "payload", [b"", b"\0", bytes(1 << 20), bytearray(b"ab"), memoryview(b"c")]
)
async def test_a_payload_is_kept_byte_for_byte(lab: Lab, payload: Any) -> None:
    id = await lab.submit(payload=payload)
    assert (await lab.engine.views.context(id)).payload == bytes(payload)


async def test_an_id_the_engine_makes_is_new_and_in_its_lanes_partition(lab: Lab) -> None:
    made = [await lab.submit(lane=lane) for lane in ("default", "default", "mail")]
    assert len(set(made)) == 3
    assert [id.partition_index for id in made] == [
        lane_partition("default"),
        lane_partition("default"),
        lane_partition("mail"),
    ]
    assert {id.uuid.version for id in made} == {7}


async def test_lanes_are_listed_once_something_was_submitted_to_them(lab: Lab) -> None:
    """E-T042"""
    assert await lab.engine.lanes.list() == []
    for lane in ("mail", "gpu", "mail", "Zoo"):
        await lab.submit(lane=lane)
    assert await lab.engine.lanes.list() == ["Zoo", "gpu", "mail"]
    assert await lab.engine.lanes.list(limit=1) == ["Zoo"]
    assert await lab.engine.lanes.list(after="Zoo", limit=1) == ["gpu"]
    assert await lab.engine.lanes.list(after="mail") == []
    assert await lab.engine.lanes.list(limit=0) == []


# -- the same id twice


async def test_the_same_id_twice_is_one_execution_and_the_first_one_stays(lab: Lab) -> None:
    """E-T031"""
    first = await submit(lab, id=solo(), payload=b"one", priority=1, tags={"app.a": "1"})
    again = await submit(lab, id=solo(), payload=b"two", priority=2, tags={"app.b": "2"})
    assert (first, again) == (Submitted(solo(), PublicState.WAITING), Duplicate(solo()))
    described = await lab.engine.views.describe(solo())
    assert described is not None
    assert (described.priority, described.tags) == (1, {"app.a": "1"})
    assert (await lab.engine.views.context(solo())).payload == b"one"
    assert await listed(lab) == [solo()]


async def test_an_id_stays_taken_after_its_execution_ended(lab: Lab) -> None:
    """E-T031, §1.9"""
    await lab.complete(await lab.running(id=solo()))
    lab.clock.advance(10 * DAY)
    assert await submit(lab, id=solo()) == Duplicate(solo())


async def test_an_id_may_be_given_as_plain_text_in_either_case(lab: Lab) -> None:
    assert await lab.submit(id=str(solo()).upper().replace("FP", "fp")) == solo()


async def test_an_id_of_another_partition_is_refused(lab: Lab) -> None:
    """§3.1: the id's partition must be that of its lane."""
    elsewhere = ExecutionId.of((lane_partition("default") + 1) % PARTITIONS, SOME)
    with pytest.raises(InvalidId) as caught:
        await submit(lab, id=elsewhere)
    assert caught.value.reason == "wrong_partition"
    assert await nothing_exists(lab)


async def test_the_right_uuid_in_another_partition_names_nothing(lab: Lab) -> None:
    """§1.1: two ids with the same uuid and different partitions are different ids."""
    await lab.submit(id=solo())
    elsewhere = ExecutionId.of((solo().partition_index + 1) % PARTITIONS, SOME)
    with pytest.raises(InvalidId):
        await submit(lab, id=elsewhere)
    assert await lab.engine.views.describe(elsewhere) is None
    assert await lab.engine.views.state(elsewhere) is None
    assert await lab.engine.executions.get_tag(elsewhere, "app.a") is None
    with pytest.raises(NotFound):
        await lab.engine.executions.cancel(elsewhere, reason="no")
    with pytest.raises(NotFound):
        await lab.engine.executions.set_tag(elsewhere, "app.a", "1")
    with pytest.raises(NotFound):
        await lab.engine.grants.take(elsewhere)
    assert await lab.state(solo()) is PublicState.WAITING


async def test_a_known_uuid_in_the_partition_of_another_lane_is_refused(lab: Lab) -> None:
    """§1.1, §3.1: alone or among many; nothing of the call is written"""
    await lab.submit(id=solo())
    elsewhere = Submission(kind="job", id=ExecutionId.solo("mail", SOME), lane="mail")
    with pytest.raises(InvalidId):
        await lab.engine.executions.submit(elsewhere)
    with pytest.raises(InvalidId) as caught:
        await lab.engine.executions.submit_many([Submission(kind="job"), elsewhere])
    assert caught.value.reason == "wrong_partition"
    pair = [Submission(kind="job", id=ExecutionId.solo(lane, OTHER), lane=lane) for lane in "ab"]
    with pytest.raises(InvalidId):
        await lab.engine.executions.submit_many(pair)
    assert await listed(lab) == [solo()]
    again = Submission(kind="job", id=solo())
    assert await lab.engine.executions.submit_many([again]) == [Duplicate(solo())]


# -- the same key twice


async def test_a_known_key_gives_the_first_execution_whatever_the_id(lab: Lab) -> None:
    """E-X01"""
    first = await submit(lab, id=solo(), key="article-7", payload=b"one")
    again = await submit(lab, id=solo(OTHER), key="article-7", payload=b"two")
    unnamed = await submit(lab, key="article-7", lane="mail")
    assert (first.id, again, unnamed) == (solo(), Duplicate(solo()), Duplicate(solo()))
    assert await lab.engine.views.state(solo(OTHER)) is None
    assert (await lab.engine.views.context(solo())).payload == b"one"
    assert await listed(lab) == [solo()]


async def test_a_known_key_is_looked_at_before_a_known_id(lab: Lab) -> None:
    """§3.1: checks 2 and 3 in their order."""
    await lab.submit(id=solo(), key="a")
    await lab.submit(id=solo(OTHER), key="b")
    assert await submit(lab, id=solo(), key="b") == Duplicate(solo(OTHER))
    assert await submit(lab, id=solo(OTHER), key="c") == Duplicate(solo(OTHER))
    assert isinstance(await submit(lab, key="c"), Submitted)


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": {"routing_requirements": "gpu"}},
        {"policy": {"quotas": [{"quota": "gone", "key": ""}]}},
        {"policy": {"budget_ids": ["gone"]}},
        {"lane": ""},
        {"tags": {"Not A Key": "x"}},
        {"kind": ""},
    ],
)
async def test_a_repeat_is_a_duplicate_whatever_is_wrong_with_the_rest(
    lab: Lab, wrong: dict[str, Any]
) -> None:
    """§3.1: checks 2 and 3 come before 4 and 5."""
    await lab.submit(id=solo(), key="k")
    assert await submit(lab, key="k", **wrong) == Duplicate(solo())
    assert await submit(lab, id=solo(), **wrong) == Duplicate(solo())
    for fresh in ({"key": "other"}, {"key": "k", "namespace": "other"}, {"id": solo(OTHER)}, {}):
        with pytest.raises(FlowFabricError):
            await submit(lab, **fresh, **wrong)
    assert await listed(lab) == [solo()]


async def test_a_repeat_of_many_gets_the_first_answers_without_their_quota(lab: Lab) -> None:
    """§3.1, INV-23: what was not there before is still refused, with all others"""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    policy: dict[str, Any] = {"quotas": [{"quota": "q", "key": ""}]}
    plain, keyed = Submission(kind="job"), Submission(kind="job", key="k", policy=policy)
    unnamed = Submission(kind="job", policy=policy)
    first = await lab.engine.executions.submit_many([keyed, unnamed], fresh=(SOME, OTHER))
    await lab.engine.quotas.delete("q")
    await lab.engine.settle()
    new, *again = await lab.engine.executions.submit_many([plain, keyed])
    assert isinstance(new, Submitted)
    assert again == [Duplicate(first[0].id)]
    again = await lab.engine.executions.submit_many([keyed, unnamed], fresh=(SOME, OTHER))
    assert again == [Submitted(id, PublicState.WAITING) for id in ids(first)]
    with pytest.raises(NotFound):
        await lab.engine.executions.submit_many([plain, keyed, unnamed])
    assert set(await listed(lab)) == {new.id, *ids(first)}


async def test_a_repeat_with_the_same_fresh_id_gets_the_first_answer_without_its_quota(
    lab: Lab,
) -> None:
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    asked = Submission(kind="job", policy={"quotas": [{"quota": "q", "key": ""}]})
    first = await lab.engine.executions.submit(asked, fresh=OTHER)
    await lab.engine.quotas.delete("q")
    await lab.engine.settle()
    again = await lab.engine.executions.submit(asked, fresh=OTHER)
    assert again == Submitted(first.id, PublicState.WAITING)
    with pytest.raises(NotFound):
        await lab.engine.executions.submit(asked, fresh=SOME)


async def test_a_policy_without_a_window_has_no_key(lab: Lab) -> None:
    """§1.9: a window of zero switches keys off, also where the rest is wrong."""
    await lab.submit(key="k")
    gone = {"dedup_window_ms": 0, "quotas": [{"quota": "gone", "key": ""}]}
    with pytest.raises(NotFound):
        await submit(lab, key="k", policy=gone)


async def test_a_key_whose_window_has_passed_excuses_nothing(lab: Lab) -> None:
    """§3.1, check 2: known within its window."""
    await lab.submit(key="k", policy={"dedup_window_ms": 1000})
    lab.clock.advance(1000)
    with pytest.raises(Invalid):
        await submit(lab, key="k", lane="")


async def test_a_key_belongs_to_its_namespace(lab: Lab) -> None:
    """§1.9"""
    one = await lab.submit(namespace="a", key="k")
    other = await lab.submit(namespace="b", key="k")
    assert one != other
    assert await submit(lab, namespace="a", key="k") == Duplicate(one)
    assert await submit(lab, namespace="b", key="k") == Duplicate(other)


async def test_keys_are_compared_letter_for_letter(lab: Lab) -> None:
    made = [await lab.submit(key=key) for key in ("k", "K", "k ", " k", "ḱ", "k" * 1024)]
    assert len(set(made)) == 6


async def test_a_key_is_known_for_a_day_and_then_taken_over(lab: Lab) -> None:
    """§1.9"""
    first = await lab.submit(key="k")
    lab.clock.advance(DAY - 1)
    assert await submit(lab, key="k") == Duplicate(first)
    lab.clock.advance(1)
    second = await lab.submit(key="k")
    assert second != first
    lab.clock.advance(DAY - 1)
    assert await submit(lab, key="k") == Duplicate(second)
    assert set(await listed(lab)) == {first, second}


async def test_the_window_is_that_of_the_submission_which_made_the_key_known(lab: Lab) -> None:
    first = await lab.submit(key="k", policy={"dedup_window_ms": 1000})
    lab.clock.advance(999)
    assert await submit(lab, key="k") == Duplicate(first)
    lab.clock.advance(1)
    assert (await lab.submit(key="k", policy={"dedup_window_ms": 5})) != first


@pytest.mark.parametrize("window", [0, -1])
async def test_a_window_of_at_most_zero_remembers_no_key_and_looks_for_none(
    lab: Lab, window: int
) -> None:
    """§1.9: at most zero disables."""
    made = [await lab.submit(key="k", policy={"dedup_window_ms": window}) for _ in range(3)]
    remembered = await lab.submit(key="k")
    made.append(await lab.submit(key="k", policy={"dedup_window_ms": window}))
    assert len({*made, remembered}) == 5
    assert await submit(lab, key="k") == Duplicate(remembered)


async def test_an_empty_key_is_no_key(lab: Lab) -> None:
    assert await lab.submit(key="") != await lab.submit(key="")


async def test_a_key_outlives_the_end_of_its_execution(lab: Lab) -> None:
    claim = await lab.running(key="k")
    await lab.complete(claim, b"done")
    assert await submit(lab, key="k") == Duplicate(claim.id)
    assert await lab.engine.views.result(claim.id) == b"done"


async def test_of_many_who_submit_one_key_at_once_one_creates(lab: Lab, second_lab: Lab) -> None:
    """INV-23"""
    labs = [lab, second_lab] * 10
    outcomes = await asyncio.gather(*(submit(each, key="k") for each in labs))
    assert sum(isinstance(outcome, Submitted) for outcome in outcomes) == 1
    assert len(set(ids(outcomes))) == 1
    assert await listed(lab) == [outcomes[0].id]


async def test_of_many_who_submit_one_id_at_once_one_creates(lab: Lab, second_lab: Lab) -> None:
    labs = [lab, second_lab] * 10
    outcomes = await asyncio.gather(*(submit(each, id=solo()) for each in labs))
    assert sum(isinstance(outcome, Submitted) for outcome in outcomes) == 1
    assert set(ids(outcomes)) == {solo()}


# -- many at once


async def test_many_are_created_in_one_call_and_answered_in_order(lab: Lab) -> None:
    """More than one batch of the store."""
    submissions = [Submission(kind="job", key=f"k{number}") for number in range(1100)]
    outcomes = await lab.engine.executions.submit_many(submissions)
    assert all(isinstance(outcome, Submitted) for outcome in outcomes)
    assert len(set(ids(outcomes))) == 1100
    again = await lab.engine.executions.submit_many(submissions)
    assert again == [Duplicate(outcome.id) for outcome in outcomes]
    assert (await lab.engine.views.counts()).by_state["waiting"] == 1100


async def test_duplicates_inside_one_call_are_duplicates_of_the_first(lab: Lab) -> None:
    outcomes = await lab.engine.executions.submit_many(
        [
            Submission(kind="job", key="k", payload=b"0"),
            Submission(kind="job", payload=b"1"),
            Submission(kind="job", key="k", payload=b"2"),
            Submission(kind="job", id=solo(), payload=b"3"),
            Submission(kind="job", id=solo(), payload=b"4"),
            Submission(kind="job", key="k", namespace="other", payload=b"5"),
            Submission(kind="job", key="k", payload=b"6"),
        ]
    )
    kinds = [type(outcome) for outcome in outcomes]
    first = outcomes[0].id
    assert [index for index, kind in enumerate(kinds) if kind is Duplicate] == [2, 4, 6]
    assert ids(outcomes)[2] == ids(outcomes)[6] == first
    assert outcomes[4] == Duplicate(solo())
    assert (await lab.engine.views.context(first)).payload == b"0"
    assert (await lab.engine.views.context(solo())).payload == b"3"
    assert len(await listed(lab)) == 4


async def test_of_many_all_are_checked_before_the_first_is_written(lab: Lab) -> None:
    with pytest.raises(InvalidPolicy):
        await lab.engine.executions.submit_many(
            [Submission(kind="job"), Submission(kind="job", policy=b"{"), Submission(kind="job")]
        )
    assert await nothing_exists(lab)
    assert await lab.engine.executions.submit_many([]) == []


# -- priority


async def test_priorities_are_clamped_and_the_higher_one_comes_first(lab: Lab) -> None:
    """E-T032, INV-29"""
    low = await lab.submit(priority=-5)
    middle = await lab.submit(priority=50)
    top = await lab.submit(priority=10_000)
    absurd = await lab.submit(priority=10**30)
    described = [await lab.engine.views.describe(id) for id in (low, middle, top, absurd)]
    assert [each.priority for each in described if each] == [0, 50, 9000, 9000]
    assert await lab.engine.grants.eligible("default") == [top, absurd, middle, low]


async def test_the_submissions_priority_goes_before_the_policys(lab: Lab) -> None:
    of_policy = await lab.submit(policy={"priority": 9001})
    absurd = await lab.submit(policy={"priority": 10**12})
    own = await lab.submit(policy={"priority": 70}, priority=0)
    default = await lab.submit()
    described = [await lab.engine.views.describe(id) for id in (of_policy, absurd, own, default)]
    assert [each.priority for each in described if each] == [9000, 9000, 0, 0]


# -- delays and deadlines


async def test_a_delayed_execution_is_promoted_when_its_time_comes(lab: Lab) -> None:
    """E-T044, S2"""
    until = Millis(lab.clock.now() + 1000)
    outcome = await submit(lab, delay_until=until)
    assert outcome == Submitted(outcome.id, PublicState.DELAYED)
    shape = await lab.vector(outcome.id)
    assert (shape.eligibility, shape.blocking, shape.attempt) == (
        Eligibility.NOT_UNTIL_TIME,
        Blocking.DELAY,
        AttemptState.PENDING_FIRST,
    )
    described = await lab.engine.views.describe(outcome.id)
    assert described is not None
    assert described.blocking_detail == f"delayed until {until}"
    await lab.pass_time(999)
    assert await lab.claim() == []
    assert await lab.engine.grants.eligible("default") == []
    await lab.pass_time(1)
    assert await lab.state(outcome.id) is PublicState.WAITING
    await lab.complete(await lab.claim_one())
    assert await lab.state(outcome.id) is PublicState.COMPLETED


async def test_a_delay_that_has_passed_already_is_none(lab: Lab) -> None:
    now = lab.clock.now()
    made = [await submit(lab, delay_until=moment) for moment in (now, Millis(now - 1), Millis(0))]
    assert {type(outcome) for outcome in made} == {Submitted}
    assert len(await lab.claim(limit=5)) == 3


async def test_the_policy_may_ask_for_the_delay(lab: Lab) -> None:
    """§1.2, §1.7: a timestamp of zero is not set, so it does not replace that of the policy."""
    now = lab.clock.now()
    policy = {"delay_until": now + 1000}
    for moment in (None, Millis(0)):
        delayed = await submit(lab, policy=policy, delay_until=moment)
        assert await lab.state(delayed.id) is PublicState.DELAYED
    own = await submit(lab, policy=policy, delay_until=Millis(now - 1))
    assert await lab.state(own.id) is PublicState.WAITING


async def test_a_deadline_acts_at_its_very_moment(lab: Lab) -> None:
    """E-T033"""
    deadline = Millis(lab.clock.now() + 1234)
    id = await lab.submit(deadline_at=deadline)
    described = await lab.engine.views.describe(id)
    assert described is not None
    assert described.deadline_at == deadline
    await lab.pass_time(1233)
    assert await lab.state(id) is PublicState.WAITING
    await lab.pass_time(1)
    assert await lab.state(id) is PublicState.EXPIRED
    assert await lab.claim() == []
    assert (await lab.vector(id)).attempt is AttemptState.PENDING_FIRST


async def test_a_deadline_of_zero_is_none(lab: Lab) -> None:
    """§1.2: a timestamp of zero is not set."""
    policy = {"timeout_policy": {"execution_deadline_ms": 500}}
    plain = await lab.submit(deadline_at=Millis(0))
    limited = await lab.submit(deadline_at=Millis(0), policy=policy)
    granted = await lab.submit()
    await lab.engine.grants.issue(granted, W1.id)
    await lab.engine.grants.claim(granted, W1, attempt=NewAttempt(deadline_at=Millis(0)))
    described = [await lab.engine.views.describe(id) for id in (plain, limited, granted)]
    deadlines = [each.deadline_at for each in described if each]
    assert deadlines == [None, lab.clock.now() + 500, None]
    await lab.pass_time(1)
    assert await lab.state(plain) is PublicState.WAITING
    assert await lab.state(granted) is PublicState.ACTIVE


async def test_the_policys_deadline_counts_from_the_creation(lab: Lab) -> None:
    policy = {"timeout_policy": {"execution_deadline_ms": 500}}
    relative = await lab.submit(policy=policy)
    own = await lab.submit(policy=policy, deadline_at=Millis(lab.clock.now() + 900))
    deadlines = [await lab.engine.views.describe(id) for id in (relative, own)]
    assert [each.deadline_at for each in deadlines if each] == [
        lab.clock.now() + 500,
        lab.clock.now() + 900,
    ]


async def test_a_deadline_counts_while_the_execution_is_delayed(lab: Lab) -> None:
    now = lab.clock.now()
    id = await lab.submit(delay_until=Millis(now + 5000), deadline_at=Millis(now + 100))
    await lab.pass_time(100)
    assert await lab.state(id) is PublicState.EXPIRED
    await lab.pass_time(5000)
    assert await lab.state(id) is PublicState.EXPIRED


async def test_a_deadline_that_has_passed_already_expires_at_once(lab: Lab) -> None:
    id = await lab.submit(deadline_at=lab.clock.now())
    await lab.pass_time(0)
    assert await lab.state(id) is PublicState.EXPIRED


# -- requirements that cannot be understood refuse the creation


NO_TOKENS: list[tuple[Any, str]] = [
    (["gpu", "a,b"], "comma_in_token"),
    (["a" * 4097], "too_many_bytes"),
    (["a b"], "control_or_whitespace"),
    (["a\x1f"], "control_or_whitespace"),
    (["a\x7f"], "control_or_whitespace"),
    (["gpu", 7], "non_string_token"),
    (["gpu", None], "non_string_token"),
    ([""], "empty_token"),
    ([f"t{number}" for number in range(257)], "too_many_tokens"),
    ("gpu", "not_array"),
    ({"gpu": True}, "not_array"),
]


@pytest.mark.rules
async def test_a_requirement_that_breaks_the_token_rules_creates_nothing(lab: Lab) -> None:
    """E-T034, E-T035, E-T036, E-T037"""
    for tokens, word in NO_TOKENS:
        with pytest.raises(InvalidCapabilities) as caught:
            await submit(lab, policy={"routing_requirements": {"required_capabilities": tokens}})
        assert caught.value.detail == f"required:{word}"
    assert await nothing_exists(lab)


@pytest.mark.rules
@pytest.mark.inside
async def test_a_policy_that_cannot_be_read_creates_nothing(lab: Lab) -> None:
    """E-T038"""
    for policy in (b"{", b"", b"[]", b"null", b"\xff", "{", {"priority": "high"}):
        with pytest.raises(InvalidPolicy) as caught:
            await submit(lab, id=solo(), policy=policy)
        assert caught.value.detail.startswith("malformed")
    assert await lab.engine.views.describe(solo()) is None
    assert await nothing_exists(lab)


@pytest.mark.rules
@pytest.mark.inside
@pytest.mark.parametrize("priority", ["high", "", 0.0, False])
async def test_the_priority_is_looked_at_before_the_key(lab: Lab, priority: object) -> None:
    """§3.1: check 1 comes before 2 and 3, also for what Python takes as false"""
    await lab.submit(id=solo(), key="k")
    for same in ({"key": "k"}, {"id": solo()}):
        with pytest.raises(Invalid, match="priority must be a whole number"):
            await submit(lab, priority=priority, **same)


@pytest.mark.rules
@pytest.mark.inside
async def test_the_priority_is_looked_at_before_the_policy(lab: Lab) -> None:
    """§3.1: also before the capabilities in it"""
    for policy in (b"{", {"routing_requirements": {"required_capabilities": "gpu"}}):
        with pytest.raises(Invalid, match="priority must be a whole number"):
            await submit(lab, priority="high", policy=policy)
    assert await nothing_exists(lab)


async def test_many_that_are_interrupted_are_there_in_part_and_can_be_repeated(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written chunk by chunk: what came before the interruption stands, and the keys tell."""
    monkeypatch.setattr("flowfabric.engine.execution.executions._CHUNK", 2)
    honest, calls = lab.engine.store.submit, list[int]()

    async def broken(creations: Any, now: Millis) -> Any:
        calls.append(len(creations))
        if len(calls) == 2:
            raise Unavailable("gone for a moment")
        return await honest(creations, now)

    monkeypatch.setattr(lab.engine.store, "submit", broken)
    many = [Submission(kind="job", key=f"k{n}") for n in range(5)]
    with pytest.raises(Unavailable):
        await lab.engine.executions.submit_many(iter(many))
    assert calls == [2, 2]
    again = await lab.engine.executions.submit_many(many)
    assert [isinstance(answer, Duplicate) for answer in again] == [True, True, False, False, False]
    assert len({answer.id for answer in again}) == 5
    assert calls == [2, 2, 2, 2, 1]
