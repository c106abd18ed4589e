"""Token buckets: bursts, refill, many callers, clocks that jump (server-sdk §10.1, 1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.access.token import ANONYMOUS, AccessScope, Identity
from flowfabric.core.limit.quota import parse_rate
from flowfabric.server.caller.rate import MAX_CALLERS, RateLimiter, caller_key

TEN = parse_rate("10/s")


def test_a_burst_of_the_whole_bucket_and_then_one_by_one() -> None:
    limiter = RateLimiter(TEN)
    assert [limiter.take("a", 5.0) for _ in range(10)] == [0.0] * 10
    assert limiter.take("a", 5.0) == pytest.approx(0.1)
    assert limiter.take("a", 5.05) == pytest.approx(0.05)
    assert limiter.take("a", 5.1) == 0.0
    assert limiter.take("a", 5.1) > 0


def test_a_refused_request_costs_nothing() -> None:
    limiter = RateLimiter(TEN)
    for _ in range(10):
        limiter.take("a", 0.0)
    for _ in range(1000):
        assert limiter.take("a", 0.0) > 0
    assert limiter.take("a", 0.1) == 0.0


def test_a_bucket_never_overflows() -> None:
    limiter = RateLimiter(TEN)
    limiter.take("a", 0.0)
    assert sum(limiter.take("a", 1e9) == 0.0 for _ in range(50)) == 10


def test_callers_do_not_share() -> None:
    limiter = RateLimiter(parse_rate("1/m"))
    assert limiter.take("a", 0.0) == 0.0
    assert limiter.take("a", 0.0) == pytest.approx(60)
    assert limiter.take("b", 0.0) == 0.0


def test_a_rate_that_is_spread_evenly_allows_no_burst() -> None:
    limiter = RateLimiter(parse_rate("10/s smooth"))
    assert limiter.take("a", 0.0) == 0.0
    assert limiter.take("a", 0.0) == pytest.approx(0.1)
    assert limiter.take("a", 0.1) == 0.0


def test_a_clock_that_goes_back_refills_nothing_and_locks_no_caller_out() -> None:
    limiter = RateLimiter(TEN)
    for _ in range(10):
        limiter.take("a", 1000.0)
    assert limiter.take("a", 0.0) == pytest.approx(0.1)
    assert limiter.take("a", 0.1) == 0.0


def test_memory_is_bounded_and_the_busy_are_remembered() -> None:
    limiter = RateLimiter(parse_rate("1/h"), most=100)
    assert limiter.take("busy", 0.0) == 0.0
    for number in range(10_000):
        limiter.take(f"stranger {number}", 0.0)
        assert limiter.take("busy", 0.0) > 0
    assert len(limiter) == 100
    assert MAX_CALLERS <= 100_000


@given(st.lists(st.floats(0, 10), max_size=200))
def test_never_more_than_the_bucket_and_what_flowed_in(moments: list[float]) -> None:
    limiter = RateLimiter(TEN)
    allowed = sum(limiter.take("a", moment) == 0.0 for moment in sorted(moments))
    span = max(moments, default=0.0) - min(moments, default=0.0)
    assert allowed <= 10 + span * 10 + 0.001


def test_a_caller_is_its_token_or_its_network() -> None:
    identity = Identity("ci", frozenset({AccessScope.READ}))
    assert caller_key(identity, "10.0.0.1") == caller_key(identity, "10.0.0.2")
    assert caller_key(None, "10.0.0.1") != caller_key(None, "10.0.0.2")
    assert caller_key(ANONYMOUS, "10.0.0.1") == caller_key(None, "10.0.0.1")  # has sent no token
    assert caller_key(None, "2001:db8::1") == caller_key(None, "2001:db8::ffff:1")
    assert caller_key(None, "2001:db8::1") != caller_key(None, "2001:db8:0:1::1")
    assert caller_key(None, "::ffff:10.0.0.1") == caller_key(None, "10.0.0.1")
    assert caller_key(None, "fe80::1%eth0") == caller_key(None, "fe80::2")
    for strange in (None, "", "unix:/run/flowfabric", "x" * 10_000):
        assert len(caller_key(None, strange)) < 300
    named = Identity("10.0.0.1", frozenset())
    assert caller_key(named, None) != caller_key(None, "10.0.0.1")
