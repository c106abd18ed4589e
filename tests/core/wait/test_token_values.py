"""What a token shows of itself, and the digest of what a token can be bound to."""

import copy
import hashlib
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.pretty import pretty_repr

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.keyring import EMPTY_RING, Key, Keyring
from flowfabric.core.wait.token import Token, TokenClaims, digest_of, fingerprint, mint, verify
from tests.core.wait.test_keyring import recorded
from tests.core.wait.test_token import (
    BOUND,
    DIGEST,
    NOW,
    RING,
    SECRET,
    TOKEN,
    WAITPOINT,
    rotated,
    words,
)


class TestText:
    def test_it_shows_the_kid_and_a_length(self) -> None:
        """E-X22"""
        assert str(TOKEN) == repr(TOKEN) == f"{TOKEN}" == f"{TOKEN!r}" == "k1:<REDACTED:len=64>"
        assert f"{TOKEN:>22}" == "  k1:<REDACTED:len=64>"
        assert str(Token("k:")) == "k:<REDACTED:len=0>"

    @pytest.mark.parametrize("text", ["", "k1", ":", f":{DIGEST}", "a\nb:c", "k" * 257 + ":"])
    def test_it_shows_nothing_of_what_is_no_token(self, text: str) -> None:
        """E-X22: without a kid, the whole text may be a secret."""
        token = Token(text)
        assert (str(token), token.kid, token.fingerprint) == ("<REDACTED:malformed>", "", "")

    def test_kid_and_fingerprint(self) -> None:
        assert (TOKEN.kid, TOKEN.fingerprint) == ("k1", DIGEST[:16])
        assert fingerprint(TOKEN.reveal()) == TOKEN.fingerprint
        assert BOUND.fingerprint != TOKEN.fingerprint
        for text in ("k1:" + DIGEST[:40], "k1:" + DIGEST.upper(), TOKEN.reveal() + ".+"):
            assert fingerprint(text) == Token(text).kid == ""

    def test_it_is_a_value(self) -> None:
        same = Token(TOKEN.reveal())
        assert same == TOKEN
        assert {same, TOKEN, BOUND} == {TOKEN, BOUND}
        assert TOKEN != BOUND
        assert TOKEN.reveal() != TOKEN
        assert Token("\ud800") != Token("?")
        assert copy.copy(TOKEN) is copy.deepcopy(TOKEN) is TOKEN
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(TOKEN, protocol)) == TOKEN  # noqa: S301

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            TOKEN._text = "x"
        with pytest.raises(AttributeError):
            del TOKEN._text
        assert not hasattr(TOKEN, "__dict__")

    def test_only_text_can_be_one(self) -> None:
        with pytest.raises(Invalid):
            Token(b"k1")  # type: ignore[arg-type]

    @pytest.mark.parametrize("encode", [json.dumps, msgspec.json.encode, msgspec.to_builtins])
    def test_encoding_it_by_accident_fails(self, encode: Callable[[object], object]) -> None:
        """INV-22"""
        with pytest.raises(TypeError):
            encode({"token": TOKEN})


class TestNothingIsShown:
    """INV-22, E-X22: neither a digest nor a secret, even with every variable written down."""

    short = Keyring(current="k1", keys={"k1": Key(secret=SECRET + "0")})

    @pytest.mark.parametrize(
        "call",
        [
            lambda: verify(RING, replace(WAITPOINT, key="x"), TOKEN.reveal(), NOW),
            lambda: verify(RING, None, TOKEN.reveal(), NOW),
            lambda: verify(RING, None, DIGEST, NOW),
            lambda: verify(RING, None, TOKEN.reveal().encode(), NOW),  # type: ignore[arg-type]
            lambda: verify(EMPTY_RING, WAITPOINT, TOKEN.reveal(), NOW),
            lambda: verify(rotated(("k2", 0)), WAITPOINT, BOUND.reveal(), Millis(101)),
            lambda: verify(RING, WAITPOINT, BOUND.reveal(), Millis(2_000)),
            lambda: verify(TestNothingIsShown.short, WAITPOINT, TOKEN.reveal(), NOW),
            lambda: mint(TestNothingIsShown.short, WAITPOINT),
            lambda: mint(RING, WAITPOINT, TokenClaims("x" * 2048, NOW)),
            lambda: mint(EMPTY_RING, WAITPOINT),
            lambda: Token(TOKEN.reveal().encode()),  # type: ignore[arg-type]
        ],
    )
    def test_in_any_error(self, call: Callable[[], object]) -> None:
        told = recorded(call)
        for hidden in (SECRET, DIGEST, BOUND.reveal()[3:67], bytes.fromhex(SECRET)):
            assert str(hidden) not in told
        assert not re.search(r"[0-9a-f]{16}", re.sub("[0-9a-f]{8}(-[0-9a-f]{4}){3}", "", told))

    def test_in_any_representation(self) -> None:
        assert DIGEST[:8] not in pretty_repr({"token": TOKEN}) + repr([TOKEN]) + "%s" % TOKEN  # noqa: UP031


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
)


def loop() -> list[object]:
    items: list[object] = []
    items.append(items)
    return items


class Colour(StrEnum):
    RED = "red"


@dataclass
class Order:
    total: int
    colour: Colour = Colour.RED


class TestDigestOf:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"a": 1, "b": {"d": 2, "c": 3}}, {"b": {"c": 3, "d": 2}, "a": 1}),
            ([1, 2], (1, 2)),
            ({"x", "y", "z"}, ["x", "y", "z"]),
            (Order(3), {"colour": "red", "total": 3}),
            ({9: "a", 10: "b"}, {"10": "b", "9": "a"}),
            (UUID(int=0), str(UUID(int=0))),
            (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00Z"),
            (b"ab", memoryview(b"ab")),
        ],
    )
    def test_a_value_is_what_its_json_says(self, one: object, other: object) -> None:
        assert digest_of(one) == digest_of(other)

    def test_different_values_differ(self) -> None:
        values: list[object] = [
            None,
            False,
            0,
            0.0,
            -0.0,
            1,
            1.0,
            True,
            "",
            "1",
            "null",
            [],
            {},
            [[]],
            [1, 2],
        ]
        values += [[12], ["1", "2"], ["1,2"], {"a": None}, {"a": 1}, b"", b"null", b"json:", "é"]
        assert len({digest_of(value) for value in values}) == len(values)

    def test_the_spelling_is_fixed(self) -> None:
        spelt = 'json:{"a":[1,2.5,"é"],"b":null}'.encode()
        assert digest_of({"b": None, "a": (1, 2.5, "é")}) == hashlib.sha256(spelt).hexdigest()
        assert digest_of(bytearray(b"ab")) == hashlib.sha256(b"bytes:ab").hexdigest()

    @given(json_values)
    def test_it_survives_json(self, value: object) -> None:
        assert digest_of(json.loads(json.dumps(value))) == digest_of(value)
        assert digest_of(msgspec.json.decode(msgspec.json.encode(value))) == digest_of(value)

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            float("nan"),
            [float("inf")],
            {"a": object()},
            {1: "a", "1": "b"},
            {"a": [{UUID(int=0): 1, str(UUID(int=0)): 2}]},
            {(1, 2): 3},
            {1, "a"},
            "\ud800",
            "\ud83d\ude00",
            10**5000,
            loop(),
            TOKEN,
        ],
        ids=range(13),
    )
    def test_what_json_cannot_say_is_refused(self, value: object) -> None:
        with pytest.raises(Invalid):
            digest_of(value)
