import math
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Corruption,
    InvalidCapabilities,
    InvalidPolicy,
    PayloadTooLarge,
)
from flowfabric.core.execution.policy import (
    DEFAULT_POLICY,
    MAX_POLICY,
    Policy,
    RoutingRequirements,
    StreamPolicy,
    SuspensionPolicy,
    TimeoutPolicy,
    parse_policy,
    read_policy,
    write_policy,
)
from flowfabric.core.execution.retry import (
    Category,
    ExponentialBackoff,
    FixedBackoff,
    RetryPolicy,
    backoff_delay,
)

FULL: dict[str, Any] = {
    "priority": 5,
    "delay_until": 1_700_000_000_000,
    "retry_policy": {
        "max_retries": 7,
        "backoff": {
            "type": "exponential",
            "initial_delay_ms": 10,
            "max_delay_ms": 20,
            "multiplier": 3.0,
            "jitter": True,
        },
        "retryable_categories": ["timeout", "transient"],
    },
    "timeout_policy": {
        "attempt_timeout_ms": 1,
        "execution_deadline_ms": 2,
        "max_reclaim_count": 3,
    },
    "max_reclaim_count": 4,
    "suspension_policy": {"default_timeout_ms": 5, "timeout_behavior": "escalate"},
    "fallback_policy": {"tiers": [{"provider": "p", "model": "m"}]},
    "max_replay_count": 6,
    "budget_ids": ["018f4c3e-0000-7000-8000-0123456789ab"],
    "routing_requirements": {
        "required_capabilities": ["cuda", "gpu"],
        "preferred_locality": "eu",
        "isolation_level": "vm",
    },
    "dedup_window_ms": 8,
    "stream_policy": {
        "durability_mode": "durable",
        "retention_maxlen": 9,
        "retention_ttl_ms": 10,
    },
    "max_signals_per_execution": 11,
}


def refusal(data: object) -> str:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(data)  # type: ignore[arg-type]
    return caught.value.detail


def nested(path: str, value: object) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {head: nested(rest, value) if rest else value}


def test_a_policy_that_says_nothing_has_the_documented_defaults() -> None:
    """E-T020"""
    policy = parse_policy(b"{}")
    assert policy == DEFAULT_POLICY == Policy() == parse_policy(None)
    assert (policy.priority, policy.max_reclaim_count, policy.max_replay_count) == (0, None, 10)
    assert (policy.max_signals_per_execution, policy.dedup_window_ms) == (10_000, 86_400_000)
    assert policy.retry_policy is None
    assert policy.timeout_policy is None
    assert policy.attempt_timeout is policy.execution_deadline is policy.retention is None
    assert (policy.reclaim_cap, policy.capabilities, policy.budget_ids) == (None, (), ())


def test_parts_of_a_policy_have_their_own_defaults() -> None:
    """E-T020"""
    assert SuspensionPolicy().timeout_behavior == "fail"
    assert (StreamPolicy().durability_mode, StreamPolicy().retention_maxlen) == ("buffered", 10_000)
    assert RoutingRequirements().required_capabilities == ()


def test_a_retry_policy_that_says_little_keeps_the_default_backoff() -> None:
    """E-T021"""
    assert parse_policy({"retry_policy": {}}).retry_policy == RetryPolicy()
    assert parse_policy({"retry_policy": {"max_retries": 5}}).retry_policy == RetryPolicy(
        max_retries=5, backoff=ExponentialBackoff(1000, 60_000, 2.0, False)
    )
    fixed = parse_policy({"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 5}}})
    assert fixed.retry_policy == RetryPolicy(backoff=FixedBackoff(5))


def test_members_have_the_documented_names() -> None:
    """E-T021"""
    policy = parse_policy(FULL)
    assert msgspec.json.decode(write_policy(policy)) == FULL
    assert policy.retry_policy == RetryPolicy(
        max_retries=7,
        backoff=ExponentialBackoff(10, 20, 3.0, True),
        retryable_categories=(Category.TIMEOUT, Category.TRANSIENT),
    )
    assert (policy.attempt_timeout, policy.execution_deadline, policy.reclaim_cap) == (1, 2, 3)
    assert (policy.capabilities, policy.retention) == (("cuda", "gpu"), 10)
    assert policy.budget_ids == ("018f4c3e-0000-7000-8000-0123456789ab",)


def test_the_reclaim_cap_may_stand_in_either_place() -> None:
    assert parse_policy({"max_reclaim_count": 7}).reclaim_cap == 7
    assert parse_policy({"max_reclaim_count": 7, "timeout_policy": {}}).reclaim_cap == 7
    assert parse_policy({"timeout_policy": {"max_reclaim_count": 0}}).reclaim_cap == 0


def test_nothing_is_written_as_null_and_unset_members_are_absent() -> None:
    """E-T022"""
    assert write_policy(Policy()) == b"{}"
    policy = parse_policy(FULL)
    data = write_policy(policy)
    assert b"null" not in data
    assert read_policy(data) == parse_policy(data) == policy
    assert write_policy(parse_policy({"retry_policy": None, "delay_until": None})) == b"{}"


def test_members_a_newer_release_wrote_are_kept() -> None:
    members = {**FULL, "colour": "red", "retry_policy": {"max_retries": 1, "mood": [1]}}
    policy = parse_policy(members)
    assert msgspec.json.decode(write_policy(policy)) == members
    assert read_policy(write_policy(policy)) == policy


def test_every_way_to_hand_over_a_policy_gives_the_same() -> None:
    data = msgspec.json.encode(FULL)
    policy = parse_policy(data)
    assert policy == parse_policy(data.decode()) == parse_policy(FULL) == parse_policy(policy)
    assert parse_policy(DEFAULT_POLICY) is DEFAULT_POLICY


def test_a_policy_that_was_checked_is_not_checked_again() -> None:
    """It is written as any other policy with the same members."""
    checked = parse_policy({"priority": 7, "quotas": [{"quota": "b"}, {"quota": "a"}]})
    assert parse_policy(checked) is checked
    assert write_policy(checked) == write_policy(replace(checked))
    assert parse_policy(replace(checked, priority=8)).priority == 8


def test_typed_parts_may_stand_in_a_mapping() -> None:
    budget = UUID(int=5)
    policy = parse_policy(
        {"retry_policy": RetryPolicy(max_retries=1, unknown={"new": None}), "budget_ids": [budget]}
    )
    assert policy.retry_policy == RetryPolicy(max_retries=1, unknown={"new": None})
    assert policy.budget_ids == (str(budget),)
    assert parse_policy(policy) == policy


def test_capabilities_are_sorted_and_named_once() -> None:
    typed = Policy(routing_requirements=RoutingRequirements(required_capabilities=("b", "a", "b")))
    assert parse_policy(typed).capabilities == ("a", "b")
    assert parse_policy({"routing_requirements": {}}).capabilities == ()


@pytest.mark.parametrize(
    "data",
    [b"", "", b"{", b"[]", b"null", b"7", b'"x"', b"\xff", "\ud800", b'{"a":"\\ud800"}',
     b"[" * 60_000, 7, 1.5, [], object(), {"a": object()}, {"a": "\ud800"}, {(1, 2): 3},
     {"a": math.nan}, {"timeout_policy": {"attempt_timeout_ms": math.inf}},
     Policy(unknown={"a": object()}), Policy(unknown={"a": "\ud800"}),
     Policy(dedup_window_ms=math.nan), Policy(delay_until=math.nan)],  # type: ignore[arg-type]
)  # fmt: skip
def test_an_unreadable_document_is_malformed(data: object) -> None:
    assert refusal(data) == "malformed"


def test_a_document_within_itself_is_malformed() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    assert refusal(loop) == "malformed"


def test_a_document_of_absurd_size_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="policy"):
        parse_policy({"note": "x" * MAX_POLICY})
    long = {"note": "x" * (MAX_POLICY - 100)}
    assert parse_policy(long).unknown == long
    assert read_policy(write_policy(parse_policy(long))).unknown == long


@pytest.mark.parametrize("value", [None, [], "x", 7])
def test_routing_requirements_are_an_object(value: object) -> None:
    assert refusal({"routing_requirements": value}) == "routing_requirements:not_object"


@pytest.mark.parametrize(
    ("tokens", "detail"),
    [
        (None, "required:not_array"),
        ("gpu", "required:not_array"),
        ({}, "required:not_array"),
        ([7], "required:non_string_token"),
        ([""], "required:empty_token"),
        (["a,b"], "required:comma_in_token"),
        (["a b"], "required:control_or_whitespace"),
        ([f"t{n}" for n in range(257)], "required:too_many_tokens"),
        (["a" * 4097], "required:too_many_bytes"),
    ],
)
def test_bad_capabilities_refuse_the_policy_by_their_own_word(tokens: object, detail: str) -> None:
    with pytest.raises(InvalidCapabilities) as caught:
        parse_policy({"routing_requirements": {"required_capabilities": tokens}})
    assert caught.value.detail == detail


@pytest.mark.parametrize(
    "path",
    ["retry_policy.max_retries", "retry_policy.backoff", "retry_policy.retryable_categories",
     "timeout_policy.attempt_timeout_ms", "timeout_policy.execution_deadline_ms",
     "timeout_policy.max_reclaim_count", "max_reclaim_count",
     "suspension_policy.default_timeout_ms", "suspension_policy.timeout_behavior",
     "max_replay_count", "budget_ids", "dedup_window_ms",
     "stream_policy.durability_mode", "stream_policy.retention_maxlen",
     "stream_policy.retention_ttl_ms", "max_signals_per_execution",
     "delay_until", "priority", "fallback_policy", "retry_policy",
     "routing_requirements.preferred_locality", "routing_requirements.isolation_level"],
)  # fmt: skip
@pytest.mark.parametrize("value", [-(10**12), 10**30, True, 1.5, [[]], {"a": 1}])
def test_absurd_members_are_refused_by_name(path: str, value: object) -> None:
    if path in ("fallback_policy", "retry_policy", "retry_policy.backoff") and isinstance(
        value, dict
    ):
        return
    if path == "priority" and value == -(10**12):
        return  # it is clamped
    assert f"`$.{path}" in refusal(nested(path, value))


@pytest.mark.parametrize(
    ("backoff", "member"),
    [
        ({"type": 5}, "type"),
        ({"type": None}, "type"),
        ({"type": "fixed", "delay_ms": -1}, "delay_ms"),
        ({"type": "exponential", "initial_delay_ms": -1}, "initial_delay_ms"),
        ({"type": "exponential", "max_delay_ms": 10**15}, "max_delay_ms"),
        ({"type": "exponential", "multiplier": 0}, "multiplier"),
        ({"type": "exponential", "multiplier": None}, "multiplier"),
        ({"type": "exponential", "multiplier": 1e308}, "multiplier"),
        ({"type": "exponential", "jitter": 1}, "jitter"),
    ],
)
def test_an_absurd_backoff_is_refused_by_name(backoff: dict[str, Any], member: str) -> None:
    assert f"$.retry_policy.backoff{'.' + member if member else ''}`" in refusal(
        {"retry_policy": {"backoff": backoff}}
    )


@pytest.mark.parametrize("backoff", [{"type": "linear", "delay_ms": 5, "jitter": True}, {}])
def test_a_backoff_of_an_unknown_kind_is_a_second(backoff: dict[str, Any]) -> None:
    """§3.15: whatever else it says, which is kept"""
    policy = parse_policy({"retry_policy": {"max_retries": 2, "backoff": backoff}})
    again = read_policy(write_policy(policy))
    for each in (policy, again):
        assert each.retry_policy is not None
        assert [backoff_delay(each.retry_policy, n, 0.0) for n in (0, 1)] == [1000, 1000]
        assert each.retry_policy.backoff.unknown == {"as_given": backoff}


def test_a_typed_policy_with_wrong_values_is_refused_too() -> None:
    wrong = Policy(timeout_policy=TimeoutPolicy(attempt_timeout_ms=-1))
    assert "$.timeout_policy.attempt_timeout_ms" in refusal(wrong)
    assert "$.priority" in refusal(Policy(priority="high"))  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"priority":"x"}', b"\xff"])
def test_a_stored_policy_that_cannot_be_read_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corruption, match="Policy"):
        read_policy(data)


@given(st.binary() | st.text() | st.dictionaries(st.text(), st.integers() | st.text()))
def test_no_document_makes_parsing_fail_in_another_way(data: Any) -> None:
    try:
        policy = parse_policy(data)
    except InvalidPolicy:
        return
    assert read_policy(write_policy(policy)) == policy
