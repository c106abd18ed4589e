"""Flows and waits on SQLite: the plans."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.store.sqlite import open_sqlite
from tests.store.sqlite_bench import plan


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    path = str(tmp_path / "plans.db")
    store = await open_sqlite(path)
    await store.migrate()
    yield path
    await store.close()


# -- flows


async def test_edges_are_found_by_the_index_made_for_them(path: str) -> None:
    for name, found in {
        "edges_by_id": "PRIMARY KEY (flow=? AND id=?)",
        "edges_out": "INDEX edge_upstream (flow=? AND upstream=? AND id>?)",
        "unsettled_edges_out": "INDEX edge_unsettled (flow=? AND upstream=? AND id>?)",
        "edges_in": "INDEX edge_downstream (flow=? AND downstream=? AND id>?)",
    }.items():
        assert f"SEARCH edge USING {found}" in plan(path, name, b"", b"", b"", 1, 500)
    text = plan(path, "unsatisfied_edges_in", b"", b"", b"")
    assert "SEARCH edge USING INDEX edge_downstream (flow=? AND downstream=?)" in text
    text = plan(path, "edges_of_flow", b"", b"", 0, 500)
    assert "SEARCH edge USING PRIMARY KEY (flow=? AND id>?)" in text
    assert "TEMP B-TREE" not in text


async def test_edges_are_settled_and_recalled_by_key(path: str) -> None:
    assert "PRIMARY KEY (flow=? AND id=?)" in plan(path, "settled_edges", 1, b"", b"")
    text = plan(path, "needed", 4, b"", b"", 0)
    assert "SEARCH d USING PRIMARY KEY (flow=? AND id=?)" in text
    assert "SEARCH d USING INDEX edge_downstream (flow=? AND downstream=?)" in text


async def test_members_are_read_in_the_order_of_their_index(path: str) -> None:
    for name in ("members", "living_members"):
        text = plan(path, name, flow=b"", after=b"", limit=500)
        assert "SEARCH e USING COVERING INDEX execution_flow (flow=? AND id>?)" in text
        assert "TEMP B-TREE" not in text
        assert ("done" in text) == (name == "members")


async def test_members_are_counted_by_key(path: str) -> None:
    text = plan(path, "member_counts", flow=b"")
    assert text.count("SEARCH e USING COVERING INDEX execution_flow (flow=?)") == 4
    assert text.count("SEARCH s USING") == 4


async def test_chores_are_found_by_key(path: str) -> None:
    assert "(flow=? AND id=? AND number=? AND kind=?)" in plan(
        path, "missing_outbox", b"", b"", 1, 1
    )
    assert "TEMP B-TREE" not in plan(path, "outbox", flow=b"", limit=9)
    text = plan(path, "owed_flows", after=b"", limit=9)
    assert (
        text.count("SEARCH c USING PRIMARY KEY (flow>?)")
        + text.count("SEARCH flow_outbox USING PRIMARY KEY (flow>?)")
        == 2
    )


async def test_what_is_trimmed_is_found_by_its_flow(path: str) -> None:
    whose = dict.fromkeys(("namespace", "tag_key", "tag_value"))
    text = plan(path, "trimmable_members", ended_before=1, now=1, limit=9, **whose)
    assert "SEARCH f USING COVERING INDEX flow_ended_at (ended_at<?)" in text
    assert "SEARCH e USING COVERING INDEX execution_flow (flow=?)" in text
    assert "SEARCH d USING PRIMARY KEY (id=?)" in text
    assert "SEARCH edge USING INDEX edge_downstream (flow=? AND downstream=?)" in plan(
        path, "trimmed_edges", b""
    ).replace("COVERING ", "")
    text = plan(path, "trimmable_flows", ended_before=1, limit=9, **whose)
    assert "SEARCH e USING COVERING INDEX execution_flow (flow=?)" in text


async def test_flows_are_listed_in_the_order_of_their_index(path: str) -> None:
    named = dict.fromkeys(("after_at", "namespace", "kind", "states", "tag_key", "tag_value"))
    for name in ("listed_flows", "listed_flows_newest_first"):
        text = plan(path, name, after_id=b"", limit=9, **named)
        assert "SEARCH f USING INDEX flow_created_at" in text
        assert "TEMP B-TREE" not in text


# -- waits


async def test_what_is_recalled_is_read_by_key(path: str) -> None:
    text = plan(path, "needed", 1, b"", b"", 0)
    assert "SEARCH w USING PRIMARY KEY (id=? AND waitpoint=?)" in text
    assert "SEARCH m USING PRIMARY KEY (id=? AND key=?)" in text
    assert "SEARCH s USING INDEX signal_waitpoint (id=? AND waitpoint=? AND number>?)" in text


async def test_signals_are_read_and_counted_by_key(path: str) -> None:
    given = {"id": b"", "after": 0, "limit": 9}
    text = plan(path, "signals_of", **given)
    assert "USING PRIMARY KEY (id=? AND number>?)" in text
    counted = plan(path, "signals_counted", suspension=b"", **given)
    assert "USING INDEX signal_suspension (id=? AND suspension=? AND number>?)" in counted
    assert "TEMP B-TREE" not in text + counted
    assert "PRIMARY KEY (id=? AND number=?)" in plan(path, "counted_signals", b"", b"", 1)


async def test_the_suspended_are_read_in_the_order_of_their_index(path: str) -> None:
    text = plan(path, "suspended_executions", since=0, id=b"", namespace="a", limit=9)
    assert "parked_since" in text
    assert "TEMP B-TREE" not in text


@pytest.mark.parametrize("name", ["trimmed_waitpoints", "trimmed_signals", "trimmed_marks"])
async def test_what_belongs_to_the_trimmed_is_found_by_key(path: str, name: str) -> None:
    assert "SEARCH" in plan(path, name, b"")
