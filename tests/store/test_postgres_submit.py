"""New executions that wait for a worker only are written by a statement of their own, which writes
what the general one does."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.execution.submission import Creation
from flowfabric.store.postgres import submit
from tests.store.postgres_bench import Bench, lose_reply, opened

PLAIN: list[dict[str, Any]] = [
    {},
    {"priority": 3, "payload": b"p"},
    {"policy": {"timeout_policy": {"attempt_timeout_ms": 50}}},
    {"policy": {"routing_requirements": {"required_capabilities": ["gpu"]}}},
    {"lane": "elsewhere", "creator": "someone", "encoding": "json"},
    {"flow": UUID(int=1)},
]
MORE: dict[str, dict[str, Any]] = {
    "key": {"key": "k"},
    "tag": {"tags": {"app.a": "b"}},
    "deadline": {"deadline_at": 9_999_999_999_999},
    "delay": {"delay_until": 9_999_999_999_999},
    "quota": {"policy": {"quotas": [{"quota": "q", "key": "k"}]}},
}
WAIT_ELSEWHERE = {"delay", "quota"}
"""Those have a row of `parked` in place of one of `ready`."""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that create executions."""
    names: list[str] = []
    honest = submit._statement

    def noting(values: list[Any]) -> tuple[str, list[Any]]:
        name, chosen = honest(values)
        names.append(name)
        return name, chosen

    monkeypatch.setattr(submit, "_statement", noting)
    return names


async def rows(bench: Bench, creations: Sequence[Creation]) -> list[str]:
    """What stands in the tables, with a number in place of each id."""
    found = []
    for table in ("execution", "ready", "parked", "dedup", "deadline", "tag"):
        query = f"select to_jsonb(t)::text from {bench.store.session.schema}.{table} t"
        found += [row for (row,) in await bench.store.session.ask(bench.store.session.load, query)]
    for number, creation in enumerate(creations):
        id = str(creation.snapshot.execution.uuid)
        found = [row.replace(id, f"id-{number}") for row in found]
    return sorted(found)


@pytest.mark.parametrize("count", [1, 2, len(PLAIN)])
@pytest.mark.parametrize("lost", [False, True])
async def test_plain_executions_are_written_as_the_general_statement_does(
    fresh_database: Callable[..., str],
    migrated_template: str,
    monkeypatch: pytest.MonkeyPatch,
    sent: list[str],
    count: int,
    lost: bool,
) -> None:
    """Also if the reply is lost, and if one of them exists already"""
    found = []
    for _ in range(2):
        async with opened(fresh_database(template=migrated_template)) as bench:
            creations = [bench.creation(**members) for members in PLAIN[:count]]
            await bench.store.submit(creations[:1], bench.now)
            if lost:
                lose_reply(bench.store.session.submit)
            answers = await bench.store.submit(creations, bench.now)
            assert [each is None for each in answers][1:] == [True] * (count - 1)
            found.append(await rows(bench, creations))
        monkeypatch.setattr(submit, "_BESIDE_READY", (0,))
    half = len(sent) // 2
    assert set(sent[:half]) == {"ready_executions"}
    assert set(sent[half:]) == {"submitted_executions"}
    assert len(found[0]) == 2 * count
    assert found[0] == found[1]


@pytest.mark.parametrize("more", MORE)
async def test_one_that_needs_more_takes_the_general_statement(
    bench: Bench, sent: list[str], more: str
) -> None:
    plain, other = bench.creation(), bench.creation(**MORE[more])
    await bench.store.submit([plain, other], bench.now)
    assert sent == ["submitted_executions"]
    assert len(await rows(bench, [])) == (4 if more in WAIT_ELSEWHERE else 5)
