"""The grammar of cursors, and the ids of frames."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import Invalid
from flowfabric.core.execution.frame import (
    BEGINNING,
    END,
    MAX_CURSOR,
    FrameId,
    parse_after,
    parse_lower,
    parse_upper,
)

NUMBERS = st.integers(0, MAX_CURSOR)


def test_the_words() -> None:
    assert (parse_lower("start"), parse_upper("end")) == (BEGINNING, END)
    assert (parse_lower("end"), parse_upper("start")) == (END, BEGINNING)


@given(NUMBERS)
def test_a_millisecond_has_a_first_and_a_last_frame(ms: int) -> None:
    assert parse_lower(str(ms)) == FrameId(ms, 0)
    assert parse_upper(str(ms)) == FrameId(ms, MAX_CURSOR)
    assert parse_after(str(ms)) == FrameId(ms, 0)


@given(NUMBERS, NUMBERS)
def test_an_id_is_read_as_it_is_written(ms: int, seq: int) -> None:
    id = FrameId(ms, seq)
    for read in (parse_lower, parse_upper, parse_after, FrameId.parse):
        assert read(str(id)) == id
        assert read(id) == id


@pytest.mark.parametrize(
    "cursor",
    [
        *["", "-", "+", " 1", "1 ", "1-", "-1", "1-2-3", "1.5", "x", "START", "0x1", "1-+"],
        *["9" * 41, str(MAX_CURSOR + 1), f"1-{MAX_CURSOR + 1}", "1\0", "\uff11", None, 7, b"1"],
    ],
)
def test_what_is_no_cursor(cursor: object) -> None:
    """C-T142"""
    for read in (parse_lower, parse_upper, parse_after):
        with pytest.raises(Invalid):
            read(cursor)


@pytest.mark.parametrize("cursor", ["start", "end"])
def test_a_tail_needs_a_concrete_id(cursor: str) -> None:
    """C-T116"""
    with pytest.raises(Invalid, match="concrete"):
        parse_after(cursor)
