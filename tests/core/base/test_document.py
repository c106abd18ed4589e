from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.document import Document, read, write
from flowfabric.core.base.errors import Corruption


class Round(Document, frozen=True, tag_field="shape", tag="round"):
    radius: int = 0


class Square(Document, frozen=True, tag_field="shape", tag="square"):
    side: int = msgspec.field(default=0, name="side_mm")


class Part(Document, frozen=True, kw_only=True):
    label: str | None = None


class Whole(Document, frozen=True, kw_only=True):
    count: int = 0
    owner: UUID | None = None
    part: Part | None = None
    shape: Round | Square = Round()
    parts: tuple[Part, ...] = ()
    named: dict[str, Part] = msgspec.field(default_factory=dict)
    mixed: list[Part] | Part | int | None = None
    sizes: list[int] = msgspec.field(default_factory=list)
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    choice: int | str = 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.text().filter(lambda name: name not in {field for field in Whole.__struct_fields__[1:]})


def loads(data: bytes) -> Any:
    return msgspec.json.decode(data)


def test_members_at_their_default_are_left_out() -> None:
    assert write(Whole()) == b"{}"
    assert write(Whole(count=1, part=Part())) == b'{"count":1,"part":{}}'


def test_known_members_read_back() -> None:
    whole = Whole(
        count=3,
        owner=UUID(int=7),
        part=Part(label="a"),
        shape=Square(5),
        parts=(Part(label="b"), Part()),
        named={"x": Part(label="c")},
        mixed=[Part(label="d")],
        limits={"a": 1},
    )
    assert read(Whole, write(whole)) == whole
    assert b'"shape":{"shape":"square","side_mm":5}' in write(whole)


@given(st.dictionaries(names, json_values))
def test_unknown_members_survive_reading_and_writing(extra: dict[str, Any]) -> None:
    data = msgspec.json.encode({**extra, "count": 2})
    whole = read(Whole, data)
    assert (whole.count, whole.unknown) == (2, extra)
    assert loads(write(whole)) == loads(data)


@given(st.dictionaries(names, json_values))
def test_unknown_members_survive_a_change(extra: dict[str, Any]) -> None:
    whole = read(Whole, msgspec.json.encode(extra))
    changed = msgspec.structs.replace(whole, count=9)
    assert loads(write(changed)) == {**extra, "count": 9}


@pytest.mark.parametrize(
    "members",
    [
        {"part": {"label": "a", "new": 1}},
        {"shape": {"shape": "square", "side_mm": 2, "new": [1]}},
        {"shape": {"shape": "round", "new": None}},
        {"parts": [{"new": 1}, {"label": "b"}]},
        {"named": {"x": {"new": {"label": 1}}}},
        {"mixed": {"new": 1}},
        {"mixed": [{"new": 1}]},
        {"mixed": 7, "new": 1},
        {"unknown": {"a": 1}, "new": 2},
        {"\x7f": {"a": 1}},
        {"part": {"\x7f": 1}},
        {"new": {"\x7f": {"part": {"other": 1}}}},
    ],
)
def test_unknown_members_survive_at_any_depth_and_under_any_name(members: dict[str, Any]) -> None:
    data = msgspec.json.encode(members)
    assert loads(write(read(Whole, data))) == members


def test_an_escaped_name_is_the_name_it_stands_for() -> None:
    whole = read(Whole, b'{"\\u007f":1,"\\u0063ount":2}')
    assert (whole.count, whole.unknown) == (2, {"\x7f": 1})


def test_a_known_member_wins_over_an_unknown_one_of_the_same_name() -> None:
    assert loads(write(Whole(count=1, unknown={"count": 2, "new": 3}))) == {"count": 1, "new": 3}
    assert loads(write(Whole(unknown={"count": 2}))) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{",
        b'{"count":1}x',
        b'{"count":"1"}',
        b'{"count":null}',
        b'{"count":1.5}',
        b'{"owner":"x"}',
        b'{"part":[]}',
        b'{"part":{"label":7,"new":1}}',
        b'{"parts":{}}',
        b'{"parts":[7],"new":1}',
        b'{"named":[],"new":1}',
        b'{"mixed":"x","new":1}',
        b'{"shape":{}}',
        b'{"shape":{"shape":"oval"}}',
        b'{"shape":7,"new":1}',
        b'{"a":"\xff"}',
        b"\xff",
        b'{"a":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"count":' + b"9" * 5000 + b"}",
        b'{"a":1e999}',
    ],
)
def test_bytes_that_are_no_such_document_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corruption, match="Whole"):
        read(Whole, data)


@given(st.binary())
def test_no_bytes_make_reading_fail_in_another_way(data: bytes) -> None:
    with suppress(Corruption):
        assert isinstance(read(Whole, data), Whole)
