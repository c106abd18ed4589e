"""Named queries: blocks, and the parts they include."""

import pytest

from flowfabric.store.sql import load_queries, read_blocks


def test_a_block_is_its_statement_without_comments() -> None:
    text = "-- A file.\n\n-- name: one\n-- Why.\nselect 1;\n\n-- name: two\nselect 2\n"
    assert read_blocks([text]) == {"one": "select 1", "two": "select 2"}


def test_a_later_block_replaces_an_earlier_one_of_its_name() -> None:
    texts = ["-- name: one\nselect 1\n", "-- name: one\nselect 2\n"]
    assert read_blocks(texts) == {"one": "select 2"}


def test_a_part_is_put_in_where_it_is_included_also_within_a_part() -> None:
    text = """
-- name: one
select a
-- include: tail
order by a
-- part: filter
-- Why.
    and b
-- part: tail
from t where c
    -- include: filter
"""
    (query,) = read_blocks([text]).values()
    assert query.split() == [
        "select",
        "a",
        "from",
        "t",
        "where",
        "c",
        "and",
        "b",
        "order",
        "by",
        "a",
    ]


def test_a_dialect_replaces_a_common_part() -> None:
    texts = ["-- part: tail\nfrom a\n", "-- part: tail\nfrom b\n", "-- name: q\n-- include: tail\n"]
    assert read_blocks(texts) == {"q": "from b"}


def test_a_missing_part_is_named() -> None:
    with pytest.raises(ValueError, match="one includes tail, which is no part"):
        read_blocks(["-- name: one\nselect 1\n-- include: tail\n"])


def test_a_part_that_includes_itself_is_named() -> None:
    text = "-- name: q\n-- include: a\n-- part: a\n-- include: b\n-- part: b\n-- include: a\n"
    with pytest.raises(ValueError, match="a part includes itself: q > a > b > a"):
        read_blocks([text])


def test_a_common_statement_is_written_as_each_dialect_has_it() -> None:
    queries = {
        dialect: load_queries(dialect, "ff")["attempts_of"] for dialect in ("postgres", "sqlite")
    }
    assert queries == {
        "postgres": 'select doc from ff.attempt where id = $1 order by "index"',
        "sqlite": 'select doc from attempt where id = ?1 order by "index"',
    }
