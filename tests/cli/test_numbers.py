"""Programs read what people read: attempts from 1, moments with a zone, plain ids."""

import asyncio
import json
import re
from typing import Any
from uuid import UUID

import pytest

from flowfabric import Fabric, Retry
from tests.cli.terminal import Cli

MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z"


@pytest.fixture
def retried(cli: Cli) -> str:
    """A run whose first attempt has failed, and whose second begins in an hour."""

    async def make() -> str:
        async with Fabric(cli.url) as fabric:

            @fabric.task(retries=1)
            async def stubborn() -> None:
                raise Retry("not yet", after="1h")

            run = await stubborn.submit()
            await (await fabric.worker()).run_until_idle()
            return str(run.id)

    return asyncio.run(make())


def show(cli: Cli, id: str) -> dict[str, Any]:
    """With the traceback of the failure, which no other command prints."""
    found: dict[str, Any] = json.loads(cli.typed("run", "show", id, "--json").stdout)
    return found


def test_waiting_without_a_terminal_counts_attempts_from_one(cli: Cli, retried: str) -> None:
    result = cli("run", "result", retried, "--wait", "--timeout", "1s", code=1)
    first = result.stderr.splitlines()[0]
    assert re.fullmatch(r"attempt 1 failed, retry after \S+ [0-9:]{8}[+-][0-9]{2}:[0-9]{2}", first)
    assert "attempt 0" not in result.stderr


def test_show_counts_attempts_from_one(cli: Cli, retried: str) -> None:
    shown = show(cli, retried)
    (attempt,) = shown["attempts"]
    assert (attempt["number"], attempt["previous"]) == (1, None)
    assert "index" not in attempt
    assert (shown["attempt"], shown["attempts_made"]) == (None, 1)
    assert re.fullmatch(rf"attempt 1 failed, retry after {MOMENT}", shown["blocking_detail"])
    for moment in (shown["created_at"], attempt["started_at"], attempt["ended_at"]):
        assert re.fullmatch(MOMENT, moment)
    assert str(UUID(shown["id"])) == shown["id"]
    text = cli.typed("run", "show", retried).stdout
    assert re.search(r"attempt 1 failed, retry after \S+ [0-9:]{8}[+-]", text)


def test_a_lease_that_is_held_shows_its_attempt_from_one(cli: Cli, retried: str) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    cli("grants", "take", id)
    shown = cli.json("run", "show", id)
    assert (shown["attempt"], shown["lease"]["attempt"]) == (1, 1)
    assert re.fullmatch(MOMENT, shown["lease"]["expires_at"])
    listed = {run["id"]: run for run in cli.lines("run", "list")}
    assert (listed[id]["attempt"], listed[retried]["attempt"]) == (1, None)


def test_list_says_what_describe_says(cli: Cli, retried: str) -> None:
    (run,) = cli.lines("run", "list")
    assert run["blocking_detail"] == show(cli, retried)["blocking_detail"]
    assert (run["attempts_made"], run["id"]) == (1, retried)
    assert re.fullmatch(MOMENT, run["due_at"])


def test_events_count_attempts_from_one(cli: Cli, retried: str) -> None:
    events = cli.lines("run", "events", retried)
    assert [event["attempt"] for event in events] == [1, 1]
    assert re.fullmatch(MOMENT, events[1]["detail"]["until"])
    assert {event["id"] for event in events} == {retried}
