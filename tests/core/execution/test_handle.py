import base64
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import ForeignHandle, Invalid, InvalidHandle
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.handle import PREFIX, HandleBody, HandleKind, open_handle, seal

KEY = b"0123456789abcdef0123456789abcdef"
OTHER_KEY = b"another key, just as long as one"
BODY = HandleBody(
    execution=UUID(int=1),
    partition=7,
    attempt_index=0,
    attempt_id=UUID(int=2),
    lease_id=UUID(int=3),
    epoch=1,
    lease_ttl=Millis(30_000),
    lane="default",
    worker="worker",
    instance="worker-1",
    kind=HandleKind.FRESH,
    store="sqlite:main",
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
bodies = st.builds(
    HandleBody,
    execution=st.uuids(),
    partition=st.integers(0, 255),
    attempt_index=st.integers(0, 2**32 - 1),
    attempt_id=st.uuids(),
    lease_id=st.uuids(),
    epoch=st.integers(0, 2**63 - 1),
    lease_ttl=st.integers(0, 2**40).map(Millis),
    lane=texts,
    worker=texts,
    instance=texts,
    kind=st.sampled_from(HandleKind),
    store=texts,
)


def refusal(text: object, *, key: bytes = KEY, store: str = BODY.store) -> str:
    with pytest.raises(InvalidHandle) as caught:
        open_handle(text, key, store)
    return caught.value.detail


def forge(raw: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@given(bodies)
def test_a_handle_says_what_was_sealed_in_it(body: HandleBody) -> None:
    """E-T016"""
    text = seal(body, KEY)
    assert text.startswith(PREFIX)
    assert text.isascii()
    assert open_handle(text, KEY, body.store) == body


@pytest.mark.parametrize("store", ["sqlite:main", "postgres:main", "memory"])
def test_a_handle_of_any_store_comes_back_to_that_store_only(store: str) -> None:
    """E-T016"""
    body = msgspec.structs.replace(BODY, store=store)
    text = seal(body, KEY)
    assert open_handle(text, KEY, store) == body
    for key in (KEY, OTHER_KEY):
        with pytest.raises(ForeignHandle) as caught:
            open_handle(text, key, "elsewhere")
        assert caught.value.code == "handle_from_other_backend"


def test_a_handle_names_its_execution() -> None:
    assert BODY.execution_id == ExecutionId.of(7, UUID(int=1))


@pytest.mark.parametrize(
    "text", [None, 7, b"ffh1.abc", "", "ffh1", "ffh2.abc", "FFH1.abc", "\ud800", " ffh1.abc"]
)
def test_other_things_are_no_handles(text: object) -> None:
    """E-T018"""
    assert refusal(text) == "not_a_handle"


def test_a_handle_cut_anywhere_is_truncated() -> None:
    """E-T018"""
    text = seal(BODY, KEY)
    for end in range(len(PREFIX), len(text)):
        assert refusal(text[:end]) == "truncated"


@pytest.mark.parametrize("tail", ["AAAA", "A", "AA", "\n", "=", "é", "\ud800", "\0", "+", "/", " "])
def test_nothing_may_follow_a_handle(tail: str) -> None:
    """E-T018"""
    assert refusal(seal(BODY, KEY) + tail) in ("malformed", "truncated")


def test_a_handle_signed_with_another_key_is_refused() -> None:
    assert refusal(seal(BODY, OTHER_KEY)) == "bad_signature"


def test_a_handle_changed_in_any_place_is_refused() -> None:
    text = seal(BODY, KEY)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for position in range(len(PREFIX), len(text)):
        other = alphabet[(alphabet.index(text[position]) + 1) % 64]
        changed = text[:position] + other + text[position + 1 :]
        assert refusal(changed) in ("bad_signature", "foreign_store", "malformed", "truncated")


def test_a_changed_body_of_the_same_store_is_a_bad_signature() -> None:
    raw = base64.urlsafe_b64decode(seal(BODY, KEY)[len(PREFIX) :] + "==")
    assert refusal(forge(raw.replace(b"worker-1", b"worker-2"))) == "bad_signature"
    assert refusal(forge(raw.replace(b"sqlite:main", b"sqlite:mine"))) == "foreign_store"
    assert refusal(forge(raw[:4] + bytes(len(raw) - 20) + raw[-16:])) == "bad_signature"


def test_unused_bits_of_the_last_character_must_be_zero() -> None:
    body = BODY
    while len(text := seal(body, KEY)[len(PREFIX) :]) % 4 == 0:
        body = msgspec.structs.replace(body, lane=body.lane + "x")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    twin = text[:-1] + alphabet[alphabet.index(text[-1]) + 1]
    assert refusal(PREFIX + twin) == "malformed"


@pytest.mark.parametrize("body", [[], {}, 7, ["x"] * 12, list(range(12))])
def test_a_signed_body_of_another_shape_is_malformed(body: object) -> None:
    """E-T018"""
    assert refusal(seal(body, KEY)) == "malformed"  # type: ignore[arg-type]


@given(st.text() | st.binary().map(forge) | st.text().map(PREFIX.__add__))
def test_no_text_makes_opening_fail_in_another_way(text: str) -> None:
    assert refusal(text)


def test_a_handle_never_shows_its_signature() -> None:
    text = seal(BODY, KEY)
    assert text[-20:] not in repr(open_handle(text, KEY, BODY.store))
    with pytest.raises(InvalidHandle) as caught:
        open_handle(text, OTHER_KEY, BODY.store)
    assert text[-20:] not in repr(caught.value)


def test_an_empty_key_signs_nothing() -> None:
    with pytest.raises(Invalid, match="key"):
        seal(BODY, b"")
    with pytest.raises(Invalid, match="key"):
        open_handle(seal(BODY, KEY), b"", BODY.store)
