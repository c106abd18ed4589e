import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.time import MAX_SPAN
from flowfabric.core.execution.retry import (
    Category,
    ExponentialBackoff,
    FixedBackoff,
    RetryPolicy,
    backoff_delay,
    may_retry,
)

chances = st.floats(0, 1, exclude_max=True)
backoffs = st.builds(
    ExponentialBackoff,
    initial=st.integers(0, MAX_SPAN),
    maximum=st.integers(0, MAX_SPAN),
    multiplier=st.floats(0, 1000, exclude_min=True),
    jitter=st.booleans(),
) | st.builds(FixedBackoff, delay=st.integers(0, MAX_SPAN), jitter=st.booleans())


def test_a_retry_policy_retries_three_times_with_growing_delays() -> None:
    """E-T021"""
    policy = RetryPolicy()
    assert policy.max_retries == 3
    assert policy.backoff == ExponentialBackoff(1000, 60_000, 2.0, False)
    assert policy.retryable_categories == ()


@pytest.mark.parametrize(
    ("retries", "delay"),
    [(0, 1000), (1, 2000), (2, 4000), (5, 32_000), (6, 60_000), (1100, 60_000), (10**400, 60_000)],
)
def test_the_delay_doubles_up_to_its_maximum(retries: int, delay: int) -> None:
    assert backoff_delay(RetryPolicy(), retries, 0.5) == delay


def test_a_fixed_delay_stays_the_same() -> None:
    policy = RetryPolicy(backoff=FixedBackoff(250))
    assert [backoff_delay(policy, n, 0.5) for n in (0, 9)] == [250, 250]
    assert FixedBackoff().delay == 1000


def test_a_whole_multiplier_is_as_good_as_any() -> None:
    policy = RetryPolicy(backoff=ExponentialBackoff(multiplier=2))
    assert backoff_delay(policy, 2**40, 0.0) == 60_000


def test_a_delay_of_nothing_stays_nothing() -> None:
    assert backoff_delay(RetryPolicy(backoff=ExponentialBackoff(initial=0)), 10**9, 0.0) == 0


@pytest.mark.parametrize(
    "backoff", [FixedBackoff(1000, jitter=True), ExponentialBackoff(jitter=True)]
)
def test_jitter_shortens_by_up_to_a_half(backoff: FixedBackoff | ExponentialBackoff) -> None:
    policy = RetryPolicy(backoff=backoff)
    assert backoff_delay(policy, 0, 0.0) == 500
    assert backoff_delay(policy, 0, 0.5) == 750
    assert backoff_delay(policy, 0, 0.999999) == 999


@given(backoffs, st.integers(0, 10**30), chances)
def test_a_delay_is_never_negative_nor_above_its_maximum(
    backoff: FixedBackoff | ExponentialBackoff, retries: int, jitter: float
) -> None:
    limit = backoff.delay if isinstance(backoff, FixedBackoff) else backoff.maximum
    delay = backoff_delay(RetryPolicy(backoff=backoff), retries, jitter)
    assert type(delay) is int
    assert 0 <= delay <= limit


@given(st.integers(0, 100), st.integers(0, 100))
def test_retries_stop_when_their_number_is_used_up(limit: int, retries: int) -> None:
    policy = RetryPolicy(max_retries=limit)
    assert may_retry(policy, retries, Category.TRANSIENT) is (retries < limit)


@pytest.mark.parametrize("category", list(Category))
def test_nothing_is_retried_without_a_policy(category: Category) -> None:
    assert not may_retry(None, 0, category)


@pytest.mark.parametrize("category", [Category.PERMANENT, Category.CANCELLED])
def test_permanent_and_cancelled_failures_are_never_retried(category: Category) -> None:
    assert not may_retry(RetryPolicy(), 0, category)
    assert not may_retry(RetryPolicy(retryable_categories=(category,)), 0, category)


@pytest.mark.parametrize("category", [Category.TRANSIENT, Category.INFRA_CRASH, Category.TIMEOUT])
def test_other_failures_are_retried_unless_other_categories_are_named(category: Category) -> None:
    others = tuple(other for other in Category if other is not category)
    assert may_retry(RetryPolicy(), 0, category)
    assert may_retry(RetryPolicy(retryable_categories=(category,)), 0, category)
    assert not may_retry(RetryPolicy(retryable_categories=others), 0, category)


@pytest.mark.parametrize("category", [Category.HANDLER_ERROR, Category.HANDLER_PANIC])
def test_what_a_handler_raises_is_retried_like_a_transient_failure(category: Category) -> None:
    assert may_retry(RetryPolicy(), 0, category)
    for named in (category, Category.TRANSIENT):
        assert may_retry(RetryPolicy(retryable_categories=(named,)), 0, category)
    assert not may_retry(RetryPolicy(retryable_categories=("timeout",)), 0, category)


def test_arguments_that_cannot_be_decoded_are_not_tried_again() -> None:
    assert not may_retry(RetryPolicy(), 0, Category.UNDECODABLE)
