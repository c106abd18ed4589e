"""Merge patches as RFC 7396 has them, and the text that stores a null."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import Invalid
from flowfabric.core.execution.merge_patch import MAX_DEPTH, NULL, merge, read_patch

LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@pytest.mark.parametrize(
    ("document", "patch", "merged"),
    [  # the examples of RFC 7396, as far as both are objects
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        # F-54: an empty object changes nothing
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
        ({"a": 1}, {"a": {}}, {"a": {}}),
        ({"a": {"b": 1}}, {}, {"a": {"b": 1}}),
        # nulls in a list are values
        ({}, {"a": [None, {"b": None}]}, {"a": [None, {"b": None}]}),
    ],
)
def test_examples(document: Any, patch: Any, merged: Any) -> None:
    assert merge(document, patch) == merged


def test_the_sentinel_stores_a_null() -> None:
    """C-T120: as a member, deep inside, and in a list"""
    patch = {"a": NULL, "b": {"c": NULL}, "d": [NULL, {"e": NULL}]}
    assert merge({"a": 1}, patch) == {
        "a": None,
        "b": {"c": None},
        "d": [None, {"e": None}],
    }


def test_only_the_patch_is_searched_for_the_sentinel() -> None:
    """F-54: what the document says is not rewritten"""
    assert merge({"old": NULL, "deep": {"old": NULL}}, {"deep": {"new": 1}}) == {
        "old": NULL,
        "deep": {"old": NULL, "new": 1},
    }


@given(OBJECTS, OBJECTS)
def test_neither_the_document_nor_the_patch_is_changed(document: Any, patch: Any) -> None:
    before = msgspec.json.encode([document, patch])
    merge(document, patch)
    assert msgspec.json.encode([document, patch]) == before


@given(OBJECTS, OBJECTS)
def test_a_patch_has_its_way(document: Any, patch: Any) -> None:
    merged = merge(document, patch)
    for name, value in patch.items():
        if value is None:
            assert name not in merged
        elif not isinstance(value, dict):
            assert name in merged
    assert all(merged[name] == document[name] for name in document if name not in patch)
    assert merge(merged, patch) == merged


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"true", b"3", b'"x"', b"\xff\xfe", b"{'a':1}", b"NaN"]
)
def test_what_is_no_patch(data: bytes) -> None:
    with pytest.raises(Invalid):
        read_patch(data)


@pytest.mark.parametrize(("opens", "closes"), [(b'{"a":', b"}"), (b'{"a":[', b"]}")])
def test_the_depth_of_a_patch(opens: bytes, closes: bytes) -> None:
    per_level = 1 if closes == b"}" else 2
    fits = MAX_DEPTH // per_level
    assert read_patch(opens * fits + b"1" + closes * fits)
    with pytest.raises(Invalid, match="patch_depth_exceeded"):
        read_patch(opens * (fits + 1) + b"1" + closes * (fits + 1))
    with pytest.raises(Invalid):
        read_patch(opens * 100_000 + b"1" + closes * 100_000)
