"""After a commit: subscribers hear of it in the order in which they subscribed."""

from collections.abc import AsyncIterator

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.engine import Engine
from flowfabric.store.sqlite.store import open_sqlite


class Listener:
    def __init__(self, name: str, heard: list[tuple[str, Commit]]) -> None:
        self.name, self.heard = name, heard

    def committed(self, commit: Commit) -> None:
        self.heard.append((self.name, commit))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = await Engine.open(await open_sqlite(":memory:", inline=True))
    yield engine
    await engine.close()


async def test_subscribers_hear_of_a_commit_in_their_order(engine: Engine) -> None:
    heard: list[tuple[str, Commit]] = []
    engine._context.post_commit.subscribe(Listener("first", heard), Listener("second", heard))
    hints = engine.store.hints.count
    made = await engine.executions.submit(Submission(kind="job"))
    await engine.executions.cancel(made.id, reason="enough")
    assert [name for name, _ in heard] == ["first", "second", "first", "second"]
    (created,) = heard[0][1].created
    assert created.execution.id == made.id
    assert heard[0][1] == Commit(created=(created,), ready=True)
    assert heard[2][1] == Commit(ended=(made.id.uuid,))
    assert engine.store.hints.count > hints, "other processes are told as well"


async def test_the_earliest_moment_of_a_commit_is_published(engine: Engine) -> None:
    heard: list[tuple[str, Commit]] = []
    engine._context.post_commit.subscribe(Listener("only", heard))
    soon, late = Millis(engine.now() + 60_000), Millis(engine.now() + 90_000)
    await engine.executions.submit(Submission(kind="job", delay_until=late, deadline_at=soon))
    assert heard[0][1].due_at == soon
