"""That something changed: told to all who follow, from one read, and only of what they see."""

import asyncio

import httpx
import pytest

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.dashboard import change_feed
from flowfabric.server.dashboard.change_feed import ChangeFeed, ChangeNotice


@pytest.fixture
async def feed(monkeypatch: pytest.MonkeyPatch) -> ChangeFeed:
    """A feed that reads as soon as it is hinted."""
    monkeypatch.setattr(change_feed, "PACE", 0.0)
    monkeypatch.setattr("flowfabric.server.dashboard.overview_reader.FRESH", 0.0)
    return ChangeFeed()


async def cancelled(engine: Engine, namespace: str = "default") -> ExecutionId:
    """A run about which there is an event."""
    made = await engine.executions.submit(Submission(kind="job", namespace=namespace))
    assert isinstance(made, Submitted)
    await engine.executions.cancel(made.id, reason="test")
    return made.id


async def until_named(follower: change_feed.Follower, id: ExecutionId) -> ChangeNotice:
    """The notice that names this run; those about something else come before."""
    async with asyncio.timeout(60):
        while id.uuid not in (notice := await follower.next()).executions:
            pass
    return notice


async def test_all_who_follow_are_told_of_an_execution(engine: Engine, feed: ChangeFeed) -> None:
    with feed.follow(engine, None) as one, feed.follow(engine, None) as two:
        id = await cancelled(engine)
        assert id.uuid in (await until_named(one, id)).executions
        assert id.uuid in (await until_named(two, id)).executions


async def test_what_an_overview_has_read_is_told_as_well(engine: Engine, feed: ChangeFeed) -> None:
    with feed.follow(engine, "mine") as follower:
        id = await cancelled(engine, "mine")
        await feed.overviews.read(engine, None)
        await until_named(follower, id)


async def test_other_namespaces_are_not_named(engine: Engine, feed: ChangeFeed) -> None:
    with feed.follow(engine, "mine") as follower:
        other = await cancelled(engine, "theirs")
        mine = await cancelled(engine, "mine")
        notice = await until_named(follower, mine)
        assert other.uuid not in notice.executions


async def test_a_lane_is_something_that_changed(engine: Engine, feed: ChangeFeed) -> None:
    with feed.follow(engine, None) as follower:
        await follower.next()  # what was there when it began
        await engine.lanes.pause("closed", reason="test")
        async with asyncio.timeout(60):
            assert (await follower.next()).complete is False


async def test_the_events_are_not_read_while_no_page_follows(
    engine: Engine, feed: ChangeFeed
) -> None:
    states = []
    with feed.follow(engine, None):
        states.append(feed.is_reading)
    await asyncio.sleep(0)
    states.append(feed.is_reading)
    assert states == [True, False]
    with feed.follow(engine, None) as again:
        await until_named(again, await cancelled(engine))


@pytest.mark.parametrize(("scopes", "status"), [(["submit"], 403), (["read"], 403)])
async def test_who_may_follow(engine: Engine, scopes: list[str], status: int) -> None:
    made = await engine.tokens.create("caller", scopes, namespaces=["mine"])
    app = create_app(ServerContext(engine, Authentication(engine, is_open=False)))
    headers = {"authorization": f"Bearer {made.secret.reveal()}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://server", headers=headers
    ) as client:
        answer = await client.get("/v1/changes/stream?namespace=theirs")
    assert answer.status_code == status
