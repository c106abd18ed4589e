"""Values arrive as they were sent: the same classes, equal, whatever the annotation allows."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import IntFlag, StrEnum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field

from flowfabric.core.base.ids import ExecutionId, RunId
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.token import Token
from flowfabric.remote.codec import Codec
from flowfabric.remote.scalars import Misfit, decode_plain, encode_plain

ONE = UUID(int=7)
RUN = ExecutionId.solo("default", ONE)


class Colour(StrEnum):
    RED = "red"


class Bits(IntFlag):
    A = 1
    B = 2


class Leaf(Struct, frozen=True):
    value: int


class Tree(Struct, frozen=True):
    left: "Tree | Leaf"
    right: "Tree | Leaf"
    name: str = "tree"
    marks: dict[str, int] = field(default_factory=dict)


def sent(annotation: Any, value: Any) -> Any:
    shape = Codec().shape(annotation)
    return shape.decode(decode_plain(encode_plain(shape.encode(value))))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, -(1 << 63)),
        (int, 1 << 200),
        (Millis, 1_700_000_000_000),
        (float, 0.5),
        (bytes, b"\x00\xff"),
        (bytes | None, None),
        (bytes | str, b"text"),
        (bytes | str, "text"),
        (UUID | str, ONE),
        (UUID | str, str(ONE)),
        (str, "\x00 ü"),
        (ExecutionId, RUN),
        (str, RUN),
        (ExecutionId, ExecutionId.anywhere(ONE)),
        (str, RunId.of(3, ONE)),
        (Token | str | None, Token("k1:abc")),
        (Token | str | None, "k1:abc"),
        (int | str | timedelta, timedelta(days=-1, microseconds=3)),
        (Colour | str, Colour.RED),
        (Colour | str, "blue"),
        (Bits, Bits.A | Bits.B),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2)),
        (list[bytes | None], [b"", None]),
        (set[UUID], {ONE}),
        (frozenset[str], frozenset({"a"})),
        (Sequence[str], ("a",)),
        (dict[UUID, bytes | None], {ONE: None}),
        (Mapping[str, object], {"a": [1, {"b": None}], "c": (1, ("x",))}),
        (dict[ExecutionId, int], {RUN: 1}),
        (Leaf | Tree, Tree(Leaf(1), Tree(Leaf(2), Leaf(3), name="x"))),
        (Leaf | Mapping[str, object] | bytes | None, Leaf(1)),
        (Leaf | Mapping[str, object] | bytes | None, {"value": 1}),
        (Sequence[str] | Mapping[str, int], {"a": 1}),
        (Sequence[str] | Mapping[str, int], ("a",)),
        (Literal["a", "b"], "a"),
        (Any, [None, True, 1, 1.5, "x", b"x", ONE, RUN, timedelta(1)]),
    ],
)
def test_a_value_arrives_as_it_was_sent(annotation: Any, value: Any) -> None:
    found = sent(annotation, value)
    assert found == value
    assert type(found) is type(value)


def test_an_iterable_arrives_as_a_tuple() -> None:
    assert sent(Iterable[str], iter(["a", "b"])) == ("a", "b")


def test_a_list_arrives_as_the_tuple_that_is_wanted() -> None:
    """The engine takes a list for the lanes of a worker, so a client of a server may give one."""
    assert sent(tuple[str, ...], ["a", "b"]) == ("a", "b")


def test_members_at_their_default_do_not_travel() -> None:
    plain = Codec().shape(Tree).encode(Tree(Leaf(1), Leaf(2)))
    assert plain == {"left": {"": "Leaf", "value": 1}, "right": {"": "Leaf", "value": 2}}


def test_members_of_a_newer_release_are_ignored() -> None:
    assert Codec().shape(Leaf).decode({"value": 1, "invented": 2}) == Leaf(1)


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (int, True, "expected a whole number, not bool"),
        (int, "1", "expected a whole number, not str"),
        (str, 1, "expected text"),
        (UUID, str(ONE), "expected a UUID"),
        (Leaf, {"value": 1}, "expected Leaf, not dict"),
        (Leaf | Tree, "x", "expected Leaf or Tree"),
        (Tree, Tree(Leaf(1), "x"), "right of Tree: expected"),  # type: ignore[arg-type]
        (list[int], "12", "expected a list"),
        (tuple[int, int], (1,), "expected 2 values"),
        (Mapping[str, int], [1], "expected a map"),
        (Colour, "red", "expected Colour"),
        (Any, object(), "cannot be sent"),
        (Any, {1: 2}, "text as keys"),
    ],
)
def test_a_value_of_another_type_is_not_sent(annotation: Any, value: Any, complaint: str) -> None:
    with pytest.raises(Misfit, match=complaint):
        Codec().shape(annotation).encode(value)


@pytest.mark.parametrize(
    ("annotation", "plain"),
    [
        (int, "1"),
        (int, 1.0),
        (Leaf, {}),
        (Leaf, {"value": "1"}),
        (Leaf, [1]),
        (Leaf | Tree, {"": "Other"}),
        (Leaf | Tree, {"value": 1}),
        (Colour, "blue"),
        (Colour, [1]),
        (tuple[int, int], [1]),
        (dict[UUID, int], {"a": 1}),
        (dict[UUID, int], [[1]]),
        (Token, "k1:abc"),
        (set[int], {"a": 1}),
    ],
)
def test_plain_data_of_another_shape_is_refused(annotation: Any, plain: Any) -> None:
    with pytest.raises(Misfit):
        Codec().shape(annotation).decode(plain)


def test_a_text_that_no_message_can_hold_is_not_sent() -> None:
    with pytest.raises(Misfit, match="cannot be sent"):
        encode_plain(Codec().shape(str).encode("\ud800"))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(Misfit):
        decode_plain(data)


@given(st.integers(min_value=1, max_value=127), st.binary(max_size=40))
def test_any_extension_is_read_or_fits_nothing(code: int, data: bytes) -> None:
    plain = decode_plain(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data)))
    for annotation in (UUID, ExecutionId, Token, timedelta, int, tuple[int, ...]):
        shape = Codec().shape(annotation)
        if shape.reads(plain):
            assert sent(annotation, shape.decode(plain)) == plain
