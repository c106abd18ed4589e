import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import InvalidCapabilities
from flowfabric.core.execution.routing import check_capabilities, missing, satisfies

tokens = st.sampled_from(["gpu", "GPU", "linux", "größe", "a:b=c", "x.y"])
token_sets = st.frozensets(tokens)


def detail(value: object, where: str = "required") -> str:
    with pytest.raises(InvalidCapabilities) as caught:
        check_capabilities(value, where)
    return caught.value.detail


@given(st.lists(tokens))
def test_tokens_come_back_sorted_and_once_each(given_tokens: list[str]) -> None:
    assert check_capabilities(given_tokens) == tuple(sorted(set(given_tokens)))
    assert check_capabilities(tuple(given_tokens)) == check_capabilities(set(given_tokens))


@pytest.mark.parametrize("value", [None, "gpu", b"gpu", 7, {"gpu": True}, iter(["gpu"])])
def test_what_is_no_list_is_told_so(value: object) -> None:
    assert detail(value) == "required:not_array"


@pytest.mark.parametrize(
    ("token", "word"),
    [
        (7, "non_string_token"),
        (None, "non_string_token"),
        (["gpu"], "non_string_token"),
        (b"gpu", "non_string_token"),
        ("\ud800", "non_string_token"),
        ("", "empty_token"),
        ("a,b", "comma_in_token"),
        (",", "comma_in_token"),
        ("a b", "control_or_whitespace"),
        ("a\n", "control_or_whitespace"),
        ("\0", "control_or_whitespace"),
        ("a\x7f", "control_or_whitespace"),
    ],
)
def test_a_bad_token_is_told_by_its_own_word(token: object, word: str) -> None:
    assert detail(["gpu", token]) == f"required:{word}"
    assert detail(["gpu", token], "worker") == f"worker:{word}"


def test_256_tokens_are_allowed_and_no_more() -> None:
    assert len(check_capabilities([f"t{n}" for n in range(256)])) == 256
    assert detail([f"t{n}" for n in range(257)]) == "required:too_many_tokens"


def test_4096_bytes_joined_by_commas_are_allowed_and_no_more() -> None:
    assert check_capabilities(["a" * 2047, "b" * 2048])
    assert check_capabilities(["é" * 2048])
    assert detail(["a" * 2048, "b" * 2048]) == "required:too_many_bytes"
    assert detail(["é" * 2048 + "a"]) == "required:too_many_bytes"
    assert detail(["a" * 10_000_000]) == "required:too_many_bytes"


@given(token_sets)
def test_an_empty_requirement_suits_every_worker(offered: frozenset[str]) -> None:
    """E-T019"""
    assert check_capabilities([]) == ()
    assert satisfies((), offered)
    assert missing((), offered) == ()


def test_capabilities_match_exactly_and_by_case() -> None:
    """E-T019"""
    assert satisfies(("gpu",), frozenset({"gpu"}))
    assert satisfies(("gpu",), frozenset({"gpu", "linux"}))
    assert not satisfies(("gpu", "linux"), frozenset({"gpu"}))
    assert not satisfies(("gpu",), frozenset({"GPU"}))
    assert not satisfies(("gpu",), frozenset())


@given(st.lists(tokens), token_sets)
def test_a_worker_suits_exactly_when_nothing_is_missing(
    required: list[str], offered: frozenset[str]
) -> None:
    """E-T019"""
    lacking = missing(required, offered)
    assert satisfies(required, offered) is (not lacking)
    assert lacking == tuple(sorted(set(required) - offered))
